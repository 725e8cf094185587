// The vectorised loops of the CPU backend, instruction set by instruction set: accuracy of their
// functions, rounding, tails, randomness, and equal bits from all of them.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <vector>

#include "vitrum/cpu/backend.h"
#include "vitrum/cpu/simd/attention.h"
#include "vitrum/cpu/simd/linear.h"

namespace vitrum::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

Array array_of(std::vector<float>& v) { return {v.data(), DType::kF32}; }
Array array_of(std::vector<uint16_t>& v) { return {v.data(), DType::kBF16}; }

std::vector<float> sweep(double from, double to, double step) {
  std::vector<float> x;
  for (double v = from; v <= to; v += step) x.push_back(static_cast<float>(v));
  return x;
}
std::vector<float> normals(int64_t n, uint64_t index, double mean = 0) {
  PhiloxStream draw(11, 0, index);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = static_cast<float>(mean + draw.normal());
  return x;
}

class Simd : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    const CpuFeatures cpu = cpu_features();
    if (!(GetParam() == Isa::kAvx2     ? cpu.avx2
          : GetParam() == Isa::kAvx512 ? cpu.avx512
                                       : cpu.avx512_bf16))
      GTEST_SKIP() << "not on this processor";
  }
  static const SimdKernels& simd() {
    return GetParam() == Isa::kAvx2     ? kSimdAvx2
           : GetParam() == Isa::kAvx512 ? kSimdAvx512
                                        : kSimdAvx512Bf16;
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, Simd, ::testing::Values(Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16),
                         [](const auto& info) {
                           return info.param == Isa::kAvx2     ? "avx2"
                                  : info.param == Isa::kAvx512 ? "avx512"
                                                               : "avx512_bf16";
                         });

// The gradient of a loss with lse = 0 and label 0 is exp(logit) for every other class.
std::vector<float> exp_of(const SimdKernels& simd, std::vector<float> x) {
  x.insert(x.begin(), 0.0f);
  std::vector<float> y(x.size());
  const int32_t label = 0;
  const float weight = 1, lse = 0;
  const LossArgs args{.logits = array_of(x),
                      .labels = &label,
                      .target = nullptr,
                      .weight = &weight,
                      .classes = ssize(x),
                      .form = {.smoothing = 0}};
  simd.loss->backward(args, &lse, array_of(y), 0, 1);
  y.erase(y.begin());
  return y;
}

TEST_P(Simd, ExpIsAccurate) {
  const std::vector<float> x = sweep(-87, 88.7, 1.37e-3), y = exp_of(simd(), x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp(static_cast<double>(x[i]));
    worst = std::max(worst, std::abs(y[i] - expected) / expected);
  }
  EXPECT_LT(worst, 1.5e-7);
}

TEST_P(Simd, ExpAtTheEdges) {
  const std::vector<float> x = {-kInf, -200, -104.5f, -100, 0, 88.72f, 88.73f, 1e30f, kInf, NAN},
                           y = exp_of(simd(), x);
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[2], 0);
  EXPECT_NEAR(y[3], std::exp(-100.0), 2e-45);  // subnormal
  EXPECT_EQ(y[4], 1);
  EXPECT_NEAR(y[5] / std::exp(static_cast<double>(88.72f)), 1, 1.5e-7);
  for (size_t i = 6; i < 9; ++i) EXPECT_EQ(y[i], kInf);
  EXPECT_TRUE(std::isnan(y[9]));
}

double cdf(double x) { return 0.5 * std::erfc(-x * std::numbers::sqrt2 / 2); }
double gelu(double x) { return x * cdf(x); }
double gelu_slope(double x) {
  return cdf(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
}
double two_u(double x) { return 2 * std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x); }
double gelu_tanh(double x) { return x / (1 + std::exp(-two_u(x))); }
double gelu_tanh_slope(double x) {
  const double s = 1 / (1 + std::exp(-two_u(x)));
  return s + x * s * (1 - s) * 2 * std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x);
}

// Values keep their relative accuracy far into the tail; slopes cross zero, so theirs is absolute.
TEST_P(Simd, GeluIsAccurate) {
  std::vector<float> x = sweep(-9, 9, 7.3e-4), y(x.size()), ones(x.size(), 1.0f);
  const auto check = [&](Act act, double (*value)(double), double (*slope)(double)) {
    simd().elementwise->activation(act, array_of(x), array_of(y), 0, ssize(x));
    double worst = 0, worst_slope = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = value(x[i]), squares = 1 + static_cast<double>(x[i]) * x[i];
      if (std::abs(expected) > 1e-36)
        worst = std::max(worst, std::abs(y[i] - expected) / std::abs(expected) / squares);
    }
    simd().elementwise->activation_bwd(act, array_of(ones), array_of(x), array_of(y), 0, ssize(x));
    for (size_t i = 0; i < x.size(); ++i)
      worst_slope = std::max(worst_slope, std::abs(y[i] - slope(x[i])));
    EXPECT_LT(worst, 4e-7) << static_cast<int>(act);
    EXPECT_LT(worst_slope, 4e-7) << static_cast<int>(act);
  };
  check(Act::kGelu, gelu, gelu_slope);
  check(Act::kGeluTanh, gelu_tanh, gelu_tanh_slope);
}

