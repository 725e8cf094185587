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
  // A slice of a band (16 KiB) stays in the first-level cache for all columns, beside two slices of
  // these: the one in use, and the next, which is asked for meanwhile.
  static constexpr int64_t kSliceSteps = 8;
  // Over the right operand of a block. One takes eight rows: with two vectors 16 sums at once, more
  // than their latency.
  static constexpr int kPasses = 4;
  static constexpr int64_t kWholeRows = kBand / kPasses;

  Avx512() {}

  template <bool kTall, bool kWide, class Sum>
  static void block(const uint32_t* a, const uint32_t* b, Sum* c, int64_t ldc, int64_t rows,
                    int64_t steps, bool accumulate, const Coming& coming) {
    const uint32_t *near = coming.near, *far = coming.far;
    for (int64_t r = 0; r < rows; r += kRows) {
      eight_rows<kWide ? 2 : 1>(a + r * kTile, b, c + r * ldc, ldc, steps, accumulate, near, far,
                                coming.far_lines);
      near += steps * kStepWords / kPasses, far += steps * coming.far_lines * kLine;
    }
  }

 private:
  static constexpr int64_t kLine = 16;  // words
  static constexpr int kRows = kBand / kPasses;

  template <int kVectors, class Sum>
  static void eight_rows(const uint32_t* a, const uint32_t* b, Sum* c, int64_t ldc, int64_t steps,
                         bool accumulate, const uint32_t* near, const uint32_t* far,
                         int64_t far_lines) {
    typename Dot::Sums sum[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = accumulate ? Dot::load(c + r * ldc + v * kTile) : Dot::zero();
    for (int64_t s = 0; s < steps; ++s, a += kStepWords, b += kStepWords) {
      // Each pass has its part of what is coming.
#pragma GCC unroll 8
      for (int line = 0; line < kStepWords / kLine / kPasses; ++line, near += kLine)
        _mm_prefetch(near, _MM_HINT_T0);
      for (int64_t line = 0; line < far_lines; ++line, far += kLine) _mm_prefetch(far, _MM_HINT_T1);
      for (int word = 0; word < kTile; ++word) {
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
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) Dot::store(c + r * ldc + v * kTile, sum[r][v]);
  }
};

}  // namespace
}  // namespace vitrum::cpu
