// DeiT: presets, its config in timm's and transformers' words, and its weights in their names.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/support/dialect_model.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/vit_of.h"
#include "vitrum/core/files.h"
#include "vitrum/infer/model_program.h"
#include "vitrum/models/registry.h"
#include "vitrum/runtime/summary.h"
#include "vitrum/weights/convert.h"
#include "vitrum/weights/model_config.h"
#include "vitrum/weights/write_tensors.h"

namespace vitrum {
namespace {

using test::LoadedModel;
using testing::HasSubstr;

// ---- presets ----

int64_t parameters(const char* preset) {
  Graph g;
  const ViTConfig& c = vit_of(find_preset(preset));
  vit(Scope(g), g.input("image", {1, c.channels, c.image_h, c.image_w}), c);
  return count_parameters(g).all;
}

TEST(Deit, CountsOfPresets) {
  EXPECT_EQ(parameters("deit_tiny_patch16_224"), 5'717'416);
  EXPECT_EQ(parameters("deit_small_patch16_224"), 22'050'664);
  EXPECT_EQ(parameters("deit_base_patch16_224"), 86'567'656);
  EXPECT_EQ(parameters("deit_base_patch16_384"), 86'859'496);
  EXPECT_EQ(parameters("deit_tiny_distilled_patch16_224"), 5'910'800);
  EXPECT_EQ(parameters("deit_small_distilled_patch16_224"), 22'436'432);
  EXPECT_EQ(parameters("deit_base_distilled_patch16_224"), 87'338'192);
  EXPECT_EQ(parameters("deit_base_distilled_patch16_384"), 87'630'032);
  // A token, its position, and a head of 256 x 10 with bias more than the plain model.
  EXPECT_EQ(parameters("deit_small_cifar"), parameters("vit_small_cifar") + 2 * 256 + 2570);
}

TEST(Deit, PresetsHaveItsPixels) {
  for (const char* name : {"deit_small_patch16_224", "facebook/deit-tiny-distilled-patch16-224"}) {
    const Preprocessing p = resolve_model(name).preprocess;
    EXPECT_EQ(p.mean, (std::vector<float>{0.485f, 0.456f, 0.406f})) << name;
    EXPECT_EQ(p.std, (std::vector<float>{0.229f, 0.224f, 0.225f})) << name;
    EXPECT_EQ(p.crop_pct, 0.9) << name;
  }
  EXPECT_EQ(resolve_model("deit_base_distilled_patch16_384").preprocess.crop_pct, 1);
}

TEST(Deit, ImpossibleTokensAreRefused) {
  ViTConfig c = vit_of(find_preset("deit_small_cifar"));
  c.pool = ViTPool::kMean;
  EXPECT_ERROR(validate(c), ErrorKind::kUsage, "distillation token");
}

// Both heads' answers are f32 before their mean, also where the rest is bf16.
TEST(Deit, HeadsStayInSinglePrecision) {
  ModelSpec spec = test::tiny_rgb_model();
  vit_of(spec).distilled = true;
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  Graph g;
  const TracedModel model = trace(g, spec, 2);
  fuse(g);
  ParamStore store(g, *backend);
  store.initialize(1);
  Program program(g, std::span(&model.logits, 1), store, {.compute = DType::kBF16});
  for (const Value v : {model.cls, model.dist, model.logits})
    EXPECT_EQ(g.info(v).dtype, DType::kF32) << g.info(v).name;
}

// ---- configs ----

ModelSpec from_hf(const std::string& kind, const std::string& preprocessor = "{}") {
  const std::string config = R"({"model_type": "deit", "architectures": [")" + kind +
                             R"("], "num_labels": 7, "hidden_size": 192, "num_attention_heads": 3,
                             "intermediate_size": 768})";
  return parse_hf_config({config, "d/config.json"}, {preprocessor, "d/preprocessor_config.json"});
}

