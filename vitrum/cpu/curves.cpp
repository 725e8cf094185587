#include "vitrum/cpu/simd/curves.h"

#include <array>
#include <cmath>
#include <numbers>

namespace vitrum::cpu {
namespace {

double gelu_dip(double a) { return 0.5 * a * std::erfc(a / std::numbers::sqrt2); }
double gelu_tanh_dip(double a) {
  const double u = std::sqrt(2 / std::numbers::pi) * (a + 0.044715 * a * a * a);
  return a / (1 + std::exp(2 * u));
}

// Through the nodes of Chebyshev's polynomial on [-half, half], as powers: Newton's divided
// differences, multiplied out.
std::array<double, 4> cubic(double (*f)(double), double middle, double half) {
  std::array<double, 4> x, d, c{};
  for (size_t i = 0; i < 4; ++i) {
    x[i] = half * std::cos(std::numbers::pi * (2.0 * static_cast<double>(i) + 1) / 8);
    d[i] = f(middle + x[i]);
  }
  for (size_t k = 1; k < 4; ++k)
    for (size_t i = 3; i >= k; --i) d[i] = (d[i] - d[i - 1]) / (x[i] - x[i - k]);
  for (size_t k = 4; k-- > 0;) {
    for (size_t i = 3; i > 0; --i) c[i] = c[i - 1] - x[k] * c[i];
    c[0] = d[k] - x[k] * c[0];
  }
  return c;
}

Curve curve(double (*f)(double)) {
  Curve out;
  for (int i = 0; i < kCurvePieces; ++i) {
    const auto c = cubic(f, i * static_cast<double>(kCurveStep), kCurveStep / 2);
    for (size_t k = 0; k < 4; ++k) out.c[k][i] = static_cast<float>(c[k]);
  }
  // Small numbers keep their digits, and large ones end at 0.
  out.c[0][0] = out.c[0][kCurvePieces - 1] = 0;
  return out;
}

}  // namespace

const Curve kGeluDip = curve(gelu_dip), kGeluTanhDip = curve(gelu_tanh_dip);

}  // namespace vitrum::cpu
