// Kernels of rotary positions and gates, run without a card: see support/emulated_card.h.
#include <gtest/gtest.h>

#include "tests/support/emulated_tensors.h"
#include "vitrum/cuda/attention/rotate.cuh"
#include "vitrum/cuda/primitives/gate.cuh"

namespace vitrum::cuda {
namespace {

void expect_near(bf16 got, double expected, size_t at) {
  ASSERT_NEAR(value(got), expected, 0.008 * (0.1 + std::abs(expected))) << at;
}

TEST(EmulatedRotate, TurnsQueriesAndKeysBehindThePrefix) {
  constexpr int kImages = 2, kPrefix = 5, kPatches = 6, kHeads = 3, kHead = 32;
  constexpr int kTokens = kPrefix + kPatches, kWidth = kHeads * kHead;
  const std::vector<bf16> x = noise(kImages * kTokens * 3 * kWidth, 1, 1);
  std::vector<float> table;
  for (int i = 0; i < kPatches * kHead; ++i)
    table.push_back(std::cos(0.37f * static_cast<float>(i)));
  for (const bool halves : {false, true})
    for (const float sign : {1.f, -1.f}) {
      const Rotation r{table.data(), kTokens, kPrefix, kWidth, kHead, halves, sign};
      std::vector<bf16> y(x.size());
      for (size_t at = 0; at < x.size(); at += 8)
        rotate_eight(x.data(), y.data(), r, static_cast<int64_t>(at));
      for (size_t i = 0; i < x.size(); ++i) {
        const size_t column = i % (3 * kWidth), token = i / (3 * kWidth) % kTokens,
                     d = column % kHead, pairs = kHead / 2;
        if (token < kPrefix || column >= 2 * kWidth) {
          ASSERT_EQ(y[i].bits, x[i].bits) << i;
          continue;
        }
        const bool first = halves ? d < pairs : d % 2 == 0;
        const size_t pair = halves ? d % pairs : d / 2, apart = halves ? pairs : 1;
        const float* angles = table.data() + (token - kPrefix) * kHead;
        const double own = value(x[i]), other = value(x[first ? i + apart : i - apart]),
                     sine = static_cast<double>(sign * angles[pairs + pair]);
        expect_near(y[i], own * static_cast<double>(angles[pair]) + (first ? -1 : 1) * other * sine,
                    i);
      }
    }
}

TEST(EmulatedRotate, GatesAndTheirGradients) {
  constexpr int kRows = 5, kWidth = 24;
  const std::vector<bf16> x = noise(kRows * 2 * kWidth, 2, 1), dy = noise(kRows * kWidth, 1, 2);
  std::vector<bf16> y(dy.size()), dx(x.size());
  for (int64_t at = 0; at < kRows * kWidth; at += 8) {
    gate_eight<Act::kGelu>(x.data(), y.data(), kWidth, at);
    gate_bwd_eight<Act::kGelu>(dy.data(), x.data(), dx.data(), kWidth, at);
  }
  const auto slope = [](double g) {
    return cdf(g) + g * std::exp(-g * g / 2) / std::sqrt(2 * M_PI);
  };
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t at = i / kWidth * kWidth + i;
    const double g = value(x[at]), v = value(x[at + kWidth]), d = value(dy[i]);
    expect_near(y[i], g * cdf(g) * v, i);
    expect_near(dx[at], d * v * slope(g), i);
    expect_near(dx[at + kWidth], d * g * cdf(g), i);
  }
}

}  // namespace
}  // namespace vitrum::cuda
