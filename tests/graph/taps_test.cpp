#include "vitrum/graph/taps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/support/data_files.h"
#include "tests/support/expect_error.h"
#include "tests/support/tiny_model.h"
#include "vitrum/infer/predictor.h"

namespace vitrum {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

class Taps : public testing::Test {
 protected:
  Taps() {
    test::write_tiny_model(dir_ / "model", spec_);
    pixels_.resize(static_cast<size_t>(kBatch) * 3 * 32 * 32);
    for (size_t i = 0; i < pixels_.size(); ++i) pixels_[i] = static_cast<uint8_t>(i * 7919 % 251);
  }
  std::vector<std::string> all_names() const {
    Graph g;
    trace(g, spec_, 1);
    return tap_names(g);
  }
  struct Run {
    std::vector<float> logits, features;
    std::vector<std::vector<float>> taps;
  };
  Run run(Predictor& predictor, size_t taps) const {
    Run out{std::vector<float>(kBatch * 7), std::vector<float>(kBatch * 48), {}};
    std::vector<std::span<float>> to;
    for (size_t i = 0; i < taps; ++i)
      out.taps.emplace_back(kBatch * static_cast<size_t>(predictor.tap_shapes()[i].numel()));
    for (auto& tap : out.taps) to.push_back(tap);
    predictor.run(pixels_, out.logits, out.features, to);
    return out;
  }
  static constexpr int kBatch = 3;
  const ModelSpec spec_ = test::tiny_rgb_model();
  test::TempDir dir_;
  std::vector<uint8_t> pixels_;
};

TEST_F(Taps, LogitsHaveTheSameBitsWhateverIsTapped) {
  const std::vector<std::string> names = all_names();
  EXPECT_GT(names.size(), 25u);
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    Predictor plain(dir_ / "model", {.precision = precision});
    const Run expected = run(plain, 0);
    Predictor tapped(dir_ / "model", {.precision = precision, .taps = names});
    const Run got = run(tapped, names.size());
    EXPECT_EQ(got.logits, expected.logits);
    EXPECT_EQ(got.features, expected.features);
    for (const std::string& name : names) {  // each alone, as it breaks up other fusions
      Predictor one(dir_ / "model", {.precision = precision, .taps = {name}});
      const Run alone = run(one, 1);
      EXPECT_EQ(alone.logits, expected.logits) << name;
      const auto at =
          static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
      EXPECT_EQ(alone.taps[0], got.taps[at]) << name;
    }
  }
}

TEST_F(Taps, HaveTimmsNamesAndShapes) {
  EXPECT_THAT(all_names(),
              testing::IsSupersetOf({"patch_embed", "blocks.0", "blocks.1.norm1", "blocks.1.attn",
                                     "blocks.1.attn.qkv", "blocks.1.attn.probs",
                                     "blocks.1.attn.proj", "blocks.1.mlp", "blocks.1.mlp.fc1",
                                     "blocks.1.mlp.act", "norm", "head"}));
  EXPECT_THAT(all_names(), Not(Contains(HasSubstr(".add"))));
  Predictor p(dir_ / "model", {.taps = {"blocks.0", "blocks.1.attn.probs", "norm", "head",
                                        "patch_embed", "blocks.1.attn.probs"}});
  EXPECT_EQ(p.tap_shapes(),
            (std::vector<Shape>{{17, 48}, {3, 17, 17}, {17, 48}, {7}, {16, 48}, {3, 17, 17}}));
  const Run r = run(p, 6);
  EXPECT_EQ(r.taps[3], r.logits);
  EXPECT_EQ(r.taps[1], r.taps[5]);
  for (size_t b = 0; b < kBatch; ++b)  // the features are the class token behind `norm`
    EXPECT_TRUE(std::equal(r.taps[2].begin() + static_cast<ptrdiff_t>(b * 17 * 48),
                           r.taps[2].begin() + static_cast<ptrdiff_t>(b * 17 * 48 + 48),
                           r.features.begin() + static_cast<ptrdiff_t>(b * 48)));
  for (size_t row = 0; row < r.taps[1].size(); row += 17)
    EXPECT_NEAR(std::accumulate(r.taps[1].begin() + static_cast<ptrdiff_t>(row),
                                r.taps[1].begin() + static_cast<ptrdiff_t>(row + 17), 0.0),
                1, 1e-5);
}

// The same kernels in the same order over the same memory as a program that knows nothing of taps.
TEST_F(Taps, CostNothingWhereNoneIsAskedFor) {
  const auto backend = make_backend({});
  Graph plain, with, tapped;
  std::vector<Program> programs;
  ParamStore* store = nullptr;
  std::unique_ptr<ParamStore> owner;
  for (Graph* g : {&plain, &with, &tapped}) {
    const TracedModel m = trace(*g, spec_, 2);
    if (!store) owner = std::make_unique<ParamStore>(*g, *backend), store = owner.get();
    const std::vector<std::string> names =
        g == &tapped ? std::vector<std::string>{"blocks.1.attn.probs"} : std::vector<std::string>{};
    CompileOptions options;
    if (g == &plain) {
      fuse(*g);
    } else {
      options.taps = tap(*g, names);
      fuse(*g, options.taps);
    }
    programs.emplace_back(*g, std::vector{m.features, m.logits}, *store, options);
  }
  const auto kernels = [](const Graph& g) {
    std::vector<std::string> all;
    for (const Node& n : g.nodes) all.push_back(n.name + " " + std::string(name_of(n.op)));
    return all;
  };
  EXPECT_EQ(kernels(plain), kernels(with));
  EXPECT_EQ(programs[0].plan().bytes, programs[1].plan().bytes);
  EXPECT_EQ(programs[0].plan().offset, programs[1].plan().offset);
  // One tapped layer adds one kernel; the other layers stay as they are.
  std::vector<std::string> expected = kernels(plain);
  expected.insert(std::find(expected.begin(), expected.end(), "blocks.1.attn.core Attention") + 1,
                  "blocks.1.attn.probs AttentionProbs");
  EXPECT_EQ(kernels(tapped), expected);
}

TEST_F(Taps, AnUnknownNameOffersTheNearest) {
  EXPECT_ERROR(Predictor(dir_ / "model", {.taps = {"blocks.1.atn.probs"}}), ErrorKind::kUsage,
               "no 'blocks.1.atn.probs' to tap; did you mean 'blocks.1.attn.probs'?");
  EXPECT_ERROR(Predictor(dir_ / "model", {.taps = {""}}), ErrorKind::kUsage, "no '' to tap");
}

}  // namespace
}  // namespace vitrum
