// Blocks of tiles by the dot products of AVX-512, whatever they multiply: Dot has a vector of sums,
// how it is loaded and stored, and the instruction.
#pragma once
#pragma GCC diagnostic ignored "-Wuninitialized"  // of gcc's own intrinsics: bug 105593
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include "vitrum/cpu/tiles/product.h"

namespace vitrum::cpu {
namespace {

template <class Dot>
struct Avx512 {
  // A slice of a band (24 KiB) stays in the first-level cache for all columns, whose slices come
  // from the second-level one.
  static constexpr int64_t kSliceSteps = 12;
  static constexpr int64_t kWholeRows = 8;

  Avx512() {}

  template <bool kTall, bool kWide, class Sum>
  static void block(const uint32_t* a, const uint32_t* b, Sum* c, int64_t ldc, int64_t rows,
                    int64_t steps, bool accumulate) {
    // The first rows ask for what comes behind these columns: from far away it comes too late.
    eight_rows<kWide ? 2 : 1, /*kAsk=*/true>(a, b, c, ldc, steps, accumulate);
    for (int64_t r = kRows; r < rows; r += kRows)
      eight_rows<kWide ? 2 : 1, false>(a + r * kTile, b, c + r * ldc, ldc, steps, accumulate);
  }

 private:
  static constexpr int kRows = 8;  // with two vectors 16 sums at once, more than their latency

  template <int kVectors, bool kAsk, class Sum>
  static void eight_rows(const uint32_t* a, const uint32_t* b, Sum* c, int64_t ldc, int64_t steps,
                         bool accumulate) {
    typename Dot::Sums sum[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = accumulate ? Dot::load(c + r * ldc + v * kTile) : Dot::zero();
    for (int64_t s = 0; s < steps; ++s, a += kStepWords, b += kStepWords)
      for (int word = 0; word < kTile; ++word) {
        if constexpr (kAsk)
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v)
            __builtin_prefetch(b + steps * kStepWords + v * kTileWords + word * kTile, 0, 2);
        __m512i right[kVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v)
          right[v] = _mm512_loadu_si512(b + v * kTileWords + word * kTile);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const __m512i left = _mm512_set1_epi32(static_cast<int>(a[r * kTile + word]));
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) sum[r][v] = Dot::add(sum[r][v], left, right[v]);
        }
      }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) Dot::store(c + r * ldc + v * kTile, sum[r][v]);
  }
};

}  // namespace
}  // namespace vitrum::cpu
