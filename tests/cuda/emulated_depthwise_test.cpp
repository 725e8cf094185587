// Depthwise convolution of two channels a thread and its gradients, as the card computes them,
// without one; and how the work is divided.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/emulated_tensors.h"
// Written in what is above, for another compiler.
#include "vitrum/cuda/conv/depthwise_pairs.cuh"

namespace vitrum::cuda {
namespace {

using namespace depthwise;

struct Task {
  int images, height, width, channels, padding, rows, each;  // rows, each: of the plan

  int down() const { return height + 2 * padding - kKernel + 1; }
  int across() const { return width + 2 * padding - kKernel + 1; }
  Windows windows() const { return {height, width, channels, down(), across(), kKernel, padding}; }
  Plan plan() const {
    const auto ceil = [](int a, int b) { return (a + b - 1) / b; };
    Plan plan{.strips = ceil(across(), kStrip),
              .rows = rows,
              .parts = ceil(down(), rows),
              .groups = ceil(channels, kChannels),
              .each = each};
    plan.items = int64_t{images} * plan.strips * plan.parts;
    plan.chunks = (plan.items + each - 1) / each;
    return plan;
  }
  size_t x_at(int image, int i, int j, int c) const {
    return static_cast<size_t>(((image * height + i) * width + j) * channels + c);
  }
  size_t y_at(int image, int i, int j, int c) const {
    return static_cast<size_t>(((image * down() + i) * across() + j) * channels + c);
  }
  int64_t x_count() const { return int64_t{images} * height * width * channels; }
  int64_t y_count() const { return int64_t{images} * down() * across() * channels; }
  // body(place in y, place in x, place in w) of every product.
  template <class Body>
  void for_products(const Body& body) const {
    for (int image = 0; image < images; ++image)
      for (int i = 0; i < down(); ++i)
        for (int j = 0; j < across(); ++j)
          for (int place = 0; place < kPlaces; ++place) {
            const int line = i - padding + place / kKernel, column = j - padding + place % kKernel;
            if (line < 0 || line >= height || column < 0 || column >= width) continue;
            for (int c = 0; c < channels; ++c)
              body(y_at(image, i, j, c), x_at(image, line, column, c),
                   static_cast<size_t>(c * kPlaces + place));
          }
  }
};
// Widths that end within a strip, images lower than a window, parts of an image, a group of
// channels that is not full, a strip that sees both ends.
constexpr Task kTasks[] = {{2, 7, 7, 34, 3, 7, 8},   {1, 9, 16, 96, 3, 9, 8},
                           {3, 5, 3, 2, 3, 5, 16},   {1, 15, 10, 40, 3, 6, 8},
                           {2, 12, 9, 36, 0, 2, 16}, {1, 4, 5, 64, 6, 10, 24},
                           {2, 8, 23, 6, 3, 3, 8}};

template <class Body>
void run(int64_t blocks, const Body& body) {
  card.cluster = 1;
  card.blocks = static_cast<int>(blocks);
  card.body = [&] { body(*reinterpret_cast<Shared*>(card.shared())); };
  for (card.block = 0; card.block < card.blocks; ++card.block) card.run(kThreads);
}

std::vector<float> as_floats(const std::vector<bf16>& x) {
  std::vector<float> y;
  for (const bf16 v : x) y.push_back(from_bf16(v.bits));
  return y;
}

TEST(EmulatedDepthwise, ConvolvesAndTurnsTheWindowRound) {
  for (const Task& task : kTasks)
    for (const bool turned : {false, true}) {
      SCOPED_TRACE(fmt::format("{} x {} x {}", task.height, task.width, task.channels));
      const std::vector<bf16> x = noise(task.x_count(), 1, 1);
      const std::vector<float> w = as_floats(noise(task.channels * kPlaces, 0.2f, 2)),
                               bias = as_floats(noise(task.channels, 1, 3));
      std::vector<bf16> y(static_cast<size_t>(task.y_count()), bf16{0xffff});
      const ConvolveArgs args{.g = task.windows(),
                              .plan = task.plan(),
                              .x = x.data(),
                              .w = w.data(),
                              .bias = turned ? nullptr : bias.data(),
                              .y = y.data(),
                              .turned = turned};
      run(args.plan.blocks(), [&](Shared& s) { convolve(args, s); });
      std::vector<double> expected(y.size());
      for (size_t i = 0; i < y.size() && !turned; ++i)
        expected[i] = static_cast<double>(bias[i % static_cast<size_t>(task.channels)]);
      task.for_products([&](size_t to, size_t from, size_t place) {
        const size_t turn = place / kPlaces * kPlaces + kPlaces - 1 - place % kPlaces;
        expected[to] += value(x[from]) * static_cast<double>(w[turned ? turn : place]);
      });
      for (size_t i = 0; i < y.size(); ++i)
        ASSERT_NEAR(value(y[i]), expected[i], 0.005 * (0.01 + std::abs(expected[i]))) << i;
    }
}

TEST(EmulatedDepthwise, SumsTheGradientOfWindowsAndBias) {
  for (const Task& task : kTasks) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", task.height, task.width, task.channels));
    const std::vector<bf16> x = noise(task.x_count(), 1, 1), dy = noise(task.y_count(), 1, 2);
    const Plan plan = task.plan();
    const auto channels = static_cast<size_t>(task.channels), row = (kPlaces + 1) * channels;
    std::vector<float> partials(static_cast<size_t>(plan.chunks) * row, NAN);
    const GradientArgs args{.g = task.windows(),
                            .plan = plan,
                            .x = x.data(),
                            .dy = dy.data(),
                            .partials = partials.data()};
    run(plan.chunks * plan.groups, [&](Shared& s) { sum_windows(args, s); });
    std::vector<double> got(row), expected(row), size(row, 1e-3);
    for (size_t i = 0; i < partials.size(); ++i) got[i % row] += static_cast<double>(partials[i]);
    const auto add = [&](size_t at, double term) {
      expected[at] += term, size[at] += std::abs(term);
    };
    task.for_products([&](size_t to, size_t from, size_t place) {
      add(place % kPlaces * channels + place / kPlaces, value(dy[to]) * value(x[from]));
    });
    for (size_t i = 0; i < dy.size(); ++i) add(kPlaces * channels + i % channels, value(dy[i]));
    for (size_t i = 0; i < row; ++i) ASSERT_NEAR(got[i], expected[i], 1e-5 * size[i]) << i;
  }
}

// Every line and strip is somebody's once, whatever the shape; small batches are left to others.
TEST(ChooseDepthwise, DividesTheWork) {
  int planned = 0;
  for (const int64_t images : {0, 1, 2, 31, 64, 256})
    for (const int size : {1, 7, 8, 14, 56, 96, 224})
      for (const int channels : {3, 40, 96, 768})
        for (const int padding : {0, 3}) {
          const int out = size + 2 * padding - kKernel + 1;
          if (out < 1) continue;
          const Windows g{size, size, channels, out, out, kKernel, padding};
          const Plan plan = plan_depthwise(g, images, true);
          if (plan.items == 0) continue;
          ++planned;
          ASSERT_EQ(channels % 2, 0);
          ASSERT_EQ(plan.items, images * plan.strips * plan.parts);
          ASSERT_GE(plan.strips * kStrip, out);
          ASSERT_GE(plan.parts * plan.rows, out);
          ASSERT_LT((plan.parts - 1) * plan.rows, out);
          ASSERT_GE(plan.groups * kChannels, channels);
          ASSERT_GE(plan.chunks * plan.each, plan.items);
          ASSERT_LT((plan.chunks - 1) * plan.each, plan.items);
        }
  EXPECT_GT(planned, 50);
  const Windows stage{56, 56, 96, 56, 56, kKernel, 3};
  EXPECT_EQ(plan_depthwise(stage, 1, true).items, 0);
  EXPECT_EQ(plan_depthwise(stage, 256, false).items, 0);
  EXPECT_EQ(plan_depthwise(stage, 256, true).blocks(), 768);
  EXPECT_EQ(plan_depthwise({56, 56, 96, 54, 54, 5, 1}, 256, true).items, 0);
}

}  // namespace
}  // namespace vitrum::cuda
