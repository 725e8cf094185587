#pragma once
#include <concepts>
#include <type_traits>

namespace vitrum {

// How many pieces of b cover a, and how much that is. Not for files of cpu/simd/, which share no
// inline functions.
template <std::integral A, std::integral B>
constexpr auto ceil_div(A a, B b) {
  using T = std::common_type_t<A, B>;
  return (static_cast<T>(a) + static_cast<T>(b) - 1) / static_cast<T>(b);
}
template <std::integral A, std::integral B>
constexpr auto round_up(A a, B b) {
  return ceil_div(a, b) * static_cast<std::common_type_t<A, B>>(b);
}

}  // namespace vitrum
