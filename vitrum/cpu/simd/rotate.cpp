#include "vitrum/cpu/simd/arrays.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

// Lanes as neighbours see each other: b, a, d, c, ..; the first eight twice each; and -1, 1, -1, ..
#ifdef __AVX512F__
VITRUM_LANES Vf swap_pairs(Vf a) { return {_mm512_permute_ps(a.v, 0xB1)}; }
VITRUM_LANES Vf twice(Vf a) {
  const __m512i from = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return {_mm512_permutexvar_ps(from, a.v)};
}
VITRUM_LANES Vf minus_plus() {
  return {_mm512_setr_ps(-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1)};
}
#else
VITRUM_LANES Vf swap_pairs(Vf a) {
  return {_mm256_permute_ps(a.lo, 0xB1), _mm256_permute_ps(a.hi, 0xB1)};
}
VITRUM_LANES Vf twice(Vf a) {
  const __m256 low = _mm256_unpacklo_ps(a.lo, a.lo), high = _mm256_unpackhi_ps(a.lo, a.lo);
  return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}
VITRUM_LANES Vf minus_plus() {
  const __m256 half = _mm256_setr_ps(-1, 1, -1, 1, -1, 1, -1, 1);
  return {half, half};
}
#endif

template <class T>
VITRUM_LANES void copy(const Stream<T>& x, const Stream<T>& y, int64_t first, int64_t last) {
  for_lanes(first, last, [&](int64_t i, auto n) { y.store(i, x.load(i, n), n); });
}

// One head's values from `at` on, by the angles of `cosines` and `sines`.
template <class T>
VITRUM_LANES void rotate_halves(const Stream<T>& x, const Stream<T>& y, const float* cosines,
                                const float* sines, Vf sign, int64_t pairs, int64_t at) {
  for_lanes(0, pairs, [&](int64_t i, auto n) {
    const Vf c = load(cosines + i, n), s = sign * load(sines + i, n);
    const Vf a = x.load(at + i, n), b = x.load(at + pairs + i, n);
    y.store(at + i, fnma(b, s, a * c), n);
    y.store(at + pairs + i, fma(a, s, b * c), n);
  });
}
// Sixteen values are eight pairs; each lane has its neighbour's value and its pair's angle.
template <class T>
VITRUM_LANES void rotate_neighbours(const Stream<T>& x, const Stream<T>& y, const float* cosines,
                                    const float* sines, Vf sign, int64_t pairs, int64_t at) {
  const Vf alternating = sign * minus_plus();
  for_lanes(0, 2 * pairs, [&](int64_t i, auto n) {
    const int64_t left = pairs - i / 2;
    const int angles = left < 8 ? static_cast<int>(left) : 8;
    const Vf c = twice(load_n(cosines + i / 2, angles)), s = twice(load_n(sines + i / 2, angles));
    const Vf v = x.load(at + i, n);
    y.store(at + i, fma(swap_pairs(v), alternating * s, v * c), n);
  });
}

void rotate(const RotateArgs& r, int64_t first, int64_t last) {
  const int64_t width = r.heads * r.head, pairs = r.head / 2;
  const Vf sign = splat(r.inverse ? -1.0f : 1.0f);
  with_type(
      [&]<class T>() {
        const Stream<T> x(r.x), y(r.y);
        for (int64_t row = first; row < last; ++row) {
          const int64_t token = row % r.tokens - r.prefix, at = row * 3 * width,
                        turned = token < 0 ? 0 : 2 * width;
          const float* cosines = token < 0 ? nullptr : r.table + token * r.head;
          for (int64_t head = at; head < at + turned; head += r.head)
            if (r.halves)
              rotate_halves(x, y, cosines, cosines + pairs, sign, pairs, head);
            else
              rotate_neighbours(x, y, cosines, cosines + pairs, sign, pairs, head);
          copy(x, y, at + turned, at + 3 * width);
        }
      },
      r.x, r.y);
}

}  // namespace

constinit const RotateKernels kRotate = {.rows = rotate};

}  // namespace vitrum::cpu::VITRUM_ISA
