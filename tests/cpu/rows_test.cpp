// Ops in places where a fast kernel could cut a corner, on every backend of this machine.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/op_cases.h"
#include "vitrum/core/philox.h"
#include "vitrum/runtime/backends.h"

namespace vitrum::test {
namespace {

class Rows : public testing::TestWithParam<const char*> {
 protected:
  std::vector<HostTensor> run(const Op& op, std::vector<HostTensor> in,
                              std::vector<HostTensor> out) {
    RunResult result = run_case(*backend_, {"rows", op, std::move(in), std::move(out)});
    EXPECT_EQ(result.fault, "");
    return result.out;
  }
  HostTensor normal(Shape shape, double mean = 0, double deviation = 1) {
    HostTensor t{.shape = shape, .values = {}};
    for (int64_t i = 0; i < shape.numel(); ++i)
      t.values.push_back(static_cast<float>(mean + deviation * draw_.normal()));
    return t;
  }
  static HostTensor of(Shape shape, std::vector<double> values, DType dtype = DType::kF32) {
    return {.shape = shape, .dtype = dtype, .values = std::move(values)};
  }
  static HostTensor blank(Shape shape, DType dtype = DType::kF32) {
    return {.shape = shape, .dtype = dtype, .values = {}};
  }
  static HostTensor none() { return {.shape = {}, .values = {}, .present = false}; }
  static HostTensor rng() { return of({4}, {1, 2, 3, 4}, DType::kI32); }

  const std::unique_ptr<Backend> backend_ = make_backend({.device = GetParam(), .threads = 2});
  PhiloxStream draw_{11, 0, 0};
};

INSTANTIATE_TEST_SUITE_P(Device, Rows, testing::Values("reference", "cpu"),
                         [](const auto& info) { return std::string(info.param); });

// Rows far from zero with little in them: the mean of their squares less the square of their mean
// would be all rounding.
TEST_P(Rows, LayerNormOfEnormousMeans) {
  struct Case {
    double mean, deviation;
  };
  constexpr int64_t kRows = 5;
  for (const int64_t width : {17, 64, 192, 768})
    for (const Case& c : {Case{1e4, 0.1}, Case{-1e5, 1}, Case{1e6, 4}}) {
      const HostTensor x = normal({kRows, width}, c.mean, c.deviation);
      const HostTensor one = of({width}, std::vector<double>(static_cast<size_t>(width), 1));
      const auto y = run(LayerNorm{}, {x, one, none()},
                         {blank({kRows, width}), blank({kRows}), blank({kRows})});
      for (int64_t r = 0; r < kRows; ++r) {
        const double* row = &x.values[static_cast<size_t>(r * width)];
        double mean = 0, squares = 0;
        for (int64_t i = 0; i < width; ++i) mean += row[i] / static_cast<double>(width);
        for (int64_t i = 0; i < width; ++i) squares += (row[i] - mean) * (row[i] - mean);
        const double rstd = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-6);
        EXPECT_NEAR(y[2].values[static_cast<size_t>(r)] / rstd, 1, 1e-4)
            << width << " wide, mean " << c.mean;
        for (int64_t i = 0; i < width; ++i)
          ASSERT_NEAR(y[0].values[static_cast<size_t>(r * width + i)], (row[i] - mean) * rstd, 1e-3)
              << width << " wide, mean " << c.mean;
      }
    }
}

// The same as the layer and dropout one after the other, with and without bias and activation.
TEST_P(Rows, LinearDropsWithoutABiasToo) {
  for (const int64_t rows : {1, 3, 51})
    for (const bool has_bias : {false, true})
      for (const Act act : {Act::kNone, Act::kGelu, Act::kRelu}) {
        const HostTensor x = normal({rows, 33}), w = normal({65, 33}, 0, 0.2),
                         bias = has_bias ? normal({65}) : none(), y = blank({rows, 65});
        HostTensor plain = run(Linear{}, {x, w, bias, none()}, {y})[0];
        if (act != Act::kNone) plain = run(Activation{act}, {plain}, {y})[0];
        const HostTensor expected = run(Dropout{0.4f, 7}, {plain, rng()}, {y})[0];
        const HostTensor got = run(Linear{act, 0.4f, 7}, {x, w, bias, rng()}, {y})[0];
        EXPECT_EQ(bit_difference({got}, {expected}), "") << rows << " rows, bias " << has_bias;
        int zeros = 0;
        for (const double v : got.values) zeros += v == 0 ? 1 : 0;
        EXPECT_GT(zeros, 0.2 * static_cast<double>(got.values.size()));
      }
}

TEST_P(Rows, DropAsOftenAsTheyShould) {
  constexpr int64_t kCount = 40'000;
  const HostTensor ones = of({kCount / 2, 2}, std::vector<double>(kCount, 1));
  for (const float drop : {0.1f, 0.25f, 0.5f, 0.9f}) {
    for (const bool path : {false, true}) {
      const Op op = path ? Op(DropPath{drop, 3}) : Op(Dropout{drop, 3});
      const HostTensor y = run(op, {ones, rng()}, {blank(ones.shape)})[0];
      double kept = 0, sum = 0;
      for (const double v : y.values) kept += v != 0 ? 1 : 0, sum += v;
      const double share = 1 - static_cast<double>(drop);
      EXPECT_NEAR(kept / kCount, share, 0.02) << drop << path;
      EXPECT_NEAR(sum / kCount, 1, 0.15 * static_cast<double>(drop) / share) << drop << path;
    }
  }
}

TEST_P(Rows, TheFirstOfEqualsIsTheLargest) {
  for (const int64_t width : {2, 7, 16, 33, 1000})
    for (const int64_t first : {int64_t{0}, width / 2, width - 1}) {
      HostTensor x = of({3, width}, std::vector<double>(static_cast<size_t>(3 * width), -1));
      for (int64_t r = 0; r < 3; ++r)
        for (int64_t i = first; i < width; ++i) x.values[static_cast<size_t>(r * width + i)] = 2.5;
      const HostTensor found = run(Argmax{}, {x}, {blank({3}, DType::kI32)})[0];
      for (const double best : found.values) EXPECT_EQ(best, static_cast<double>(first)) << width;
    }
}

}  // namespace
}  // namespace vitrum::test
