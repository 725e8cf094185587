// Today's families against the frameworks they come from (tools/golden/families_golden.py).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <filesystem>

#include "tests/support/dialect_model.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/vit_of.h"
#include "vitrum/core/files.h"
#include "vitrum/models/registry.h"
#include "vitrum/models/text.h"
#include "vitrum/weights/convert.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

using test::largest_difference;
using test::LoadedModel;

std::string golden(const std::string& name) {
  return VITRUM_SOURCE_DIR "/tests/golden/families/" + name;
}
std::vector<float> expected(const std::string& name) {
  static const auto file = open_tensors(golden("expected.safetensors"));
  return read_floats(*file, file->at(name));
}

std::vector<float> answer(const std::string& dir, int side) {
  ModelSpec spec = resolve_model(dir);
  set_image_size(spec, side, side);
  LoadedModel model(spec);
  load_weights(dir, spec, model.store);
  return model.forward(expected("image." + std::to_string(side)));
}

class Families : public ::testing::TestWithParam<const char*> {};

TEST_P(Families, AnswerAsTheirFrameworkDoes) {
  for (const int side : {12, 20})
    EXPECT_LT(largest_difference(answer(golden(GetParam()), side),
                                 expected(std::string(GetParam()) + "." + std::to_string(side))),
              1e-5f)
        << side;
}

TEST_P(Families, ConvertKeepsTheModel) {
  const TempDir dir;
  convert_model(golden(GetParam()), "", dir / "timm", "timm");
  EXPECT_EQ(resolve_model(dir / "timm").config, resolve_model(golden(GetParam())).config);
  EXPECT_EQ(answer(dir / "timm", 12), answer(golden(GetParam()), 12));
}