TEST(Deit, TransformersClasses) {
  const ModelSpec both = from_hf("DeiTForImageClassificationWithTeacher");
  EXPECT_TRUE(vit_of(both).two_heads());
  EXPECT_EQ(both.config.classes(), 7);
  EXPECT_EQ(both.architecture, "deit_tiny_distilled_patch16_224");
  const ModelSpec one = from_hf("DeiTForImageClassification");
  EXPECT_TRUE(vit_of(one).distilled);
  EXPECT_FALSE(vit_of(one).two_heads());
  EXPECT_EQ(one.config.classes(), 7);
  const ModelSpec none = from_hf("DeiTModel");
  EXPECT_TRUE(vit_of(none).distilled);
  EXPECT_EQ(none.config.classes(), 0);
  for (const ModelSpec& spec : {both, one, none}) {
    EXPECT_EQ(
        parse_hf_config({hf_config_text(spec), "c"}, {hf_preprocessor_text(spec), "p"}).config,
        spec.config);
  }
}

TEST(Deit, TransformersPreprocessing) {
  const ModelSpec stated =
      from_hf("DeiTForImageClassification",
              R"({"feature_extractor_type": "DeiTFeatureExtractor", "size": 256,
      "crop_size": 224, "do_center_crop": true, "resample": 3, "image_mean": [0.485, 0.456, 0.406],
      "image_std": [0.229, 0.224, 0.225]})");
  Preprocessing assumed = from_hf("DeiTForImageClassification").preprocess;
  EXPECT_TRUE(assumed.assumed);
  assumed.assumed = false;
  EXPECT_EQ(assumed, stated.preprocess);
  EXPECT_EQ(assumed.resize, 256);
  EXPECT_EQ(assumed.crop_mode, "squash");
  EXPECT_EQ(assumed.interpolation, "bicubic");
  EXPECT_THAT(hf_preprocessor_text(stated), HasSubstr("DeiTImageProcessor"));
}

TEST(Deit, TimmConfigs) {
  const std::string text =
      R"({"architecture": "deit_tiny_distilled_patch16_224", "num_classes": 5, "num_features": 192,
          "pretrained_cfg": {"tag": "fb_in1k", "input_size": [3, 224, 224], "fixed_input_size": true,
          "interpolation": "bicubic", "crop_pct": 0.9, "mean": [0.485, 0.456, 0.406],
          "std": [0.229, 0.224, 0.225], "classifier": ["head", "head_dist"]}})";
  const ModelSpec spec = parse_model_config(text, "config.json");
  EXPECT_TRUE(vit_of(spec).two_heads());
  EXPECT_EQ(spec.config.classes(), 5);
  const std::string written = model_config_text(spec);
  EXPECT_THAT(written, HasSubstr(R"("architecture": "deit_tiny_distilled_patch16_224")"));
  EXPECT_EQ(parse_model_config(written, "config.json"), spec);
  ModelSpec small = resolve_model("deit_small_cifar");
  EXPECT_THAT(model_config_text(small), HasSubstr(R"("deit_base_distilled_patch16_224")"));
  vit_of(small).dist_head = false;  // timm has no such model
  EXPECT_THAT(model_config_text(small), HasSubstr(R"("architecture": "vitrum_vit")"));
  EXPECT_EQ(parse_model_config(model_config_text(small), "config.json").config, small.config);
}

// ---- weights ----

class DeitWeights : public testing::Test {
 protected:
  DeitWeights() {
    vit_of(spec_).distilled = true;
    test::write_tiny_model(dir_ / "timm", spec_);
  }
  std::vector<std::vector<float>> values(const std::string& path, const ModelSpec& spec) const {
    LoadedModel model(spec);
    load_weights(path, spec, model.store);
    return model.all_values();
  }
  static std::vector<std::string> names(const std::string& file) {
    std::vector<std::string> all;
    const auto source = open_tensors(file);
    for (const TensorInfo& t : source->tensors()) all.push_back(t.name);
    return all;
  }

  TempDir dir_;
  ModelSpec spec_ = test::tiny_rgb_model();
};

TEST_F(DeitWeights, RoundTripThroughTransformersKeepsEveryBit) {
  convert_model(dir_ / "timm", {}, dir_ / "hf", "hf");
  EXPECT_THAT(names(dir_ / "hf/model.safetensors"),
              testing::IsSupersetOf({"deit.embeddings.distillation_token", "cls_classifier.weight",
                                     "distillation_classifier.bias", "deit.layernorm.weight"}));
  const ModelSpec hf = resolve_model(dir_ / "hf");
  EXPECT_EQ(hf.config, spec_.config);
  EXPECT_EQ(values(dir_ / "hf", hf), values(dir_ / "timm", spec_));
  convert_model(dir_ / "hf", {}, dir_ / "back", "timm");
  EXPECT_EQ(read_file(dir_ / "back/model.safetensors"), read_file(dir_ / "timm/model.safetensors"));
}

