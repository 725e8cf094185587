// Whole models, see tests/support/gradient_lab.h.
#include <gtest/gtest.h>

#include "tests/support/gradient_lab.h"
#include "tests/support/small_models.h"
#include "vitrum/models/convnext.h"
#include "vitrum/models/swin.h"
#include "vitrum/models/swin_v2.h"
#include "vitrum/models/vit.h"

namespace vitrum {
namespace {

using namespace test;

struct ModelTrial {
  const char* name;
  Lab::Model model;
  Shape input;

  ModelTrial(const char* name, const ViTConfig& cfg)
      : name(name),
        model([cfg](Scope s, Value image) { return vit(s, image, cfg); }),
        input{2, cfg.channels, cfg.image_h, cfg.image_w} {}
  ModelTrial(const char* name, const SwinConfig& cfg)
      : name(name),
        model([cfg](Scope s, Value image) { return swin(s, image, cfg); }),
        input{2, cfg.channels, cfg.image_h, cfg.image_w} {}
  ModelTrial(const char* name, const SwinV2Config& cfg)
      : name(name),
        model([cfg](Scope s, Value image) { return swin_v2(s, image, cfg); }),
        input{2, cfg.channels, cfg.image_h, cfg.image_w} {}
  ModelTrial(const char* name, const ConvNeXtConfig& cfg)
      : name(name),
        model([cfg](Scope s, Value image) { return convnext(s, image, cfg); }),
        input{2, cfg.channels, cfg.image_h, cfg.image_w} {}
};
std::vector<ModelTrial> model_trials() {
  ViTConfig pre = small_vit(), post = small_vit(), mean = small_vit();
  pre.drop_path = 0.3f, pre.patch_drop = 0.5f, pre.layer_scale = 0.5f, pre.act = Act::kGeluTanh;
  pre.drop_pos = pre.drop_attn = pre.drop_proj = pre.drop_act = pre.drop_mlp = 0.1f;
  post.pre_norm = false, post.act = Act::kRelu, post.patch_order = PatchOrder::kChannelLast;
  post.drop_attn = post.drop_proj = post.drop_act = post.drop_mlp = 0.1f;
  mean.patch_drop = 0.4f, mean.class_token = false, mean.pool = ViTPool::kMean,
  mean.sincos_positions = true;
  mean.qkv_bias = mean.proj_bias = mean.mlp_bias = mean.norm_bias = false;
  ViTConfig floored = small_vit();
  floored.image_h += 1, floored.image_w += floored.patch_w - 1, floored.floor_patches = true;
  ViTConfig registers = small_vit(), clip = small_vit();
  registers.registers = 3, registers.prefix_positions = false, registers.layer_scale = 0.5f;
  registers.pool = ViTPool::kTokenAndMean, registers.act = Act::kSilu, registers.patch_drop = 0.4f;
  clip.norm_pre = true, clip.patch_bias = false, clip.act = Act::kQuickGelu;
  clip.pool = ViTPool::kBareMean;
  ViTConfig dinov3 = small_vit(), eva = small_vit(), beit = small_vit();
  dinov3.width = 16, dinov3.rope = Rope::kDinov3, dinov3.rope_theta = 100, dinov3.registers = 2;
  dinov3.k_bias = dinov3.learned_positions = false, dinov3.pool = ViTPool::kNormedMean;
  eva.width = 8, eva.rope = Rope::kEva, eva.k_bias = false, eva.pool = ViTPool::kMean;
  eva.gated = eva.attn_norm = eva.mlp_norm = true, eva.act = Act::kSilu;
  beit.distance_bias = DistanceBias::kEach, beit.k_bias = beit.learned_positions = false;
  beit.layer_scale = 0.5f, beit.pool = ViTPool::kMean;
  ViTConfig shared = beit;
  shared.distance_bias = DistanceBias::kShared, shared.drop_attn = 0.1f;
  ViTConfig siglip = small_vit();
  siglip.class_token = false, siglip.pool = ViTPool::kMap, siglip.act = Act::kGeluTanh;
  siglip.drop_act = siglip.drop_mlp = 0.1f;
  ViTConfig naflex = siglip;
  naflex.position_grid = 3;  // for 2 x 3 patches
  SwinConfig dropping = small_swin();
  dropping.drop_path = 0.1f, dropping.qkv_bias = false, dropping.pad_first = true;
  dropping.drop_attn = dropping.drop_proj = dropping.drop_act = dropping.drop_mlp = 0.1f;
  SwinV2Config filled = small_swin_v2();
  filled.pad_first = true, filled.shrink_windows = false,
  filled.drop_path = filled.drop_attn = 0.1f;
  ConvNeXtConfig second = small_convnext();
  second.response_norm = true, second.layer_scale = 0, second.drop_path = 0.1f;
  return {{"swin_v2", small_swin_v2()},
          {"swin_v2_filled", filled},
          {"convnext", small_convnext()},
          {"convnext_v2", second},
          {"swin", small_swin()},
          {"swin_dropout", dropping},
          {"plain", small_vit()},
          {"pre_norm_dropout", pre},
          {"post_norm_relu", post},
          {"mean_pool", mean},
          {"floor_patches", floored},
          {"registers", registers},
          {"clip", clip},
          {"dinov3", dinov3},
          {"eva", eva},
          {"beit", beit},
          {"beit_shared", shared},
          {"siglip", siglip},
          {"naflex", naflex}};
}

class ModelGradient : public ::testing::TestWithParam<ModelTrial> {
 protected:
  static Lab lab(bool fused, Recompute policy) {
    return Lab(GetParam().model, GetParam().input, {.form = {.smoothing = 0.1f}}, fused, policy);
  }
};

TEST_P(ModelGradient, MatchesDifferences) {
  Lab model = lab(true, Recompute::kNone);
  expect_gradients_match(model, 12);
  expect_gradients_large(model);
}

TEST_P(ModelGradient, SameBitsHoweverItIsCompiled) { expect_same_bits(lab); }

INSTANTIATE_TEST_SUITE_P(Models, ModelGradient, ::testing::ValuesIn(model_trials()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace vitrum
