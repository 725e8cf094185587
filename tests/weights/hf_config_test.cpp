// config.json and preprocessor_config.json of transformers.
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/vit_of.h"
#include "vitrum/weights/model_config.h"

namespace vitrum {
namespace {

constexpr const char* kViT =
    R"({"model_type": "vit", "architectures": ["ViTForImageClassification"])";

std::string config(const std::string& more) { return std::string(kViT) + ", " + more + "}"; }

ModelSpec parsed(const std::string& text, const std::string& preprocessor = "{}") {
  return parse_hf_config({text, "d/config.json"}, {preprocessor, "d/preprocessor_config.json"});
}

TEST(HfConfig, DefaultsAreTransformers) {
  const ModelSpec spec = parsed(std::string(kViT) + "}");
  const ViTConfig& c = vit_of(spec);
  EXPECT_EQ(c.width, 768);
  EXPECT_EQ(c.depth, 12);
  EXPECT_EQ(c.heads, 12);
  EXPECT_EQ(c.mlp_width, 3072);
  EXPECT_EQ(c.image_h, 224);
  EXPECT_EQ(c.patch_w, 16);
  EXPECT_EQ(c.eps, 1e-12f);
  EXPECT_EQ(c.act, Act::kGelu);
  EXPECT_EQ(c.classes, 2);
  EXPECT_EQ(spec.architecture, "vit_base_patch16_224");
  const Preprocessing& p = spec.preprocess;
  EXPECT_EQ(p.interpolation, "bilinear");
  EXPECT_EQ(p.crop_mode, "squash");
  EXPECT_EQ(p.mean, std::vector<float>(3, 0.5f));
  EXPECT_EQ(p.std, std::vector<float>(3, 0.5f));
  EXPECT_TRUE(p.assumed);
}

TEST(HfConfig, KeysAreRead) {
  const ModelSpec spec = parsed(config(
      R"("hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
         "image_size": [24, 32], "patch_size": 8, "num_channels": 1, "qkv_bias": false, "hidden_act": "gelu_new",
         "layer_norm_eps": 1e-6, "id2label": {"1": "dog", "0": "cat"}, "torch_dtype": "float32")"));
  const ViTConfig& c = vit_of(spec);
  EXPECT_EQ(c.width, 32);
  EXPECT_EQ(c.depth, 2);
  EXPECT_EQ(c.heads, 4);
  EXPECT_EQ(c.mlp_width, 48);
  EXPECT_EQ(c.image_h, 24);
  EXPECT_EQ(c.image_w, 32);
  EXPECT_EQ(c.channels, 1);
  EXPECT_FALSE(c.qkv_bias);
  EXPECT_EQ(c.act, Act::kGeluTanh);
  EXPECT_EQ(c.eps, 1e-6f);
  EXPECT_EQ(spec.labels, (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(spec.architecture, "vit");
  EXPECT_EQ(parsed(config(R"("num_labels": 7)")).config.classes(), 7);
  const ModelSpec unnamed = parsed(config(R"("id2label": {"0": "LABEL_0", "1": "LABEL_1"})"));
  EXPECT_EQ(vit_of(unnamed).classes, 2);
  EXPECT_TRUE(unnamed.labels.empty()) << "placeholders are no labels";
  EXPECT_EQ(parsed(R"({"model_type": "vit", "architectures": ["ViTModel"], "num_labels": 3})")
                .config.classes(),
            0);
}

TEST(HfConfig, PreprocessorsAreRead) {
  const auto read = [](const std::string& text) {
    return parsed(config(R"("image_size": 224)"), text).preprocess;
  };
  Preprocessing p = read(
      R"({"size": 224, "resample": 3, "image_mean": [0.1, 0.2, 0.3], "image_std": [1, 2, 4]})");
  EXPECT_EQ(p.interpolation, "bicubic");
  EXPECT_EQ(p.crop_mode, "squash");
  EXPECT_EQ(p.resize, 0);
  EXPECT_EQ(p.mean, (std::vector<float>{0.1f, 0.2f, 0.3f}));
  EXPECT_FALSE(p.assumed);
  EXPECT_FALSE(p.crop_floor);

  p = read(R"({"size": {"shortest_edge": 256}, "do_center_crop": true,
               "crop_size": {"height": 224, "width": 224}, "resample": 1})");
  EXPECT_EQ(p.crop_mode, "center");
  EXPECT_EQ(p.resize, 256);
  EXPECT_TRUE(p.crop_floor);
  EXPECT_EQ(p.interpolation, "lanczos");
  EXPECT_EQ(p.crop_pct, 0.875);

  p = read(
      R"({"size": 256, "do_center_crop": true, "crop_size": 224, "feature_extractor_type": "DeiTFeatureExtractor"})");
  EXPECT_EQ(p.crop_mode, "squash");
  EXPECT_EQ(p.resize, 256);
  p = read(
      R"({"size": 224, "do_center_crop": true, "crop_size": 224, "image_processor_type": "CLIPImageProcessor"})");
  EXPECT_EQ(p.crop_mode, "center");
  EXPECT_EQ(p.resize, 224);

  // x / 127.5 - 1, which is (x / 255 - 0.5) / 0.5.
  p = read(
      R"({"rescale_factor": 0.00784313725490196, "image_mean": [1, 1, 1], "image_std": [1, 1, 1]})");
  EXPECT_FLOAT_EQ(p.mean[0], 0.5f);
  EXPECT_FLOAT_EQ(p.std[0], 0.5f);
  p = read(R"({"do_normalize": false})");
  EXPECT_TRUE(p.mean.empty() && p.std.empty());
  p = read(R"({"do_normalize": false, "do_rescale": false})");
  EXPECT_FLOAT_EQ(p.std[0], 1 / 255.f);
}

// transformers cuts patches by a convolution, which leaves out what is no whole patch.
TEST(HfConfig, PatchesNeedNotCoverTheImage) {
  const ViTConfig so400m = vit_of(parsed(config(R"("image_size": 384, "patch_size": 14)")));
  EXPECT_TRUE(so400m.floor_patches);
  EXPECT_EQ(so400m.patches(), 27 * 27);
  EXPECT_FALSE(vit_of(parsed(config(R"("image_size": 384)"))).floor_patches);
  EXPECT_ERROR(parsed(config(R"("image_size": 8)")), ErrorKind::kInput, "smaller than a patch");
}

// Its positions are rotary: images of any size are of the preset, whose biases tell it.
TEST(HfConfig, NamesADinov3ByItsSizes) {
  const std::string sizes = R"({"model_type": "dinov3_vit", "architectures": ["DINOv3ViTModel"],
                                "num_register_tokens": 4, "image_size": 224)";
  EXPECT_EQ(parsed(sizes + "}").architecture, "vit_small_patch16_dinov3_qkvb");
  EXPECT_EQ(parsed(sizes + R"(, "query_bias": false, "value_bias": false})").architecture,
            "vit_small_patch16_dinov3");
}

TEST(HfConfig, WhatIsNotAViTIsRefused) {
  const auto refused = [](const std::string& text, const std::string& part,
                          const std::string& preprocessor = "{}") {
    EXPECT_ERROR(parsed(text, preprocessor), ErrorKind::kInput, part);
  };
  refused(R"({"model_type": "levit"})",
          "model_type 'levit' is not supported; expected 'dinov2', 'dinov2_with_registers', "
          "'dinov3_vit'");
  refused(R"({"model_type": "beit"})", "without a bias by distance");
  refused(R"({"model_type": "dinov3_vit", "key_bias": true})", "key_bias = true");
  refused(R"({"model_type": "dinov3_vit", "value_bias": false})", "value_bias differ");
  refused(R"({"model_type": "dinov3_vit", "hidden_size": 36, "num_attention_heads": 6})",
          "a multiple of 4 values");
  refused(R"({"model_type": "dinov3_vit", "hidden_size": 8192, "num_attention_heads": 1,
             "image_size": 8192, "patch_size": 16})",
          "too large to be meant");
  refused(config(R"("use_relative_position_bias": true)"),
          "use_relative_position_bias = true is not supported");
  refused(config(R"("layer_scale_init_value": 0.1)"), "layer_scale_init_value = 0.1");
  refused(config(R"("hidden_act": "mish")"), "hidden_act must be one of gelu,");
  refused(config(R"("hidden_size": 100)"), "width 100 is not divisible by 12 heads");
  refused(config(R"("hidden_size": "768")"), "hidden_size must be a whole number");
  refused(config(R"("id2label": {"0": "a", "2": "b"})"), "1 is not one");
  refused(config(R"("head_dim": 32)"), "head_dim");
  refused(config(R"("num_hidden_layers": 1024, "hidden_size": 65536, "num_attention_heads": 1)"),
          "too large");
  refused(config(R"("image_size": 384)"), "image_size is 384 x 384", R"({"size": 224})");
  refused(config(R"("image_size": 224)"), "do_resize = false", R"({"do_resize": false})");
  refused(config(R"("image_size": 224)"), "resample must be", R"({"resample": 6})");
  refused(config(R"("image_size": 224)"), "images of any size",
          R"({"size": {"shortest_edge": 224}})");
  refused(config(R"("image_size": 224)"), "std must be above 0", R"({"image_std": [1, 0, 1]})");
  refused(config(R"("image_size": 224)"), "for 3 channels", R"({"image_mean": [1, 0]})");
}

TEST(HfConfig, WhatIsWrittenComesBack) {
  ModelSpec spec = parsed(config(R"("hidden_size": 32, "num_attention_heads": 4, "image_size": 32,
                                    "id2label": {"0": "a", "1": "b", "2": "a"})"));
  Preprocessing& p = spec.preprocess;
  p.assumed = false;
  const auto back = [&] { return parsed(hf_config_text(spec), hf_preprocessor_text(spec)); };
  EXPECT_EQ(back(), spec);
  p.crop_mode = "center", p.resize = 40, p.crop_pct = 0.8, p.crop_floor = true;
  p.interpolation = "bicubic", p.mean = {0.1f, 0.2f, 0.3f};
  EXPECT_EQ(back(), spec);
  p.crop_mode = "squash";
  EXPECT_EQ(back(), spec);
  p.mean.clear(), p.std.clear(), spec.labels.clear();
  EXPECT_EQ(back(), spec);
  p.crop_mode = "border";
  EXPECT_ERROR(back(), ErrorKind::kInput, "which transformers cannot make");
}

}  // namespace
}  // namespace vitrum
