// Numbers of e4m3 (core/e4m3.h) on a card: eight at a time into memory, and WGMMA of them (sm_90a).
#pragma once
#include <cuda_fp8.h>

#include "vitrum/cuda/primitives/device.cuh"
#include "vitrum/cuda/primitives/gelu_f16.h"
#include "vitrum/cuda/primitives/wgmma.cuh"

namespace vitrum::cuda {

// Two of them, the first one lower; rounded as core/e4m3.h does.
__device__ __forceinline__ uint32_t pair_of_e4m3(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}
// x times `inverse`, a power of two.
__device__ __forceinline__ uint2 pack_e4m3(const Eight& x, float inverse) {
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    pairs[i] = pair_of_e4m3(x.v[2 * i] * inverse, x.v[2 * i + 1] * inverse);
  return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}
// GELU of x times `inverse`, for which gelu_fits_f16(), in f16: about a third of the instructions
// that bf16 takes.
__device__ __forceinline__ __half2 twice_f16(uint16_t bits) {
  return __half2(__half2_raw{bits, bits});
}
__device__ __forceinline__ __half2 exp2_approx(__half2 x) {
  const __half2_raw raw = x;
  uint32_t from = raw.x | uint32_t{raw.y} << 16, to;
  asm("ex2.approx.f16x2 %0, %1;" : "=r"(to) : "r"(from));
  return __half2(__half2_raw{static_cast<uint16_t>(to & 0xffff), static_cast<uint16_t>(to >> 16)});
}
__device__ __forceinline__ uint2 gelu_to_e4m3(const Eight& x, float inverse) {
  const __half2 by = __float2half2_rn(inverse), end = twice_f16(kGeluEnd16), zero = twice_f16(0);
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __half2 v = __floats2half2_rn(x.v[2 * i], x.v[2 * i + 1]),
                  t = __hmin2_nan(__habs2(v), end);
    __half2 p = twice_f16(gelu_curve16(3));
#pragma unroll
    for (int power = 2; power >= 0; --power) p = __hfma2(p, t, twice_f16(gelu_curve16(power)));
    const __half2 y = __hfma2(__hneg2(t), exp2_approx(p), __hmax2(v, zero));
    pairs[i] = __nv_cvt_halfraw2_to_fp8x2(__hmul2(y, by), __NV_SATFINITE, __NV_E4M3);
  }
  return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}
// A store without a branch around it.
__device__ __forceinline__ void store_if(bool wanted, uint8_t* to, const uint2& raw) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n"
      "@p st.global.v2.b32 [%0], {%1, %2};\n}\n" ::"l"(to),
      "r"(raw.x), "r"(raw.y), "r"(static_cast<int>(wanted)));
}

// Rows of 128 bytes hold 128 of them, and a product is 32 deep: 32 bytes as those of bf16 are, at
// the same places. Both operands have depth along their rows. The tensor cores keep about 14 bits
// of a sum while they add to it: over a depth of 4,096 that is well below a thousandth, where
// rounding to e4m3 takes some 4 % of every factor.
#define VITRUM_MULTIPLY_E4M3(columns, count, a, b, add)                                          \
  __device__ __forceinline__ void wgmma_ss_e4m3(float(&d)[count], uint64_t left, uint64_t right, \
                                                bool adds) {                                     \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add                                         \
                 ", 0;\n"                                                                        \
                 "wgmma.mma_async.sync.aligned.m64n" #columns                                    \
                 "k32.f32.e4m3.e4m3 {" VITRUM_NAMES_##count "}, " a ", " b ", p, 1, 1;\n}\n"     \
                 : VITRUM_SUMS_##count                                                           \
                 : "l"(left), "l"(right), "r"(static_cast<int>(adds)));                          \
  }
VITRUM_MULTIPLY_E4M3(128, 64, "%64", "%65", "%66")
VITRUM_MULTIPLY_E4M3(256, 128, "%128", "%129", "%130")

}  // namespace vitrum::cuda
