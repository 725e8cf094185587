#include "vitrum/core/shown.h"

#include "vitrum/core/utf8.h"

namespace vitrum {

std::string shown(std::string_view text) { return fit_columns(text, 80); }

// What to do comes last in a message, so of one that is too long the middle is left out.
std::string one_line(std::string_view message) {
  constexpr size_t kMost = 4000, kEnd = 400;
  const std::string text = printable(message);
  const std::string whole = fit_columns(text, kMost);
  if (whole.size() >= text.size()) return text;
  size_t end = text.size() - kEnd;
  while ((static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) ++end;  // inside a character
  return fit_columns(text, kMost - kEnd) + text.substr(end);
}

}  // namespace vitrum