// Every bf16 number through a linear layer's activation: the nearest bf16 number, or now and then
// the one beside it. Past -5.7 the exact result is below 4e-8, and 0 will do.
TEST_P(Simd, GeluOfBf16IsWithinOneStep) {
  std::vector<float> x;
  for (uint32_t high = 0; high < 0x10000; ++high)
    if (const float v = std::bit_cast<float>(high << 16); std::isfinite(v)) x.push_back(v);
  std::vector<uint16_t> y(x.size());
  const auto check = [&](Act act, double (*value)(double)) {
    const LinearEpilogueArgs args{array_of(y), {}, nullptr, act, nullptr, ssize(x)};
    simd().linear->epilogue(args, x.data(), ssize(x), 0, 1, 0, ssize(x), nullptr);
    int beside = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = x[i] < -40 ? 0 : value(x[i]);
      if (x[i] < -5.7f || std::abs(expected) < 1e-37) {
        EXPECT_NEAR(from_bf16(y[i]), expected, 4e-8) << x[i];
        continue;
      }
      const int step = std::abs(int{y[i]} - int{to_bf16(static_cast<float>(expected))});
      EXPECT_LE(step, x[i] < -5 ? 8 : 1) << x[i];
      beside += step > 0;
    }
    EXPECT_LT(beside, 100);
    float odd[] = {NAN, kInf, -kInf};
    simd().linear->epilogue(args, odd, 3, 0, 1, 0, 3, nullptr);
    EXPECT_TRUE(std::isnan(from_bf16(y[0])));
    EXPECT_EQ(from_bf16(y[1]), kInf);
    EXPECT_EQ(from_bf16(y[2]), 0);
  };
  check(Act::kGelu, gelu);
  check(Act::kGeluTanh, gelu_tanh);
}

// Weights of a row and the factor it still needs are softmax's, to bf16.
TEST_P(Simd, NarrowSoftmaxIsSoftmax) {
  for (const int64_t tokens : {1, 15, 16, 50, 197}) {
    const int64_t stride = (tokens + 15) / 16 * 16;
    std::vector<float> s = normals(stride, 5), exact = s, factors(static_cast<size_t>(stride + 32));
    s[0] = exact[0] = -kInf;
    if (tokens == 1) s[0] = exact[0] = 3;
    float lse = 0, narrow_lse = 0, inverse = 0;
    simd().attention->softmax(exact.data(), 1, tokens, stride, 4, 0, nullptr, &lse, factors.data());
    simd().attention->softmax_narrow(s.data(), 1, tokens, stride, 4, 0, nullptr, &narrow_lse,
                                     &inverse, factors.data());
    std::vector<uint16_t> weights(static_cast<size_t>(tokens));
    std::memcpy(weights.data(), s.data(), weights.size() * sizeof(uint16_t));
    for (size_t i = 0; i < weights.size(); ++i)
      EXPECT_NEAR(from_bf16(weights[i]) * inverse, exact[i], 1e-36 + exact[i] / 240) << i;
    EXPECT_NEAR(narrow_lse, lse, 2e-4);
  }
}

TEST_P(Simd, RoundsToBf16AsTheScalarCode) {
  std::vector<float> x;
  for (uint32_t high = 0; high < 0x10000; ++high)
    for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      x.push_back(std::bit_cast<float>(high << 16 | low));
  std::vector<uint16_t> y(x.size());
  simd().elementwise->convert(array_of(x), array_of(y), 0, ssize(x));
  std::vector<float> back(x.size());
  simd().elementwise->convert(array_of(y), array_of(back), 0, ssize(x));
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(y[i], to_bf16(x[i])) << std::bit_cast<uint32_t>(x[i]);
    ASSERT_EQ(std::bit_cast<uint32_t>(back[i]), uint32_t{y[i]} << 16);
  }
}

