// Directories of OpenCLIP: what its configs say, and which are refused.
#include "vitrum/weights/open_clip.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/vit_of.h"
#include "vitrum/core/files.h"
#include "vitrum/text/tokenizer.h"
#include "vitrum/weights/open_tensors.h"
#include "vitrum/weights/text_tower.h"
#include "vitrum/weights/write_tensors.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

const std::string kGolden = VITRUM_SOURCE_DIR "/tests/golden/words/open_clip";

// A directory with such a model_cfg, and nothing else.
class OpenClip : public testing::Test {
 protected:
  std::string with(const std::string& model, const std::string& rest = "") {
    const std::string at = dir_ / "model";
    ensure_directory(at);
    write_file_atomic(at + "/open_clip_config.json", "{\"model_cfg\": " + model + rest + "}");
    return at;
  }
  TempDir dir_;
};

TEST_F(OpenClip, ReadsItsOwnTowers) {
  const std::string dir = with(R"({"embed_dim": 1024,
      "vision_cfg": {"image_size": 224, "layers": 32, "width": 1280, "head_width": 80,
                     "patch_size": 14},
      "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 1024, "heads": 16,
                   "layers": 24}})");
  EXPECT_TRUE(is_model_dir(dir));
  const ModelSpec spec = resolve_model(dir);
  EXPECT_EQ(spec.architecture, "vit_huge_patch14_clip_224");
  EXPECT_EQ(vit_of(spec).act, Act::kGelu);
  EXPECT_EQ(vit_of(spec).heads, 16);
  EXPECT_EQ(spec.config.classes(), 1024);
  EXPECT_FALSE(spec.config.head_bias());
  EXPECT_EQ(spec.preprocess.crop_mode, "center");
  EXPECT_FLOAT_EQ(spec.preprocess.mean[0], 0.48145466f);
  const TextConfig text = read_open_clip_text(dir).config;
  EXPECT_EQ(text.mlp_width, 4096);
  EXPECT_EQ(text.space, 1024);
  EXPECT_TRUE(text.causal);
}

TEST_F(OpenClip, ReadsTowersOfTimms) {
  const std::string dir = with(R"({"embed_dim": 1152, "init_logit_bias": -10, "custom_text": true,
      "vision_cfg": {"image_size": 384, "timm_model_name": "vit_so400m_patch14_siglip_384",
                     "timm_pool": "map", "timm_proj": "none"},
      "text_cfg": {"context_length": 64, "vocab_size": 32000, "width": 1152, "heads": 16,
                   "layers": 27, "mlp_ratio": 3.7362, "no_causal_mask": true, "proj_bias": true,
                   "pool_type": "last", "norm_kwargs": {"eps": 1e-6},
                   "act_kwargs": {"approximate": "tanh"},
                   "tokenizer_kwargs": {"clean": "canonicalize"}}})",
                               R"(, "preprocess_cfg": {"mean": [0.5, 0.5, 0.5],
      "std": [0.5, 0.5, 0.5], "interpolation": "bicubic", "resize_mode": "squash"})");
  const ModelSpec spec = resolve_model(dir);
  EXPECT_EQ(spec.architecture, "vit_so400m_patch14_siglip_384");
  EXPECT_EQ(spec.config.classes(), 0);
  EXPECT_EQ(spec.preprocess.crop_mode, "squash");
  const OpenClipText text = read_open_clip_text(dir);
  EXPECT_TRUE(text.canonical);
  EXPECT_FALSE(text.config.causal);
  EXPECT_TRUE(text.config.proj_bias);
  EXPECT_EQ(text.config.mlp_width, 4304);
  EXPECT_EQ(text.config.act, Act::kGeluTanh);
  EXPECT_FLOAT_EQ(text.config.eps, 1e-6f);
}

