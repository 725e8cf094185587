// Image towers of CLIP and SigLIP in the names of others, and configs that are none of theirs.
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/vit_of.h"
#include "vitrum/weights/checkpoint.h"
#include "vitrum/weights/model_config.h"
#include "vitrum/weights/open_tensors.h"
#include "vitrum/weights/safetensors.h"
#include "vitrum/weights/stored_tensors.h"

namespace vitrum {
namespace {

const std::string kClip = VITRUM_SOURCE_DIR "/tests/golden/words/clip";

// As OpenAI's and OpenCLIP's files have it: below "visual.", the projection transposed, and a text
// tower beside it.
TEST(Clip, ReadsOpenClipsNames) {
  const ModelConfig config = resolve_model(kClip).config;
  const std::vector<ParamSpec> params = model_params(config);
  const Checkpoint theirs(weights_path(kClip));
  const Naming naming{&find_dialect(config, "open_clip"), false, "visual."};
  StoredTensors stored(config, naming);
  for (const ParamSpec& p : params) {
    std::vector<std::byte> scratch;
    const auto bytes = theirs.read(p, config, scratch);
    stored.add(p, DType::kF32, stored.keep({bytes.begin(), bytes.end()}));
  }
  std::vector<NamedTensor> tensors = stored.all();
  std::vector<float> other(4, 1.f);
  for (const char* name : {"transformer.resblocks.0.ln_1.weight", "text_projection", "logit_scale",
                           "token_embedding.weight", "positional_embedding", "ln_final.bias"})
    tensors.push_back({name, {other.data(), {4}, DType::kF32}});
  const TempDir dir;
  write_safetensors(dir / "open.safetensors", tensors);

  const auto file = open_tensors(dir / "open.safetensors");
  EXPECT_EQ(file->at("visual.proj").shape, (Shape{16, 8}));
  EXPECT_EQ(file->at("visual.class_embedding").shape, (Shape{16}));
  EXPECT_EQ(file->at("visual.positional_embedding").shape, (Shape{10, 16}));
  const Checkpoint again(dir / "open.safetensors");
  EXPECT_EQ(again.dialect().name, "open_clip");
  again.check(params, config, /*head=*/true);
  for (const ParamSpec& p : params) {
    std::vector<std::byte> a, b;
    EXPECT_TRUE(std::ranges::equal(again.read(p, config, a), theirs.read(p, config, b))) << p.name;
  }
}

ModelSpec parse(const std::string& config, const std::string& preprocessor = "{}") {
  return parse_hf_config(JsonKeys(config, "config.json"), {preprocessor, "p.json"});
}

TEST(Clip, ReadsConfigsOfTransformers) {
  const ModelSpec clip = parse(R"({"model_type": "clip", "architectures": ["CLIPModel"]})");
  EXPECT_EQ(clip.architecture, "vit_base_patch32_clip_224");  // all defaults are OpenAI's
  EXPECT_EQ(clip.config.classes(), 512);
  EXPECT_FALSE(clip.config.head_bias());
  EXPECT_EQ(vit_of(clip).act, Act::kQuickGelu);
  EXPECT_EQ(clip.preprocess.crop_mode, "center");
  EXPECT_EQ(clip.preprocess.interpolation, "bicubic");
  EXPECT_FLOAT_EQ(clip.preprocess.mean[0], 0.48145466f);

  const ModelSpec siglip = parse(R"({"model_type": "siglip", "vision_config":
      {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
       "num_attention_heads": 16, "image_size": 384, "patch_size": 14}})");
  EXPECT_EQ(siglip.architecture, "vit_so400m_patch14_siglip_384");
  EXPECT_EQ(siglip.config.classes(), 0);
  EXPECT_EQ(vit_of(siglip).act, Act::kGeluTanh);
  EXPECT_EQ(vit_of(siglip).patches(), 27 * 27);
  EXPECT_EQ(siglip.preprocess.crop_mode, "squash");
  EXPECT_EQ(siglip.preprocess.mean, std::vector<float>(3, 0.5f));
}

TEST(Clip, ReadsSiglip2ForAnyShape) {
  const ModelSpec pair = parse(R"({"model_type": "siglip2", "architectures": ["Siglip2Model"]})");
  EXPECT_EQ(pair.architecture, "naflexvit_base_patch16_siglip");
  EXPECT_EQ(vit_of(pair).position_grid, 16);
  EXPECT_EQ(vit_of(pair).pool, ViTPool::kMap);
  EXPECT_EQ(pair.config.image_h(), 256);  // where one size is asked for
  EXPECT_EQ(pair.preprocess.max_patches, 256);
  EXPECT_EQ(pair.preprocess.interpolation, "bilinear");
  const ModelSpec more =
      parse(R"({"model_type": "siglip2_vision_model", "num_patches": 729})",
            R"({"max_num_patches": 1000, "resample": 3, "image_mean": [0.25, 0.25, 0.25]})");
  EXPECT_EQ(vit_of(more).position_grid, 27);
  EXPECT_EQ(more.config.image_w(), 31 * 16);
  EXPECT_EQ(more.preprocess.max_patches, 1000);
  EXPECT_EQ(more.preprocess.interpolation, "bicubic");
  const ModelSpec classifier = parse(
      R"({"model_type": "siglip2", "architectures": ["Siglip2ForImageClassification"],
          "num_labels": 3})");
  EXPECT_EQ(classifier.config.classes(), 3);
  EXPECT_EQ(vit_of(classifier).pool, ViTPool::kNormedMean);
  for (const char* wrong : {R"({"patch_size": 14})", R"({"max_num_patches": 0})",
                            R"({"do_resize": false})", R"({"max_num_patches": 100000})"})
    EXPECT_ERROR(parse(R"({"model_type": "siglip2"})", wrong), ErrorKind::kInput, "p.json");
}

