// Parameter counts that the source documents, timm and torchvision state.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tests/support/expect_error.h"
#include "tests/support/small_models.h"
#include "tests/support/vit_of.h"
#include "vitrum/core/error.h"
#include "vitrum/models/registry.h"
#include "vitrum/models/vit.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/runtime/program.h"
#include "vitrum/runtime/summary.h"

namespace vitrum {
namespace {

void record(Graph& g, const ViTConfig& c) {
  vit(Scope(g), g.input("image", {1, c.channels, c.image_h, c.image_w}), c);
}

int64_t parameters(const ViTConfig& c) {
  Graph g;
  record(g, c);
  return count_parameters(g).all;
}

ViTConfig config(const char* name, int64_t classes = -1) {
  ViTConfig c = vit_of(find_preset(name));
  if (classes >= 0) c.classes = classes;
  return c;
}

TEST(Models, CountsOfPresets) {
  EXPECT_EQ(parameters(config("minvit_cifar10")), 28'415'232);
  EXPECT_EQ(parameters(config("vit_mnist")), 854'308);
  EXPECT_EQ(parameters(config("vit_tiny_patch16_224")), 5'717'416);
  EXPECT_EQ(parameters(config("vit_small_patch16_224")), 22'050'664);
  for (const char* base :
       {"vit_base_patch16_224", "vit_lesson_base_patch16_224", "vit_notes_base_patch16_224"})
    EXPECT_EQ(parameters(config(base)), 86'567'656) << base;
  for (const char* large : {"vit_large_patch16_224", "vit_lesson_large_patch16_224"})
    EXPECT_EQ(parameters(config(large)), 304'326'632) << large;
  for (const char* huge : {"vit_huge_patch14_224", "vit_lesson_huge_patch14_224"})
    EXPECT_EQ(parameters(config(huge)), 632'045'800) << huge;
}

TEST(Models, CountsWithOtherClassesAndSizes) {
  EXPECT_EQ(parameters(config("vit_notes_base_patch16_224", 3)), 85'800'963);
  EXPECT_EQ(parameters(config("vit_base_patch16_224", 10)), 85'806'346);
  EXPECT_EQ(parameters(config("vit_small_patch16_224", 10)), 21'669'514);
  ViTConfig finetuned = config("vit_base_patch16_224", 10);
  finetuned.image_h = finetuned.image_w = 384, finetuned.head_bias = false;
  EXPECT_EQ(parameters(finetuned), 86'098'176);
}

TEST(Models, OneBlockOfTheNotes) {
  Graph g;
  record(g, config("vit_notes_base_patch16_224"));
  for (const LayerSummary& row : summarize(g))
    if (row.name == "blocks.0") {
      EXPECT_EQ(row.parameters, 7'087'872);
      return;
    }
  FAIL() << "no blocks.0";
}

// What a small model of these images answers, their pixels being a function of the place.
std::vector<float> logits_of(const ViTConfig& c) {
  Graph g;
  const Value image = g.input("image", {2, c.channels, c.image_h, c.image_w});
  const Value logits = vit(Scope(g), image, c);
  const auto backend = make_backend({.device = "reference"});
  ParamStore store(g, *backend);
  store.initialize(7);
  Program program(g, std::vector{logits}, store, {});
  std::vector<float> pixels;
  for (int64_t plane = 0; plane < 2 * c.channels; ++plane)
    for (int64_t y = 0; y < c.image_h; ++y)
      for (int64_t x = 0; x < c.image_w; ++x)
        pixels.push_back(static_cast<float>((plane * 37 + y * 11 + x * 5) % 17) / 17);
  program.upload(image, pixels.data());
  program.run();
  std::vector<float> values(static_cast<size_t>(logits.shape().numel()));
  program.download(values.data(), logits);
  return values;
}

TEST(Models, PixelsBeyondTheLastWholePatchAreNotSeen) {
  ViTConfig larger = test::small_vit();
  larger.image_h = 11, larger.image_w = 13;
  EXPECT_ERROR(logits_of(larger), ErrorKind::kUsage, "not divisible by patch size 4x4");
  larger.floor_patches = true;
  EXPECT_EQ(logits_of(larger), logits_of(test::small_vit()));
  ViTConfig tiny = larger;
  tiny.image_w = 3;
  EXPECT_ERROR(logits_of(tiny), ErrorKind::kUsage, "smaller than a patch");
}

TEST(Models, WavelengthsOfFixedPositions) {
  const auto positions = [](bool endpoint) {
    ViTConfig c = test::small_vit();
    c.sincos_positions = true, c.sincos_endpoint = endpoint;
    Graph g;
    record(g, c);
    for (const ValueInfo& v : g.values)
      if (v.name == "pos_embed") return v.data;
    return std::vector<float>{};
  };
  // Of width 8, two wavelengths; token 2 is the patch at x = 1, y = 0.
  const std::vector<float> moco = positions(true), mae = positions(false);
  ASSERT_EQ(moco.size(), 7u * 8);
  EXPECT_FLOAT_EQ(moco[2 * 8], std::sin(1.f));
  EXPECT_FLOAT_EQ(mae[2 * 8], std::sin(1.f));
  EXPECT_FLOAT_EQ(moco[2 * 8 + 1], std::sin(1e-4f));
  EXPECT_FLOAT_EQ(mae[2 * 8 + 1], std::sin(1e-2f));
}

// Meta's files have the periods of rotary positions in bf16.
TEST(Models, PeriodsAreRoundedWhereAskedFor) {
  const auto table = [](bool rounded) {
    ViTConfig c = test::small_vit();
    c.width = 16, c.heads = 1, c.rope = Rope::kDinov3, c.rope_theta = 100, c.rope_bf16 = rounded;
    Graph g;
    record(g, c);
    for (const ValueInfo& v : g.values)
      if (v.name == "rope") return std::pair(v.data, c.image_h / c.patch_h);
    return std::pair(std::vector<float>{}, int64_t{1});
  };
  const auto [exact, rows] = table(false);
  const std::vector<float> rounded = table(true).first;
  ASSERT_GE(exact.size(), 16u);
  const double at = 2 * std::numbers::pi * (1.0 / static_cast<double>(rows) - 1);
  EXPECT_FLOAT_EQ(exact[1], static_cast<float>(std::cos(at / std::pow(100, 0.25))));
  EXPECT_FLOAT_EQ(rounded[1], static_cast<float>(std::cos(at / 3.15625)));  // 3.1623 in eight bits
}

TEST(Models, PatchDropLeavesFewerTokensInTrainingOnly) {
  const auto tokens = [](float drop, const char* name, Mode mode) {
    ViTConfig c = config(name);
    c.patch_drop = drop;
    Graph g(mode);
    record(g, c);
    for (const Node& node : g.nodes)
      if (std::holds_alternative<Attention>(node.op))
        return Value(&g, node.in[Attention::kQkv]).dim(1);
    return int64_t{0};
  };
  const char* const vit = "vit_tiny_patch16_224";
  EXPECT_EQ(tokens(0.5f, vit, Mode::kInference), 197);
  EXPECT_EQ(tokens(0, vit, Mode::kTraining), 197);
  EXPECT_EQ(tokens(0.5f, vit, Mode::kTraining), 1 + 98);
  EXPECT_EQ(tokens(0.5f, "deit_tiny_distilled_patch16_224", Mode::kTraining), 2 + 98);
  EXPECT_EQ(tokens(0.9f, vit, Mode::kTraining), 1 + 19);   // int(196 * (1 - 0.9)), as timm
  EXPECT_EQ(tokens(0.999f, vit, Mode::kTraining), 1 + 1);  // at least one
}

TEST(Models, AliasesNameTheSamePreset) {
  EXPECT_EQ(&find_preset("vit_b_16"), &find_preset("google/vit-base-patch16-224"));
  EXPECT_EQ(find_preset("vit_h_14").name, "vit_huge_patch14_224");
  try {
    find_preset("vit_base_patch16_223");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kInput);
    EXPECT_NE(std::string(e.what()).find("'vit_base_patch16_224'"), std::string::npos) << e.what();
  }
}

TEST(Models, ImpossibleShapesAreRefused) {
  ViTConfig c = config("vit_tiny_patch16_224");
  c.image_h = 225;
  EXPECT_THROW(parameters(c), Error);
  c = config("vit_tiny_patch16_224");
  c.heads = 5;
  EXPECT_THROW(parameters(c), Error);
}

// Activations of every kind have a name, and what is held at zero is not counted.
TEST(Summary, NamesGatesAndActivations) {
  const auto row_of = [](const char* preset, const std::string& name) {
    Graph g;
    record(g, config(preset));
    for (const LayerSummary& row : summarize(g))
      if (row.name == name) return row;
    return LayerSummary{};
  };
  EXPECT_EQ(row_of("vit_base_patch16_clip_quickgelu_224", "blocks.3.mlp.act").type, "QuickGELU");
  EXPECT_EQ(row_of("eva02_tiny_patch14_224", "blocks.3.mlp.gate").type, "Gate");
  EXPECT_EQ(row_of("eva02_tiny_patch14_224", "blocks.3.attn.rope").type, "Rotate");
  EXPECT_EQ(row_of("beit_base_patch16_224", "blocks.3.attn.qkv").parameters, 768 * (3 * 768 + 2));
}

TEST(Summary, RowsAddUp) {
  Graph g;
  record(g, config("vit_base_patch16_224"));
  const std::vector<LayerSummary> rows = summarize(g);
  int64_t parameters = 0, macs = 0;
  for (const LayerSummary& row : rows)
    if (row.leaf) parameters += row.parameters, macs += row.macs;
  EXPECT_EQ(rows[0].parameters, 86'567'656);
  EXPECT_EQ(parameters, rows[0].parameters);
  EXPECT_EQ(macs, rows[0].macs);
  EXPECT_EQ(macs, multiply_adds(g));
  // By hand: patches, then per block qkv, projection and MLP (12 C^2) and two T x T products, then
  // the head.
  const int64_t n = 196, t = 197, c = 768;
  EXPECT_EQ(macs, n * c * c + 12 * (t * 12 * c * c + 2 * t * t * c) + c * 1000);
}

TEST(Summary, FollowsTheModel) {
  Graph g;
  record(g, config("vit_mnist"));
  std::vector<std::string> names;
  for (const LayerSummary& row : summarize(g))
    if (row.name.starts_with("blocks.1"))
      names.push_back(row.name + " " + row.type + " " + row.output.str());
  const std::vector<std::string> expected = {"blocks.1 Block (1, 17, 64)",
                                             "blocks.1.attn Attn (1, 17, 64)",
                                             "blocks.1.attn.qkv Linear (1, 17, 192)",
                                             "blocks.1.attn.core Attention (1, 17, 64)",
                                             "blocks.1.attn.proj Linear (1, 17, 64)",
                                             "blocks.1.norm1 LayerNorm (1, 17, 64)",
                                             "blocks.1.mlp Mlp (1, 17, 64)",
                                             "blocks.1.mlp.fc1 Linear (1, 17, 2048)",
                                             "blocks.1.mlp.act ReLU (1, 17, 2048)",
                                             "blocks.1.mlp.fc2 Linear (1, 17, 64)",
                                             "blocks.1.norm2 LayerNorm (1, 17, 64)"};
  EXPECT_EQ(names, expected);
}

TEST(Summary, FrozenParametersAreNotTrainable) {
  Graph g;
  record(g, config("vit_mnist"));
  for (ParamSpec& param : g.params) param.trainable = param.name.starts_with("head.");
  const std::vector<LayerSummary> rows = summarize(g);
  EXPECT_EQ(rows[0].trainable, 64 * 100 + 100);
  EXPECT_EQ(rows.back().name, "head");
  EXPECT_EQ(rows.back().trainable, rows.back().parameters);
  EXPECT_EQ(count_parameters(g).trainable, 64 * 100 + 100);
}

}  // namespace
}  // namespace vitrum
