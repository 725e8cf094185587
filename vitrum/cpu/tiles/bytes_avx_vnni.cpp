// Bytes multiplied by the dot products of AVX-VNNI: eight sums a vector.
#include <immintrin.h>

#include "vitrum/cpu/tiles/product.h"

namespace vitrum::cpu {
namespace {

struct AvxVnni {
  static constexpr int64_t kSliceSteps = 12;
  static constexpr int64_t kWholeRows = 4;

  AvxVnni() {}

  template <bool kTall, bool kWide>
  static void block(const uint32_t* a, const uint32_t* b, int32_t* c, int64_t ldc, int64_t rows,
                    int64_t steps, bool accumulate) {
    for (int64_t r = 0; r < rows; r += kRows)
      for (int64_t j = 0; j < (kWide ? kBand : kTile); j += kTile)
        four_rows(a + r * kTile, b + j * kTile, c + r * ldc + j, ldc, steps, accumulate);
  }

 private:
  static constexpr int kRows = 4, kVectors = 2, kLanes = 8;
  static_assert(kVectors * kLanes == kTile && kTile * kTile == kTileWords);

  static __m256i* at(int32_t* c) { return reinterpret_cast<__m256i*>(c); }
  static const __m256i* at(const uint32_t* b) { return reinterpret_cast<const __m256i*>(b); }

  // With its intrinsic gcc 12 copies every sum of a loop to another register and back.
  static void add_products(__m256i& sums, __m256i left, __m256i right) {
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(left), "x"(right));
  }
  static void four_rows(const uint32_t* a, const uint32_t* b, int32_t* c, int64_t ldc,
                        int64_t steps, bool accumulate) {
    __m256i sum[kRows][kVectors];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] =
            accumulate ? _mm256_loadu_si256(at(c + r * ldc + v * kLanes)) : _mm256_setzero_si256();
    for (int64_t s = 0; s < steps; ++s, a += kStepWords, b += kStepWords)
      for (int word = 0; word < kTile; ++word) {
        __m256i right[kVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v)
          right[v] = _mm256_loadu_si256(at(b + word * kTile + v * kLanes));
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const __m256i left = _mm256_set1_epi32(static_cast<int>(a[r * kTile + word]));
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) add_products(sum[r][v], left, right[v]);
        }
      }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v)
        _mm256_storeu_si256(at(c + r * ldc + v * kLanes), sum[r][v]);
  }
};

}  // namespace

constinit const ByteUnit kBytesAvxVnni = {.name = "avx_vnni",
                                          .multiply = multiply<AvxVnni, int32_t>};

}  // namespace vitrum::cpu
