#include "vitrum/weights/model_dir.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/vit_of.h"
#include "vitrum/core/files.h"
#include "vitrum/models/registry.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/weights/model_config.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

ModelSpec tiny_spec() {
  ModelSpec spec{.architecture = "vit_tiny_patch16_224",
                 .config = ViTConfig{},
                 .preprocess = {},
                 .labels = {"cat", "dög"}};
  spec.config = ViTConfig{.image_h = 8,
                          .image_w = 12,
                          .patch_h = 4,
                          .patch_w = 3,
                          .channels = 2,
                          .width = 8,
                          .depth = 2,
                          .heads = 2,
                          .mlp_width = 12,
                          .classes = 2};
  set_image_size(spec, 8, 12);
  spec.preprocess.mean = {0.1f, 0.2f}, spec.preprocess.std = {0.5f, 0.25f};
  return spec;
}

// A store for the spec's model on the reference backend.
struct Model {
  explicit Model(const ModelSpec& spec, uint64_t seed = 1)
      : store((record(vit_of(spec)), graph), *backend) {
    store.initialize(seed);
  }
  void record(const ViTConfig& c) {
    vit(Scope(graph), graph.input("x", {1, c.channels, c.image_h, c.image_w}), c);
  }

  std::unique_ptr<Backend> backend = make_backend({.device = "reference"});
  Graph graph;
  ParamStore store;
};

void save_fresh(const std::string& dir, const ModelSpec& spec) {
  Model model(spec);
  save_model_dir(dir, spec, model.store);
}

std::vector<std::vector<float>> values(ParamStore& store, Arena which = Arena::kMaster) {
  std::vector<std::vector<float>> all;
  for (size_t i = 0; i < store.specs().size(); ++i) all.push_back(store.read(i, which));
  return all;
}

std::string without_own_object(const std::string& text) {
  return text.substr(0, text.rfind(",\n \"vitrum\"")) + "\n}";
}

TEST(ModelConfig, EveryPresetComesBack) {
  for (const Preset& preset : presets()) {
    const ModelSpec spec = resolve_model(preset.name);
    EXPECT_EQ(spec.config, preset.config);
    EXPECT_EQ(parse_model_config(model_config_text(spec), "config.json"), spec) << preset.name;
  }
}

TEST(ModelConfig, EverySwitchComesBack) {
  ModelSpec spec = tiny_spec();
  ViTConfig& c = vit_of(spec);
  c.eps = 1e-12f, c.act = Act::kGeluTanh, c.patch_order = PatchOrder::kChannelLast,
  c.init = InitStyle::kNotes;
  c.pre_norm = c.qkv_bias = c.proj_bias = c.mlp_bias = c.norm_bias = c.head_bias = false;
  c.pool = ViTPool::kMean, c.sincos_positions = c.floor_patches = true, c.sincos_endpoint = false;
  c.class_token = false, c.layer_scale = 1e-5f, c.registers = 3, c.norm_pre = true;
  c.prefix_positions = c.patch_bias = false;
  c.drop_pos = 0.1f, c.drop_attn = 0.2f, c.drop_proj = 0.3f, c.drop_act = 0.4f, c.drop_mlp = 0.5f,
  c.drop_path = 0.6f, c.patch_drop = 0.7f;
  spec.preprocess.interpolation = "bilinear", spec.preprocess.crop_pct = 0.9,
  spec.preprocess.crop_mode = "squash";
  EXPECT_EQ(parse_model_config(model_config_text(spec), "config.json"), spec);
}

// Directories of before "pool" was a key.
TEST(ModelConfig, MeanPoolOfOlderDirectoriesIsRead) {
  ModelSpec spec = tiny_spec();
  vit_of(spec).pool = ViTPool::kMean;
  std::string text = model_config_text(spec);
  const std::string key = "\"pool\": \"mean\",";
  ASSERT_NE(text.find(key), text.npos) << text;
  text.erase(text.find(key), key.size());
  EXPECT_EQ(vit_of(parse_model_config(text, "config.json")).pool, ViTPool::kMean);
}

