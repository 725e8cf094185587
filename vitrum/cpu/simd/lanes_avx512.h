// Included by lanes.h only.
#pragma once
namespace vitrum::cpu::VITRUM_ISA {
namespace {

struct Vf {
  __m512 v;
};
struct Vi {  // 32-bit words
  __m512i v;
};
struct Vm {  // one truth value a lane
  __mmask16 m;
};

VITRUM_LANES Vf splat(float x) { return {_mm512_set1_ps(x)}; }
VITRUM_LANES Vi splat_bits(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
VITRUM_LANES Vi lane_index() {
  return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}
VITRUM_LANES Vi as_bits(Vf a) { return {_mm512_castps_si512(a.v)}; }
VITRUM_LANES Vf as_float(Vi a) { return {_mm512_castsi512_ps(a.v)}; }
VITRUM_LANES Vm first_n(int n) {
  return {static_cast<__mmask16>(_bzhi_u32(0xffffu, static_cast<uint32_t>(n)))};
}

VITRUM_LANES Vf operator+(Vf a, Vf b) { return {_mm512_add_ps(a.v, b.v)}; }
VITRUM_LANES Vf operator-(Vf a, Vf b) { return {_mm512_sub_ps(a.v, b.v)}; }
VITRUM_LANES Vf operator*(Vf a, Vf b) { return {_mm512_mul_ps(a.v, b.v)}; }
VITRUM_LANES Vf operator/(Vf a, Vf b) { return {_mm512_div_ps(a.v, b.v)}; }
VITRUM_LANES Vf fma(Vf a, Vf b, Vf c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }    // a * b + c
VITRUM_LANES Vf fnma(Vf a, Vf b, Vf c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }  // c - a * b
VITRUM_LANES Vf sqrt(Vf a) { return {_mm512_sqrt_ps(a.v)}; }
VITRUM_LANES Vf max(Vf a, Vf b) { return {_mm512_max_ps(a.v, b.v)}; }  // b when either is NaN
VITRUM_LANES Vf min(Vf a, Vf b) { return {_mm512_min_ps(a.v, b.v)}; }
VITRUM_LANES Vf round_even(Vf a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT)}; }
VITRUM_LANES Vf scale2(Vf a, Vf n) {
  return {_mm512_scalef_ps(a.v, n.v)};
}  // a * 2^n, n whole, |n| < 200

VITRUM_LANES Vi operator+(Vi a, Vi b) { return {_mm512_add_epi32(a.v, b.v)}; }
VITRUM_LANES Vi operator-(Vi a, Vi b) { return {_mm512_sub_epi32(a.v, b.v)}; }
VITRUM_LANES Vi multiply_low(Vi a, Vi b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
VITRUM_LANES Vi operator^(Vi a, Vi b) { return {_mm512_xor_si512(a.v, b.v)}; }
VITRUM_LANES Vi operator&(Vi a, Vi b) { return {_mm512_and_si512(a.v, b.v)}; }
VITRUM_LANES Vi operator|(Vi a, Vi b) { return {_mm512_or_si512(a.v, b.v)}; }
VITRUM_LANES Vi xor3(Vi a, Vi b, Vi c) { return {_mm512_ternarylogic_epi32(a.v, b.v, c.v, 0x96)}; }
template <int kBits>
VITRUM_LANES Vi shift_left(Vi a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
VITRUM_LANES Vi shift_right(Vi a) {
  return {_mm512_srli_epi32(a.v, kBits)};
}
VITRUM_LANES Vi max(Vi a, Vi b) { return {_mm512_max_epi32(a.v, b.v)}; }  // signed
VITRUM_LANES Vi to_whole(Vf a) { return {_mm512_cvtps_epi32(a.v)}; }      // to nearest even
VITRUM_LANES Vf to_float(Vi a) { return {_mm512_cvtepi32_ps(a.v)}; }

VITRUM_LANES Vm lt(Vf a, Vf b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
VITRUM_LANES Vm gt(Vf a, Vf b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
VITRUM_LANES Vm eq(Vf a, Vf b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
VITRUM_LANES Vm lt(Vi a, Vi b) { return {_mm512_cmplt_epi32_mask(a.v, b.v)}; }  // signed
VITRUM_LANES Vm eq(Vi a, Vi b) { return {_mm512_cmpeq_epi32_mask(a.v, b.v)}; }
VITRUM_LANES Vf select(Vm m, Vf a, Vf b) {
  return {_mm512_mask_blend_ps(m.m, b.v, a.v)};
}  // m ? a : b
VITRUM_LANES Vi select(Vm m, Vi a, Vi b) { return {_mm512_mask_blend_epi32(m.m, b.v, a.v)}; }
VITRUM_LANES Vf where(Vm m, Vf a) { return {_mm512_maskz_mov_ps(m.m, a.v)}; }  // m ? a : +0
VITRUM_LANES uint32_t to_bitmask(Vm m) { return m.m; }

// The two 32-bit halves of a * b.
VITRUM_LANES void multiply_wide(Vi a, uint32_t b, Vi& high, Vi& low) {
  const __m512i factor = _mm512_set1_epi64(b);
  const __m512i even = _mm512_mul_epu32(a.v, factor),
                odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), factor);
  high.v = _mm512_mask_shuffle_epi32(odd, 0x5555, even, static_cast<_MM_PERM_ENUM>(0xF5));
  low.v = _mm512_mask_shuffle_epi32(even, 0xAAAA, odd, static_cast<_MM_PERM_ENUM>(0xA0));
}

VITRUM_LANES Vf widen(__m256i bf16) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16))};
}
// bf16 in the upper half of each lane, rounded to nearest even, NaN made quiet; the lower half is
// left over.
VITRUM_LANES __m512i to_upper_bf16(Vf a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
}
#ifdef __AVX512BF16__
VITRUM_LANES __m256i pack_bf16(Vf a) { return (__m256i)_mm512_cvtneps_pbh(a.v); }
VITRUM_LANES Vf round_bf16(Vf a) { return widen(pack_bf16(a)); }
#else
VITRUM_LANES __m256i pack_bf16(Vf a) {
  const __m512i upper = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0x1f001d, 0x1b0019, 0x170015,
                                         0x130011, 0xf000d, 0xb0009, 0x70005, 0x30001);
  return _mm512_castsi512_si256(_mm512_permutexvar_epi16(upper, to_upper_bf16(a)));
}
VITRUM_LANES Vf round_bf16(Vf a) {
  return {_mm512_castsi512_ps(_mm512_and_si512(to_upper_bf16(a), _mm512_set1_epi32(-0x10000)))};
}
#endif
VITRUM_LANES Vf load(const float* p) { return {_mm512_loadu_ps(p)}; }
VITRUM_LANES Vf load(const uint16_t* p) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
VITRUM_LANES Vf load(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
VITRUM_LANES Vi load_words(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
VITRUM_LANES void store_words(uint32_t* p, Vi a) { _mm512_storeu_si512(p, a.v); }
// table[i % 32] of each lane's i.
VITRUM_LANES Vf pick32(const float* table, Vi i) {
  return {_mm512_permutex2var_ps(_mm512_loadu_ps(table), i.v, _mm512_loadu_ps(table + 16))};
}
VITRUM_LANES void store(float* p, Vf a) { _mm512_storeu_ps(p, a.v); }
VITRUM_LANES void store_past(float* p, Vf a) { _mm512_stream_ps(p, a.v); }  // p: a whole line
VITRUM_LANES void store(uint16_t* p, Vf a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), pack_bf16(a));
}
// Rounded to the nearest byte, even on ties; what is beyond takes the last one there is.
VITRUM_LANES void store_bytes(uint8_t* p, Vf a) {
  const __m512i whole = _mm512_max_epi32(_mm512_cvtps_epi32(a.v), _mm512_setzero_si512());
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtusepi32_epi8(whole));
}
VITRUM_LANES void store_bytes(int8_t* p, Vf a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)));
}
// The first n lanes, 0 <= n <= 16; the others load as 0 and are not stored.
VITRUM_LANES Vf load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_n(n).m, p)}; }
VITRUM_LANES Vf load_n(const uint16_t* p, int n) {
  return widen(_mm256_maskz_loadu_epi16(first_n(n).m, p));
}
VITRUM_LANES Vf load_n(const uint8_t* p, int n) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(first_n(n).m, p)))};
}
VITRUM_LANES void store_n(float* p, Vf a, int n) { _mm512_mask_storeu_ps(p, first_n(n).m, a.v); }
VITRUM_LANES void store_n(uint16_t* p, Vf a, int n) {
  _mm256_mask_storeu_epi16(p, first_n(n).m, pack_bf16(a));
}

VITRUM_LANES uint32_t max_lane(Vi a) { return static_cast<uint32_t>(_mm512_reduce_max_epi32(a.v)); }

// Lanes are folded 16 -> 8 -> 4 -> 2 -> 1, the upper half onto the lower.
VITRUM_LANES __m256 lower_half(Vf a) { return _mm512_castps512_ps256(a.v); }
VITRUM_LANES __m256 upper_half(Vf a) { return _mm512_extractf32x8_ps(a.v, 1); }
VITRUM_LANES float sum(Vf a) {
  const __m256 eight = _mm256_add_ps(lower_half(a), upper_half(a));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
VITRUM_LANES float max_lane(Vf a) {
  const __m256 eight = _mm256_max_ps(lower_half(a), upper_half(a));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace
}  // namespace vitrum::cpu::VITRUM_ISA
