// Sums over rows of doubles, in their order.
#pragma once
#include <concepts>

namespace vitrum {

template <std::integral N>
double dot(const double* a, const double* b, N n) {
  double sum = 0;
  for (N i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

template <std::integral N>
void add_scaled(double* to, double factor, const double* from, N n) {
  for (N i = 0; i < n; ++i) to[i] += factor * from[i];
}

}  // namespace vitrum
