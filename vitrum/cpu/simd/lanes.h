// Sixteen float lanes: one AVX-512 register or two AVX2 ones, with the same lane structure, the
// same order of operations and the same fused multiply-adds, so that both instruction sets give the
// same bits. Only for vitrum/cpu/simd/*.cpp. Everything has internal linkage: a weak symbol
// compiled for AVX-512 could replace its baseline twin at link time.
#pragma once
#include <immintrin.h>

#include <cstdint>

#define VITRUM_LANES [[gnu::always_inline, maybe_unused]] inline

#ifdef __AVX512F__
#include "vitrum/cpu/simd/lanes_avx512.h"
#else
#include "vitrum/cpu/simd/lanes_avx2.h"
#endif

namespace vitrum::cpu::VITRUM_ISA {
namespace {

// ---- arithmetic shared by both sets ----
// Also from lanes_*.h: load / load_n / store / store_n for float, uint16_t (bf16) and (loads)
// uint8_t; operators + - * /, fma, max, min, sqrt, comparisons, select, where, sum, max_lane,
// shifts of Vi.
VITRUM_LANES Vf operator-(Vf a) { return as_float(as_bits(a) ^ splat_bits(0x80000000u)); }
VITRUM_LANES Vf abs(Vf a) { return as_float(as_bits(a) & splat_bits(0x7fffffffu)); }
VITRUM_LANES Vf& operator+=(Vf& a, Vf b) { return a = a + b; }
VITRUM_LANES Vf zero() { return splat(0.0f); }

// What a bf16 store followed by a load gives; nothing for float.
VITRUM_LANES Vf rounded_as(Vf a, const float*) { return a; }
VITRUM_LANES Vf rounded_as(Vf a, const uint16_t*) { return round_bf16(a); }

// ---- functions ----
// Horner's scheme, lowest coefficient first.
template <int kN>
VITRUM_LANES Vf polynomial(Vf x, const float (&c)[kN]) {
  Vf y = splat(c[kN - 1]);
  for (int i = kN - 2; i >= 0; --i) y = fma(y, x, splat(c[i]));
  return y;
}

// 1 ulp. Below -104 (and at -inf) 0; above 88.73 inf; NaN stays.
VITRUM_LANES Vf exp(Vf x) {
  constexpr float kP[] = {5.000000096e-01f, 1.666651838e-01f, 4.166620448e-02f, 8.368946926e-03f,
                          1.395058477e-03f};
  x = min(splat(90.0f), max(splat(-105.0f), x));
  const Vf n = round_even(x * splat(1.44269504f));
  const Vf r = fma(n, splat(-1.42860677e-6f), fma(n, splat(-0.693145752f), x));
  return scale2(fma(r * r, polynomial(r, kP), r) + splat(1.0f), n);
}

// 2^x of x <= 127, 8e-5: for what is rounded to bf16. Below -126 there is nothing less.
VITRUM_LANES Vf exp2_narrow(Vf x) {
  constexpr float kP[] = {0.999928057f, 0.693260968f, 0.242611140f, 0.0551716276f};
  x = max(splat(-126.0f), x);
  const Vf n = round_even(x);
  return scale2(polynomial(x - n, kP), n);
}

// log(1 + x) of x in [0, 1], 2 ulp: 2 atanh(s) of s = x / (2 + x), which is at most 1/3.
VITRUM_LANES Vf log1p_unit(Vf x) {
  constexpr float kP[] = {2.0f, 2.0f / 3, 2.0f / 5, 2.0f / 7, 2.0f / 9, 2.0f / 11, 2.0f / 13};
  const Vf s = x / (x + splat(2.0f));
  return s * polynomial(s * s, kP);
}

struct Normal {
  Vf cdf, pdf;
};
// The standard normal distribution. The lower tail is exp(-t^2 / 2) times a polynomial in 1 / (1 +
// 0.3 t), so it keeps its relative accuracy (4e-7 near 0, growing with t^2) where 1 + erf would
// cancel.
VITRUM_LANES Normal normal(Vf x) {
  constexpr float kP[] = {7.372429656e-06f, 1.194842064e-01f,  1.219452691e-01f,
                          9.458583712e-02f, 1.427653429e-01f,  -7.683976947e-02f,
                          2.289518804e-01f, -1.693075137e-01f, 3.840740399e-02f};
  const Vf t = min(abs(x), splat(14.5f));
  const Vf bell = exp(splat(-0.5f) * t * t);
  const Vf tail = bell * polynomial(splat(1.0f) / fma(t, splat(0.3f), splat(1.0f)), kP);
  return {select(lt(x, zero()), tail, splat(1.0f) - tail), bell * splat(0.398942280f)};
}

VITRUM_LANES Vf gelu(Vf x) { return x * normal(x).cdf; }
VITRUM_LANES Vf gelu_grad(Vf x) {
  const Normal n = normal(x);
  return fma(x, n.pdf, n.cdf);
}

// 0.5 x (1 + tanh(u)) = x * sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
constexpr float kTwoU1 = 1.595769122f, kTwoU3 = 0.0713548163f;
VITRUM_LANES Vf gelu_tanh(Vf x) {
  const Vf two_u = x * fma(x * x, splat(kTwoU3), splat(kTwoU1));
  return x / (splat(1.0f) + exp(-two_u));
}
VITRUM_LANES Vf gelu_tanh_grad(Vf x) {
  const Vf z = x * x, two_u = max(splat(-80.0f), x * fma(z, splat(kTwoU3), splat(kTwoU1)));
  const Vf e = exp(-two_u), s = splat(1.0f) / (splat(1.0f) + e);
  const Vf slope = x * fma(z, splat(3 * kTwoU3), splat(kTwoU1));
  return fma(s * (s * e), slope, s);  // s e = 1 - s, without the cancellation
}

// x * sigmoid(beta x): SiLU, QuickGELU.
VITRUM_LANES Vf swish(Vf x, Vf beta) { return x / (splat(1.0f) + exp(-(beta * x))); }
VITRUM_LANES Vf swish_grad(Vf x, Vf beta) {
  const Vf u = max(splat(-80.0f), beta * x);
  const Vf e = exp(-u), s = splat(1.0f) / (splat(1.0f) + e);
  return fma(s * (s * e), u, s);
}

VITRUM_LANES Vf sigmoid(Vf x) { return splat(1.0f) / (splat(1.0f) + exp(-x)); }
VITRUM_LANES Vf sigmoid_grad(Vf x) {
  const Vf e = exp(-abs(x)), s = splat(1.0f) / (splat(1.0f) + e);  // even in x
  return s * (s * e);
}

}  // namespace
}  // namespace vitrum::cpu::VITRUM_ISA