TEST(ModelConfig, TimmKeysSayTheSameWhereTimmHasTheModel) {
  ModelSpec layered = tiny_spec();
  vit_of(layered).layer_scale = 1e-5f, vit_of(layered).pool = ViTPool::kMean,
  vit_of(layered).qkv_bias = false;
  vit_of(layered).mlp_width = 37;  // no exact ratio to the width
  vit_of(layered).patch_drop = 0.5f;
  vit_of(layered).drop_proj = vit_of(layered).drop_act = vit_of(layered).drop_mlp = 0.25f;
  std::vector<ModelSpec> specs = {tiny_spec(), layered};
  for (const char* name :
       {"vit_tiny_patch16_224", "vit_base_patch32_384", "vit_huge_patch14_224", "vit_small28"})
    specs.push_back(resolve_model(name));
  for (ModelSpec& spec : specs) {
    const ModelSpec read =
        parse_model_config(without_own_object(model_config_text(spec)), "config.json");
    EXPECT_EQ(read.config, spec.config) << spec.architecture;
    EXPECT_EQ(read.preprocess, spec.preprocess) << spec.architecture;
    EXPECT_EQ(read.labels, spec.labels);
  }
}

TEST(ModelConfig, TimmIsNotOfferedWhatItCannotCompute) {
  for (const char* name : {"minvit_cifar10", "vit_mnist"})
    EXPECT_THAT(model_config_text(resolve_model(name)),
                testing::HasSubstr("\"architecture\": \"vitrum_vit\""));
  // eps 1e-5 is that of its CLIP models.
  EXPECT_THAT(model_config_text(resolve_model("vit_lesson_base_patch16_224")),
              testing::AllOf(testing::HasSubstr("\"architecture\": \"vit_base_patch16_clip_224\""),
                             testing::HasSubstr("\"pre_norm\": false")));
}

TEST(ModelConfig, BadFilesAreRefused) {
  const auto expect_refused = [](const std::string& text, const std::string& part) {
    EXPECT_ERROR(parse_model_config(text, "d/config.json"), ErrorKind::kInput, part);
    EXPECT_ERROR(parse_model_config(text, "d/config.json"), ErrorKind::kInput, "d/config.json");
  };
  const auto args = [](const std::string& list) {
    return R"({"architecture": "vit_tiny_patch16_224", "model_args": {)" + list + "}}";
  };
  expect_refused("", "parse error");
  expect_refused("{", "parse error");
  expect_refused("[]", "expected an object");
  expect_refused("{}", "architecture");
  expect_refused(R"({"architecture": 3})", "must be a text, not 3");
  expect_refused(R"({"architecture": "vit_tinny_patch16_224"})",
                 "did you mean 'vit_tiny_patch16_224'");
  expect_refused(std::string(100'000, '['), "nests deeper");
  expect_refused(std::string("{}\0junk", 7), "has a NUL");
  // Half a megabyte of a name is neither compared with others nor shown.
  expect_refused("{\"architecture\": \"" + std::string(500'000, 'A') + "\"}",
                 "architecture must be a text of at most 256 bytes, not \"AAAA");
  expect_refused("{\"architecture\": \"" + std::string(250, 'A') + "\"}", "unknown architecture");
  expect_refused("{\"architecture\": \"\xff\"}", "parse error");
  expect_refused(args(R"("depth": -1)"), "depth must be a whole number from 0 to 1024, not -1");
  expect_refused(args(R"("depth": 1.5)"), "not 1.5");
  expect_refused(args(R"("embed_dim": 18446744073709551615)"), "embed_dim must be");
  expect_refused(args(R"("embed_dim": 1e300)"), "embed_dim must be");
  expect_refused(args(R"("img_size": [1, 2, 3])"), "one number or two");
  expect_refused(args(R"("img_size": 225)"), "not divisible by patch size");
  expect_refused(args(R"("num_heads": 5)"), "not divisible by 5 heads");
  expect_refused(args(R"("qk_norm": true)"), "qk_norm = true is not supported");
  expect_refused(args(R"("embed_dims": 4)"), "did you mean 'embed_dim'");
  expect_refused(args(R"("mlp_ratio": 0)"), "MLP width 0");
  expect_refused(args(R"("embed_dim": 65536, "depth": 1024, "num_heads": 1)"), "too large");
  expect_refused(args(R"("global_pool": "avgmax")"), "global_pool must be one of token, avg, map");
  expect_refused(
      R"({"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {"std": [0, 1, 1]}})",
      "std must be above 0");
  expect_refused(R"({"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {"mean": [1, 2]}})",
                 "2 numbers for 3 channels");
  expect_refused(R"({"architecture": "x", "vitrum": {"width": "wide"}})", "vitrum: width must be");
  expect_refused(R"({"architecture": "x", "vitrum": {"act": "swish"}})",
                 "one of none, gelu, gelu_tanh, relu");
  expect_refused(R"({"architecture": "x", "vitrum": {"pre_norms": true}})",
                 "did you mean 'pre_norm'");
}

