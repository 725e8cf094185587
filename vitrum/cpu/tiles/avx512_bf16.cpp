// Tiles multiplied by the dot products of AVX512-BF16.
#pragma GCC diagnostic ignored "-Wuninitialized"  // of gcc's own intrinsics: bug 105593
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include "vitrum/cpu/tiles/product.h"

namespace vitrum::cpu {
namespace {

struct Avx512Bf16 {
  // A slice of a band (24 KiB) stays in the first-level cache for all columns, whose slices come
  // from the second-level one.
  static constexpr int64_t kSliceSteps = 12;

  Avx512Bf16() {}

  template <bool kTall, bool kWide>
  static void block(const uint32_t* a, const uint32_t* b, float* c, int64_t ldc, int64_t rows,
                    int64_t steps, bool accumulate) {
    for (int64_t r = 0; r < rows; r += kRows)
      eight_rows<kWide ? 2 : 1>(a + r * kTile, b, c + r * ldc, ldc, steps, accumulate);
  }

 private:
  static constexpr int kRows = 8;  // with two vectors 16 sums at once, more than their latency

  template <int kVectors>
  static void eight_rows(const uint32_t* a, const uint32_t* b, float* c, int64_t ldc, int64_t steps,
                         bool accumulate) {
    __m512 sum[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = accumulate ? _mm512_loadu_ps(c + r * ldc + v * kTile) : _mm512_setzero_ps();
    for (int64_t s = 0; s < steps; ++s, a += kStepWords, b += kStepWords)
      for (int pair = 0; pair < kTile; ++pair) {
        __m512i right[kVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v)
          right[v] = _mm512_loadu_si512(b + v * kTileWords + pair * kTile);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const __m512i left = _mm512_set1_epi32(static_cast<int>(a[r * kTile + pair]));
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v)
            sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)left, (__m512bh)right[v]);
        }
      }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(c + r * ldc + v * kTile, sum[r][v]);
  }
};

}  // namespace

constinit const TileUnit kTilesAvx512Bf16 = {.name = "avx512_bf16",
                                             .multiply = multiply<Avx512Bf16, float>};

}  // namespace vitrum::cpu
