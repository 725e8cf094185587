// Files in the names of models' authors, and patches of another size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/dialect_model.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/vit_of.h"
#include "vitrum/core/files.h"
#include "vitrum/weights/checkpoint.h"
#include "vitrum/weights/convert.h"

namespace vitrum {
namespace {

using test::largest_difference;
using test::LoadedModel;

const std::string kGolden = VITRUM_SOURCE_DIR "/tests/golden/";

std::string family(const std::string& name) { return kGolden + "families/" + name; }
std::vector<float> expected(const std::string& name) {
  static const auto file = open_tensors(family("expected.safetensors"));
  return read_floats(*file, file->at(name));
}

// Every parameter of `spec` from `path`, and the dialect that was found there.
std::pair<std::vector<std::vector<float>>, std::string> loaded(const std::string& path,
                                                               const ModelSpec& spec) {
  LoadedModel model(spec);
  const std::string dialect = load_weights(path, spec, model.store).dialect;
  return {model.all_values(), dialect};
}

TEST(Originals, ComeBackBitForBit) {
  for (const auto& [model, dialect] : {std::pair("families/deit3", "meta"),
                                       {"families/dinov2", "meta"},
                                       {"families/registers-gated-hf", "meta"},
                                       {"families/dinov3-hf", "meta"},
                                       {"families/dinov3-gated", "meta"},
                                       {"families/eva02", "eva"},
                                       {"families/eva02-apart", "eva"},
                                       {"families/eva02-clip", "eva"},
                                       {"families/beit", "timm"},  // the same names
                                       {"families/mae-hf", "timm"},
                                       {"families/siglip-gap", ""},
                                       {"words/clip", "open_clip"},
                                       {"words/siglip", "timm"},
                                       {"words/open_clip", "open_clip"},
                                       {"conv_families/convnextv2", "meta"},
                                       {"conv_families/swinv2", "microsoft"}}) {
    const TempDir dir;
    if (std::string_view(dialect).empty()) {
      EXPECT_ERROR(convert_model(kGolden + model, "", dir / "x.pth", "original"), ErrorKind::kInput,
                   "with a classifier");
      continue;
    }
    convert_model(kGolden + model, "", dir / "own.pth", "original");
    const ModelSpec spec = resolve_model(kGolden + model);
    const auto [found, named] = loaded(dir / "own.pth", spec);
    EXPECT_EQ(named, dialect) << model;
    EXPECT_EQ(found, loaded(kGolden + model, spec).first) << model;
  }
}

// What Meta's own code does not load a file without.
TEST(Originals, HaveWhatTheirLoadersInsistOn) {
  const TempDir dir;
  convert_model(family("dinov3-hf"), "", dir / "own.pth", "original");
  const auto file = open_tensors(dir / "own.pth");
  const auto values = [&](const char* name) { return read_floats(*file, file->at(name)); };
  EXPECT_EQ(values("mask_token"), std::vector<float>(16));
  EXPECT_EQ(values("rope_embed.periods"), (std::vector<float>{1, 10}));
  const std::vector<float> mask = values("blocks.1.attn.qkv.bias_mask");
  ASSERT_EQ(mask.size(), 48u);
  for (size_t i = 0; i < mask.size(); ++i) EXPECT_EQ(mask[i] == 0, i / 16 == 1) << i;
}

// Meta's published DINOv3 have periods rounded to bf16, and a file says so by its numbers.
TEST(Originals, PeriodsSayHowTheyAreRounded) {
  for (const bool rounded : {false, true}) {
    const TempDir dir;
    ModelSpec spec = resolve_model(family("dinov3-hf"));
    vit_of(spec).width = 32, vit_of(spec).rope_bf16 = rounded;  // 100^(1/4) is no bf16 number
    LoadedModel model(spec);
    save_model_dir(dir / "own", spec, model.store);
    convert_model(dir / "own", "", dir / "own.pth", "original");
    ModelConfig config = spec.config;
    config.as<ViTConfig>()->rope_bf16 = !rounded;
    EXPECT_EQ(Checkpoint(dir / "own.pth").stored_sizes(config).as<ViTConfig>()->rope_bf16, rounded);
  }
}

TEST(Originals, SayWhatTheyHaveNot) {
  const TempDir dir;
  const auto refuse = [&](const std::string& model, ErrorKind kind, const char* why) {
    EXPECT_ERROR(convert_model(kGolden + model, "", dir / "x.pth", "original"), kind, why);
  };
  refuse("families/dinov2-hf-head", ErrorKind::kInput, "Meta has no DINOv2 with a classifier");
  refuse("families/dinov3", ErrorKind::kInput, "Meta has no DINOv3 with a classifier");
  refuse("families/clip-classifier-hf", ErrorKind::kInput, "OpenCLIP has no CLIP with a class");
  refuse("families/clip", ErrorKind::kInput, "whose projection has a bias");
  EXPECT_ERROR(convert_model(family("dinov2"), "", dir / "x", "original"), ErrorKind::kUsage,
               "Meta has no model directories; end the name in .pth");
  EXPECT_ERROR(convert_model(family("dinov2"), "", dir / "x.pth", "oldest"), ErrorKind::kUsage,
               "there are original, timm, hf");
}

TEST(Originals, SayThatTextsStayBehindWhereTheyDo) {
  const auto stay = testing::Contains(testing::HasSubstr("text tower"));
  for (const char* name : {"clip", "siglip", "open_clip"}) {
    const TempDir dir;
    const std::string source = kGolden + "words/" + name;
    EXPECT_THAT(convert_model(source, "", dir / "x.pth", "original", {}, {.texts = false}).notes,
                stay)
        << name;
    EXPECT_THAT(convert_model(source, "", dir / "y.pth", "original").notes, testing::Not(stay))
        << name;
  }
}

// A class token's position is folded into it, in f32 whatever the file has, and only there.
TEST(Registers, TheClassTokensPositionIsPartOfIt) {
  const ModelSpec spec = resolve_model(family("registers-hf"));
  EXPECT_EQ(vit_of(spec).registers, 3);
  EXPECT_FALSE(vit_of(spec).prefix_positions);
  LoadedModel model(spec);
  load_weights(family("registers-hf"), spec, model.store);
  const auto file = open_tensors(family("registers-hf/model.safetensors"));
  const auto stored = [&](const std::string& name) {
    return read_floats(*file, file->at("dinov2_with_registers.embeddings." + name));
  };
  const std::vector<float> token = stored("cls_token"), positions = stored("position_embeddings"),
                           ours = model.values("cls_token");
  ASSERT_EQ(ours.size(), 16u);
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_EQ(ours[i], token[i] + positions[i]);
  const std::vector<float> rest(positions.begin() + 16, positions.end());
  EXPECT_EQ(model.values("pos_embed"), rest);
  const TempDir dir;
  convert_model(family("registers-hf"), "", dir / "hf", "hf");
  const auto again = open_tensors(dir / "hf/model.safetensors");
  const std::vector<float> written =
      read_floats(*again, again->at("dinov2_with_registers.embeddings.position_embeddings"));
  EXPECT_EQ(std::vector<float>(written.begin(), written.begin() + 16), std::vector<float>(16));
}

TEST(Registers, HostileConfigsAreRefused) {
  const TempDir dir;
  std::filesystem::copy(family("registers-hf"), dir / "model");
  const std::string config = read_file(dir / "model/config.json");
  const auto refuse = [&](const std::string& from, const std::string& to, const char* why) {
    std::string text = config;
    ASSERT_NE(text.find(from), text.npos) << from;
    text.replace(text.find(from), from.size(), to);
    write_file_atomic(dir / "model/config.json", text);
    EXPECT_ERROR(
        [&] {
          const ModelSpec spec = resolve_model(dir / "model");
          loaded(dir / "model", spec);
        }(),
        ErrorKind::kInput, why);
  };
  refuse("\"num_register_tokens\": 3", "\"num_register_tokens\": -1", "num_register_tokens");
  refuse("\"num_register_tokens\": 3", "\"num_register_tokens\": 0", "num_register_tokens");
  refuse("\"num_register_tokens\": 3", "\"num_register_tokens\": 4",
         "register_tokens is (1, 3, 16), expected (1, 4, 16)");
  refuse("\"image_size\": 12", "\"image_size\": 16",
         "position_embeddings is (1, 10, 16), expected (1, 17, 16)");
}

// Meta's rule differs from timm's, and is that of Meta's files alone.
TEST(Originals, MetasPositionsStepAsIfThereWereMorePatches) {
  const TempDir dir;
  convert_model(family("dinov2"), "", dir / "own.pth", "original");
  ModelSpec spec = resolve_model(family("dinov2"));
  set_image_size(spec, 20, 20);
  LoadedModel model(spec);
  load_weights(dir / "own.pth", spec, model.store);
  const std::vector<float> answer = model.forward(expected("image.20"));
  EXPECT_LT(largest_difference(answer, expected("dinov2-meta.20")), 2e-6f);
  EXPECT_GT(largest_difference(answer, expected("dinov2.20")), 2e-5f);
}

// FlexiViT's pseudo-inverse, with timm's rule for each model: bilinear for FlexiViT, else bicubic.
TEST(PatchSize, ResizesWeightsAsTimmDoes) {
  for (const char* name : {"flexivit", "dinov2"})
    for (const int size : {2, 3, 6})
      for (const bool bare : {false, true}) {
        ModelSpec spec = resolve_model(family(name));
        set_patch_size(spec, size);
        LoadedModel model(spec);
        const LoadReport report = load_weights(
            bare ? family(name) + "/model.safetensors" : family(name), spec, model.store);
        const std::string what = name + std::string(".patch") + std::to_string(size);
        EXPECT_LT(largest_difference(model.forward(expected("image.12")), expected(what)), 2e-5f)
            << what;
        EXPECT_THAT(report.adapted, testing::Contains(testing::HasSubstr("pseudo-inverse")));
      }
}

// A head that reads something else is a new one; everything else is as it was.
TEST(Pool, AnotherReadingNeedsANewHead) {
  ModelSpec spec = resolve_model(family("registers"));
  LoadedModel plain(spec);
  load_weights(family("registers"), spec, plain.store);
  vit_of(spec).pool = ViTPool::kTokenAndMean;
  LoadedModel both(spec);
  const LoadReport report = load_weights(family("registers"), spec, both.store);
  EXPECT_THAT(report.adapted, testing::Contains("new head of 3 classes"));
  EXPECT_EQ(both.values("head.weight").size(), 2 * plain.values("head.weight").size());
  for (const char* name : {"norm.weight", "cls_token", "reg_token", "blocks.1.mlp.fc2.bias"})
    EXPECT_EQ(both.values(name), plain.values(name)) << name;
}

TEST(PatchSize, IsForViTs) {
  ModelSpec swin = resolve_model(kGolden + "conv_families/swinv2");
  EXPECT_ERROR(set_patch_size(swin, 8), ErrorKind::kUsage, "only ViTs");
  ModelSpec vit = resolve_model(family("flexivit"));
  set_patch_size(vit, 5);
  EXPECT_ERROR(validate(vit.config), ErrorKind::kUsage, "5");
}

}  // namespace
}  // namespace vitrum
