// The image towers of CLIP as transformers has them, alone or beside a text tower: ViTs with a norm
// before the blocks whose head, without a bias, leads to the space that images and texts share.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <tuple>

#include "vitrum/core/error.h"
#include "vitrum/weights/families/vit.h"
#include "vitrum/weights/hf_config.h"

namespace vitrum {
namespace {

using enum Layout;
using Json = nlohmann::ordered_json;

constexpr NameRule kHuggingFace[] = {
    {"patch_embed.proj.weight", "embeddings.patch_embedding.weight", {}, kConv},
    {"cls_token", "embeddings.class_embedding", {}, kSqueezed},
    {"pos_embed", "embeddings.position_embedding.weight", {}, kSqueezed},
    {"norm_pre", "pre_layrnorm"},  // sic
    {"blocks.{i}.norm1", "encoder.layers.{i}.layer_norm1"},
    {"blocks.{i}.attn.qkv", "encoder.layers.{i}.self_attn.{q_proj,k_proj,v_proj}"},
    {"blocks.{i}.attn.proj", "encoder.layers.{i}.self_attn.out_proj"},
    {"blocks.{i}.norm2", "encoder.layers.{i}.layer_norm2"},
    {"blocks.{i}.mlp.fc1", "encoder.layers.{i}.mlp.fc1"},
    {"blocks.{i}.mlp.fc2", "encoder.layers.{i}.mlp.fc2"},
    {"norm", "post_layernorm"},
    {"head", "^visual_projection"},
};

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
constexpr std::string_view kIgnored[] = {"embeddings.position_ids", "^text_model.",
                                         "^text_projection.", "^logit_scale"};
constexpr std::string_view kOpenClipIgnored[] = {"^transformer.",         "^token_embedding.",
                                                 "^positional_embedding", "^ln_final.",
                                                 "^text_projection",      "^logit_scale",
                                                 "^input_resolution",     "^context_length",
                                                 "^vocab_size",           "^text."};

constexpr std::string_view kProbes[] = {"patch_embed.proj.weight", "cls_token", "norm_pre.weight",
                                        "blocks.0.norm1.weight", "norm.weight"};
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

struct Clip : ViTFiles {
  static constexpr Dialect kDialects[] = {
      kTimmViT,
      {"vit",
       "hf",
       "Hugging Face transformers",
       kHuggingFace,
       kIgnored,
       {},
       kProbes,
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
       Act::kQuickGelu},
  };
  static constexpr std::string_view kHf[] = {"clip", "clip_vision_model"};

  static bool holds(const ViTConfig& c) {
    return c.norm_pre && !c.patch_bias && c.class_token && c.pool == ViTPool::kToken &&
           c.registers == 0 && c.prefix_positions && !c.distilled && c.layer_scale == 0;
  }

  static void read_hf(const JsonKeys& keys, ViTConfig& c) {
    if (is_hf_class(keys, kOneHead))
      fail_input("{}: CLIPForImageClassification is not supported; its CLIPModel is", keys.where());
    const bool pair = keys.text("model_type", {}) == "clip";
    const JsonKeys v = pair ? keys.object("vision_config") : keys;
    c.width = v.integer("hidden_size", 768, kWidths);
    c.depth = v.integer("num_hidden_layers", 12, kDepths);
    c.heads = v.integer("num_attention_heads", 12, kWidths);
    c.mlp_width = v.integer("intermediate_size", 3072, {1, 1 << 20});
    c.act = v.has("hidden_act") ? read_hf_act(v) : Act::kQuickGelu;
    c.eps = static_cast<float>(v.number("layer_norm_eps", 1e-5, 0, 1));
    std::tie(c.image_h, c.image_w) = v.pair("image_size", {224, 224}, kSides);
    std::tie(c.patch_h, c.patch_w) = v.pair("patch_size", {32, 32}, kSides);
    c.channels = v.integer("num_channels", 3, kSides);
    c.drop_attn = static_cast<float>(v.number("attention_dropout", 0, 0, 1));
    c.floor_patches = c.image_h % c.patch_h != 0 || c.image_w % c.patch_w != 0;
    c.norm_pre = true, c.patch_bias = false, c.head_bias = false;
    c.classes = pair || is_hf_class(keys, "WithProjection")
                    ? keys.integer("projection_dim", 512, {1, kWidths.high})
                    : 0;
  }

  static std::string write_hf(const ViTConfig& c, const std::string& dtype) {
    Json json = {
        {"architectures", {c.classes > 0 ? "CLIPVisionModelWithProjection" : "CLIPVisionModel"}},
        {"attention_dropout", tidy(c.drop_attn)},
        {"dtype", dtype},
        {"hidden_act", hf_act_name(c.act)},
        {"hidden_size", c.width},
        {"image_size", c.image_h},
        {"initializer_range", 0.02},
        {"intermediate_size", c.mlp_width},
        {"layer_norm_eps", tidy(c.eps)},
        {"model_type", "clip_vision_model"},
        {"num_attention_heads", c.heads},
        {"num_channels", c.channels},
        {"num_hidden_layers", c.depth},
        {"patch_size", c.patch_h}};
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
    const auto require = [&](bool has, const char* what) {
      if (!has) fail_input("{} has no CLIP {}", dialect.title, what);
    };
    require(c.pre_norm, "with the norms after the blocks");
    require(c.patch_order == PatchOrder::kChannelFirst, "with patches flattened channel last");
    require(!c.sincos_positions, "with fixed positions");
    require(c.image_h == c.image_w && c.patch_h == c.patch_w, "for images that are not square");
    require(c.classes == 0 || !c.head_bias, "whose projection has a bias");
  }

  static void give_biases(const Dialect& dialect, ViTConfig& c) {
    c.norm_bias = c.qkv_bias = c.proj_bias = c.mlp_bias = true;
    if (dialect.name == "timm") c.head_bias = true;  // its heads have one, and for CLIP it is zero
  }
};

}  // namespace

extern constinit const WeightFamily kClipWeights = family<Clip>("vit");

}  // namespace vitrum
