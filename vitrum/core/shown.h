#pragma once
#include <string>
#include <string_view>

namespace vitrum {

// For messages that quote a file, a server or the command line, where a text may be long and hold
// anything: printable, at most 80 columns, on one line.
std::string shown(std::string_view text);

// A whole message, for people: control characters are escaped, and of a text of more than 4,000
// columns the middle is left out.
std::string one_line(std::string_view message);

}  // namespace vitrum