// A classifier reads means: CLIP's of what the blocks leave, SigLIP's behind the norm, which is
// also what a tower without its pooling head gives.
TEST(Clip, ReadsClassifiersAndTowersWithoutAHead) {
  const ModelSpec clip = parse(
      R"({"model_type": "clip", "architectures": ["CLIPForImageClassification"],
          "id2label": {"0": "cat", "1": "dog"}})");
  EXPECT_EQ(clip.config.classes(), 2);
  EXPECT_TRUE(clip.config.head_bias());
  EXPECT_EQ(clip.labels, (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(vit_of(clip).pool, ViTPool::kBareMean);
  const ModelSpec siglip = parse(
      R"({"model_type": "siglip", "architectures": ["SiglipForImageClassification"],
          "num_labels": 3})");
  EXPECT_EQ(siglip.config.classes(), 3);
  EXPECT_EQ(vit_of(siglip).pool, ViTPool::kNormedMean);
  const ModelSpec gap = parse(
      R"({"model_type": "siglip_vision_model", "vision_use_head": false, "hidden_act": "gelu"})");
  EXPECT_EQ(gap.architecture, "vit_base_patch16_siglip_gap_224");
  EXPECT_EQ(gap.config.classes(), 0);
}

TEST(Clip, RefusesConfigs) {
  const auto refuses = [](const std::string& config, const char* why) {
    EXPECT_ERROR(parse(config), ErrorKind::kInput, why);
  };
  refuses(R"({"model_type": "clip", "vision_config": {"hidden_size": 0}})", "hidden_size");
  refuses(R"({"model_type": "clip", "vision_config": {"hidden_act": "mish"}})", "hidden_act");
  refuses(R"({"model_type": "clip", "vision_config": 3})", "vision_config");
  refuses(R"({"model_type": "clip", "projection_dim": -1})", "projection_dim");
  refuses(R"({"model_type": "clip", "architectures": ["CLIPForImageClassification"],
              "num_labels": 0})",
          "num_labels");
  refuses(R"({"model_type": "siglip", "vision_config": {"vision_use_head": 2}})",
          "vision_use_head");
  refuses(R"({"model_type": "siglip", "vision_config": {"num_attention_heads": 7}})", "7 heads");
  refuses(R"({"model_type": "siglip2", "vision_config": {"num_patches": 200}})",
          "num_patches is 200; positions are those of a square");
  refuses(R"({"model_type": "siglip2_vision_model", "num_patches": 0})", "num_patches");
}

}  // namespace
}  // namespace vitrum
