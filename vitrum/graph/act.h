// What passes ask about an activation.
#pragma once
#include "vitrum/graph/op.h"

namespace vitrum {

// From what an activation's gradient is computed; it is kept for the backward pass.
enum class SlopeFrom : uint8_t { kNothing, kOutput, kInput };
constexpr SlopeFrom slope_from(Act act) {
  switch (act) {
    case Act::kNone: return SlopeFrom::kNothing;
    case Act::kRelu: return SlopeFrom::kOutput;
    case Act::kGelu:
    case Act::kGeluTanh:
    case Act::kQuickGelu:
    case Act::kSilu:
    case Act::kSigmoid: break;
  }
  return SlopeFrom::kInput;
}

}  // namespace vitrum
