// Windows of images (convolution, pooling) and batch norm.
#pragma once
#include <cstdint>

#include "vitrum/cpu/simd/simd.h"

namespace vitrum::cpu {

// Windows of `rows` x `columns` pixels over images x (B, height, width, channels): `down` x
// `across` an image, window (i, j) starting at pixel (i * step + top, j * step + left).
struct Windows {
  Array x;
  int64_t height, width, channels;
  int64_t down, across;
  int64_t step, top, left;
  int64_t rows, columns;
};

// act(v * scale + shift + skip) for a matrix (rows, width); scale and shift are (width).
struct ChannelNormArgs {
  Array y, skip;  // skip may be absent
  const float *scale, *shift;
  Act act;  // none or ReLU
  int64_t width;
  bool past = false;  // y is too large for the caches, and its rows are whole vectors
};
struct BatchNormBwdArgs {
  Array dy, x, y, dx, dskip;  // y: with ReLU, else absent; dx, dskip may be absent
  const float* mean;
  // dx = d * scale - (offset + (x - mean) * slope), the bracket for rows that count only
  const float *scale, *offset, *slope;
  int64_t width;
  bool past = false;  // dx and dskip: as above
};

struct ConvKernels {
  // Every window flattened to (rows, columns, channels) is a row of a matrix, zeros beyond the
  // image. Columns [first, last) of `count` rows: to[r * stride + column - first].
  void (*unfold)(const Windows&, int64_t row, int64_t count, int64_t first, int64_t last, float* to,
                 int64_t stride);
  // The greatest of each window [first, last), beyond the image not looked at.
  void (*max_pool)(const Windows&, Array y, int64_t first, int64_t last);
  // Lines [first, last) of dx, B * height in total; a window's gradient goes to its first greatest.
  // scratch: a line in floats, rounded up to 16.
  void (*max_pool_bwd)(const Windows&, Array dy, Array dx, int64_t first, int64_t last,
                       float* scratch);
};

struct BatchNormKernels {
  // Over rows [first, last): sum += x - shift and squares += (x - shift)^2, each (width).
  void (*moments)(Array x, int64_t width, const float* shift, int64_t first, int64_t last,
                  float* sum, float* squares);
  // Rows [first, last) of y, from x.
  void (*apply)(const ChannelNormArgs&, Array x, int64_t first, int64_t last);
  // The same for rows [row, row + rows) and columns [column, column + columns), from what y itself
  // would hold of a product c with stride ldc, which may be the memory of y.
  void (*apply_block)(const ChannelNormArgs&, const float* c, int64_t ldc, int64_t row,
                      int64_t rows, int64_t column, int64_t columns);
  // Over rows [first, last), d being dy where y > 0: sum += d, product += d (x - mean).
  void (*moments_bwd)(const BatchNormBwdArgs&, int64_t first, int64_t last, float* sum,
                      float* product);
  void (*apply_bwd)(const BatchNormBwdArgs&, bool counted, int64_t first, int64_t last);
};

}  // namespace vitrum::cpu
