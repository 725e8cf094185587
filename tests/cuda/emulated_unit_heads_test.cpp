// Heads of unit length and their gradient, eight values a thread, without a card.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/emulated_tensors.h"
// Written in what is above, for another compiler.
#include "vitrum/cuda/attention/unit_heads.cuh"

namespace vitrum::cuda {
namespace {

using namespace unit;

struct Task {
  int rows, heads, parts, unit, log_lanes;

  int dim() const { return 8 << log_lanes; }
  int64_t values() const { return int64_t{rows} * parts * heads * dim(); }
};
// Fewer threads than a warp, a warp that ends between heads, heads as wide as a warp.
constexpr Task kTasks[] = {{1, 1, 1, 1, 0}, {5, 3, 3, 2, 2}, {3, 2, 3, 2, 3},
                           {2, 1, 2, 1, 5}, {9, 3, 3, 1, 1}, {4, 2, 3, 3, 4}};

template <class Body>
void run(const Task& task, const Body& body) {
  card.cluster = 1;
  card.blocks = static_cast<int>((task.values() / 8 + kThreads - 1) / kThreads);
  card.body = [&] { body(int64_t{blockIdx.x} * kThreads + threadIdx.x); };
  for (card.block = 0; card.block < card.blocks; ++card.block) card.run(kThreads);
}

// body(first value, part, row and head in `along`) of every head.
template <class Body>
void for_heads(const Task& task, const Body& body) {
  for (int row = 0; row < task.rows; ++row)
    for (int part = 0; part < task.parts; ++part)
      for (int head = 0; head < task.heads; ++head)
        body(static_cast<size_t>(((row * task.parts + part) * task.heads + head) * task.dim()),
             part, static_cast<size_t>(row * task.heads + head));
}

struct Expected {
  double length = 0, dot = 0, factor = 1;
};
Expected expected_of(const Task& task, const std::vector<bf16>& x, const std::vector<bf16>& dy,
                     const float* scale, size_t begin, int part, size_t head) {
  Expected e;
  for (size_t i = begin; i < begin + static_cast<size_t>(task.dim()); ++i)
    e.length += value(x[i]) * value(x[i]), e.dot += value(x[i]) * value(dy[i]);
  e.length = std::sqrt(e.length);
  if (part == 0 && scale)
    e.factor = std::sqrt(task.dim()) *
               std::exp(std::min(static_cast<double>(scale[head % static_cast<size_t>(task.heads)]),
                                 std::log(100.0)));
  return e;
}

const std::vector<float> kScales = {0.3f, 5.0f, -1.0f};  // the second is more than counts

TEST(EmulatedUnitHeads, AreOfUnitLength) {
  for (const Task& task : kTasks)
    for (const float* scale : {kScales.data(), static_cast<const float*>(nullptr)}) {
      SCOPED_TRACE(fmt::format("{} x {} x {}", task.rows, task.heads, task.dim()));
      const std::vector<bf16> x = noise(task.values(), 1, 1);
      std::vector<bf16> y(x.size(), bf16{0xffff});
      const Heads g{task.heads,
                    task.parts,
                    task.unit,
                    task.dim(),
                    int64_t{task.rows} * task.parts * task.heads,
                    scale};
      run(task, [&](int64_t i) { unit_eight(g, x.data(), y.data(), i, task.log_lanes); });
      for_heads(task, [&](size_t begin, int part, size_t head) {
        const Expected e = expected_of(task, x, x, scale, begin, part, head);
        for (size_t i = begin; i < begin + static_cast<size_t>(task.dim()); ++i) {
          const double want = value(x[i]) * (part < task.unit ? e.factor / e.length : 1);
          ASSERT_NEAR(value(y[i]), want, 0.005 * std::abs(want)) << i;
        }
      });
    }
}

TEST(EmulatedUnitHeads, GradientsOfHeadsAndScales) {
  for (const Task& task : kTasks) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", task.rows, task.heads, task.dim()));
    const std::vector<bf16> x = noise(task.values(), 1, 1), dy = noise(task.values(), 1, 2);
    std::vector<bf16> dx(x.size(), bf16{0xffff});
    std::vector<float> along(static_cast<size_t>(task.rows * task.heads), NAN);
    const Heads g{task.heads,
                  task.parts,
                  task.unit,
                  task.dim(),
                  int64_t{task.rows} * task.parts * task.heads,
                  kScales.data()};
    run(task, [&](int64_t i) {
      unit_back_eight(g, dy.data(), x.data(), dx.data(), along.data(), i, task.log_lanes);
    });
    for_heads(task, [&](size_t begin, int part, size_t head) {
      const Expected e = expected_of(task, x, dy, kScales.data(), begin, part, head);
      if (part == 0) {
        const bool counts = head % static_cast<size_t>(task.heads) != 1;
        const double want = counts ? e.factor * e.dot / e.length : 0;
        ASSERT_NEAR(static_cast<double>(along[head]), want, 1e-4 * (1 + std::abs(want))) << head;
      }
      for (size_t i = begin; i < begin + static_cast<size_t>(task.dim()); ++i) {
        const double off = e.dot / e.length / e.length;
        const double want = part < task.unit
                                ? e.factor / e.length * (value(dy[i]) - off * value(x[i]))
                                : value(dy[i]);
        ASSERT_NEAR(value(dx[i]), want, 0.005 * (0.01 * e.factor + std::abs(want))) << i;
      }
    });
  }
}

}  // namespace
}  // namespace vitrum::cuda