// Every length up to three vectors, copied between guards that must survive.
template <class From, class To>
void check_tails(const SimdKernels& simd, From one, To result, To guard) {
  for (int64_t n = 0; n <= 48; ++n) {
    std::vector<From> x(static_cast<size_t>(n), one);
    std::vector<To> y(static_cast<size_t>(n) + 40, guard);
    simd.elementwise->convert(array_of(x), {y.data() + 20, array_of(y).dtype}, 0, n);
    for (int64_t i = 0; i < ssize(y); ++i)
      ASSERT_EQ(y[static_cast<size_t>(i)], i >= 20 && i < 20 + n ? result : guard)
          << n << " at " << i;
  }
}
TEST_P(Simd, TailsStayInside) {
  check_tails<float, float>(simd(), 1.5f, 1.5f, 7.0f);
  check_tails<float, uint16_t>(simd(), 1.5f, to_bf16(1.5f), 9);
  check_tails<uint16_t, float>(simd(), to_bf16(1.5f), 1.5f, 7.0f);
  check_tails<uint16_t, uint16_t>(simd(), to_bf16(1.5f), to_bf16(1.5f), 9);
}

TEST_P(Simd, BytesBecomePixels) {
  for (int64_t n = 0; n <= 40; ++n) {
    std::vector<uint8_t> x(static_cast<size_t>(n));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint8_t>(255 - 5 * i);
    std::vector<float> y(static_cast<size_t>(n) + 1, 7.0f);
    simd().embed->normalize({x.data(), DType::kU8}, array_of(y), 0.5f, -1, 0, n);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], 0.5f * static_cast<float>(x[i]) - 1);
    ASSERT_EQ(y.back(), 7.0f);
  }
}

// Negative inputs show that what is dropped becomes +0.
TEST_P(Simd, DropoutDrawsAsTheScalarCode) {
  const RandomState states[] = {{1, 2, 3, 0}, {0xffffffffu, 0x80000000u, 0xdeadbeefu, 0x12345u}};
  for (const RandomState& rng : states)
    for (float drop : {0.0f, 1e-6f, 0.1f, 0.5f, 0.99f}) {
      std::vector<float> x(128 * 37 + 77, -1.0f), y(x.size());
      simd().elementwise->dropout(drop_site(rng, drop, 19), array_of(x), array_of(y), 128,
                                  ssize(x));
      for (int64_t i = 128; i < ssize(x); ++i) {
        const bool kept = draw16(rng, 19, draws_per_row(kDrawRow), i / kDrawRow, i % kDrawRow) <
                          keep_threshold(drop);
        const float expected = kept ? -keep_scale(drop) : 0.0f;
        ASSERT_EQ(std::bit_cast<uint32_t>(y[static_cast<size_t>(i)]),
                  std::bit_cast<uint32_t>(expected))
            << i;
      }
    }
}

TEST_P(Simd, FindsTheFirstLargest) {
  for (int64_t n : {1, 10, 16, 17, 100}) {
    std::vector<float> x(static_cast<size_t>(n), -3.0f);
    for (int64_t at = 0; at < n; ++at) {
      x.assign(x.size(), -3.0f);
      for (int64_t i = at; i < n; i += 5) x[static_cast<size_t>(i)] = 2;
      const auto label = static_cast<int32_t>(at);
      const float weight = 1;
      double counts[2] = {};
      simd().loss->correct({array_of(x), &label, nullptr, &weight, n, 0}, 0, 1, counts);
      ASSERT_EQ(counts[0], 1) << n << " " << at;
      ASSERT_EQ(counts[1], 1);
    }
  }
}

// ---- the same bits from every instruction set ----

constexpr int64_t kRows = 13, kWidth = 197;  // neither is a multiple of anything
using Results = std::vector<std::vector<float>>;

Results norm_results(const SimdKernels& simd, bool narrow) {
  const auto n = static_cast<size_t>(kRows * kWidth);
  std::vector<float> a = normals(kRows * kWidth, 1, 3), b = normals(kRows * kWidth, 2),
                     w = normals(kWidth, 3);
  std::vector<uint16_t> a16(n), b16(n), sum16(n), y16(n), dx16(n);
  std::vector<float> sum(n), y(n), dx(n), mean(kRows), rstd(kRows), dw(kWidth), db(kWidth),
      scratch(kWidth + 16);
  simd.elementwise->convert(array_of(a), array_of(a16), 0, ssize(a));
  simd.elementwise->convert(array_of(b), array_of(b16), 0, ssize(b));
  const auto pick = [&](auto& wide, auto& thin) {
    return narrow ? array_of(thin) : array_of(wide);
  };
  simd.norm->forward({.a = pick(a, a16),
                      .b = pick(b, b16),
                      .sum = pick(sum, sum16),
                      .y = pick(y, y16),
                      .w = w.data(),
                      .bias = w.data(),
                      .mean = mean.data(),
                      .rstd = rstd.data(),
                      .width = kWidth,
                      .eps = 1e-6f},
                     0, kRows, scratch.data());
  simd.norm->backward({.dy = pick(b, b16),
                       .x = pick(sum, sum16),
                       .dskip = pick(a, a16),
                       .dx = pick(dx, dx16),
                       .w = w.data(),
                       .mean = mean.data(),
                       .rstd = rstd.data(),
                       .width = kWidth},
                      0, kRows, dw.data(), db.data());
  if (narrow) {
    simd.elementwise->convert(array_of(y16), array_of(y), 0, ssize(y));
    simd.elementwise->convert(array_of(dx16), array_of(dx), 0, ssize(dx));
  }
  return {y, mean, rstd, dx, dw, db};
}

