// GELU (by erf) and its derivative for results in bf16, cheap enough for the end of a matrix
// product: one operation of the special function unit and about ten others. Plain C++, so that
// tests can hold every bf16 number against erf without a card.
#pragma once
#include <cmath>

#ifdef __CUDACC__
#define VITRUM_EVERYWHERE __host__ __device__ __forceinline__
#else
#define VITRUM_EVERYWHERE inline
#endif

namespace vitrum::cuda {

// Beyond it the lower tail of the normal distribution is no number of f32.
constexpr float kGeluEnd = 16;

// At 0 <= t <= kGeluEnd: x Phi(x) = max(x, 0) - t Phi(-t) for t = |x|, without cancellation.
// Phi(-t) is 2 to a polynomial: within 0.0014 of its value for t < 5, within 0.0035 down to the
// last number of f32.
template <class Exp2>
VITRUM_EVERYWHERE float gelu_of(float x, float t, const Exp2& exp2) {
  float p = 3.95928328e-06f;
  p = fmaf(p, t, -1.85727738e-04f);
  p = fmaf(p, t, 3.55230086e-03f);
  p = fmaf(p, t, -3.65771689e-02f);
  p = fmaf(p, t, -4.87994254e-01f);
  p = fmaf(p, t, -1.13226449e+00f);
  p = fmaf(p, t, -1.00199854e+00f);
  return fmaf(-t, exp2(p), fmaxf(x, 0.0f));
}

// The derivative, Phi(x) + x phi(x). That at -t is exp(-t^2 / 2) times a polynomial, within 2^-11
// of its value or 2^-15; the derivatives at x and -x sum to one.
template <class Exp2>
VITRUM_EVERYWHERE float gelu_derivative_of(float x, float t, const Exp2& exp2) {
  constexpr float kRoot = 0.849321800f;  // of log2(e) / 2
  float p = 2.12259e-03f;
  p = fmaf(p, t, -2.142537e-02f);
  p = fmaf(p, t, 9.137118e-02f);
  p = fmaf(p, t, -2.2808705e-01f);
  p = fmaf(p, t, 7.9309317e-01f);
  p = fmaf(p, t, -4.9979413e-01f);
  const float root = t * kRoot, above_half = fmaf(p, exp2(-root * root), 0.5f);  // at t
  return 0.5f + copysignf(above_half, x);
}

}  // namespace vitrum::cuda
