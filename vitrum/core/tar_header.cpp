#include "vitrum/core/tar_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

namespace vitrum {
namespace {

constexpr size_t kNameSize = 100, kSizeAt = 124, kSizeSize = 12, kSumAt = 148, kSumSize = 8,
                 kMagicAt = 257, kPrefixAt = 345, kPrefixSize = 155;

std::string_view field(const TarHeader& header, size_t at, size_t size) {
  return {header.bytes.data() + at, size};
}

std::string text(const TarHeader& header, size_t at, size_t size) {
  const std::string_view all = field(header, at, size);
  return std::string(all.substr(0, all.find('\0')));
}

// Octal digits, padded with blanks or NUL; -1 where it is something else.
int64_t octal(std::string_view digits) {
  int64_t n = 0;
  digits = digits.substr(0, digits.find('\0'));
  while (digits.starts_with(' ')) digits.remove_prefix(1);
  while (digits.ends_with(' ')) digits.remove_suffix(1);
  for (const char c : digits) {
    if (c < '0' || c > '7') return -1;
    n = 8 * n + (c - '0');  // at most twelve digits: no overflow
  }
  return n;
}

// GNU's way to write what has more than eleven octal digits: a byte 0x80, then a big-endian number.
int64_t base_256(std::string_view bytes) {
  uint64_t n = 0;
  for (const char c : bytes.substr(1)) {
    if (n >> 55 != 0) return -1;
    n = n << 8 | static_cast<unsigned char>(c);
  }
  return bytes.front() == '\x80' ? static_cast<int64_t>(n) : -1;
}

// All bytes, those of the sum itself counted as blanks.
template <class Byte>
int64_t sum_of(const TarHeader& header) {
  int64_t sum = 0;
  for (size_t i = 0; i < header.bytes.size(); ++i)
    sum += i >= kSumAt && i < kSumAt + kSumSize ? ' ' : static_cast<Byte>(header.bytes[i]);
  return sum;
}

}  // namespace

std::string TarHeader::name() const {
  const std::string own = text(*this, 0, kNameSize);
  const bool ustar = field(*this, kMagicAt, 6) == std::string_view("ustar\0", 6);
  const std::string prefix = ustar ? text(*this, kPrefixAt, kPrefixSize) : "";
  return prefix.empty() ? own : prefix + "/" + own;
}

int64_t TarHeader::size() const {
  const std::string_view digits = field(*this, kSizeAt, kSizeSize);
  return (digits.front() & 0x80) != 0 ? base_256(digits) : octal(digits);
}

bool TarHeader::is_end() const {
  return std::ranges::all_of(bytes, [](char c) { return c == 0; });
}

// Some old programs added up signed bytes.
bool TarHeader::is_intact() const {
  const int64_t said = octal(field(*this, kSumAt, kSumSize));
  return said == sum_of<unsigned char>(*this) || said == sum_of<signed char>(*this);
}

TarHeader tar_header(std::string_view name, int64_t size) {
  assert(!name.empty() && name.size() <= kNameSize && size >= 0 && size < int64_t{1} << 33);
  TarHeader header;
  const auto put = [&](size_t at, std::string_view value) {
    std::ranges::copy(value, header.bytes.begin() + static_cast<int64_t>(at));
  };
  put(0, name);
  put(100, "0000644"), put(108, "0000000"), put(116, "0000000");  // mode, owner, group
  put(kSizeAt, fmt::format("{:011o}", size));
  put(136, "00000000000");  // modified in 1970
  put(156, "0"), put(kMagicAt, std::string_view("ustar\0"
                                                "00",
                                                8));
  put(kSumAt, fmt::format("{:06o}", sum_of<unsigned char>(header)));
  header.bytes[kSumAt + 7] = ' ';
  return header;
}

}  // namespace vitrum
