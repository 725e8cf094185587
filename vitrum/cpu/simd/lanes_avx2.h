// Included by lanes.h only.
#pragma once
namespace vitrum::cpu::VITRUM_ISA {
namespace {

struct Vf {
  __m256 lo, hi;
};
struct Vi {  // 32-bit words
  __m256i lo, hi;
};
struct Vm {  // one truth value a lane: all bits or none
  __m256 lo, hi;
};

VITRUM_LANES Vf splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
VITRUM_LANES Vi splat_bits(uint32_t x) {
  return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))};
}
VITRUM_LANES Vi lane_index() {
  return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
          _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}
VITRUM_LANES Vi as_bits(Vf a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
VITRUM_LANES Vf as_float(Vi a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
VITRUM_LANES Vi mask_bits(Vm m) { return {_mm256_castps_si256(m.lo), _mm256_castps_si256(m.hi)}; }
VITRUM_LANES Vm as_mask(Vi a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }

VITRUM_LANES Vf operator+(Vf a, Vf b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
VITRUM_LANES Vf operator-(Vf a, Vf b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
VITRUM_LANES Vf operator*(Vf a, Vf b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
VITRUM_LANES Vf operator/(Vf a, Vf b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
VITRUM_LANES Vf fma(Vf a, Vf b, Vf c) {  // a * b + c
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
VITRUM_LANES Vf fnma(Vf a, Vf b, Vf c) {  // c - a * b
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
VITRUM_LANES Vf sqrt(Vf a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
VITRUM_LANES Vf max(Vf a, Vf b) {  // b when either is NaN
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
VITRUM_LANES Vf min(Vf a, Vf b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
VITRUM_LANES Vf round_even(Vf a) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, kMode), _mm256_round_ps(a.hi, kMode)};
}

VITRUM_LANES Vi operator+(Vi a, Vi b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
VITRUM_LANES Vi operator-(Vi a, Vi b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
VITRUM_LANES Vi multiply_low(Vi a, Vi b) {
  return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
}
VITRUM_LANES Vi operator^(Vi a, Vi b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
VITRUM_LANES Vi operator&(Vi a, Vi b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
VITRUM_LANES Vi operator|(Vi a, Vi b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
VITRUM_LANES Vi xor3(Vi a, Vi b, Vi c) { return a ^ b ^ c; }
template <int kBits>
VITRUM_LANES Vi shift_left(Vi a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
template <int kBits>
VITRUM_LANES Vi shift_right(Vi a) {
  return {_mm256_srli_epi32(a.lo, kBits), _mm256_srli_epi32(a.hi, kBits)};
}
VITRUM_LANES Vi max(Vi a, Vi b) {  // signed
  return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
VITRUM_LANES Vi to_whole(Vf a) {  // to nearest even
  return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}
VITRUM_LANES Vf to_float(Vi a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }

// a * 2^n, n whole, |n| < 200. In two exact factors, so that a subnormal result is rounded once.
VITRUM_LANES __m256 scale2(__m256 a, __m256 n) {
  const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i p = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i q = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(a, _mm256_castsi256_ps(p)), _mm256_castsi256_ps(q));
}
VITRUM_LANES Vf scale2(Vf a, Vf n) { return {scale2(a.lo, n.lo), scale2(a.hi, n.hi)}; }

VITRUM_LANES Vm lt(Vf a, Vf b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
VITRUM_LANES Vm gt(Vf a, Vf b) { return lt(b, a); }
VITRUM_LANES Vm eq(Vf a, Vf b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)};
}
VITRUM_LANES Vm lt(Vi a, Vi b) {  // signed
  return as_mask({_mm256_cmpgt_epi32(b.lo, a.lo), _mm256_cmpgt_epi32(b.hi, a.hi)});
}
VITRUM_LANES Vm eq(Vi a, Vi b) {
  return as_mask({_mm256_cmpeq_epi32(a.lo, b.lo), _mm256_cmpeq_epi32(a.hi, b.hi)});
}
VITRUM_LANES Vm first_n(int n) { return lt(lane_index(), splat_bits(static_cast<uint32_t>(n))); }
VITRUM_LANES Vf select(Vm m, Vf a, Vf b) {  // m ? a : b
  return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}
VITRUM_LANES Vi select(Vm m, Vi a, Vi b) { return as_bits(select(m, as_float(a), as_float(b))); }
VITRUM_LANES Vf where(Vm m, Vf a) {  // m ? a : +0
  return {_mm256_and_ps(m.lo, a.lo), _mm256_and_ps(m.hi, a.hi)};
}
VITRUM_LANES uint32_t to_bitmask(Vm m) {
  return static_cast<uint32_t>(_mm256_movemask_ps(m.lo)) |
         static_cast<uint32_t>(_mm256_movemask_ps(m.hi)) << 8;
}

// The two 32-bit halves of a * b.
VITRUM_LANES void multiply_wide(__m256i a, __m256i factor, __m256i& high, __m256i& low) {
  const __m256i even = _mm256_mul_epu32(a, factor),
                odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}
VITRUM_LANES void multiply_wide(Vi a, uint32_t b, Vi& high, Vi& low) {
  const __m256i factor = _mm256_set1_epi64x(b);
  multiply_wide(a.lo, factor, high.lo, low.lo);
  multiply_wide(a.hi, factor, high.hi, low.hi);
}

// bf16 in the upper half of each lane, rounded to nearest even, NaN made quiet; the lower half is
// left over.
VITRUM_LANES __m256i to_upper_bf16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, _mm256_or_si256(bits, _mm256_set1_epi32(0x400000)), nan);
}
VITRUM_LANES Vi to_upper_bf16(Vf a) { return {to_upper_bf16(a.lo), to_upper_bf16(a.hi)}; }
VITRUM_LANES __m256i pack_bf16(Vf a) {
  const Vi low = shift_right<16>(to_upper_bf16(a));
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(low.lo, low.hi), 0xD8);
}
VITRUM_LANES Vf round_bf16(Vf a) { return as_float(to_upper_bf16(a) & splat_bits(0xffff0000u)); }

VITRUM_LANES Vf widen(__m256i bf16) {
  return as_float(shift_left<16>(Vi{_mm256_cvtepu16_epi32(_mm256_castsi256_si128(bf16)),
                                    _mm256_cvtepu16_epi32(_mm256_extracti128_si256(bf16, 1))}));
}
VITRUM_LANES Vf widen(__m128i bytes) {
  return to_float({_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))});
}
VITRUM_LANES Vf load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
VITRUM_LANES Vf load(const uint16_t* p) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
VITRUM_LANES Vf load(const uint8_t* p) {
  return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
VITRUM_LANES Vi load_words(const uint32_t* p) {
  const auto* words = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
}
VITRUM_LANES void store_words(uint32_t* p, Vi a) {
  auto* words = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(words, a.lo), _mm256_storeu_si256(words + 1, a.hi);
}
// table[i % 32] of each lane's i.
VITRUM_LANES Vf pick32(const float* table, Vi i) {
  const Vi at = i & splat_bits(31);
  return {_mm256_i32gather_ps(table, at.lo, 4), _mm256_i32gather_ps(table, at.hi, 4)};
}
VITRUM_LANES void store_past(float* p, Vf a) {  // p: a whole line
  _mm256_stream_ps(p, a.lo), _mm256_stream_ps(p + 8, a.hi);
}
VITRUM_LANES void store(float* p, Vf a) {
  _mm256_storeu_ps(p, a.lo), _mm256_storeu_ps(p + 8, a.hi);
}
VITRUM_LANES void store(uint16_t* p, Vf a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), pack_bf16(a));
}
// Rounded to the nearest byte, even on ties; what is beyond takes the last one there is.
VITRUM_LANES __m256i to_words16(Vf a) {
  const __m256i pairs = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
  return _mm256_permute4x64_epi64(pairs, 0xD8);
}
VITRUM_LANES void store_bytes(uint8_t* p, Vf a) {
  const __m256i words = to_words16(a);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
VITRUM_LANES void store_bytes(int8_t* p, Vf a) {
  const __m256i words = to_words16(a);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

// The first n lanes, 0 <= n <= 16; the others load as 0 and are not stored. AVX2 masks no narrow
// types.
VITRUM_LANES Vf load_n(const float* p, int n) {
  const Vi m = mask_bits(first_n(n));
  return {_mm256_maskload_ps(p, m.lo), _mm256_maskload_ps(p + 8, m.hi)};
}
VITRUM_LANES Vf load_n(const uint16_t* p, int n) {
  alignas(32) uint16_t whole[16] = {};
  for (int i = 0; i < n; ++i) whole[i] = p[i];
  return load(whole);
}
VITRUM_LANES Vf load_n(const uint8_t* p, int n) {
  alignas(16) uint8_t whole[16] = {};
  for (int i = 0; i < n; ++i) whole[i] = p[i];
  return load(whole);
}
VITRUM_LANES void store_n(float* p, Vf a, int n) {
  const Vi m = mask_bits(first_n(n));
  _mm256_maskstore_ps(p, m.lo, a.lo), _mm256_maskstore_ps(p + 8, m.hi, a.hi);
}
VITRUM_LANES void store_n(uint16_t* p, Vf a, int n) {
  alignas(32) uint16_t whole[16];
  store(whole, a);
  for (int i = 0; i < n; ++i) p[i] = whole[i];
}

VITRUM_LANES uint32_t max_lane(Vi a) {
  const __m256i eight = _mm256_max_epi32(a.lo, a.hi);
  const __m128i four =
      _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xB1))));
}

// Lanes are folded 16 -> 8 -> 4 -> 2 -> 1, the upper half onto the lower.
VITRUM_LANES float sum(Vf a) {
  const __m256 eight = _mm256_add_ps(a.lo, a.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
VITRUM_LANES float max_lane(Vf a) {
  const __m256 eight = _mm256_max_ps(a.lo, a.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace
}  // namespace vitrum::cpu::VITRUM_ISA
