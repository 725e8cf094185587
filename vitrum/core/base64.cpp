#include "vitrum/core/base64.h"

#include <cstdint>

namespace vitrum {
namespace {

int digit_of(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

}  // namespace

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  while (text.ends_with('=') && text.size() % 4 != 2) text.remove_suffix(1);
  std::string out;
  out.reserve(text.size() / 4 * 3 + 2);
  uint32_t word = 0;
  int bits = 0;
  for (const char c : text) {
    const int digit = digit_of(c);
    if (digit < 0) return std::nullopt;
    word = word << 6 | static_cast<uint32_t>(digit), bits += 6;
    if (bits >= 8) bits -= 8, out += static_cast<char>(word >> bits & 255);
  }
  if ((word & ((1u << bits) - 1)) != 0) return std::nullopt;
  return out;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const size_t count = bytes.size() - at < 3 ? bytes.size() - at : 3;
    uint32_t word = 0;
    for (size_t i = 0; i < 3; ++i)
      word = word << 8 | (i < count ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    for (size_t i = 0; i < 4; ++i) out += i <= count ? kDigits[word >> (18 - 6 * i) & 63] : '=';
  }
  return out;
}

}  // namespace vitrum
