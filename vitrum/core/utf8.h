#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace vitrum {

struct CodePoint {
  char32_t value;  // U+FFFD where the bytes are not UTF-8
  size_t bytes;    // how many were consumed; 1 for a bad byte
  int columns;     // on a terminal; a guess that errs on the wide side
};

// The first code point of a non-empty text.
CodePoint decode_utf8(std::string_view text);

// The code point in UTF-8, as it stands in `text` or as U+FFFD.
std::string_view spelling(std::string_view text, const CodePoint& c);

bool is_utf8(std::string_view text);

// For people to read, in one line: control characters and bytes that are not UTF-8 as escapes.
// Names of files and classes may hold a terminal's commands.
std::string printable(std::string_view text);

int columns(std::string_view text);
// At most `width` columns, ending in "…" where something was cut; bad bytes and control characters
// are replaced.
std::string fit_columns(std::string_view text, int width);

}  // namespace vitrum