TEST_F(OpenClip, RefusesConfigs) {
  const auto refuses = [&](const std::string& model, const char* why) {
    const std::string dir = with(model);
    EXPECT_ERROR((resolve_model(dir), read_open_clip_text(dir)), ErrorKind::kInput, why);
  };
  refuses("3", "model_cfg");
  refuses("{}", "embed_dim");
  refuses(R"({"embed_dim": 0})", "embed_dim");
  refuses(R"({"embed_dim": 8, "vision_cfg": {"layers": [3, 4, 6, 3]}})", "layers");
  refuses(R"({"embed_dim": 8, "vision_cfg": {"width": 100, "head_width": 64}})", "heads of 64");
  refuses(R"({"embed_dim": 8, "vision_cfg": {"width": 65536, "layers": 1024}})", "too large");
  refuses(R"({"embed_dim": 8, "vision_cfg": {"pool_type": "avg"}})", "pool_type");
  refuses(R"({"embed_dim": 8, "vision_cfg": {"ls_init_value": 0.1}})", "ls_init_value");
  refuses(R"({"embed_dim": 8, "vision_cfg": {"timm_model_name": "convnext_base_w"}})",
          "timm_model_name 'convnext_base_w'");
  refuses(R"({"embed_dim": 8, "vision_cfg": {"timm_model_name": "vit_base_patch16_224",
              "timm_proj": "linear"}})",
          "timm_proj 'linear'");
  refuses(R"({"embed_dim": 8, "vision_cfg": {"timm_model_name": "vit_base_patch16_siglip_224",
              "timm_pool": "avg", "timm_proj": "none"}})",
          "vit_base_patch16_siglip_224 with timm_pool 'avg'");
  refuses(R"({"embed_dim": 8, "vision_cfg": {"timm_model_name": "convnext_tiny",
              "timm_proj": "none"}})",
          "convnext_tiny with timm_pool 'avg'");
  refuses(R"({"embed_dim": 8, "text_cfg": {"hf_model_name": "roberta-base"}})", "hf_model_name");
  refuses(R"({"embed_dim": 8, "text_cfg": {"pool_type": "last"}})", "without no_causal_mask");
  refuses(R"({"embed_dim": 8, "text_cfg": {"no_causal_mask": true}})", "with no_causal_mask");
  refuses(R"({"embed_dim": 8, "text_cfg": {"vocab_size": 99999999}})", "vocab_size");
}

TEST_F(OpenClip, SaysWhatIsMissing) {
  const std::string dir = with(R"({"embed_dim": 8})");
  EXPECT_ERROR(resolve_text_tower(dir), ErrorKind::kInput, "open_clip_model.safetensors");
}

// OpenCLIP writes the text tower's names with a prefix where the model is a "custom text" one.
TEST_F(OpenClip, TheTextTowerMayHaveAPrefix) {
  const auto golden = open_tensors(kGolden + "/open_clip_model.safetensors");
  std::vector<NamedTensor> tensors;
  for (const TensorInfo& t : golden->tensors()) {
    const bool text = !t.name.starts_with("visual.") && t.name != "logit_scale";
    auto* data = const_cast<std::byte*>(golden->bytes(t).data());
    tensors.push_back({(text ? "text." : "") + t.name, {data, t.shape, t.dtype}});
  }
  write_safetensors(dir_ / "prefixed.safetensors", tensors, {});
  const TextConfig config = read_open_clip_text(kGolden).config;
  EXPECT_EQ(open_clip_text_naming(*golden, config).prefix, "");
  EXPECT_EQ(open_clip_text_naming(*open_tensors(dir_ / "prefixed.safetensors"), config).prefix,
            "text.");
}

TEST(Canonical, IsBigVisions) {
  EXPECT_EQ(canonical("  A_photo of\ta DOG, (really)! "), "a photo of a dog really");
  EXPECT_EQ(canonical("don't"), "dont");
  EXPECT_EQ(canonical("na\xC3\xAFve Caf\xC3\x89"), "na\xC3\xAFve caf\xC3\xA9");
}

}  // namespace
}  // namespace vitrum
