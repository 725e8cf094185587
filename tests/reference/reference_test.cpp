// The reference backend against values computed with PyTorch in f64; inputs are sines of 1, 2, 3,
// ...
#include "vitrum/reference/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tests/support/op_cases.h"
#include "vitrum/core/philox.h"

namespace vitrum::test {
namespace {

constexpr DType kF64 = DType::kF64;

HostTensor of(Shape shape, std::vector<double> values, DType dtype = kF64) {
  return {.shape = shape, .dtype = dtype, .values = std::move(values)};
}
HostTensor blank(Shape shape) { return {.shape = shape, .dtype = kF64}; }
HostTensor none() { return {.present = false}; }
HostTensor sines(Shape shape, int offset = 0, double scale = 1) {
  HostTensor t = blank(shape);
  for (int64_t i = 1; i <= shape.numel(); ++i)
    t.values.push_back(scale * std::sin(static_cast<double>(i + offset)));
  return t;
}

std::vector<HostTensor> run(Op op, std::vector<HostTensor> in, std::vector<HostTensor> out) {
  const auto reference = make_reference_backend();
  return run_case(*reference, {"reference", std::move(op), std::move(in), std::move(out)}).out;
}

void expect_values(const HostTensor& got, const std::vector<double>& expected,
                   double tolerance = 1e-10) {
  ASSERT_EQ(got.values.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(got.values[i], expected[i], tolerance) << "element " << i;
}

TEST(Reference, Activations) {
  const HostTensor x = of({6}, {-3, -1, -0.25, 0, 0.5, 2});
  expect_values(
      run(Activation{Act::kGelu}, {x}, {blank({6})})[0],
      {-0.00404969409489, -0.158655253931, -0.100323418579, 0, 0.345731230637, 1.9544997361});
  expect_values(
      run(Activation{Act::kGeluTanh}, {x}, {blank({6})})[0],
      {-0.00363739208177, -0.158808009392, -0.100324649298, 0, 0.345714009825, 1.95459769409});
  expect_values(run(Activation{Act::kRelu}, {x}, {blank({6})})[0], {0, 0, 0, 0, 0.5, 2});
  expect_values(run(Activation{Act::kSilu}, {x}, {blank({6})})[0],
                {-0.14227761953270, -0.26894142137000, -0.10945587477855, 0, 0.31122966560093,
                 1.76159415595576});
  // The factor is a float attribute: 1.702f differs from 1.702 by 2e-8.
  expect_values(run(Activation{Act::kQuickGelu}, {x}, {blank({6})})[0],
                {-0.01807130970779, -0.15420423406718, -0.09880035009981, 0, 0.35038843660638,
                 1.93565862314421},
                1e-7);
}

TEST(Reference, NaNIsNeverHidden) {
  const HostTensor x = of({1}, {std::nan("")});
  for (Act act :
       {Act::kGelu, Act::kGeluTanh, Act::kRelu, Act::kQuickGelu, Act::kSilu, Act::kSigmoid})
    EXPECT_TRUE(std::isnan(run(Activation{act}, {x}, {blank({1})})[0].values[0]));
}

TEST(Reference, LayerNorm) {
  // eps is a float attribute: 1e-5f differs from 1e-5 by 3e-13
  expect_values(
      run(LayerNorm{1e-5f}, {sines({2, 4}), sines({4}, 10), sines({4}, 20)}, {blank({2, 4})})[0],
      {0.00656054902975, -0.508432314248, -0.935433801602, -2.43986445649, 2.21595344894,
       0.257224825716, -0.543054137045, 0.237240269295});
}

TEST(Reference, Attention) {
  const auto out =
      run(Attention{.heads = 2}, {sines({1, 3, 12}), none()}, {blank({1, 3, 4}), blank({1, 2, 3})});
  expect_values(out[0], {0.71587111196, -0.0604214150966, -0.743394973951, -0.81892993214,
                         0.704016208174, -0.0834213756201, -0.794998301682, -0.779891593794,
                         0.707053547605, -0.0818472896632, -0.830485063314, -0.751798855675});
  expect_values(out[1], {0.163344136631, 0.387625421403, 0.830866968446, 0.676325759814,
                         1.00716811019, 1.39838064016});
}

TEST(Reference, CrossEntropy) {
  const HostTensor logits = sines({2, 4}, 0, 2), weight = of({2}, {0.25, 0.75});
  const HostTensor labels = of({2}, {2, 0}, DType::kI32);
  const HostTensor soft = of({2, 4}, {0.5, 0.5, 0, 0, 0, 0.25, 0.75, 0});
  expect_values(run(CrossEntropy{0.1f}, {logits, labels, weight}, {blank({1})})[0], {3.68750232751},
                1e-7);
  expect_values(run(CrossEntropy{0.1f}, {logits, soft, weight}, {blank({1})})[0], {1.49163946716},
                1e-7);
}

TEST(Reference, MetricsCountImagesOfWeight) {
  const HostTensor logits = of({4, 2}, {1, 1, 0, 2, 3, 0, 0, 5}), weight = of({4}, {1, 1, 1, 0});
  const HostTensor labels =
      of({4}, {0, 1, 1, 1}, DType::kI32);  // tie counts for class 0; the last is padding
  expect_values(
      run(TrainMetrics{}, {of({1}, {0.5}), logits, labels, weight}, {of({3}, {10, 20, 30})})[0],
      {10.5, 22, 33});
}

// Three clipped steps with weight decay from sin(1..4), gradients (t + 1) sin(t + 1 ..), lr 0.1.
std::vector<double> three_steps(OptimizerKind kind) {
  OptimizerStep op{.kind = kind,
                   .segments = {{.offset = 0, .size = 4, .lr_scale = 1, .decay = 0.05f}}};
  const HostTensor zeros = of({4}, {0, 0, 0, 0});
  std::vector<HostTensor> arenas = {zeros, sines({4}), zeros, zeros};
  const double norms[] = {1.45861581723, 3.05877259603, 3.78318158813};
  for (int step = 1; step <= 3; ++step) {
    arenas[0] = sines({4}, step - 1, step);
    const HostTensor clip = run(ClipScale{.max_norm = 1}, {arenas[0]}, {blank({2})})[0];
    const HostTensor hyper =
        of({4}, {0.1, 1 - std::pow(op.beta1, step), 1 - std::pow(op.beta2, step), 0});
    arenas = run(op, {hyper, clip}, arenas);
    EXPECT_EQ(arenas[0].values, zeros.values);
    EXPECT_NEAR(clip.values[0], norms[step - 1], 1e-9);
  }
  return arenas[1].values;
}

TEST(Reference, Optimizers) {  // torch.optim with clip_grad_norm_(1)
  const auto expect = [](OptimizerKind kind, const std::vector<double>& expected) {
    expect_values(of({4}, three_steps(kind)), expected, 1e-6);
  };
  expect(OptimizerKind::kSgd, {0.538866429366, 0.75867049484, 0.280956406147, -0.455067706662});
  expect(OptimizerKind::kAdam, {0.5548201809, 0.722033766305, 0.178587563697, -0.464656990345});
  expect(OptimizerKind::kAdamW, {0.545129803526, 0.720816784267, 0.178839623666, -0.455548046489});
}

TEST(Reference, OptimizerAveragesAndCopies) {
  const OptimizerStep op{.kind = OptimizerKind::kSgd, .segments = {{.offset = 0, .size = 1}}};
  const HostTensor hyper = of({4}, {1, 1, 1, 0.75}), clip = of({2}, {9, 0.5});
  const auto out = run(op, {hyper, clip},
                       {of({2}, {4, 0}), of({2}, {5, 6}), none(), none(), of({2}, {7, 8}),
                        of({2}, {0, 1}, DType::kBF16)});
  expect_values(out[1], {3, 6});  // 5 - 1 * 0.5 * 4; the second belongs to no segment
  expect_values(out[4], {6, 8});  // 0.75 * 7 + 0.25 * 3
  expect_values(out[5], {3, 1});
}

TEST(Reference, PatchOrders) {  // an image of 2 channels, 2 rows, 4 columns in patches of 2 x 2
  HostTensor image = blank({1, 2, 2, 4});
  for (int i = 0; i < 16; ++i) image.values.push_back(i);
  expect_values(run(Patchify{2, 2, PatchOrder::kChannelFirst}, {image, none(), none()},
                    {blank({1, 2, 8})})[0],
                {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15});
  expect_values(
      run(Patchify{2, 2, PatchOrder::kChannelLast}, {image, none(), none()}, {blank({1, 2, 8})})[0],
      {0, 8, 1, 9, 4, 12, 5, 13, 2, 10, 3, 11, 6, 14, 7, 15});
}

TEST(Reference, DropoutFollowsTheDraws) {
  const RandomState state{.seed_low = 1, .seed_high = 2, .step_low = 3, .step_high = 4};
  const HostTensor rng = of({4}, {1, 2, 3, 4}, DType::kI32);
  const HostTensor ones = of({3, 100}, std::vector<double>(300, 1));
  const auto element = run(Dropout{0.25f, 6}, {ones, rng}, {ones})[0].values;
  const auto path = run(DropPath{0.25f, 6}, {ones, rng}, {ones})[0].values;
  for (int64_t i = 0; i < 300; ++i) {
    const bool kept = draw16(state, 6, 16, i / 128, i % 128) < keep_threshold(0.25f);
    EXPECT_EQ(element[static_cast<size_t>(i)], kept ? keep_scale(0.25f) : 0) << i;
    const bool sample = draw16(state, 6, 1, i / 100, 0) < keep_threshold(0.25f);
    EXPECT_EQ(path[static_cast<size_t>(i)], sample ? keep_scale(0.25f) : 0) << i;
  }
}

// Which tokens of 1, 2, 3, .. each image keeps.
std::vector<std::vector<int>> kept_of(const RandomState& state, uint32_t site, int64_t images,
                                      int64_t prefix, int64_t tokens, int64_t kept) {
  HostTensor x = blank({images, tokens, 1});
  for (int64_t i = 0; i < images * tokens; ++i) x.values.push_back(static_cast<double>(i % tokens));
  const HostTensor rng = of({4},
                            {double(state.seed_low), double(state.seed_high),
                             double(state.step_low), double(state.step_high)},
                            DType::kI32);
  const HostTensor y =
      run(KeepTokens{{prefix, kept - prefix, site}}, {x, rng}, {blank({images, kept, 1})})[0];
  std::vector<std::vector<int>> rows(static_cast<size_t>(images));
  for (int64_t i = 0; i < images * kept; ++i)
    rows[static_cast<size_t>(i / kept)].push_back(
        static_cast<int>(y.values[static_cast<size_t>(i)]));
  return rows;
}

TEST(Reference, KeptTokensHaveTheSmallestDraws) {
  const RandomState state{.seed_low = 1, .seed_high = 2, .step_low = 3, .step_high = 4};
  const auto rows = kept_of(state, 6, 5, 2, 13, 7);
  for (int64_t b = 0; b < 5; ++b) {
    const std::vector<int>& row = rows[static_cast<size_t>(b)];
    EXPECT_TRUE(std::ranges::is_sorted(row));
    EXPECT_EQ(row[0], 0);
    EXPECT_EQ(row[1], 1);
    uint32_t most = 0, least = UINT32_MAX;  // of those kept, of the others
    for (int t = 2; t < 13; ++t) {
      const uint32_t draw = draw32(state, 6, 3, b, t - 2);
      if (std::ranges::count(row, t) == 1)
        most = std::max(most, draw);
      else
        least = std::min(least, draw);
    }
    EXPECT_LT(most, least);
  }
}

// Over many steps each patch is kept equally often, and so is each pair of neighbours; images and
// sites have nothing to do with each other.
TEST(Reference, KeptTokensAreFair) {
  constexpr int kSteps = 4000, kPatches = 16, kKept = 4;
  std::array<int, kPatches> often{};
  int pairs = 0, images = 0, sites = 0;
  for (uint32_t step = 0; step < kSteps; ++step) {
    const RandomState state{.seed_low = 7, .step_low = step};
    const auto rows = kept_of(state, 1, 2, 1, 1 + kPatches, 1 + kKept);
    for (size_t i = 1; i <= kKept; ++i) ++often[static_cast<size_t>(rows[0][i] - 1)];
    for (size_t i = 2; i <= kKept; ++i) pairs += rows[0][i] == rows[0][i - 1] + 1;
    const auto common = [&](const std::vector<int>& other) {
      return static_cast<int>(std::ranges::count_if(
          rows[0], [&](int t) { return t > 0 && std::ranges::count(other, t) > 0; }));
    };
    images += common(rows[1]);
    sites += common(kept_of(state, 2, 1, 1, 1 + kPatches, 1 + kKept)[0]);
  }
  // A quarter of 4000 is 1000, its deviation 27.
  for (int patch = 0; patch < kPatches; ++patch)
    EXPECT_NEAR(often[static_cast<size_t>(patch)], 1000, 120) << patch;
  EXPECT_NEAR(pairs, kSteps * 15 * 4 * 3 / (16. * 15), 150);
  EXPECT_NEAR(images, kSteps, 150);  // of four, a quarter
  EXPECT_NEAR(sites, kSteps, 150);
}

}  // namespace
}  // namespace vitrum::test
