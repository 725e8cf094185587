// What the kernels with a LayerNorm's backward pass share.
#pragma once
#include "vitrum/cuda/norm/layer_norm.cuh"

namespace vitrum::cuda {

// The gradient g = dy w of one row, less its projections on 1 and on the normalised row.
// Products and sums are spelt out: paths and fused ops must agree to the bit, however the compiler
// would contract them.
struct RowGradient {
  float mean, rstd;
  float sum = 0, sum_hat = 0;  // of g and of g hat; after finish(), their means

  __device__ __forceinline__ float hat(float x) const {
    return __fmul_rn(__fsub_rn(x, mean), rstd);
  }
  __device__ __forceinline__ void add(float g, float hat) {
    sum = __fadd_rn(sum, g), sum_hat = fmaf(g, hat, sum_hat);
  }
  template <int kLanes>
  __device__ __forceinline__ void finish(float width) {
    sum = __fdiv_rn(row_sum<kLanes>(sum), width);
    sum_hat = __fdiv_rn(row_sum<kLanes>(sum_hat), width);
  }
  // The same with 1 / width at hand. For widths of at most 2048 that eight divides, the quotient
  // corrected by what is left of the dividend is the nearest number, as division gives it.
  template <int kLanes>
  __device__ __forceinline__ void finish(float width, float inverse) {
    const auto divided = [=](float x) {
      const float quotient = __fmul_rn(x, inverse);
      return fmaf(fmaf(-quotient, width, x), inverse, quotient);
    };
    sum = divided(row_sum<kLanes>(sum)), sum_hat = divided(row_sum<kLanes>(sum_hat));
  }
  __device__ __forceinline__ float dx(float g, float hat) const {
    return __fmul_rn(fmaf(-hat, sum_hat, __fsub_rn(g, sum)), rstd);
  }
};

// Sums of (.., width): each has its place, or is not wanted.
struct AddToEach {
  float *dw, *dbias, *result, *dgamma;
  int64_t width;
  __device__ void operator()(int64_t column, float sum) const {
    float* const to =
        column < 2 * width ? (column < width ? dw : dbias) : (column < 3 * width ? result : dgamma);
    if (to) to[column % width] += sum;
  }
};

}  // namespace vitrum::cuda
