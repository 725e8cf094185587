// Blocks of eight by eight floats, and where there is AVX-512 of sixteen by sixteen.
#pragma once
#include "vitrum/cpu/simd/lanes.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

// Eight floats from f32 or bf16 memory; the first n of them, the others 0.
VITRUM_LANES __m256 load8(const float* p) { return _mm256_loadu_ps(p); }
VITRUM_LANES __m256 load8(const uint16_t* p) {
  const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}
template <class T>
VITRUM_LANES __m256 load8_n(const T* p, int64_t n) {
  if (n >= 8) return load8(p);
  alignas(32) T part[8] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = p[i];
  return load8(part);
}

// Rows of eight vectors become columns.
VITRUM_LANES void transpose8(__m256 (&r)[8]) {
  __m256 t[8], u[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int h = 0; h < 8; h += 4) {
    u[h] = _mm256_shuffle_ps(t[h], t[h + 2], 0x44),
    u[h + 1] = _mm256_shuffle_ps(t[h], t[h + 2], 0xEE);
    u[h + 2] = _mm256_shuffle_ps(t[h + 1], t[h + 3], 0x44),
          u[h + 3] = _mm256_shuffle_ps(t[h + 1], t[h + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

#ifdef __AVX512F__
VITRUM_LANES __m512 load16(const float* p) { return _mm512_loadu_ps(p); }
VITRUM_LANES __m512 load16(const uint16_t* p) {
  const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}

// Four by four floats within each quarter of the vectors.
VITRUM_LANES void transpose_quarters(__m512* r) {
  const __m512 a = _mm512_unpacklo_ps(r[0], r[1]), b = _mm512_unpackhi_ps(r[0], r[1]),
               c = _mm512_unpacklo_ps(r[2], r[3]), d = _mm512_unpackhi_ps(r[2], r[3]);
  r[0] = _mm512_shuffle_ps(a, c, 0x44), r[1] = _mm512_shuffle_ps(a, c, 0xEE);
  r[2] = _mm512_shuffle_ps(b, d, 0x44), r[3] = _mm512_shuffle_ps(b, d, 0xEE);
}

// Within quarters, then four by four quarters.
VITRUM_LANES void transpose16(__m512 (&r)[16]) {
  __m512 t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) t[i] = r[i];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) transpose_quarters(t + i);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 a = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88),
                 b = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xDD),
                 c = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88),
                 d = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xDD);
    r[i] = _mm512_shuffle_f32x4(a, c, 0x88), r[i + 8] = _mm512_shuffle_f32x4(a, c, 0xDD);
    r[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88), r[i + 12] = _mm512_shuffle_f32x4(b, d, 0xDD);
  }
}
#endif

}  // namespace
}  // namespace vitrum::cpu::VITRUM_ISA
