// Models of images and texts from one framework's directories to another's: both towers, the
// tokenizer, and what a framework has no place for.
#include "vitrum/weights/tower_pair.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/expect_error.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"
#include "tests/support/vit_of.h"
#include "vitrum/core/files.h"
#include "vitrum/weights/convert.h"
#include "vitrum/weights/json_keys.h"
#include "vitrum/weights/model_config.h"
#include "vitrum/weights/open_clip.h"
#include "vitrum/weights/open_tensors.h"
#include "vitrum/weights/safetensors.h"
#include "vitrum/weights/write_tensors.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

std::string golden(const std::string& name) {
  return VITRUM_SOURCE_DIR "/tests/golden/words/" + name;
}

// Every tensor of one file is in the other, bit for bit, and none more.
void expect_same_tensors(const std::string& a, const std::string& b) {
  const auto first = open_tensors(a), second = open_tensors(b);
  EXPECT_EQ(first->tensors().size(), second->tensors().size());
  for (const TensorInfo& t : first->tensors()) {
    const TensorInfo* found = second->find(t.name);
    ASSERT_NE(found, nullptr) << t.name;
    EXPECT_EQ(found->shape, t.shape) << t.name;
    EXPECT_EQ(found->dtype, t.dtype) << t.name;
    EXPECT_TRUE(std::ranges::equal(first->bytes(t), second->bytes(*found))) << t.name;
  }
}

void expect_same_texts(const std::string& a, const std::string& b) {
  const TextSpec first = resolve_text_tower(a), second = resolve_text_tower(b);
  EXPECT_EQ(first.config, second.config);
  EXPECT_EQ(first.scale, second.scale);
  EXPECT_EQ(first.bias, second.bias);
  EXPECT_EQ(first.sigmoid, second.sigmoid);
  const ModelSpec one = resolve_model(a), two = resolve_model(b);
  EXPECT_EQ(one.config, two.config);
  EXPECT_EQ(one.preprocess.mean, two.preprocess.mean);
  EXPECT_EQ(one.preprocess.std, two.preprocess.std);
  EXPECT_EQ(one.preprocess.interpolation, two.preprocess.interpolation);
  EXPECT_EQ(one.preprocess.crop_mode, two.preprocess.crop_mode);
}

TEST(TowerPair, TransformersDirectoriesComeBackBitForBit) {
  for (const char* name : {"clip", "siglip"}) {
    const TempDir dir;
    const Converted done = convert_model(golden(name), {}, dir / "out", "hf");
    EXPECT_TRUE(done.notes.empty());
    expect_same_tensors(golden(name) + "/model.safetensors", dir / "out/model.safetensors");
    expect_same_texts(golden(name), dir / "out");
    const bool clip = std::string_view(name) == "clip";
    const std::string tokenizer = clip ? "/tokenizer.json" : "/spiece.model";
    EXPECT_EQ(read_file(golden(name) + tokenizer), read_file(dir / "out" + tokenizer));
    const JsonKeys config(read_file(dir / "out/config.json"), "config.json");
    EXPECT_EQ(config.texts("architectures"),
              std::vector<std::string>{clip ? "CLIPModel" : "SiglipModel"});
    EXPECT_EQ(config.object("text_config").integer("eos_token_id", -1, {-1, 1000}), 1);
  }
}

TEST(TowerPair, OpenClipAndTransformersExchangeBothTowers) {
  const TempDir dir;
  // Theirs, transformers', and back: the second time from configs that are ours.
  convert_model(golden("open_clip"), {}, dir / "hf", "hf");
  expect_same_texts(golden("open_clip"), dir / "hf");
  const JsonKeys config(read_file(dir / "hf/config.json"), "config.json");
  EXPECT_EQ(config.text("model_type", ""), "clip");
  EXPECT_EQ(config.integer("projection_dim", 0, {0, 1000}), 8);
  // The end mark is the tokenizer's, which here is the last word.
  EXPECT_EQ(config.object("text_config").integer("eos_token_id", -1, {-1, 1000}), 468);
  convert_model(dir / "hf", {}, dir / "back", "original");
  expect_same_tensors(golden("open_clip") + "/open_clip_model.safetensors",
                      dir / "back/open_clip_model.safetensors");
  expect_same_texts(dir / "hf", dir / "back");
  EXPECT_EQ(read_file(golden("open_clip") + "/tokenizer.json"),
            read_file(dir / "back/tokenizer.json"));
  const std::string ours = read_file(dir / "back/open_clip_config.json");
  EXPECT_NE(ours.find("\"quick_gelu\": true"), ours.npos);
  EXPECT_EQ(ours.find("pool_type"), ours.npos) << "the largest number ends a text";
  // From OpenCLIP to OpenCLIP the config is theirs.
  convert_model(golden("open_clip"), {}, dir / "same", "original");
  EXPECT_EQ(read_file(golden("open_clip") + "/open_clip_config.json"),
            read_file(dir / "same/open_clip_config.json"));
  // Another end mark than the largest number is said.
  convert_model(golden("clip"), {}, dir / "marked", "original");
  const std::string marked = read_file(dir / "marked/open_clip_config.json");
  EXPECT_NE(marked.find("\"pool_type\": \"eos\""), marked.npos);
  EXPECT_NE(marked.find("\"eos_id\": 1"), marked.npos);
  convert_model(dir / "marked", {}, dir / "again", "hf");
  expect_same_tensors(golden("clip") + "/model.safetensors", dir / "again/model.safetensors");
  expect_same_texts(golden("clip"), dir / "again");
}

