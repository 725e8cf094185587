// Tiles multiplied by the dot products of AVX512-BF16.
#include "vitrum/cpu/tiles/avx512_block.h"

namespace vitrum::cpu {
namespace {

struct Bf16Dot {
  using Sums = __m512;
  static Sums zero() { return _mm512_setzero_ps(); }
  static Sums load(const float* c) { return _mm512_loadu_ps(c); }
  static void store(float* c, Sums sums) { _mm512_storeu_ps(c, sums); }
  static Sums add(Sums sums, __m512i left, __m512i right) {
    // With its intrinsic gcc 12 copies every sum of a loop to another register and back, and runs
    // out of them.
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(left), "v"(right));
    return sums;
  }
};

}  // namespace

constinit const TileUnit kTilesAvx512Bf16 = {.name = "avx512_bf16",
                                             .multiply = multiply<Avx512<Bf16Dot>, float>};

}  // namespace vitrum::cpu