TEST(ModelDir, WeightsComeBackBitForBit) {
  const TempDir dir;
  const ModelSpec spec = tiny_spec();
  Model written(spec, 1), read(spec, 2);
  save_model_dir(dir.path(), spec, written.store);
  EXPECT_EQ(dir.entries(), 2u);
  EXPECT_EQ(resolve_model(dir.path()), spec);
  EXPECT_NE(values(read.store), values(written.store));
  load_weights(dir.path(), spec, read.store);
  EXPECT_EQ(values(read.store), values(written.store));
}

TEST(ModelDir, AveragedWeightsCanBeSaved) {
  const TempDir dir;
  const ModelSpec spec = tiny_spec();
  Model model(spec, 1);
  model.store.arena(Arena::kEma);
  const auto averaged = values(model.store, Arena::kEma);
  model.store.initialize(5);
  save_model_dir(dir.path(), spec, model.store, Arena::kEma);
  load_weights(dir.path(), spec, model.store);
  EXPECT_EQ(values(model.store), averaged);
}

TEST(ModelDir, PatchEmbeddingIsAConvolutionOnDisk) {
  const TempDir dir;
  ModelSpec spec = tiny_spec();
  save_fresh(dir.path(), spec);
  EXPECT_EQ(SafetensorsFile(dir / "model.safetensors").at("patch_embed.proj.weight").shape,
            Shape({8, 2, 4, 3}));
  vit_of(spec).patch_order = PatchOrder::kChannelLast;  // no convolution has these weights
  save_fresh(dir.path(), spec);
  EXPECT_EQ(SafetensorsFile(dir / "model.safetensors").at("patch_embed.proj.weight").shape,
            Shape({8, 24}));
}

TEST(ModelDir, AllDifferencesAreNamedAtOnce) {
  const TempDir dir;
  ModelSpec spec = tiny_spec();
  save_fresh(dir.path(), spec);
  vit_of(spec).mlp_width = 13, vit_of(spec).pool = ViTPool::kMean;
  Model other(spec);
  const auto before = values(other.store);
  for (const char* part :
       {"blocks.1.mlp.fc1.weight is (12, 8), expected (13, 8)",
        "blocks.0.mlp.fc1.bias is (12), expected (13)", "fc_norm.weight (8) is missing",
        "\"norm.weight\" (8) is not part of the model"})
    EXPECT_ERROR(load_weights(dir.path(), spec, other.store), ErrorKind::kInput, part);
  EXPECT_EQ(values(other.store), before) << "nothing is loaded where something is wrong";
}

