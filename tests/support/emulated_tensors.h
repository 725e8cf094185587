// Tensors for tests of kernels that run without a card, and how TMA sees them.
#pragma once
#include "tests/support/emulated_card.h"

namespace vitrum::cuda {

// Rounded.
static inline std::vector<bf16> noise(int64_t count, float scale, uint32_t stream, float mean = 0) {
  PhiloxStream draw(7, stream, 0);
  std::vector<bf16> values(static_cast<size_t>(count));
  for (bf16& v : values) v = {to_bf16(mean + scale * static_cast<float>(draw.normal()))};
  return values;
}
static inline double value(bf16 x) { return from_bf16(x.bits); }
static inline double cdf(double x) { return std::erfc(-x / M_SQRT2) / 2; }
// As tile_map and permuted_rows_map of tensor_map.h.
static inline CUtensorMap tile_map(const std::vector<bf16>& x, int64_t columns, int64_t depth,
                                   int64_t rows) {
  return {
      &x[0].bits, {columns, static_cast<int64_t>(x.size()) / columns}, {1, columns}, {depth, rows}};
}
static inline CUtensorMap permuted_rows_map(const std::vector<bf16>& w, int64_t row, int64_t depth,
                                            int64_t rows) {
  return {&w[0].bits,
          {row, 2, 4, 4, static_cast<int64_t>(w.size()) / row / 32},
          {1, row, 8 * row, 2 * row, 32 * row},
          {depth, 2, 4, 4, rows / 32}};
}

}  // namespace vitrum::cuda
