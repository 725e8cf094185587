// Arithmetic on sizes that a file or a server states. What does not fit stays at the largest
// number, which every limit refuses; it never wraps round to a small one.
#pragma once
#include <concepts>
#include <limits>

namespace vitrum {

// Of numbers that are not negative.
template <std::integral T>
constexpr T capped_add(T a, T b) {
  T sum{};
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<T>::max() : sum;
}

template <std::integral T>
constexpr T capped_mul(T a, T b) {
  T product{};
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<T>::max() : product;
}

}  // namespace vitrum
