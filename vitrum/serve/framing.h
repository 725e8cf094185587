// Which header blocks are refused before anything is read of the body. Two servers that disagree on
// where a request ends let one smuggle a request past the other; so whatever could be read in two
// ways is refused, and the connection closed.
#pragma once
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace vitrum::serve {

using HeaderField = std::pair<std::string_view, std::string_view>;  // name, value

// `minor` is of HTTP/1.x. Returns why it is refused, for the answer; nothing where it is fine.
std::optional<std::string_view> refuse_framing(int minor, std::span<const HeaderField> fields);

}  // namespace vitrum::serve
