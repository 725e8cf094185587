// The image towers of CLIP as transformers has them, alone or beside a text tower: ViTs with a norm
// before the blocks whose head, without a bias, leads to the space that images and texts share.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "vitrum/core/error.h"
#include "vitrum/weights/families/vision_tower.h"
#include "vitrum/weights/families/vit.h"
#include "vitrum/weights/hf_config.h"

namespace vitrum {
namespace {

using enum Layout;
using Json = nlohmann::ordered_json;

#define OWN \
  {"cls_token", "embeddings.class_embedding", {}, kSqueezed}, { "norm_pre", "pre_layrnorm" }  // sic
constexpr NameRule kOwn[] = {OWN, {"head", "^visual_projection"}};
constexpr NameRule kOwnClassifier[] = {OWN, {"head", "^classifier"}};
#undef OWN
constexpr auto kHuggingFace = joined(kTowerRules, kOwn);
constexpr auto kHuggingFaceClassifier = joined(kTowerRules, kOwnClassifier);

// OpenAI's own names, and OpenCLIP's; "visual." stands before them.
constexpr NameRule kOpenClip[] = {
    {"patch_embed.proj.weight", "conv1.weight", {}, kConv},
    {"cls_token", "class_embedding", {}, kSqueezed},
    {"pos_embed", "positional_embedding", {}, kSqueezed},
    {"norm_pre", "ln_pre"},
    {"blocks.{i}.norm1", "transformer.resblocks.{i}.ln_1"},
    {"blocks.{i}.attn.qkv.weight", "transformer.resblocks.{i}.attn.in_proj_weight"},
    {"blocks.{i}.attn.qkv.bias", "transformer.resblocks.{i}.attn.in_proj_bias"},
    {"blocks.{i}.attn.proj", "transformer.resblocks.{i}.attn.out_proj"},
    {"blocks.{i}.norm2", "transformer.resblocks.{i}.ln_2"},
    {"blocks.{i}.mlp.fc1", "transformer.resblocks.{i}.mlp.c_fc"},
    {"blocks.{i}.mlp.fc2", "transformer.resblocks.{i}.mlp.c_proj"},
    {"norm", "ln_post"},
    {"head.weight", "proj", {}, kKernel},
};

// A text tower beside the image tower is no part of it; a table of numbers from 0 on is no weight.
constexpr std::string_view kIgnored[] = {"embeddings.position_ids", "post_layernorm.",
                                         "^text_model.", "^text_projection.", "^logit_scale"};
constexpr std::string_view kOpenClipIgnored[] = {"^transformer.",
                                                 "^token_embedding.",
                                                 "^positional_embedding",
                                                 "^ln_final.",
                                                 "^text_projection",
                                                 "^logit_scale",
                                                 "^input_resolution",
                                                 "^context_length",
                                                 "^vocab_size",
                                                 "^text.",
                                                 "^logit_bias"};

constexpr std::string_view kProbes[] = {"patch_embed.proj.weight", "cls_token", "norm_pre.weight",
                                        "blocks.0.norm1.weight", "norm.weight"};
constexpr std::string_view kClassifierProbes[] = {
    "patch_embed.proj.weight", "cls_token",   "norm_pre.weight",
    "blocks.0.norm1.weight",   "norm.weight", "head.weight"};
constexpr std::string_view kTypes[] = {"clip", "clip_vision_model"};
// Many a model has a conv1.
constexpr std::string_view kOpenClipProbes[] = {"norm_pre.weight", "cls_token",
                                                "patch_embed.proj.weight", "blocks.0.norm1.weight",
                                                "norm.weight"};

// What OpenAI's files are for, where no file says it.
std::string preprocessor(const ViTConfig& c) {
  return fmt::format(
      R"({{"do_center_crop": true, "size": {{"shortest_edge": {0}}},
          "crop_size": {{"height": {0}, "width": {1}}}, "resample": 3,
          "image_mean": [0.48145466, 0.4578275, 0.40821073],
          "image_std": [0.26862954, 0.26130258, 0.27577711]}})",
      c.image_h, c.image_w);
}

