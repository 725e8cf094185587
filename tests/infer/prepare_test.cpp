// What is rounded to e4m3, and where it is not worth it.
#include "vitrum/infer/prepare.h"

#include <gtest/gtest.h>

#include "vitrum/infer/model_program.h"
#include "vitrum/runtime/backends.h"

namespace vitrum {
namespace {

// Layers of ViT-Ti, ViT-S, ViT-B and ViT-L, by images of 197 tokens.
TEST(E4M3Pays, WithManyWideRows) {
  for (const int64_t width : {192, 384, 768, 1024})
    for (const auto& [columns, depth] :
         {std::pair{3 * width, width}, {width, width}, {4 * width, width}, {width, 4 * width}})
      for (int64_t images = 1; images <= 1024; images *= 2)
        EXPECT_EQ(e4m3_pays(197 * images, columns, depth), width >= 384 && images >= 16)
            << images << " of " << width;
}

TEST(E4M3Pays, ProcessorsRoundWhateverTheBatch) {
  const auto cpu = make_backend({.device = "cpu"});
  Graph g(Mode::kInference);
  trace(g, resolve_model("vit_tiny_patch16_224"), 1);
  const KeepsFloat keeps =
      keeps_where_slower(g, *cpu, [](const std::string& layer) { return layer == "kept"; });
  EXPECT_TRUE(keeps("kept"));
  EXPECT_FALSE(keeps("blocks.0.mlp.fc1"));
}

// What only the pooled token goes through is left as it is: it takes no time.
TEST(Prepare, LayersOfOneTokenAreNotRounded) {
  const auto cpu = make_backend({.device = "cpu"});
  Graph g(Mode::kInference);
  const TracedModel model = trace(g, resolve_model("vit_tiny_patch16_224"), 2);
  const std::array outputs = {model.features, model.logits};
  CompileOptions options{.compute = DType::kE4M3};
  prepare(g, outputs, *cpu, options);
  for (const char* layer : {"blocks.11.attn.proj", "blocks.11.mlp.fc1", "blocks.11.mlp.fc2"})
    EXPECT_TRUE(options.keeps_float(layer)) << layer;
  EXPECT_FALSE(options.keeps_float("blocks.11.attn.qkv"));
  EXPECT_EQ(e4m3_layers(resolve_model("vit_tiny_patch16_224"), "vit").size(), 45u);
  EXPECT_EQ(e4m3_layers(resolve_model("swin_tiny_patch4_window7_224"), "swin").size(), 48u);
}

}  // namespace
}  // namespace vitrum
