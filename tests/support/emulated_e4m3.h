// Numbers of e4m3 on the emulated card, as vitrum/cuda/primitives/e4m3.cuh has them.
#pragma once
#include "tests/support/emulated_tensors.h"
#include "vitrum/core/e4m3.h"
#include "vitrum/cuda/primitives/gelu_f16.h"

struct uint2 {
  uint32_t x, y;
};

namespace vitrum::cuda {

static inline uint2 pack_e4m3(const Eight& x, float inverse) {
  uint8_t bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = to_e4m3(x.v[i] * inverse);
  return std::bit_cast<uint2>(bytes);
}
// To f16, as a float.
static inline float rounded_f16(float x) {
  if (x == 0 || !std::isfinite(x)) return x;
  const float step = std::ldexp(1.0f, std::max(std::ilogb(x), -14) - 10);
  const float y = std::nearbyint(x / step) * step;
  return std::abs(y) > 65504 ? std::copysign(INFINITY, x) : y;
}
static inline float number_of_f16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float magnitude = exponent > 0
                              ? std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25)
                              : std::ldexp(static_cast<float>(mantissa), -24);
  return bits & 0x8000 ? -magnitude : magnitude;
}
static inline uint8_t gelu_to_e4m3(float x, float inverse) {
  const float v = rounded_f16(x),
              t = std::abs(v) > number_of_f16(kGeluEnd16) ? number_of_f16(kGeluEnd16) : std::abs(v);
  float p = number_of_f16(gelu_curve16(3));
  for (int power = 2; power >= 0; --power)
    p = rounded_f16(std::fma(p, t, number_of_f16(gelu_curve16(power))));
  const float y = rounded_f16(std::fma(-t, rounded_f16(std::exp2(p)), v > 0 ? v : 0));
  return to_e4m3(rounded_f16(y * inverse));
}
static inline uint2 gelu_to_e4m3(const Eight& x, float inverse) {
  uint8_t bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = gelu_to_e4m3(x.v[i], inverse);
  return std::bit_cast<uint2>(bytes);
}
static inline void store_if(bool wanted, uint8_t* to, const uint2& raw) {
  if (wanted) std::memcpy(to, &raw, 8);
}
static inline float e4m3_element(uint64_t matrix, int row, int k) {
  const size_t at = ((matrix & 0xffff) << 4) + static_cast<size_t>(row * kSwizzledRow + k);
  return from_e4m3(static_cast<uint8_t>(swizzled_place(at & ~size_t{1})[at & 1]));
}
template <int kCount>
void wgmma_ss_e4m3(float (&d)[kCount], uint64_t a, uint64_t b, bool add) {
  for (int k = 0; k < 32; k += 16)
    add_products(
        d, add || k > 0, warp_row(), [=](int row, int i) { return e4m3_element(a, row, k + i); },
        [=](int i, int column) { return e4m3_element(b, column, k + i); });
}

}  // namespace vitrum::cuda
