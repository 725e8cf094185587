// PNG files chunk by chunk, good and bad ones.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace vitrum::test {

std::string big_endian(uint32_t n);

std::string png_signature();
std::string png_chunk(std::string_view type, std::string_view data);
// Signature and header, then `more`.
std::string png_of(uint32_t width, uint32_t height, int depth, int color, std::string_view more,
                   bool interlaced = false);

}  // namespace vitrum::test
