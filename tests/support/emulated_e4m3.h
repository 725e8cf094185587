// Numbers of e4m3 on the emulated card, as vitrum/cuda/primitives/e4m3.cuh has them.
#pragma once
#include "tests/support/emulated_tensors.h"
#include "vitrum/core/e4m3.h"

struct uint2 {
  uint32_t x, y;
};

namespace vitrum::cuda {

static inline uint2 pack_e4m3(const Eight& x, float inverse) {
  uint8_t bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = to_e4m3(x.v[i] * inverse);
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
