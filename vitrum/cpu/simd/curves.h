// Curves in pieces, for results that are rounded to bf16 anyway: there a third of the instructions
// of the exact functions is enough.
#pragma once

namespace vitrum::cpu {

// f(a) for a >= 0: piece i is a cubic in a - i * kCurveStep and holds half a step to both sides.
// From the last piece's middle on f is 0.
inline constexpr int kCurvePieces = 32;
inline constexpr float kCurveStep = 0.1875f;  // a multiple of it has no rounding
struct Curve {
  alignas(64) float c[4][kCurvePieces];  // lowest power first
};
// What GELU and its tanh form are below max(x, 0), as a function of |x|.
extern const Curve kGeluDip, kGeluTanhDip;

}  // namespace vitrum::cpu
