// GELU as the card computes it for bf16, against erf in f64: every bf16 number. Needs no card.
#include "vitrum/cuda/primitives/gelu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "vitrum/core/dtype.h"

namespace vitrum::cuda {
namespace {

// As the card's, whose results below the normal numbers are zero.
float exp2_of(float x) {
  const auto y = static_cast<float>(std::exp2(static_cast<double>(x)));
  return y < 0x1p-126f ? 0.0f : y;
}
float range_of(float x) { return std::min(std::abs(x), kGeluEnd); }
double cdf_of(double x) { return std::erfc(-x / M_SQRT2) / 2; }

template <class Body>
void for_every_number(const Body& body) {
  for (uint32_t bits = 0; bits < 65'536; ++bits)
    if (const float x = from_bf16(static_cast<uint16_t>(bits)); std::isfinite(x)) body(x);
}

// Neighbouring numbers of one sign are one apart.
int descriptor_low(uint16_t bits) { return bits & 0x8000 ? -(bits & 0x7fff) : bits; }

TEST(CudaGelu, IsTheNearestNumberOrItsNeighbour) {
  int off = 0;
  for_every_number([&](float x) {
    const double expected = x * cdf_of(x);
    const float y = gelu_of(x, range_of(x), exp2_of);
    if (x < -1 && std::abs(expected) < 0x1p-122) {
      EXPECT_LE(std::abs(y), 0x1p-121f) << x;  // may be zero
      return;
    }
    const int apart = std::abs(descriptor_low(to_bf16(y)) -
                               descriptor_low(to_bf16(static_cast<float>(expected))));
    EXPECT_LE(apart, 1) << x << " -> " << y << ", not " << expected;
    off += apart;
  });
  EXPECT_LT(off, 1000);
}

TEST(CudaGelu, SlopeIsCloserThanItsRounding) {
  for_every_number([&](float x) {
    const double expected = cdf_of(x) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
    const double slope = gelu_derivative_of(x, range_of(x), exp2_of);
    EXPECT_NEAR(slope, expected, std::abs(expected) * 0x1p-11 + 0x1p-15) << x;
  });
}

}  // namespace
}  // namespace vitrum::cuda
