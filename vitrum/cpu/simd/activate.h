#pragma once
#include "vitrum/cpu/simd/lanes.h"
#include "vitrum/graph/op.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

template <Act kAct>
VITRUM_LANES Vf activate(Vf x) {
  if constexpr (kAct == Act::kGelu) return gelu(x);
  if constexpr (kAct == Act::kGeluTanh) return gelu_tanh(x);
  if constexpr (kAct == Act::kRelu) return max(zero(), x);
  return x;
}

// The derivative at x. ReLU's also at its own output, which is positive where x is.
template <Act kAct>
VITRUM_LANES Vf activate_grad(Vf x) {
  if constexpr (kAct == Act::kGelu) return gelu_grad(x);
  if constexpr (kAct == Act::kGeluTanh) return gelu_tanh_grad(x);
  if constexpr (kAct == Act::kRelu) return where(gt(x, zero()), splat(1.0f));
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
  }
}

}  // namespace
}  // namespace vitrum::cpu::VITRUM_ISA
