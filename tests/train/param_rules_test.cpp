// Which parameters learn, and how fast: names and factors, and what they do to a real step.
#include "vitrum/train/param_rules.h"

#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <map>

#include "tests/support/expect_error.h"
#include "tests/support/tiny_run.h"
#include "vitrum/core/error.h"

namespace vitrum {
namespace {

using test::TinyRun;
using test::usage_error;
using testing::AllOf;
using testing::HasSubstr;

std::vector<ParamSpec> named(const std::vector<std::string>& names) {
  std::vector<ParamSpec> params;
  for (const std::string& name : names) params.push_back({.name = name, .shape = {1}, .init = {}});
  return params;
}

TEST(ParamRules, PatternsAreGlobsAndModules) {
  EXPECT_TRUE(matches("blocks.*", "blocks.0.attn.qkv.weight"));
  EXPECT_TRUE(matches("blocks.1", "blocks.1.norm1.weight"));
  EXPECT_FALSE(matches("blocks.1", "blocks.10.norm1.weight"));
  EXPECT_TRUE(matches("blocks.[0-9]", "blocks.3.norm1.weight"));
  EXPECT_FALSE(matches("blocks.[0-9]", "blocks.13.norm1.weight"));
  EXPECT_TRUE(matches("*.bias", "blocks.0.attn.qkv.bias"));
  EXPECT_TRUE(matches("head", "head.weight"));
  EXPECT_FALSE(matches("head", "head_dist.weight"));
  EXPECT_FALSE(matches("", "head.weight"));
}

// What timm 1.0's param_groups_layer_decay(layer_decay = 0.5) gives, as exponents of 1/2.
TEST(ParamRules, LayersAreTimms) {
  using Depths = std::vector<std::pair<std::string, int>>;
  const Depths vit = {{"cls_token", 4},
                      {"pos_embed", 4},
                      {"patch_embed.proj.weight", 4},
                      {"blocks.0.norm1.weight", 3},
                      {"blocks.1.attn.qkv.bias", 2},
                      {"blocks.2.mlp.fc2.weight", 1},
                      {"norm.weight", 1},
                      {"head.weight", 0},
                      {"head_dist.bias", 0}};
  const Depths swin = {{"patch_embed.proj.weight", 4},
                       {"patch_embed.norm.bias", 4},
                       {"layers.0.blocks.0.attn.qkv.bias", 3},
                       {"layers.0.blocks.1.attn.relative_position_bias_table", 2},
                       {"layers.1.downsample.reduction.weight", 1},
                       {"layers.1.blocks.0.norm1.weight", 1},
                       {"norm.weight", 1},
                       {"head.fc.weight", 0}};
  const Depths resnet = {{"conv1.weight", 4},
                         {"bn1.bias", 4},
                         {"layer1.0.conv1.weight", 3},
                         {"layer1.1.bn2.weight", 2},
                         {"layer2.0.conv1.weight", 1},
                         {"layer2.0.downsample.0.weight", 1},
                         {"fc.weight", 0}};
  for (const Depths& model : {vit, swin, resnet}) {
    std::vector<std::string> names;
    std::vector<int> expected;
    for (const auto& [name, depth] : model) names.push_back(name), expected.push_back(depth);
    EXPECT_EQ(layer_depths(named(names)), expected);
    Recipe recipe;
    recipe.layer_decay = 0.5;
    const std::vector<double> factors = lr_factors(named(names), recipe);
    for (size_t i = 0; i < factors.size(); ++i)
      EXPECT_EQ(factors[i], std::pow(0.5, expected[i])) << names[i];
  }
}

TEST(ParamRules, FactorsMultiply) {
  Recipe recipe;
  recipe.layer_decay = 0.5, recipe.lr_scale = {{"blocks.0", 3}, {"*.bias", 10}};
  const auto params = named({"pos_embed", "blocks.0.a.weight", "blocks.0.a.bias", "head.bias"});
  EXPECT_EQ(lr_factors(params, recipe), (std::vector<double>{0.25, 1.5, 15, 10}));
}

TEST(ParamRules, WhatMatchesNothingIsAnErrorThatShowsNames) {
  std::vector<ParamSpec> params = named({"pos_embed", "blocks.0.norm1.weight", "head.weight"});
  Recipe recipe;
  recipe.freeze = {"block.*"};
  EXPECT_THAT(usage_error([&] { freeze_params(params, ViTConfig{}, recipe); }),
              AllOf(HasSubstr("freeze: 'block.*' matches no parameter"),
                    HasSubstr("did you mean 'blocks.*'?"),
                    HasSubstr("this model has pos_embed, blocks.*, head.*")));
  recipe.lr_scale = {{"heads", 2}};
  EXPECT_THAT(usage_error([&] { lr_factors(params, recipe); }),
              AllOf(HasSubstr("lr_scale: 'heads'"), HasSubstr("did you mean 'head'?")));
  recipe.freeze = {"*"};
  EXPECT_THAT(usage_error([&] { freeze_params(params, ViTConfig{}, recipe); }),
              HasSubstr("nothing is left to train"));
}

// ---- on a model ----

using Weights = std::map<std::string, std::vector<float>>;

Weights weights_of(Trainer& trainer) {
  Weights all;
  for (size_t i = 0; i < trainer.store().specs().size(); ++i)
    all[trainer.store().specs()[i].name] = trainer.store().read(i);
  return all;
}

struct BeforeAfter {
  Weights before, after;
};
BeforeAfter run(const TinyRun& tiny, const Recipe& recipe, const std::string& out) {
  Trainer trainer(recipe, tiny.options(out));
  const Weights before = weights_of(trainer);
  trainer.run();
  return {before, weights_of(trainer)};
}

class FreezeTest : public testing::TestWithParam<Recompute> {};

TEST_P(FreezeTest, FrozenParametersKeepEveryBitAndAllOthersMove) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.recompute = GetParam(), recipe.ema = 0.9;
  recipe.freeze = {"pos_embed", "blocks.0", "blocks.1.*.weight"};
  const auto [before, after] = run(tiny, recipe, "run");
  for (const auto& [name, values] : before) {
    const bool frozen = name == "pos_embed" || name.starts_with("blocks.0.") ||
                        (name.starts_with("blocks.1.") && name.ends_with(".weight"));
    EXPECT_EQ(after.at(name) == values, frozen) << name;
  }
}

// The others' gradients are those of a run in which nothing is frozen: same first step.
TEST_P(FreezeTest, FreezingDoesNotChangeOtherGradients) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.optimizer = OptimizerKind::kSgd, recipe.momentum = 0, recipe.max_steps = 1;
  recipe.recompute = GetParam();
  const Weights all = run(tiny, recipe, "all").after;
  recipe.freeze = {"patch_embed", "cls_token", "blocks.0", "blocks.1.norm2", "blocks.1.mlp.fc1"};
  const auto [before, some] = run(tiny, recipe, "some");
  int moved = 0;
  for (const auto& [name, values] : some) {
    if (values == before.at(name)) continue;
    EXPECT_EQ(values, all.at(name)) << name;
    ++moved;
  }
  EXPECT_GT(moved, 8);
}
INSTANTIATE_TEST_SUITE_P(, FreezeTest,
                         testing::Values(Recompute::kNone, Recompute::kCheap, Recompute::kBlock));

