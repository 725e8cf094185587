// GELU for results of e4m3, which has three bits of mantissa: all of it in f16, two numbers an
// instruction. Plain C++, so that tests can hold every number of f16 against erf without a card.
#pragma once
#include <cstdint>

namespace vitrum::cuda {

// x Phi(x) = max(x, 0) - t Phi(-t) for t = |x|, as primitives/gelu.h has it. Phi(-t) is 2 to a
// polynomial of these factors (numbers of f16, by their bits), within a hundredth of its value for
// t < 4; at the end of t the tail is less than 2^-22.
constexpr uint16_t gelu_curve16(int power) {
  return power == 0 ? 0xbc06 : power == 1 ? 0xbc66 : power == 2 ? 0xb845 : 0xa405;
}
constexpr uint16_t kGeluEnd16 = 0x4580;  // 5.5
// What the factor to e4m3 may be, so that f16 holds it and what it is a factor of: a power of two.
constexpr bool gelu_fits_f16(float inverse) { return inverse >= 0x1p-7f && inverse <= 0x1p10f; }

}  // namespace vitrum::cuda
