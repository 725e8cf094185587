// Loops over arrays whose element type is known at launch only, with tails of fewer than 16
// elements.
#pragma once
#include "vitrum/cpu/simd/lanes.h"
#include "vitrum/cpu/simd/simd.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

// How many lanes an access touches: all (known to the compiler) or the first n, an int.
struct All {};

template <class T>
VITRUM_LANES Vf load(const T* p, All) {
  return load(p);
}
template <class T>
VITRUM_LANES Vf load(const T* p, int n) {
  return load_n(p, n);
}
template <class T>
VITRUM_LANES void store(T* p, Vf v, All) {
  store(p, v);
}
template <class T>
VITRUM_LANES void store(T* p, Vf v, int n) {
  store_n(p, v, n);
}
VITRUM_LANES Vf only(Vf v, All) { return v; }
VITRUM_LANES Vf only(Vf v, int n) { return where(first_n(n), v); }

VITRUM_LANES Vf or_else(Vf v, All, float) { return v; }
VITRUM_LANES Vf or_else(Vf v, int n, float other) { return select(first_n(n), v, splat(other)); }

// body(i, lanes) over [first, last): 16 elements at a time, then what is left.
template <class Body>
VITRUM_LANES void for_lanes(int64_t first, int64_t last, const Body& body) {
  int64_t i = first;
  for (; i + 16 <= last; i += 16) body(i, All{});
  if (i < last) body(i, static_cast<int>(last - i));
}

// The sum of term(i, lanes) over [0, n), in four running sums; a tail's other lanes must be 0.
template <class Term>
VITRUM_LANES float sum_lanes(int64_t n, const Term& term) {
  Vf s[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64)
    for (int k = 0; k < 4; ++k) s[k] += term(i + 16 * k, All{});
  for (; i + 16 <= n; i += 16) s[0] += term(i, All{});
  if (i < n) s[1] += term(i, static_cast<int>(n - i));
  return sum((s[0] + s[1]) + (s[2] + s[3]));
}

// An Array of elements T: float, uint16_t (bf16), or Mixed, which looks at each access.
struct Mixed;
template <class T>
struct Stream {
  T* p;
  VITRUM_LANES explicit Stream(Array a) : p(static_cast<T*>(a.data)) {}
  VITRUM_LANES explicit operator bool() const { return p != nullptr; }
  template <class N>
  VITRUM_LANES Vf load(int64_t i, N n) const {
    return VITRUM_ISA::load(p + i, n);
  }
  template <class N>
  VITRUM_LANES void store(int64_t i, Vf v, N n) const {
    VITRUM_ISA::store(p + i, v, n);
  }
  VITRUM_LANES Vf rounded(Vf v) const { return rounded_as(v, p); }
};
template <>
struct Stream<Mixed> {
  Stream<float> f32;
  Stream<uint16_t> bf16;
  bool narrow;
  VITRUM_LANES explicit Stream(Array a) : f32(a), bf16(a), narrow(a.dtype == DType::kBF16) {}
  VITRUM_LANES explicit operator bool() const { return f32.p != nullptr; }
  template <class N>
  VITRUM_LANES Vf load(int64_t i, N n) const {
    return narrow ? bf16.load(i, n) : f32.load(i, n);
  }
  template <class N>
  VITRUM_LANES void store(int64_t i, Vf v, N n) const {
    narrow ? bf16.store(i, v, n) : f32.store(i, v, n);
  }
  VITRUM_LANES Vf rounded(Vf v) const { return narrow ? round_bf16(v) : v; }
};

// Floats whose whole vectors, at multiples of 16, are written past the caches: for results that
// would not stay there, and must not be fetched first.
struct Past;
template <>
struct Stream<Past> : Stream<float> {
  using Stream<float>::Stream;
  VITRUM_LANES void store(int64_t i, Vf v, All) const { store_past(p + i, v); }
  VITRUM_LANES void store(int64_t i, Vf v, int n) const { Stream<float>::store(i, v, n); }
};

// Calls body.operator()<T>() with the one type of all the arrays that are present, or Mixed.
template <class Body, class... Arrays>
VITRUM_LANES void with_type(const Body& body, const Arrays&... arrays) {
  if (((!arrays.data || arrays.dtype == DType::kF32) && ...))
    return body.template operator()<float>();
  if (((!arrays.data || arrays.dtype == DType::kBF16) && ...))
    return body.template operator()<uint16_t>();
  if constexpr (sizeof...(arrays) > 1) body.template operator()<Mixed>();
}
// The same, or Past where that is asked for and possible.
template <class Body, class... Arrays>
VITRUM_LANES void with_type_or_past(bool past, const Body& body, const Arrays&... arrays) {
  const auto takes = [](const Array& a) {
    return !a.data || (a.dtype == DType::kF32 && reinterpret_cast<uintptr_t>(a.data) % 64 == 0);
  };
  if (!past || !(takes(arrays) && ...)) return with_type(body, arrays...);
  body.template operator()<Past>();
  _mm_sfence();  // or another thread might read what was there before
}

}  // namespace
}  // namespace vitrum::cpu::VITRUM_ISA