TEST(ModelDir, HalfPrecisionFilesAreRead) {
  const TempDir dir;
  const ModelSpec spec = tiny_spec();
  Model model(spec);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    // 1.5, -2, the smallest f16 subnormal, and 0, as f16; as bf16 other numbers, by definition of
    // the format.
    const std::vector<uint16_t> bits = {0x3e00, 0xc000, 0x0001, 0x0000};
    std::vector<std::vector<uint16_t>> data;
    std::vector<NamedTensor> tensors;
    for (const ParamSpec& param : model.store.specs()) {
      data.emplace_back(static_cast<size_t>(param.shape.numel()));
      for (size_t i = 0; i < data.back().size(); ++i) data.back()[i] = bits[i % 4];
      const bool patches = param.name == "patch_embed.proj.weight";
      tensors.push_back(
          {param.name, {data.back().data(), patches ? Shape{8, 2, 4, 3} : param.shape, dtype}});
    }
    write_safetensors(dir / "model.safetensors", tensors);
    load_weights(dir.path(), spec, model.store);
    const std::vector<float> head =
        model.store.read(static_cast<size_t>(model.store.index("head.weight")));
    const std::vector<float> expected =
        dtype == DType::kF16
            ? std::vector<float>{1.5f, -2.f, 0x1p-24f, 0.f}
            : std::vector<float>{from_bf16(0x3e00), from_bf16(0xc000), from_bf16(1), 0.f};
    EXPECT_EQ(std::vector<float>(head.begin(), head.begin() + 4), expected);
  }
}

TEST(ModelDir, WhatIsNotAModelIsExplained) {
  const TempDir dir;
  EXPECT_ERROR(resolve_model(dir.path()), ErrorKind::kInput, "holds no weights");
  write_file_atomic(dir / "file", "x");
  EXPECT_ERROR(resolve_model(dir / "file"), ErrorKind::kInput, "is a file");
  EXPECT_ERROR(resolve_model("./no.where"), ErrorKind::kInput, "'./no' is neither a model dir");
  EXPECT_ERROR(resolve_model("vit_bas_patch16_224"), ErrorKind::kInput,
               "did you mean 'vit_base_patch16_224'");
  const ModelSpec spec = tiny_spec();
  save_fresh(dir / "model", spec);
  EXPECT_ERROR(resolve_model(dir.path()), ErrorKind::kInput, "holds no weights");
  std::filesystem::rename(dir / "model", dir / "best");
  EXPECT_ERROR(resolve_model(dir.path()), ErrorKind::kInput, "the model of a run is");
  std::filesystem::rename(dir / "best", dir / "model");
  std::filesystem::rename(dir / "model/config.json", dir / "config.json");
  EXPECT_ERROR(resolve_model(dir / "model"), ErrorKind::kInput, "has no config.json; name it with");
  std::filesystem::remove(dir / "model/model.safetensors");
  Model model(spec);
  EXPECT_ERROR(load_weights(dir / "model", spec, model.store), ErrorKind::kInput,
               "model.safetensors");
}

TEST(ModelDir, RealTimmDirectoryIsRead) {
  const char* shared = std::getenv("VITRUM_SHARED_DATA");
  const std::string dir = (shared ? std::string(shared) : VITRUM_SOURCE_DIR "/../shared/data") +
                          "/vit_tiny_patch16_224";
  if (!is_model_dir(dir)) GTEST_SKIP() << "no " << dir;
  const ModelSpec spec = resolve_model(dir);
  EXPECT_EQ(spec.config, find_preset("vit_tiny_patch16_224").config);
  EXPECT_EQ(spec.preprocess.crop_pct, 0.9);
  EXPECT_EQ(spec.preprocess.mean, std::vector<float>(3, 0.5f));
  EXPECT_EQ(spec.labels.at(0), "tench");
  Model model(spec);
  load_weights(dir, spec, model.store);
}

}  // namespace
}  // namespace vitrum