// One file of both towers, whose names tell which code it is for.
TEST(TowerPair, BareFilesHoldBoth) {
  const TempDir dir;
  convert_model(golden("clip"), {}, dir / "clip.safetensors", "original");
  const auto clip = open_tensors(dir / "clip.safetensors");
  for (const char* tensor : {"visual.proj", "text_projection", "logit_scale",
                             "token_embedding.weight", "transformer.resblocks.1.mlp.c_fc.bias"})
    EXPECT_NE(clip->find(tensor), nullptr) << tensor;
  EXPECT_EQ(clip->at("logit_scale").shape, Shape{});
  convert_model(golden("siglip"), {}, dir / "siglip.pth", "original");
  const auto siglip = open_tensors(dir / "siglip.pth");
  for (const char* tensor : {"visual.trunk.attn_pool.latent", "text.text_projection.bias",
                             "logit_bias", "text.transformer.resblocks.0.attn.in_proj_weight"})
    EXPECT_NE(siglip->find(tensor), nullptr) << tensor;
  convert_model(golden("siglip"), {}, dir / "siglip.safetensors", "hf");
  EXPECT_EQ(open_tensors(dir / "siglip.safetensors")->at("logit_bias").shape, Shape{1});
}

TEST(TowerPair, TheImageTowerAloneIsThereForTheAsking) {
  const TempDir dir;
  const auto notes =
      convert_model(golden("clip"), {}, dir / "image", "hf", {}, {.texts = false}).notes;
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("text tower, too, which is not written"), std::string::npos);
  EXPECT_FALSE(has_text_tower(dir / "image"));
  EXPECT_FALSE(fs::exists(dir / "image/tokenizer.json"));
  EXPECT_EQ(convert_model(golden("clip"), {}, dir / "timm", "timm").notes.back(), notes[0]);
  EXPECT_ERROR(convert_model(golden("clip"), {}, dir / "x", "original", {}, {.texts = false}),
               ErrorKind::kUsage, "no model directories");
}

// What `quantize` rounds are layers of the image tower; words still find them.
TEST(TowerPair, EightBitsLeaveTheTextTowerAsItIs) {
  const TempDir dir;
  convert_model(golden("clip"), {}, dir / "q", "hf",
                [](const std::string& layer) { return layer == "blocks.0.mlp.fc1"; });
  const auto before = open_tensors(golden("clip") + "/model.safetensors"),
             after = open_tensors(dir / "q/model.safetensors");
  const SafetensorsFile file(dir / "q/model.safetensors");
  EXPECT_EQ(file.at("vision_model.encoder.layers.0.mlp.fc1.weight").dtype, DType::kI8);
  const TensorInfo& text = after->at("text_model.encoder.layers.0.mlp.fc1.weight");
  EXPECT_TRUE(std::ranges::equal(after->bytes(text), before->bytes(before->at(text.name))));
  expect_same_texts(golden("clip"), dir / "q");
  const JsonKeys config(read_file(dir / "q/config.json"), "config.json");
  const auto ignored = config.object("quantization_config").texts("ignore");
  EXPECT_EQ(std::ranges::count(ignored, "text_model.encoder.layers.0.mlp.fc1"), 1);
}

// A copy of a golden directory with a config of another text.
class Changed {
 public:
  Changed(const std::string& name, const std::string& config) : path_(dir_ / "model") {
    fs::copy(golden(name), path_);
    file_ = path_ + "/" + config;
  }
  void replace(const std::string& from, const std::string& to) {
    std::string text = read_file(file_);
    const size_t at = text.find(from);
    ASSERT_NE(at, text.npos) << from;
    write_file_atomic(file_, text.replace(at, from.size(), to));
  }
  const std::string& path() const { return path_; }

 private:
  TempDir dir_;
  std::string path_, file_;
};

