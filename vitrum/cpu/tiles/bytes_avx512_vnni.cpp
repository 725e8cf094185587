// Bytes multiplied by the dot products of AVX512-VNNI.
#include "vitrum/cpu/tiles/avx512_block.h"

namespace vitrum::cpu {
namespace {

struct ByteDot {
  using Sums = __m512i;
  static Sums zero() { return _mm512_setzero_si512(); }
  static Sums load(const int32_t* c) { return _mm512_loadu_si512(c); }
  static void store(int32_t* c, Sums sums) { _mm512_storeu_si512(c, sums); }
  static Sums add(Sums sums, __m512i left, __m512i right) {
    // With its intrinsic gcc 12 copies every sum of a loop to another register and back, and runs
    // out of them.
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(left), "v"(right));
    return sums;
  }
};

}  // namespace

constinit const ByteUnit kBytesAvx512Vnni = {.name = "avx512_vnni",
                                             .multiply = multiply<Avx512<ByteDot>, int32_t>};

}  // namespace vitrum::cpu