TEST(Freeze, FrozenParametersHaveNoGradientsOrMoments) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.head_only = true;
  Trainer trainer(recipe, tiny.options("run"));
  ParamStore& store = trainer.store();
  EXPECT_EQ(store.elements(Arena::kGrad), 16 * 10 + 16);  // head.weight, and head.bias padded
  EXPECT_EQ(store.elements(Arena::kMoment2), store.elements(Arena::kGrad));
  EXPECT_GT(store.elements(Arena::kMaster), 5000);
}

// One SGD step without momentum moves a parameter by rate * factor * gradient.
TEST(LrScale, FirstStepsHaveTheExactRatio) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.optimizer = OptimizerKind::kSgd, recipe.momentum = 0, recipe.max_steps = 1;
  recipe.lr = 0.25;  // factors and rate are powers of two: exact in f32, but for the sum itself
  const auto plain = run(tiny, recipe, "plain");
  recipe.lr_scale = {{"head", 4}, {"blocks.0.*", 0.5}, {"norm.bias", 0}};
  const auto scaled = run(tiny, recipe, "scaled");
  for (const auto& [name, start] : plain.before) {
    const float factor = name.starts_with("head.")       ? 4
                         : name.starts_with("blocks.0.") ? 0.5f
                         : name == "norm.bias"           ? 0
                                                         : 1;
    ASSERT_EQ(scaled.before.at(name), start) << name;
    for (size_t i = 0; i < start.size(); ++i) {
      const float step = plain.after.at(name)[i] - start[i];
      const float got = scaled.after.at(name)[i] - start[i];
      ASSERT_NEAR(got, factor * step, 2e-7f * (1 + std::abs(start[i]))) << name;
    }
  }
}

TEST(LayerDecay, ScalesEveryLayerOfAModel) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.layer_decay = 0.5;
  const Trainer trainer(recipe, tiny.options("run"));
  const auto& specs = const_cast<Trainer&>(trainer).store().specs();
  const std::vector<double> factors = lr_factors(specs, recipe);
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::string& name = specs[i].name;
    const double expected = name.starts_with("head.")                                    ? 1
                            : name.starts_with("blocks.1.") || name.starts_with("norm.") ? 0.5
                            : name.starts_with("blocks.0.")                              ? 0.25
                                                                                         : 0.125;
    EXPECT_EQ(factors[i], expected) << name;
  }
}

}  // namespace
}  // namespace vitrum
