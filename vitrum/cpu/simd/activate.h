#pragma once
#include <type_traits>

#include "vitrum/cpu/simd/curves.h"
#include "vitrum/cpu/simd/lanes.h"
#include "vitrum/graph/op.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

// max(x, 0) less the curve's value at |x|.
VITRUM_LANES Vf above_dip(Vf x, const Curve& dip) {
  // Adding this leaves the nearest whole number in the lowest bits.
  const Vf whole = splat(0x1.8p23f), step = splat(kCurveStep);
  const Vf a = min(abs(x), splat((kCurvePieces - 1) * kCurveStep));
  const Vf shifted = fma(a, splat(1 / kCurveStep), whole), r = fnma(shifted - whole, step, a);
  const Vi piece = as_bits(shifted);
  Vf y = pick32(dip.c[3], piece);
  for (int k = 2; k >= 0; --k) y = fma(y, r, pick32(dip.c[k], piece));
  return max(zero(), x) - y;
}

// For a result of type T: float, uint16_t (bf16) or one that is not known.
template <Act kAct, class T = float>
VITRUM_LANES Vf activate(Vf x) {
  constexpr bool kNarrow = std::is_same_v<T, uint16_t>;
  if constexpr (kAct == Act::kGelu && kNarrow) return above_dip(x, kGeluDip);
  if constexpr (kAct == Act::kGeluTanh && kNarrow) return above_dip(x, kGeluTanhDip);
  if constexpr (kAct == Act::kGelu) return gelu(x);
  if constexpr (kAct == Act::kGeluTanh) return gelu_tanh(x);
  if constexpr (kAct == Act::kRelu) return max(zero(), x);
  if constexpr (kAct == Act::kQuickGelu || kAct == Act::kSilu) {
    constexpr float kBeta = sigmoid_beta(kAct);
    return swish(x, splat(kBeta));
  }
  if constexpr (kAct == Act::kSigmoid) return sigmoid(x);
  return x;
}

// The derivative at x. ReLU's also at its own output, which is positive where x is.
template <Act kAct>
VITRUM_LANES Vf activate_grad(Vf x) {
  if constexpr (kAct == Act::kGelu) return gelu_grad(x);
  if constexpr (kAct == Act::kGeluTanh) return gelu_tanh_grad(x);
  if constexpr (kAct == Act::kRelu) return where(gt(x, zero()), splat(1.0f));
  if constexpr (kAct == Act::kQuickGelu || kAct == Act::kSilu) {
    constexpr float kBeta = sigmoid_beta(kAct);
    return swish_grad(x, splat(kBeta));
  }
  if constexpr (kAct == Act::kSigmoid) return sigmoid_grad(x);
  return splat(1.0f);
}

// Calls body.operator()<act>().
template <class Body>
VITRUM_LANES void with_act(Act act, const Body& body) {
  switch (act) {
    case Act::kNone: return body.template operator()<Act::kNone>();
    case Act::kGelu: return body.template operator()<Act::kGelu>();
    case Act::kGeluTanh: return body.template operator()<Act::kGeluTanh>();
    case Act::kRelu: return body.template operator()<Act::kRelu>();
    case Act::kQuickGelu: return body.template operator()<Act::kQuickGelu>();
    case Act::kSilu: return body.template operator()<Act::kSilu>();
    case Act::kSigmoid: return body.template operator()<Act::kSigmoid>();
  }
}

}  // namespace
}  // namespace vitrum::cpu::VITRUM_ISA
