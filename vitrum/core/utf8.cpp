#include "vitrum/core/utf8.h"

#include <fmt/format.h>

namespace vitrum {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

CodePoint code_point(char32_t value, size_t bytes) {
  // From Hangul on, most of what people write is double width.
  const bool wide =
      value >= 0x1100 && !(value >= 0x2000 && value < 0x2E80) && value != kReplacement;
  return {value, bytes, wide ? 2 : 1};
}

bool is_bad_byte(const CodePoint& c) { return c.value == kReplacement && c.bytes == 1; }

// What a terminal obeys rather than shows; marks of writing direction turn what is around them.
bool is_control(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x200E || c == 0x200F ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

}  // namespace

CodePoint decode_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return code_point(first, 1);
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return code_point(kReplacement, 1);

  char32_t value = first & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return code_point(kReplacement, 1);
    value = value << 6 | (byte(i) & 0x3Fu);
  }
  const bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
  const bool surrogate = value >= 0xD800 && value < 0xE000;
  if (overlong || surrogate || value > 0x10FFFF) return code_point(kReplacement, 1);
  return code_point(value, length);
}

std::string_view spelling(std::string_view text, const CodePoint& c) {
  return c.value == kReplacement ? std::string_view("\xEF\xBF\xBD") : text.substr(0, c.bytes);
}

bool is_utf8(std::string_view text) {
  for (CodePoint c; !text.empty(); text.remove_prefix(c.bytes))
    if (c = decode_utf8(text); is_bad_byte(c)) return false;
  return true;
}

std::string printable(std::string_view text) {
  std::string out;
  for (CodePoint c; !text.empty(); text.remove_prefix(c.bytes)) {
    c = decode_utf8(text);
    if (is_bad_byte(c) || (c.value < 0x80 && is_control(c.value)))
      out += c.value == '\n' ? "\\n" : fmt::format("\\x{:02x}", static_cast<uint8_t>(text[0]));
    else if (is_control(c.value))
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c.value));
    else
      out += spelling(text, c);
  }
  return out;
}

int columns(std::string_view text) {
  int n = 0;
  for (CodePoint c; !text.empty(); text.remove_prefix(c.bytes)) {
    c = decode_utf8(text);
    n += c.columns;
  }
  return n;
}

std::string fit_columns(std::string_view text, int width) {
  std::string fitted;
  const int room = columns(text) <= width ? width : width - 1;
  int used = 0;
  for (CodePoint c; !text.empty(); text.remove_prefix(c.bytes)) {
    c = decode_utf8(text);
    if (used + c.columns > room) return width > 0 ? fitted + "…" : "";
    fitted += is_control(c.value) ? "?" : spelling(text, c);
    used += c.columns;
  }
  return fitted;
}

}  // namespace vitrum
