#include "tests/support/png_files.h"

#include <zlib.h>

namespace vitrum::test {

std::string big_endian(uint32_t n) {
  std::string s;
  for (int shift = 24; shift >= 0; shift -= 8) s += static_cast<char>(n >> shift);
  return s;
}

std::string png_signature() { return "\x89PNG\r\n\x1a\n"; }

std::string png_chunk(std::string_view type, std::string_view data) {
  const std::string body = std::string(type) + std::string(data);
  const auto crc =
      crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return big_endian(static_cast<uint32_t>(data.size())) + body +
         big_endian(static_cast<uint32_t>(crc));
}

std::string png_of(uint32_t width, uint32_t height, int depth, int color, std::string_view more,
                   bool interlaced) {
  return png_signature() +
         png_chunk("IHDR", big_endian(width) + big_endian(height) +
                               std::string{static_cast<char>(depth), static_cast<char>(color), 0, 0,
                                           static_cast<char>(interlaced)}) +
         std::string(more);
}

}  // namespace vitrum::test
