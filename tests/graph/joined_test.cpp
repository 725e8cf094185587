// Two layers computed together give the bits of each on its own, and write nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "vitrum/core/philox.h"
#include "vitrum/cpu/cpu.h"
#include "vitrum/runtime/backend.h"

namespace vitrum {
namespace {

std::vector<ChainNode> chain(const Op& first, const Operands& of_first, const Op& second,
                             const Operands& of_second) {
  return {{.op = &first, .io = of_first}, {.op = &second, .io = of_second, .only = true}};
}

constexpr float kSentinel = 12345.0f;
constexpr int64_t kGuard = 32;

// f32 memory with sentinels on both sides, filled with noise.
struct Memory {
  std::vector<float> values;
  Shape shape;
  Memory(Shape s, uint64_t seed) : shape(s) {
    values.assign(static_cast<size_t>(s.numel() + 2 * kGuard), kSentinel);
    PhiloxStream random(seed, kAugmentStream, 0);
    for (int64_t i = 0; i < s.numel(); ++i)
      values[static_cast<size_t>(kGuard + i)] =
          static_cast<float>(random.next_u32() >> 8) / (1 << 23) - 1;
  }
  TensorView view() { return {values.data() + kGuard, shape, DType::kF32}; }
  bool guarded() const {
    for (int64_t i = 0; i < kGuard; ++i)
      if (values[static_cast<size_t>(i)] != kSentinel ||
          values[values.size() - 1 - static_cast<size_t>(i)] != kSentinel)
        return false;
    return true;
  }
};

struct Mlp {
  int64_t rows, in, hidden, out;
  Act act = Act::kGelu;
  float drop = 0;
  bool frozen = false;  // no gradients of parameters
  bool to_input = true;
};

struct Results {
  std::vector<Memory> all;
  bool guarded() const {
    return std::all_of(all.begin(), all.end(), [](const Memory& m) { return m.guarded(); });
  }
};

bool same(const Memory& a, const Memory& b) {
  return std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(float)) == 0;
}

RandomState random_state{.seed_low = 5, .seed_high = 6, .step_low = 7, .step_high = 0};
TensorView rng_view() { return {&random_state, {4}, DType::kI32}; }

// Forward: x, w1, b1, w2, b2 -> hidden, saved, y.
Results forward(Backend& backend, const Mlp& m, bool joined, bool kept) {
  Results run;
  const Shape shapes[] = {{m.rows, m.in}, {m.hidden, m.in},   {m.hidden},         {m.out, m.hidden},
                          {m.out},        {m.rows, m.hidden}, {m.rows, m.hidden}, {m.rows, m.out}};
  for (size_t i = 0; i < std::size(shapes); ++i) run.all.emplace_back(shapes[i], i);
  const auto at = [&](size_t i) { return run.all[i].view(); };
  const Linear one{m.act, m.drop, 3}, two{Act::kNone, m.drop, 4};
  const bool saves = m.act == Act::kGelu;
  const TensorView between = joined && !kept ? TensorView{} : at(5);
  const Operands first{{at(0), at(1), at(2), rng_view()},
                       {between, kept && saves ? at(6) : TensorView{}}},
      second{{between, at(3), at(4), rng_view()}, {at(7)}};
  if (joined) {
    backend.lower_joined(chain(one, first, two, second))->launch();
  } else {
    auto a = backend.lower(one, first);
    auto b = backend.lower(two, second);
    a->launch(), b->launch();
  }
  return run;
}

// Backward: dy, hidden, w2, x, w1, saved -> dw2, db2, dx, dw1, db1; dh is between.
Results backward(Backend& backend, const Mlp& m, bool joined) {
  Results run;
  const Shape shapes[] = {
      {m.rows, m.out},  {m.rows, m.hidden}, {m.out, m.hidden}, {m.rows, m.in},
      {m.hidden, m.in}, {m.rows, m.hidden}, {m.out, m.hidden}, {m.out},
      {m.rows, m.in},   {m.hidden, m.in},   {m.hidden},        {m.rows, m.hidden}};
  for (size_t i = 0; i < std::size(shapes); ++i) run.all.emplace_back(shapes[i], i);
  const auto at = [&](size_t i) { return run.all[i].view(); };
  const auto grad = [&](size_t i) { return m.frozen ? TensorView{} : at(i); };
  const LinearBwd two{{}, Act::kNone, m.drop, 4}, one{{}, m.act, m.drop, 3};
  const TensorView between = joined ? TensorView{} : at(11);
  const Operands second{{at(0), at(1), at(2), {}, rng_view()}, {between, grad(6), grad(7)}},
      first{{between, at(3), at(4), m.act == Act::kNone ? TensorView{} : at(5), rng_view()},
            {m.to_input ? at(8) : TensorView{}, grad(9), grad(10)}};
  if (joined) {
    backend.lower_joined(chain(two, second, one, first))->launch();
  } else {
    auto b = backend.lower(two, second);
    auto a = backend.lower(one, first);
    b->launch(), a->launch();
  }
  run.all.pop_back();
  return run;
}

class Joined : public ::testing::TestWithParam<Isa> {
 protected:
  std::unique_ptr<Backend> backend(int threads) {
    return make_cpu_backend({.threads = threads, .max_isa = GetParam()});
  }
  const std::vector<Mlp> shapes_ = {
      {300, 64, 512, 64, Act::kRelu, 0.1f},
      {301, 192, 768, 192, Act::kGelu},
      {700, 40, 130, 72, Act::kGelu, 0.2f},
      {5, 33, 70, 17, Act::kGeluTanh},
      {500, 96, 384, 96, Act::kGelu, 0, /*frozen=*/true},
      {250, 96, 200, 64, Act::kRelu, 0.5f, false, /*to_input=*/false},
      {4200, 16, 512, 16, Act::kGelu},
  };
};

TEST_P(Joined, ForwardIsBothLayers) {
  for (const Mlp& m : shapes_)
    for (const int threads : {1, 3})
      for (const bool kept : {true, false}) {
        const auto cpu = backend(threads);
        const Results apart = forward(*cpu, m, false, kept), both = forward(*cpu, m, true, kept);
        EXPECT_TRUE(both.guarded());
        for (const size_t i : {5, 6, 7})
          EXPECT_TRUE((i == 5 && !kept) || same(apart.all[i], both.all[i]))
              << "rows " << m.rows << " result " << i << " threads " << threads;
      }
}

TEST_P(Joined, BackwardIsBothLayers) {
  for (const Mlp& m : shapes_)
    for (const int threads : {1, 2, 3}) {
      const auto cpu = backend(threads);
      const Results apart = backward(*cpu, m, false), both = backward(*cpu, m, true);
      EXPECT_TRUE(both.guarded());
      for (size_t i = 0; i < both.all.size(); ++i)
        EXPECT_TRUE(same(apart.all[i], both.all[i]))
            << "rows " << m.rows << " tensor " << i << " threads " << threads;
    }
}

INSTANTIATE_TEST_SUITE_P(Isas, Joined, ::testing::Values(Isa::kAvx2, Isa::kAuto),
                         [](const auto& info) {
                           return info.param == Isa::kAvx2 ? "avx2" : "best";
                         });

}  // namespace
}  // namespace vitrum