TEST_F(DeitWeights, ATokenWithoutItsHead) {
  vit_of(spec_).dist_head = false;
  test::write_tiny_model(dir_ / "one", spec_);
  convert_model(dir_ / "one", {}, dir_ / "hf", "hf");
  const std::vector<std::string> all = names(dir_ / "hf/model.safetensors");
  EXPECT_THAT(all, testing::Contains("classifier.weight"));
  EXPECT_THAT(all, testing::Not(testing::Contains("distillation_classifier.weight")));
  EXPECT_FALSE(vit_of(resolve_model(dir_ / "hf")).two_heads());
  EXPECT_EQ(values(dir_ / "hf", resolve_model(dir_ / "hf")), values(dir_ / "one", spec_));
}

TEST_F(DeitWeights, OthersHaveNoPlaceForTheToken) {
  EXPECT_ERROR(convert_model(dir_ / "timm", {}, dir_ / "x.pth", "torchvision"), ErrorKind::kInput,
               "distillation token");
  EXPECT_ERROR(convert_model(dir_ / "timm", {}, dir_ / "x.npz", "npz"), ErrorKind::kInput,
               "distillation token");
}

TEST_F(DeitWeights, OtherGridsLeaveTheTokensPositionsAlone) {
  LoadedModel stored(spec_);
  load_weights(dir_ / "timm", spec_, stored.store);
  ModelSpec larger = spec_;
  set_image_size(larger, 48, 40);
  LoadedModel model(larger);
  const LoadReport report = load_weights(dir_ / "timm", larger, model.store);
  EXPECT_THAT(report.adapted, testing::ElementsAre(HasSubstr("4x4 -> 6x5")));
  const std::vector<float> before = stored.values("pos_embed"), after = model.values("pos_embed");
  const auto kept = static_cast<ptrdiff_t>(2 * vit_of(spec_).width);
  ASSERT_EQ(after.size(), static_cast<size_t>((2 + 30) * vit_of(spec_).width));
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + kept, after.begin()));
}

TEST_F(DeitWeights, OtherClassesReplaceBothHeads) {
  ModelSpec other = spec_;
  set_classes(other, 3);
  LoadedModel model(other);
  load_weights(dir_ / "timm", other, model.store, {.head = HeadInit::kZero});
  for (const char* name : {"head.weight", "head_dist.weight", "head.bias", "head_dist.bias"})
    EXPECT_EQ(model.values(name), std::vector<float>(model.values(name).size(), 0.f)) << name;
}

// DeiT's own files: {"model": {...}} under timm's names, of a preset.
TEST_F(DeitWeights, BareFilesOfPresets) {
  ModelSpec tiny = resolve_model("deit_tiny_distilled_patch16_224");
  vit_of(tiny).depth = 1, vit_of(tiny).classes = 4;
  test::write_tiny_model(dir_ / "deit", tiny);
  convert_model(dir_ / "deit", {}, dir_ / "timm.pth", "timm");
  convert_model(dir_ / "deit", {}, dir_ / "hf.safetensors", "hf");
  const ModelSpec timm = resolve_model(dir_ / "timm.pth", "deit_tiny_distilled_patch16_224");
  EXPECT_TRUE(vit_of(timm).two_heads());
  EXPECT_EQ(timm.config.image_h(), 224);
  EXPECT_EQ(timm.config.classes(), 4);
  EXPECT_EQ(timm.preprocess.crop_pct, 0.9);
  const ModelSpec hf = resolve_model(dir_ / "hf.safetensors", "deit_tiny_distilled_patch16_224");
  EXPECT_TRUE(vit_of(hf).two_heads());
  EXPECT_EQ(hf.preprocess.resize, 256);
  EXPECT_EQ(hf.preprocess.mean, timm.preprocess.mean);
}

TEST_F(DeitWeights, APlainModelIsNotADistilledOne) {
  ModelSpec plain = spec_;
  vit_of(plain).distilled = false;
  LoadedModel model(plain);
  EXPECT_ERROR(load_weights(dir_ / "timm", plain, model.store), ErrorKind::kInput, "dist_token");
}

}  // namespace
}  // namespace vitrum
