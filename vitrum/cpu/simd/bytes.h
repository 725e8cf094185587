// Operands of eight bits (core/eight_bits.h), packed for the units that multiply them
// (simd/tiles.h).
#pragma once
#include "vitrum/cpu/simd/tiles.h"

namespace vitrum::cpu {

constexpr int64_t byte_band_words(int64_t depth) {
  return (depth + kByteStepDepth - 1) / kByteStepDepth * kStepWords;
}
constexpr int64_t packed_byte_words(int64_t lines, int64_t depth) {
  return bands_of(lines) * byte_band_words(depth);
}

// What bytes of a row stand for: scale * (byte - zero).
struct ByteRows {
  float* scale;
  int32_t* zero;
};
// scale * byte, and the sum of all bytes of a row.
struct ByteWeights {
  float* scale;
  int32_t* sum;
};

struct ByteEpilogueArgs {
  Array y;            // (.., width)
  const float* bias;  // may be null
  Act act;
  int64_t width;
};

struct ByteKernels {
  // Rows [first, first + count) of x, at most kBand of them, as a band of the left operand.
  void (*pack_rows)(Array x, int64_t first, int64_t count, int64_t width, uint32_t* to, ByteRows);
  // The same of weights, as a band of the right operand.
  void (*pack_weights)(Array w, int64_t first, int64_t count, int64_t width, uint32_t* to,
                       ByteWeights);
  // Those that are bytes already, with scales that are known.
  void (*pack_bytes)(const int8_t* w, int64_t first, int64_t count, int64_t width, uint32_t* to,
                     int32_t* sum);
  // y = act(the numbers that sums of products stand for + bias) for rows [row, row + rows) and
  // columns [column, column + columns) of y. GELU is that of bf16 results: what comes next is
  // rounded to eight bits, or added to a sum. c is followed by 16 words of scratch.
  void (*epilogue)(const ByteEpilogueArgs&, const int32_t* c, int64_t ldc, int64_t row,
                   int64_t rows, int64_t column, int64_t columns, ByteRows left, ByteWeights right);
};

}  // namespace vitrum::cpu