Results function_results(const SimdKernels& simd) {
  std::vector<float> x = sweep(-20, 20, 3.1e-3), ones(x.size(), 1.0f);
  Results all = {exp_of(simd, sweep(-110, 95, 3.3e-3))};
  for (Act act : {Act::kGelu, Act::kGeluTanh, Act::kRelu}) {
    std::vector<float> y(x.size()), dx(x.size());
    simd.elementwise->activation(act, array_of(x), array_of(y), 0, ssize(x));
    simd.elementwise->activation_bwd(act, array_of(ones), array_of(x), array_of(dx), 0, ssize(x));
    all.push_back(y), all.push_back(dx);
  }
  return all;
}

Results loss_results(const SimdKernels& simd) {
  std::vector<float> x = normals(kRows * kWidth, 4), t = normals(kRows * kWidth, 5, 2),
                     dx(x.size()), lse(kRows), weight = normals(kRows, 6, 1), loss32;
  std::vector<double> loss(kRows);
  const LossArgs args{array_of(x), nullptr, t.data(), weight.data(), kWidth, 0.1f};
  simd.loss->forward(args, 0, kRows, loss.data(), lse.data());
  simd.loss->backward(args, lse.data(), array_of(dx), 0, kRows);
  for (double v : loss) loss32.push_back(static_cast<float>(v));
  return {loss32, lse, dx};
}

Results optimizer_results(const SimdKernels& simd, OptimizerKind kind) {
  std::vector<float> g = normals(1001, 7), p = normals(1001, 8), m = normals(1001, 9),
                     v(1001, 0.3f), ema = p;
  const auto squares = static_cast<float>(simd.optimizer->sum_squares(g.data(), ssize(g)));
  OptimizerArgs args{};
  args.kind = kind, args.beta1 = 0.9f, args.rest1 = 0.1f, args.beta2 = 0.999f, args.rest2 = 0.001f,
  args.eps = 1e-8f;
  args.lr = 1e-3f, args.correction1 = 0.1f, args.correction2 = 0.001f, args.ema_decay = 0.99f,
  args.clip = 0.7f;
  args.gradient = g.data(), args.param = p.data(), args.first = m.data(), args.second = v.data(),
  args.ema = ema.data();
  std::vector<float> sums = {squares};
  args.nesterov = true;
  if (kind == OptimizerKind::kLamb)
    sums.push_back(static_cast<float>(simd.optimizer->lamb_moments(args, 0.05f, 0, ssize(g))));
  if (kind == OptimizerKind::kMuon)
    sums.push_back(static_cast<float>(simd.optimizer->momentum(args, 0, ssize(g))));
  simd.optimizer->step(args, 0.5f, 0.05f, 0, ssize(g));
  return {g, p, m, v, ema, sums};
}

void expect_same_bits(const Results& a, const Results& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t k = 0; k < a.size(); ++k)
    for (size_t i = 0; i < a[k].size(); ++i)
      ASSERT_EQ(std::bit_cast<uint32_t>(a[k][i]), std::bit_cast<uint32_t>(b[k][i]))
          << "result " << k << " element " << i << ": " << a[k][i] << " and " << b[k][i];
}

TEST(SimdSets, GiveTheSameBits) {
  if (!cpu_features().avx512) GTEST_SKIP() << "this processor has one instruction set only";
  const auto compare = [](const auto& results) {
    expect_same_bits(results(kSimdAvx2), results(kSimdAvx512));
  };
  compare([](const SimdKernels& s) { return norm_results(s, false); });
  compare([](const SimdKernels& s) { return norm_results(s, true); });
  compare(function_results);
  compare(loss_results);
  for (OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW,
                             OptimizerKind::kLion, OptimizerKind::kLamb, OptimizerKind::kMuon})
    compare([&](const SimdKernels& s) { return optimizer_results(s, kind); });
}

}  // namespace
}  // namespace vitrum::cpu
