// The loops over pixels that preprocessing spends its time in, with AVX2 where the processor has
// it. Internal to data/.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace vitrum {

// Weights are integers scaled by 2^22: the sum of 8-bit pixels times weights keeps a bit for
// overshoot and a sign.
inline constexpr int kWeightBits = 22;

// The weights of one output position, in pairs, each split into an upper and a lower half that fit
// 16 bits: w = upper * 2^11 + lower. An odd number is filled up with a zero.
struct WeightPair {
  int16_t upper[2], lower[2];
};
inline size_t pairs_of(size_t weights) { return (weights + 1) / 2; }
void pair_up(std::span<const int32_t> weights, WeightPair* pairs);

// out[x] = the rounded, clamped sum over k of rows[k * stride + x] * weights[k], for x < width.
void weigh_rows(const uint8_t* rows, size_t stride, std::span<const int32_t> weights,
                std::span<const WeightPair> pairs, size_t width, uint8_t* out);

// out (columns, rows) = in (rows, columns) transposed; strides in bytes.
void transpose(const uint8_t* in, size_t in_stride, size_t rows, size_t columns, uint8_t* out,
               size_t out_stride);

// Interleaved RGB into three planes.
void split_rgb(const uint8_t* rgb, size_t width, uint8_t* red, uint8_t* green, uint8_t* blue);

}  // namespace vitrum
