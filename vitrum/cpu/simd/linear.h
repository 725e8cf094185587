// What surrounds the matrix products of a linear layer, on blocks that are still in the cache.
#pragma once
#include <cstdint>

#include "vitrum/cpu/simd/simd.h"

namespace vitrum::cpu {

struct LinearEpilogueArgs {
  Array y, saved;     // (rows, width) each; saved may be absent
  const float* bias;  // may be null
  Act act;
  const DropSite* drop;  // may be null
  int64_t width;         // of y
};
struct LinearGradArgs {
  Array dy, saved;  // saved: absent without activation
  Act act;
  const DropSite* drop;
  int64_t width;
};
struct LinearKernels {
  // y = dropout(act(c + bias)) for rows [row, row + rows) and columns [column, column + columns); c
  // is the product with stride ldc, and may be the very memory of y or saved. factors: `columns` +
  // 16 floats of scratch.
  void (*epilogue)(const LinearEpilogueArgs&, const float* c, int64_t ldc, int64_t row,
                   int64_t rows, int64_t column, int64_t columns, float* factors);
  // The same for a block of f32 that goes on being used: c is replaced by the result. past: y and
  // saved are written past the caches, which would have no room for them.
  void (*epilogue_through)(const LinearEpilogueArgs&, float* c, int64_t ldc, int64_t row,
                           int64_t rows, int64_t column, int64_t columns, float* factors,
                           bool past);
  // to (rows, width) = dy * dropout * act'(saved), rounded where dy is; bf16 only where dy and
  // saved are. factors: `width` + 16 floats.
  void (*gradient)(const LinearGradArgs&, int64_t row, int64_t rows, Array to, float* factors);
  // The same in place, c (rows, columns) with stride ldc being a block of dy: columns [column,
  // column + columns) of rows [row, row + rows). f32 only.
  void (*gradient_block)(const LinearGradArgs&, float* c, int64_t ldc, int64_t row, int64_t rows,
                         int64_t column, int64_t columns, float* factors);
  // sums[j] += sum over rows of x[r * stride + j], one row after the other.
  void (*column_sums)(Array x, int64_t at, int64_t stride, int64_t rows, int64_t columns,
                      float* sums);
};

}  // namespace vitrum::cpu