void add_tensor(const std::string& path, const char* name, float value) {
  const auto file = open_tensors(path);
  std::vector<NamedTensor> all;
  for (const TensorInfo& t : file->tensors())
    all.push_back({t.name, {const_cast<std::byte*>(file->bytes(t).data()), t.shape, t.dtype}});
  all.push_back({name, {&value, Shape{}, DType::kF32}});
  write_safetensors(path + ".new", all, {});
  fs::rename(path + ".new", path);
}

TEST(TowerPair, RefusesWhatTheOtherFrameworkHasNot) {
  const TempDir dir;
  const auto refused = [&](const std::string& source, const char* to, const char* why) {
    EXPECT_ERROR(convert_model(source, {}, dir / "out", to), ErrorKind::kInput, why);
    EXPECT_FALSE(fs::exists(dir / "out"));
  };
  // A CLIP that was trained with SigLIP's loss.
  Changed biased("open_clip", "open_clip_config.json");
  add_tensor(biased.path() + "/open_clip_model.safetensors", "logit_bias", -10);
  refused(biased.path(), "hf", "transformers has no CLIPModel with logit_bias");
  convert_model(biased.path(), {}, dir / "image", "hf", {}, {.texts = false});
  // Its towers are no model of timm's.
  refused(golden("siglip"), "original", "no name of timm's");
  Changed mixed("clip", "config.json");
  mixed.replace("\"hidden_act\": \"quick_gelu\"", "\"hidden_act\": \"gelu\"");
  refused(mixed.path(), "original", "QuickGELU in one tower only");
  Changed cut("clip", "config.json");
  write_file_atomic(cut.path() + "/preprocessor_config.json",
                    R"({"size": {"shortest_edge": 16}, "do_center_crop": true, "crop_size": 13})");
  refused(cut.path(), "original", "cropped further");
}

TEST(TowerPair, LeavesNothingOfAnotherModelBeside) {
  const TempDir dir;
  convert_model(golden("siglip"), {}, dir / "out", "hf");
  EXPECT_ERROR(convert_model(golden("clip"), {}, dir / "out", "hf"), ErrorKind::kUsage,
               "holds spiece.model of another model");
  EXPECT_ERROR(convert_model(golden("clip"), {}, dir / "out", "original"), ErrorKind::kUsage,
               "holds config.json of another model");
  EXPECT_FALSE(fs::exists(dir / "out/open_clip_model.safetensors"));
  convert_model(golden("siglip"), {}, dir / "out", "hf");  // its own is replaced
}

// What OpenCLIP's own configs of SigLIP say.
TEST(TowerPair, WritesOpenClipsConfigOfTimmsTowers) {
  ModelSpec image = resolve_model("vit_so400m_patch14_siglip_384");
  image.preprocess.crop_mode = "squash", image.preprocess.crop_pct = 1;
  const TextSpec text{.config = {.vocabulary = 32000,
                                 .context = 64,
                                 .width = 1152,
                                 .depth = 27,
                                 .heads = 16,
                                 .mlp_width = 4304,
                                 .space = 1152,
                                 .eps = 1e-6f,
                                 .act = Act::kGeluTanh,
                                 .causal = false,
                                 .proj_bias = true},
                      .bias = -12.5f,
                      .sigmoid = true,
                      .canonical = true};
  const std::string json = open_clip_config_text(image, text, {}, /*tokenizer=*/true);
  const TempDir dir;
  write_file_atomic(dir / "open_clip_config.json", json);
  const ModelSpec back = resolve_model(dir.path());
  EXPECT_EQ(back.architecture, "vit_so400m_patch14_siglip_384");
  EXPECT_EQ(vit_of(back).pool, ViTPool::kMap);
  const OpenClipText words = read_open_clip_text(dir.path());
  EXPECT_EQ(words.config, text.config);
  EXPECT_TRUE(words.canonical);
  EXPECT_NE(json.find("\"hf_tokenizer_name\""), json.npos);
  EXPECT_NE(json.find("\"custom_text\": true"), json.npos);
  EXPECT_NE(json.find("\"init_logit_bias\": -12.5"), json.npos);
}

TEST(TowerPair, CommandLine) {
  const TempDir dir;
  auto done =
      test::run_vitrum({"convert", golden("open_clip"), dir / "hf", "--to", "hf"}, dir.path());
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(has_text_tower(dir / "hf"));
  done = test::run_vitrum({"convert", dir / "hf", dir / "image", "--to", "hf", "--image-only"},
                          dir.path());
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_FALSE(has_text_tower(dir / "image"));
  done = test::run_vitrum({"convert", dir / "hf", dir / "hf", "--to", "original"}, dir.path());
  EXPECT_EQ(done.code, 2);
}

}  // namespace
}  // namespace vitrum
