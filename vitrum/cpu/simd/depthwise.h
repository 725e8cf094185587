// Convolution of every channel with a window of its own.
#pragma once
#include <cstdint>

#include "vitrum/cpu/simd/simd.h"

namespace vitrum::cpu {

// x (B, height, width, channels) and what its windows of `kernel` x `kernel` pixels, which reach
// `padding` pixels over its edges, give: y (B, down, across, channels).
struct DepthwiseArgs {
  Array x, y;
  const float* w;     // (kernel, kernel, channels)
  const float* bias;  // (channels), may be null
  int64_t height, width, down, across, channels, kernel, padding;
};

struct DepthwiseKernels {
  // Lines [first, last) of y, B * down in total.
  void (*forward)(const DepthwiseArgs&, int64_t first, int64_t last);
  // Of the same lines, y being the gradient: sums (kernel * kernel + 1, channels) of the weights'
  // and, behind them, the bias' gradients, overwritten.
  void (*weights_bwd)(const DepthwiseArgs&, int64_t first, int64_t last, float* sums);
};

}  // namespace vitrum::cpu