INSTANTIATE_TEST_SUITE_P(Golden, Families,
                         ::testing::Values("deit3", "dinov2", "registers", "flexivit", "clip",
                                           "dinov2-hf", "dinov2-hf-head", "dinov2-gated-hf",
                                           "dinov3", "dinov3-gated", "dinov3-hf", "dinov3-gated-hf",
                                           "eva02", "eva02-apart", "eva02-clip", "beit", "beit-hf",
                                           "mae-hf", "registers-hf", "registers-gated-hf",
                                           "clip-classifier-hf", "siglip-classifier-hf",
                                           "siglip-gap"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(FamilyFiles, RoundTripThroughTransformersKeepsEveryBit) {
  for (const char* name :
       {"dinov2", "dinov2-hf", "dinov2-hf-head", "dinov2-gated-hf", "dinov3-hf", "dinov3-gated-hf",
        "beit", "beit-hf", "mae-hf", "registers-hf", "registers-gated-hf", "clip-classifier-hf",
        "siglip-classifier-hf", "siglip-gap"}) {
    const TempDir dir;
    convert_model(golden(name), "", dir / "hf", "hf");
    EXPECT_EQ(answer(dir / "hf", 12), answer(golden(name), 12)) << name;
  }
}

TEST(Dinov2, TransformersHaveNoPlaceForOtherHeads) {
  const TempDir dir;
  EXPECT_ERROR(convert_model(golden("registers"), "", dir / "hf", "hf"), ErrorKind::kInput,
               "with registers");
  EXPECT_ERROR(convert_model(golden("deit3"), "", dir / "hf", "hf"), ErrorKind::kInput,
               "no position");
}

// A directory of transformers whose preprocessor makes smaller images than it was trained with, as
// facebook/dinov2-* are: positions are resampled as transformers does, and the weights stay.
TEST(Dinov2, ThePreprocessorSaysHowLargeImagesAre) {
  const TempDir dir;
  std::filesystem::copy(golden("dinov2-hf-head"), dir / "small");
  write_file_atomic(dir / "small/preprocessor_config.json",
                    R"({"image_processor_type": "BitImageProcessor", "do_center_crop": true,
                        "size": {"shortest_edge": 24}, "crop_size": {"height": 20, "width": 20},
                        "resample": 3, "image_mean": [0.5, 0.5, 0.5], "image_std": [1, 1, 1]})");
  const ModelSpec spec = resolve_model(dir / "small");
  EXPECT_EQ(spec.config.image_h(), 20);
  EXPECT_EQ(spec.preprocess.height, 20);
  EXPECT_EQ(spec.preprocess.resize, 24);
  EXPECT_EQ(stored_config(spec).image_h(), 12);
  EXPECT_LT(largest_difference(answer(dir / "small", 20), expected("dinov2-hf-head.20")), 1e-5f);
  EXPECT_LT(largest_difference(answer(dir / "small", 12), expected("dinov2-hf-head.12")), 1e-5f);
  convert_model(dir / "small", "", dir / "hf", "hf");  // the same directory again
  EXPECT_EQ(resolve_model(dir / "hf").stored, spec.stored);
  EXPECT_EQ(answer(dir / "hf", 20), answer(dir / "small", 20));
  const Converted timm = convert_model(dir / "small", "", dir / "timm", "timm");
  EXPECT_EQ(resolve_model(dir / "timm").config.image_h(), 12);
  ASSERT_EQ(timm.notes.size(), 1u);
  EXPECT_THAT(timm.notes[0], ::testing::HasSubstr("images of 20 x 20"));
}

// BEiT has no biases of keys: neither files nor counts know them, and training leaves them zero.
TEST(Beit, BiasesOfKeysAreInNoFile) {
  const TempDir dir;
  ModelSpec spec = resolve_model(golden("beit"));
  LoadedModel model(spec);
  load_weights(golden("beit"), spec, model.store);
  const std::vector<float> bias = model.values("blocks.0.attn.qkv.bias");
  ASSERT_EQ(bias.size(), 48u);
  for (size_t i = 0; i < bias.size(); ++i) EXPECT_EQ(bias[i] == 0, i / 16 == 1) << i;
  save_model_dir(dir / "saved", spec, model.store);
  const auto file = open_tensors(dir / "saved/model.safetensors");
  int64_t stored = 0;
  for (const TensorInfo& t : file->tensors()) stored += t.shape.numel();
  EXPECT_EQ(stored, model.store.parameter_count());
  EXPECT_NE(file->find("blocks.0.attn.q_bias"), nullptr);
  EXPECT_EQ(answer(dir / "saved", 12), answer(golden("beit"), 12));
}

// Tensors of a golden model, to be written under other names.
class Renamed {
 public:
  explicit Renamed(const std::string& name)
      : file_(open_tensors(golden(name) + "/model.safetensors")) {}

  const std::vector<TensorInfo>& tensors() const { return file_->tensors(); }
  std::vector<float> values(const std::string& name) const {
    return read_floats(*file_, file_->at(name));
  }
  void add(const std::string& name, const Shape& shape, std::vector<float> values) {
    kept_.push_back(std::move(values));
    written_.push_back({name, {kept_.back().data(), shape, DType::kF32}});
  }
  void write(const std::string& path) const { write_safetensors(path, written_, {}); }

 private:
  std::unique_ptr<TensorSource> file_;
  std::deque<std::vector<float>> kept_;
  std::vector<NamedTensor> written_;
};

std::string replaced(std::string name, std::string_view from, std::string_view to) {
  const size_t at = name.find(from);
  return at == name.npos ? name : name.replace(at, from.size(), to);
}

// Whether a file of this dialect holds what the golden model does, but for its head.
void expect_same(const std::string& path, const std::string& name, const std::string& dialect) {
  ModelSpec spec = resolve_model(golden(name));
  spec.config.set_classes(0);
  LoadedModel found(spec), wanted(spec);
  EXPECT_EQ(load_weights(path, spec, found.store).dialect, dialect) << name;
  load_weights(golden(name), spec, wanted.store);
  EXPECT_EQ(found.all_values(), wanted.all_values()) << name;
}

// Meta's own file of a DINOv3: other names, all three biases, of which that of keys is masked.
TEST(Dinov3, ReadsItsAuthorsFiles) {
  const TempDir dir;
  Renamed meta("dinov3");
  for (const TensorInfo& t : meta.tensors()) {
    if (t.name.ends_with("v_bias") || t.name.starts_with("head.")) continue;
    std::vector<float> values = meta.values(t.name);
    if (t.name.ends_with("q_bias")) {  // the mask hides whatever stands for keys
      values.resize(2 * values.size(), 7.f);
      const auto v = meta.values(replaced(t.name, "q_bias", "v_bias"));
      values.insert(values.end(), v.begin(), v.end());
      const Shape shape{static_cast<int64_t>(values.size())};
      meta.add(replaced(t.name, "q_bias", "qkv.bias"), shape, values);
      meta.add(replaced(t.name, "q_bias", "qkv.bias_mask"), shape,
               std::vector<float>(values.size(), NAN));
      continue;
    }
    std::string name = replaced(t.name, "reg_token", "storage_tokens");
    for (const char* n : {"1", "2"})
      name = replaced(name, fmt::format("gamma_{}", n), fmt::format("ls{}.gamma", n));
    meta.add(name, t.shape, values);
  }
  meta.add("mask_token", {1, 16}, std::vector<float>(16));
  meta.add("rope_embed.periods", {2}, {1, 2});
  meta.write(dir / "meta.safetensors");
  expect_same(dir / "meta.safetensors", "dinov3", "meta");
}

// What the authors of the others call their tensors, and have beside them.
TEST(FamilyFiles, ReadsOtherAuthorsFiles) {
  struct Authors {
    const char *name, *dialect;
    std::vector<std::pair<const char*, const char*>> names;
    std::vector<const char*> beside;
  };
  const std::vector<std::pair<const char*, const char*>> apart = {
      {"attn.q_proj.bias", "attn.q_bias"},
      {"attn.v_proj.bias", "attn.v_bias"},
      {"mlp.fc1_g", "mlp.w1"},
      {"mlp.fc1_x", "mlp.w2"},
      {"mlp.fc2", "mlp.w3"},
      {"mlp.norm", "mlp.ffn_ln"},
      {"attn.norm", "attn.inner_attn_ln"}};
  const std::vector<const char*> masked = {"mask_token", "lm_head.weight", "rope.freqs_cos",
                                           "blocks.1.attn.rope.freqs_sin"};
  const Authors all[] = {
      // pretrained: the norm is that of tokens
      {"eva02",
       "eva",
       {{"mlp.fc1", "mlp.w12"}, {"mlp.fc2", "mlp.w3"}, {"fc_norm", "norm"}},
       masked},
      {"eva02-apart", "eva", apart, {"rope.freqs_cos"}},
      {"eva02-clip", "eva", apart, {}},
      {"beit", "timm", {}, {"mask_token", "lm_head.bias", "blocks.0.attn.relative_position_index"}},
      {"dinov2", "meta", {}, {"mask_token"}},
      {"deit3", "meta", {{"ls1.gamma", "gamma_1"}, {"ls2.gamma", "gamma_2"}}, {}},
      {"clip", "timm", {}, {"decoder_embed.weight", "decoder_blocks.0.norm1.bias", "mask_token"}}};
  for (const Authors& authors : all) {
    const TempDir dir;
    Renamed file(authors.name);
    for (const TensorInfo& t : file.tensors()) {
      if (t.name.starts_with("head.")) continue;
      std::string name = t.name;
      for (const auto& [timm, theirs] : authors.names) name = replaced(name, timm, theirs);
      file.add(name, t.shape, file.values(t.name));
    }
    for (const char* name : authors.beside) file.add(name, {2}, {1, 2});
    file.write(dir / "file.safetensors");
    expect_same(dir / "file.safetensors", authors.name, authors.dialect);
  }
}

TEST(Dinov3, TransformersHaveTheClassTokenAlone) {
  const TempDir dir;
  EXPECT_ERROR(convert_model(golden("dinov3"), "", dir / "hf", "hf"), ErrorKind::kInput,
               "no DINOv3 with a classifier");
  const Converted gated = convert_model(golden("dinov3-gated"), "", dir / "hf", "hf");
  ASSERT_EQ(gated.notes.size(), 1u);
  EXPECT_THAT(gated.notes[0], ::testing::HasSubstr("the class token, the model the mean"));
}

// A bare file does not say what it computes with, and relatives have the same names.
TEST(FamilyFiles, BareFilesComputeAsTheirFamilyDoes) {
  struct Bare {
    const char *name, *arch;
    Act act;
    float eps;
    bool qkv_bias;
  };
  for (const auto& [name, arch, act, eps, qkv_bias] :
       {Bare{"eva02", "eva02_tiny_patch14_224", Act::kSilu, 1e-6f, true},
        {"eva02-apart", "eva02_base_patch14_448", Act::kSilu, 1e-6f, true},
        {"dinov3", "vit_small_patch16_dinov3", Act::kGelu, 1e-5f, true},
        {"dinov3-gated", "vit_small_plus_patch16_dinov3_qkvb", Act::kSilu, 1e-5f, false},
        {"dinov3-hf", "vit_small_patch16_dinov3", Act::kGelu, 1e-5f, true},
        {"beit", "beit_base_patch16_224", Act::kGelu, 1e-6f, true},
        {"beit-hf", "beit_base_patch16_224", Act::kGelu, 1e-12f, true}}) {
    const ViTConfig c = vit_of(resolve_model(golden(name) + "/model.safetensors", arch));
    EXPECT_EQ(c.act, act) << name;
    EXPECT_EQ(c.eps, eps) << name;
    EXPECT_EQ(c.qkv_bias, qkv_bias) << name;
    const bool mean = find_preset(arch).config.as<ViTConfig>()->pool != ViTPool::kToken;
    EXPECT_EQ(c.pool != ViTPool::kToken, mean && std::string_view(name) != "dinov3-hf") << name;
  }
  // transformers squashes SigLIP's photos, timm crops them.
  const char* const siglip = "vit_base_patch16_siglip_224";
  const ModelSpec pair =
      resolve_model(VITRUM_SOURCE_DIR "/tests/golden/words/siglip/model.safetensors", siglip);
  EXPECT_EQ(pair.preprocess.crop_mode, "squash");
  EXPECT_EQ(vit_of(pair).act, Act::kGeluTanh);
  EXPECT_NE(find_preset(siglip).crop_mode, "squash");
}

int64_t elements(const Graph& g) {
  int64_t total = 0;
  for (const ParamSpec& p : g.params) total += p.counted();
  return total;
}

// timm's own numbers, of models made on its meta device.
TEST(FamilyPresets, Counts) {
  const std::pair<const char*, int64_t> counts[] = {
      {"deit3_small_patch16_224", 22059496},
      {"deit3_medium_patch16_224", 38849512},
      {"deit3_base_patch16_224", 86585320},
      {"deit3_base_patch16_384", 86877160},
      {"deit3_large_patch16_224", 304374760},
      {"deit3_huge_patch14_224", 632126440},
      {"vit_small_patch14_dinov2", 22056192},
      {"vit_base_patch14_dinov2", 86579712},
      {"vit_large_patch14_dinov2", 304367616},
      {"vit_small_patch14_reg4_dinov2", 22057344},
      {"vit_base_patch14_reg4_dinov2", 86582016},
      {"vit_large_patch14_reg4_dinov2", 304370688},
      {"vit_giant_patch14_dinov2", 1136479232},
      {"vit_giant_patch14_reg4_dinov2", 1136483840},
      {"vit_small_patch16_dinov3", 21586944},
      {"vit_small_patch16_dinov3_qkvb", 21596160},
      {"vit_small_plus_patch16_dinov3", 28683264},
      {"vit_small_plus_patch16_dinov3_qkvb", 28692480},
      {"vit_base_patch16_dinov3", 85641216},
      {"vit_base_patch16_dinov3_qkvb", 85659648},
      {"vit_large_patch16_dinov3", 303079424},
      {"vit_large_patch16_dinov3_qkvb", 303128576},
      {"vit_huge_plus_patch16_dinov3", 840509440},
      {"vit_huge_plus_patch16_dinov3_qkvb", 840591360},
      {"vit_7b_patch16_dinov3", 6716030976},
      {"eva02_tiny_patch14_224", 5502144},
      {"eva02_tiny_patch14_336", 5756584},
      {"eva02_small_patch14_224", 21621120},
      {"eva02_small_patch14_336", 22129000},
      {"eva02_base_patch14_224", 85758720},
      {"eva02_base_patch14_448", 87117544},
      {"eva02_large_patch14_224", 303268800},
      {"eva02_large_patch14_448", 305080232},
      {"eva02_base_patch16_clip_224", 86263040},
      {"eva02_large_patch14_clip_224", 304105152},
      {"eva02_large_patch14_clip_336", 304432832},
      {"beit_base_patch16_224", 86530984},
      {"beit_base_patch16_384", 86744104},
      {"beit_large_patch16_224", 304430568},
      {"beit_large_patch16_512", 305674728},
      {"beitv2_base_patch16_224", 86530984},
      {"beitv2_large_patch16_224", 304430568},
      {"flexivit_small", 22061416},
      {"flexivit_base", 86589160},
      {"flexivit_large", 304355304},
      {"vit_base_patch32_clip_224", 87849728},
      {"vit_base_patch16_clip_224", 86193152},
      {"vit_large_patch14_clip_224", 303966976},
      {"vit_large_patch14_clip_336", 304294656},
      {"vit_huge_patch14_clip_224", 632077824},
      {"vit_base_patch16_clip_quickgelu_224", 86193152},
      {"vit_large_patch14_clip_quickgelu_224", 303966976},
      {"vit_base_patch16_siglip_224", 92884224},
      {"vit_base_patch16_siglip_256", 92930304},
      {"vit_base_patch16_siglip_384", 93176064},
      {"vit_base_patch32_siglip_256", 94552320},
      {"vit_large_patch16_siglip_256", 315956224},
      {"vit_large_patch16_siglip_384", 316283904},
      {"vit_so400m_patch14_siglip_224", 427680704},
      {"vit_so400m_patch14_siglip_378", 428225600},
      {"vit_so400m_patch14_siglip_384", 428225600},
      {"vit_so400m_patch16_siglip_256", 427888064},
      {"vit_giantopt_patch16_siglip_256", 1163168256},
      {"naflexvit_base_patch16_siglip", 92930304},
      {"naflexvit_so400m_patch16_siglip", 427888064},
      {"vit_base_patch16_siglip_gap_224", 85797120},
      {"vit_base_patch16_siglip_gap_256", 85843200},
      {"vit_base_patch16_siglip_gap_384", 86088960},
      {"vit_base_patch16_siglip_gap_512", 86433024},
      {"vit_base_patch32_siglip_gap_256", 87465216},
      {"vit_large_patch16_siglip_gap_256", 303361024},
      {"vit_large_patch16_siglip_gap_384", 303688704},
      {"vit_large_patch16_siglip_gap_512", 304147456},
      {"vit_so400m_patch14_siglip_gap_224", 412442352},
      {"vit_so400m_patch14_siglip_gap_378", 412987248},
      {"vit_so400m_patch14_siglip_gap_384", 412987248},
      {"vit_so400m_patch14_siglip_gap_448", 413327088},
      {"vit_so400m_patch14_siglip_gap_896", 416866032},
      {"vit_so400m_patch16_siglip_gap_256", 412649712},
      {"vit_so400m_patch16_siglip_gap_384", 413018352},
      {"vit_so400m_patch16_siglip_gap_512", 413534448},
      {"vit_giantopt_patch16_siglip_gap_256", 1134838272},
      {"vit_giantopt_patch16_siglip_gap_384", 1135329792}};
  for (const auto& [name, count] : counts) {
    const ModelConfig& c = find_preset(name).config;
    Graph g;
    model(Scope(g), g.input("image", {1, c.channels(), c.image_h(), c.image_w()}), c);
    EXPECT_EQ(elements(g), count) << name;
  }
}

// transformers' numbers of text towers with what follows them: CLIPTextModelWithProjection, and
// what SiglipModel has beside the image tower, less the two numbers for both.
TEST(TextTowers, Counts) {
  const auto count = [](const TextConfig& c) {
    Graph g;
    const Value ids = g.input("ids", {1, c.context}, DType::kI32);
    text_features(Scope(g, "text"), ids, c.causal ? g.input("ends", {1}, DType::kI32) : Value(), c);
    return elements(g);
  };
  EXPECT_EQ(count({}), 63428096);
  EXPECT_EQ(count({.width = 768, .heads = 12, .mlp_width = 3072, .space = 768}), 123650304);
  EXPECT_EQ(count({.width = 1024, .depth = 24, .heads = 16, .mlp_width = 4096, .space = 1024}),
            354032640);
  const TextConfig siglip{.vocabulary = 32000,
                          .context = 64,
                          .width = 768,
                          .heads = 12,
                          .mlp_width = 3072,
                          .space = 768,
                          .causal = false,
                          .proj_bias = true};
  EXPECT_EQ(count(siglip), 203155970 - 92884224 - 2);
  TextConfig siglip2 = siglip;
  siglip2.vocabulary = 256000;
  EXPECT_EQ(count(siglip2), 375187970 - 92884224 - 2);
}

// An image tower that was read out of a pair of towers is written as one of its own.
TEST(Pairs, ImageTowersRoundTripThroughBothFrameworks) {
  for (const char* name : {"clip", "siglip"}) {
    const std::string pair = VITRUM_SOURCE_DIR "/tests/golden/words/" + std::string(name);
    const TempDir dir;
    convert_model(pair, "", dir / "hf", "hf");
    convert_model(dir / "hf", "", dir / "timm", "timm");
    const auto forward = [](const std::string& model) {
      const ModelSpec spec = resolve_model(model);
      LoadedModel loaded(spec);
      load_weights(model, spec, loaded.store);
      return loaded.forward(std::vector<float>(2 * 3 * 13 * 13, 0.25f));
    };
    EXPECT_EQ(forward(dir / "hf"), forward(pair)) << name;
    EXPECT_EQ(forward(dir / "timm"), forward(pair)) << name;
  }
}

}  // namespace
}  // namespace vitrum
