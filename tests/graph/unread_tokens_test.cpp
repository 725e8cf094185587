// Tokens that nobody reads are not computed, and what is computed stays as it was.
#include "vitrum/graph/unread_tokens.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/support/tiny_model.h"
#include "vitrum/infer/model_program.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {
namespace {

struct Traced {
  explicit Traced(const ModelSpec& spec, int64_t batch = 2)
      : model(trace(g, spec, batch)), outputs{model.features, model.logits} {}
  explicit Traced(const char* preset) : Traced(resolve_model(preset)) {}

  int64_t tokens_of(const std::string& layer) const {
    for (const Node& node : g.nodes)
      if (node.name == layer && std::holds_alternative<Linear>(node.op))
        return g.values[static_cast<size_t>(node.out[Linear::kY])].shape[1];
    return -1;
  }
  size_t cuts() const {
    return static_cast<size_t>(std::ranges::count_if(
        g.nodes, [](const Node& node) { return std::holds_alternative<GatherTokens>(node.op); }));
  }
  Graph g{Mode::kInference};
  TracedModel model;
  std::array<Value, 2> outputs;
};

TEST(UnreadTokens, BehindTheLastAttentionOnlyThePooledOneIsComputed) {
  Traced t("vit_tiny_patch16_224");
  const std::vector<std::string> expected = {"blocks.11.attn.proj", "blocks.11.mlp.fc1",
                                             "blocks.11.mlp.fc2"};
  EXPECT_EQ(partly_read_layers(t.g, t.outputs), expected);
  drop_unread_tokens(t.g, t.outputs);
  for (const std::string& layer : expected) EXPECT_EQ(t.tokens_of(layer), 1) << layer;
  EXPECT_EQ(t.tokens_of("blocks.11.attn.qkv"), 197);
  EXPECT_EQ(t.tokens_of("blocks.10.mlp.fc2"), 197);
  EXPECT_EQ(t.cuts(), 2u) << "of attention, and of the residual sum";
  const size_t nodes = t.g.nodes.size();
  drop_unread_tokens(t.g, t.outputs);
  EXPECT_EQ(t.g.nodes.size(), nodes) << "once more, there is nothing left";
}

TEST(UnreadTokens, TwoHeadsReadTwo) {
  Traced t("deit_tiny_distilled_patch16_224");
  drop_unread_tokens(t.g, t.outputs);
  EXPECT_EQ(t.tokens_of("blocks.11.mlp.fc1"), 2);
}

TEST(UnreadTokens, MeansReadAll) {
  for (const char* preset : {"swin_tiny_patch4_window7_224", "convnext_tiny", "resnet50",
                             "vit_base_patch16_siglip_224"}) {
    Traced t(preset);
    const size_t nodes = t.g.nodes.size(), cuts = t.cuts();
    EXPECT_TRUE(partly_read_layers(t.g, t.outputs).empty()) << preset;
    drop_unread_tokens(t.g, t.outputs);
    EXPECT_EQ(t.g.nodes.size(), nodes) << preset;
    EXPECT_EQ(t.cuts(), cuts) << preset;
  }
}

TEST(UnreadTokens, WhatIsKeptStaysWhole) {
  Traced t("vit_tiny_patch16_224");
  std::vector<Value> kept(t.outputs.begin(), t.outputs.end());
  for (const auto& [name, value] : t.g.modules)
    if (name == "blocks.11") kept.emplace_back(&t.g, value);
  ASSERT_EQ(kept.size(), 3u);
  drop_unread_tokens(t.g, kept);
  EXPECT_EQ(t.tokens_of("blocks.11.mlp.fc2"), 197);
  EXPECT_EQ(t.g.info(kept.back()).shape[1], 197);
}

std::vector<float> logits(const char* device, DType compute, bool drops) {
  const auto backend = make_backend({.device = device});
  Traced t(test::tiny_rgb_model(), 3);
  ParamStore store(t.g, *backend);
  store.initialize(7);
  store.freeze();
  if (drops) drop_unread_tokens(t.g, t.outputs);
  EXPECT_EQ(t.cuts(), drops ? 2u : 0u);
  fuse(t.g);
  Program program(t.g, t.outputs, store, {.compute = compute});
  std::vector<uint8_t> pixels(static_cast<size_t>(t.model.image.shape().numel()));
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i * 77 >> 3);
  program.upload(t.model.image, pixels.data());
  program.run();
  std::vector<float> out(static_cast<size_t>(t.model.logits.shape().numel()));
  program.download(out.data(), t.model.logits);
  return out;
}

TEST(UnreadTokens, AnswersHaveTheSameBits) {
  for (const char* device : {"reference", "cpu"})
    for (const DType compute : {DType::kF32, DType::kBF16, DType::kI8})
      EXPECT_EQ(logits(device, compute, true), logits(device, compute, false))
          << device << " " << name_of(compute);
}

}  // namespace
}  // namespace vitrum
