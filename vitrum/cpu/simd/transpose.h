// Blocks of eight by eight floats, for both instruction sets.
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

}  // namespace
}  // namespace vitrum::cpu::VITRUM_ISA