// kClassifier: transformers' CLIPForImageClassification, whose head reads the mean of the patches
// without the norm that its towers end in.
template <bool kClassifier>
struct Clip : ViTFiles {
  static constexpr Dialect kDialects[] = {
      kTimmViT,
      {"vit",
       "hf",
       "Hugging Face transformers",
       kClassifier ? std::span<const NameRule>(kHuggingFaceClassifier) : kHuggingFace,
       kIgnored,
       {},
       kClassifier ? std::span<const std::string_view>(kClassifierProbes) : kProbes,
       PositionRule::kBicubic,
       1e-5f,
       Act::kQuickGelu},
      {"vit",
       "open_clip",
       "OpenCLIP",
       kOpenClip,
       kOpenClipIgnored,
       {},
       kOpenClipProbes,
       PositionRule::kBicubicAntialias,
       1e-5f,
       Act::kQuickGelu,
       /*original=*/true,
       /*prefix=*/"visual."},
  };
  // One model_type reads both kinds.
  static constexpr std::span<const std::string_view> kHf =
      kClassifier ? std::span<const std::string_view>() : std::span(kTypes);

  static bool holds(const ViTConfig& c) {
    return c.norm_pre && !c.patch_bias && c.class_token && c.registers == 0 && c.prefix_positions &&
           !c.distilled && c.layer_scale == 0 &&
           c.pool == (kClassifier ? ViTPool::kBareMean : ViTPool::kToken);
  }

  static void read_hf(const JsonKeys& keys, ViTConfig& c) {
    const bool pair = is_tower_pair(keys, kTypes[0]);
    c.act = Act::kQuickGelu, c.eps = 1e-5f, c.patch_h = c.patch_w = 32;
    read_tower(tower_keys(keys, kTypes[0]), c);
    c.norm_pre = true, c.patch_bias = false;
    if (is_hf_class(keys, kOneHead)) {
      c.pool = ViTPool::kBareMean;
      return;
    }
    c.head_bias = false;
    c.classes = pair || is_hf_class(keys, "WithProjection")
                    ? keys.integer("projection_dim", 512, {1, kWidths.high})
                    : 0;
  }

  static std::string write_hf(const ViTConfig& c, const std::string& dtype) {
    Json json = write_tower(c, "clip_vision_model");
    if (kClassifier && c.classes > 0) return write_tower_classifier("CLIP", "clip", json, dtype);
    json["architectures"] = {c.classes > 0 ? "CLIPVisionModelWithProjection" : "CLIPVisionModel"};
    json["dtype"] = dtype;
    if (c.classes > 0) json["projection_dim"] = c.classes;
    return json.dump();
  }

  static std::string_view hf_base(const ViTConfig&) { return "vision_model"; }

  static void read_preprocessor(const ConfigText& stated, ModelSpec& spec) {
    const auto& c = *spec.config.as<ViTConfig>();
    const std::string& text = stated.text == "{}" ? preprocessor(c) : stated.text;
    read_hf_preprocessor(JsonKeys(text, stated.path), spec.config, spec.preprocess);
  }

  // Whether a bare file wants GELU or QuickGELU is nowhere in it: the preset that was named says.
  static void as_published(const Dialect& dialect, ViTConfig& c, Preprocessing& p) {
    c.eps = dialect.name == "timm" ? c.eps : dialect.eps;
    p.interpolation = "bicubic";
  }

  static void require_plain(const Dialect& dialect, const ViTConfig& c) {
    if (dialect.name == "timm") return;
    require_plain_tower(dialect, c, "CLIP");
    if (dialect.original && kClassifier)
      fail_input("{} has no CLIP with a classifier", dialect.title);
    if (!kClassifier && c.classes > 0 && c.head_bias)
      fail_input("{} has no CLIP whose projection has a bias", dialect.title);
    if (kClassifier && c.classes == 0)
      fail_input("{} has no CLIP that gives the mean of its patches", dialect.title);
  }

  static void give_biases(const Dialect& dialect, ViTConfig& c) {
    c.norm_bias = c.qkv_bias = c.proj_bias = c.mlp_bias = true;
    // timm's heads have one, and for CLIP it is zero.
    if (dialect.name == "timm" || kClassifier) c.head_bias = true;
  }

  // The norm that is of no use to a classifier.
  static std::vector<BesideTensor> beside(const Dialect& dialect, const ViTConfig& c) {
    if (!kClassifier || dialect.name != "hf") return {};
    const auto values = [&](float x) {
      return std::vector<float>(static_cast<size_t>(c.width), x);
    };
    return {{"vision_model.post_layernorm.weight", {c.width}, values(1)},
            {"vision_model.post_layernorm.bias", {c.width}, values(0)}};
  }
};

}  // namespace

extern constinit const WeightFamily kClipWeights = family<Clip<false>>("vit");
extern constinit const WeightFamily kClipClassifierWeights = family<Clip<true>>("vit");

}  // namespace vitrum
