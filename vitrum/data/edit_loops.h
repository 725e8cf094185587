// The loops over pixels that augmentation spends its time in, with AVX2 where the processor has it.
// Arithmetic and roundings are Pillow's. Internal to data/.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace vitrum {

using Lut = std::array<uint8_t, 256>;
using Histogram = std::array<uint32_t, 256>;

void apply_lut(const Lut& lut, std::span<uint8_t> pixels);
Histogram histogram_of(std::span<const uint8_t> pixels);

// ITU-R 601 luma in 16-bit fixed point: Pillow's L.
void to_grey(const uint8_t* red, const uint8_t* green, const uint8_t* blue, size_t n,
             uint8_t* grey);

// pixels = from + alpha * (pixels - from), cut to a byte: Image.blend(from, pixels, alpha).
void blend(const uint8_t* from, float alpha, size_t n, uint8_t* pixels);

// Inner pixels of one row: each weighs 5, its eight neighbours 1 (ImageFilter.SMOOTH).
void smooth_row(const uint8_t* above, const uint8_t* row, const uint8_t* below, size_t width,
                uint8_t* out);

// A box of 2 * radius + 1 values of weight `inner` between two of weight `outer`, in units of
// 2^-24. `rows` are the 2 * radius + 3 rows (or one row at as many offsets) that the box covers.
struct BoxWeights {
  int radius = 0;
  uint32_t inner = 0, outer = 0;
};
void box_row(const BoxWeights& box, const uint8_t* const* rows, size_t n, uint8_t* out);

}  // namespace vitrum
