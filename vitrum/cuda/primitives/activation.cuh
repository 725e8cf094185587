// The activations and their derivatives in f32, cheap enough for a pass over memory at full speed:
// about twenty instructions an element, two of them of the special function unit.
#pragma once
#include <type_traits>

#include "vitrum/cuda/primitives/device.cuh"
#include "vitrum/cuda/primitives/gelu.h"

namespace vitrum::cuda {

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

constexpr float kLog2e = 1.44269504f;

struct Normal {
  float cdf, bell;  // bell: exp(-x^2 / 2)
};
// The standard normal distribution. The lower tail is the bell times a polynomial in
// 1 / (1 + 0.35 |x|), so it keeps its relative accuracy (1e-6) where 1 + erf would cancel. Products
// and sums are spelt out here and below: kernels that inline this must agree to the bit, however
// the compiler would contract them.
__device__ __forceinline__ Normal normal(float x) {
  const float u = reciprocal_approx(fmaf(fabsf(x), 0.35f, 1.0f));
  float p = 4.886751249e-02f;
  p = fmaf(p, u, -2.019366324e-01f);
  p = fmaf(p, u, 2.405529618e-01f);
  p = fmaf(p, u, -1.714678667e-02f);
  p = fmaf(p, u, 1.561262757e-01f);
  p = fmaf(p, u, 1.332799047e-01f);
  p = fmaf(p, u, 1.402852684e-01f);
  p = fmaf(p, u, -2.838528417e-05f);
  const float bell = exp2_approx(__fmul_rn(__fmul_rn(x, x), -0.5f * kLog2e));
  const float tail = __fmul_rn(bell, p);
  return {x < 0 ? tail : __fsub_rn(1.0f, tail), bell};
}

// A result of bf16 needs fewer instructions than one of f32. NaN stays NaN.
__device__ __forceinline__ float gelu_range(float x) {
  float t;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(t) : "f"(fabsf(x)), "f"(kGeluEnd));
  return t;
}
__device__ __forceinline__ float gelu16(float x) {
  return gelu_of(x, gelu_range(x), [](float e) { return exp2_approx(e); });
}
__device__ __forceinline__ float gelu16_derivative(float x) {
  return gelu_derivative_of(x, gelu_range(x), [](float e) { return exp2_approx(e); });
}

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)), with 2u = x (kTwoU1 + kTwoU3 x^2).
constexpr float kTwoU1 = 1.595769122f, kTwoU3 = 0.0713548163f;

// T: what the result is rounded to.
template <Act kAct, class T>
__device__ __forceinline__ float activate(float x) {
  if constexpr (kAct == Act::kGelu && std::is_same_v<T, bf16>) return gelu16(x);
  if constexpr (kAct == Act::kGelu) return __fmul_rn(x, normal(x).cdf);
  if constexpr (kAct == Act::kGeluTanh) {
    const float two_u = __fmul_rn(x, fmaf(__fmul_rn(x, x), kTwoU3, kTwoU1));
    const float e = exp2_approx(__fmul_rn(two_u, -kLog2e));
    return __fmul_rn(x, reciprocal_approx(__fadd_rn(1.0f, e)));
  }
  if constexpr (kAct == Act::kRelu) return x <= 0 ? 0.0f : x;  // NaN stays NaN
  if constexpr (kAct == Act::kQuickGelu || kAct == Act::kSilu) {
    constexpr float kBeta = sigmoid_beta(kAct);
    const float e = exp2_approx(__fmul_rn(x, -kLog2e * kBeta));
    return __fmul_rn(x, reciprocal_approx(__fadd_rn(1.0f, e)));
  }
  if constexpr (kAct == Act::kSigmoid)
    return reciprocal_approx(__fadd_rn(1.0f, exp2_approx(__fmul_rn(x, -kLog2e))));
  return x;
}

// The derivative at x. ReLU's also at its own output, which is positive where x is.
template <Act kAct, class T>
__device__ __forceinline__ float activation_derivative(float x) {
  if constexpr (kAct == Act::kGelu && std::is_same_v<T, bf16>) return gelu16_derivative(x);
  if constexpr (kAct == Act::kGelu) {
    const Normal n = normal(x);
    return fmaf(x, __fmul_rn(n.bell, 0.398942280f), n.cdf);
  }
  if constexpr (kAct == Act::kGeluTanh) {
    const float z = __fmul_rn(x, x);
    // Bounded, so that e stays finite and s e below is not 0 times infinity.
    const float two_u = fmaxf(-80.0f, __fmul_rn(x, fmaf(z, kTwoU3, kTwoU1)));
    const float e = exp2_approx(__fmul_rn(two_u, -kLog2e));
    const float s = reciprocal_approx(__fadd_rn(1.0f, e));
    const float inner = __fmul_rn(x, fmaf(z, 3 * kTwoU3, kTwoU1));
    // s e = 1 - s, without the cancellation.
    return fmaf(__fmul_rn(s, __fmul_rn(s, e)), inner, s);
  }
  if constexpr (kAct == Act::kRelu) return x <= 0 ? 0.0f : 1.0f;
  if constexpr (kAct == Act::kQuickGelu || kAct == Act::kSilu) {
    constexpr float kBeta = sigmoid_beta(kAct);
    const float u = fmaxf(-80.0f, __fmul_rn(x, kBeta));  // bounded, as above
    const float e = exp2_approx(__fmul_rn(u, -kLog2e));
    const float s = reciprocal_approx(__fadd_rn(1.0f, e));
    return fmaf(__fmul_rn(s, __fmul_rn(s, e)), u, s);
  }
  if constexpr (kAct == Act::kSigmoid) {
    const float e = exp2_approx(__fmul_rn(fabsf(x), -kLog2e));  // even in x
    const float s = reciprocal_approx(__fadd_rn(1.0f, e));
    return __fmul_rn(s, __fmul_rn(s, e));
  }
  return 1.0f;
}

// Calls body(std::integral_constant<Act, act>{}).
template <class Body>
auto with_act(Act act, const Body& body) {
  switch (act) {
    case Act::kGelu: return body(std::integral_constant<Act, Act::kGelu>{});
    case Act::kGeluTanh: return body(std::integral_constant<Act, Act::kGeluTanh>{});
    case Act::kRelu: return body(std::integral_constant<Act, Act::kRelu>{});
    case Act::kQuickGelu: return body(std::integral_constant<Act, Act::kQuickGelu>{});
    case Act::kSilu: return body(std::integral_constant<Act, Act::kSilu>{});
    case Act::kSigmoid: return body(std::integral_constant<Act, Act::kSigmoid>{});
    case Act::kNone: break;
  }
  return body(std::integral_constant<Act, Act::kNone>{});
}

// y = the activation of `pre`, rounded, then dropped or kept and rounded again, as Activation and
// Dropout one after the other. `dtype` is that of both; y may be pre.
void launch_activation(const void* pre, void* y, int64_t count, DType dtype, Act act,
                       const DropSite& drop, cudaStream_t stream);

}  // namespace vitrum::cuda
