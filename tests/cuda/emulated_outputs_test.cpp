// What becomes of a product before it leaves the registers, as the card computes it, without one.
#include <gtest/gtest.h>

#include "tests/support/emulated_tile.h"
// Written in what is above, for another compiler.
#include "vitrum/cuda/linear/outputs.cuh"

namespace vitrum::cuda {
namespace {

using namespace tile;

constexpr int kAll = 300, kDeep = 72;  // rows that end within a tile, in each block of a cluster

struct Layer {
  int columns;
  std::vector<bf16> x = noise(kAll * kDeep, 1, 1), w = noise(int64_t{columns} * kDeep, 0.2f, 2),
                    bias = noise(columns, 1, 3);
  std::vector<bf16> y = std::vector<bf16>(static_cast<size_t>(kAll * columns), bf16{0xffff}),
                    pre = y;

  template <class Form>
  void run(const Form& form, bool saves) {
    card.most_late = 100;
    ASSERT_NO_THROW(run_tile(x, kDeep, w, 1,
                             BiasEpilogue<Form>{.bias = bias.data(),
                                                .pre = saves ? pre.data() : nullptr,
                                                .y = y.data(),
                                                .rows = kAll,
                                                .columns = columns,
                                                .form = form},
                             Form::kGates));
  }
  double sum(size_t row, size_t column) const {
    return product(x, row, w, column, kDeep) + value(bias[column]);
  }
};
void expect_near(bf16 got, double expected, size_t at) {
  ASSERT_NEAR(value(got), expected, 0.01 * (0.1 + std::abs(expected))) << at;
}

bf16 from_sum(const Layer& layer, size_t row, size_t column) {
  return {to_bf16(static_cast<float>(layer.sum(row, column)))};
}

template <Act kAct, class F>
void expect_activated(const F& f) {
  Layer layer{512};
  layer.run(Activated<kAct>{}, /*saves=*/true);
  for (size_t i = 0; i < layer.y.size(); ++i) {
    expect_near(layer.pre[i], layer.sum(i / 512, i % 512), i);
    expect_near(layer.y[i], f(value(layer.pre[i])), i);
  }
}
TEST(EmulatedOutputs, FormsOfGelu) {
  expect_activated<Act::kGelu>([](double x) { return x * cdf(x); });
  expect_activated<Act::kGeluTanh>([](double x) {
    return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  });
  expect_activated<Act::kQuickGelu>([](double x) { return x / (1 + std::exp(-1.702 * x)); });
}

// Gates and values are halves of a row: of what the layer leaves, and of its weights.
TEST(EmulatedOutputs, GatedActivations) {
  constexpr size_t kWidth = 256;
  for (const bool saves : {false, true}) {
    Layer layer{2 * kWidth};
    layer.run(Gated<Act::kQuickGelu>{}, saves);
    for (size_t i = 0; i < kAll * kWidth; ++i) {
      const size_t row = i / kWidth, column = i % kWidth, at = row * 2 * kWidth + column;
      const double gate = value(from_sum(layer, row, column)),
                   factor = value(from_sum(layer, row, column + kWidth));
      expect_near(layer.y[i], gate / (1 + std::exp(-1.702 * gate)) * factor, i);
      if (!saves) continue;
      expect_near(layer.pre[at], layer.sum(row, column), i);
      expect_near(layer.pre[at + kWidth], layer.sum(row, column + kWidth), i);
    }
    for (size_t i = kAll * kWidth; i < layer.y.size(); ++i) ASSERT_EQ(layer.y[i].bits, 0xffff);
  }
}

// Four heads of 64; the tile of queries ends where that of keys begins.
TEST(EmulatedOutputs, RotaryPositions) {
  constexpr int kTokens = 11, kPrefix = 3, kWidth = 256, kColumnsInAll = 3 * kWidth;
  std::vector<float> table;
  for (int i = 0; i < (kTokens - kPrefix) * 64; ++i)
    table.push_back(std::cos(0.37f * static_cast<float>(i)));
  for (const bool halves : {false, true}) {
    const float sign = halves ? -1 : 1;
    Layer layer{kColumnsInAll};
    layer.run(Rotated{{table.data(), kTokens, kPrefix, kWidth, 64, halves, sign}}, false);
    for (size_t i = 0; i < layer.y.size(); ++i) {
      const size_t row = i / kColumnsInAll, column = i % kColumnsInAll, d = column % 64,
                   pair = halves ? d % 32 : d / 2, apart = halves ? 32 : 1;
      const bool first = halves ? d < 32 : d % 2 == 0;
      const int token = static_cast<int>(row % kTokens) - kPrefix;
      double expected = layer.sum(row, column);
      if (token >= 0 && column < 2 * kWidth) {
        const double other = layer.sum(row, first ? column + apart : column - apart);
        const float* angles = table.data() + token * 64;
        expected = expected * static_cast<double>(angles[pair]) +
                   (first ? -1 : 1) * other * static_cast<double>(sign * angles[32 + pair]);
      }
      ASSERT_NEAR(value(layer.y[i]), expected, 0.03 + 0.008 * std::abs(expected)) << i;
    }
  }
}

}  // namespace
}  // namespace vitrum::cuda
