// The image towers of SigLIP and SigLIP 2 (of one image size) as transformers has them, alone or
// beside a text tower: ViTs without a class token that one learned query pools.
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

// The query's projection and that of keys and values are parts of one tensor.
constexpr NameRule kHuggingFace[] = {
    {"patch_embed.proj.weight", "embeddings.patch_embedding.weight", {}, kConv},
    {"patch_embed.proj", "embeddings.patch_embedding"},
    {"pos_embed", "embeddings.position_embedding.weight", {}, kSqueezed},
    {"blocks.{i}.norm1", "encoder.layers.{i}.layer_norm1"},
    {"blocks.{i}.attn.qkv", "encoder.layers.{i}.self_attn.{q_proj,k_proj,v_proj}"},
    {"blocks.{i}.attn.proj", "encoder.layers.{i}.self_attn.out_proj"},
    {"blocks.{i}.norm2", "encoder.layers.{i}.layer_norm2"},
    {"blocks.{i}.mlp.fc1", "encoder.layers.{i}.mlp.fc1"},
    {"blocks.{i}.mlp.fc2", "encoder.layers.{i}.mlp.fc2"},
    {"norm", "post_layernorm"},
    {"attn_pool.latent", "head.probe"},
    {"attn_pool.q.weight", "head.attention.in_proj_weight[0:1/3]"},
    {"attn_pool.q.bias", "head.attention.in_proj_bias[0:1/3]"},
    {"attn_pool.kv.weight", "head.attention.in_proj_weight[1:3/3]"},
    {"attn_pool.kv.bias", "head.attention.in_proj_bias[1:3/3]"},
    {"attn_pool.proj", "head.attention.out_proj"},
    {"attn_pool.norm", "head.layernorm"},
    {"attn_pool.mlp", "head.mlp"},
};

// A text tower beside the image tower is no part of it; a table of numbers from 0 on is no weight.
constexpr std::string_view kIgnored[] = {"embeddings.position_ids", "^text_model.", "^logit_scale",
                                         "^logit_bias"};

constexpr std::string_view kProbes[] = {"patch_embed.proj.weight", "patch_embed.proj.bias",
                                        "attn_pool.latent", "blocks.0.norm1.weight", "norm.weight"};

std::string preprocessor(const ViTConfig& c) {
  return fmt::format(R"({{"size": {{"height": {}, "width": {}}}, "resample": 3}})", c.image_h,
                     c.image_w);
}

struct Siglip : ViTFiles {
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
       1e-6f,
       Act::kGeluTanh},
  };
  static constexpr std::string_view kHf[] = {"siglip", "siglip_vision_model"};

  static bool holds(const ViTConfig& c) { return c.pool == ViTPool::kMap && !c.class_token; }

  static void read_hf(const JsonKeys& keys, ViTConfig& c) {
    if (is_hf_class(keys, kOneHead))
      fail_input("{}: SiglipForImageClassification is not supported; its SiglipModel is",
                 keys.where());
    const bool pair = keys.text("model_type", {}) == "siglip";
    const JsonKeys v = pair ? keys.object("vision_config") : keys;
    const std::vector<JsonKeys::Fixed> only = {{"vision_use_head", "true"}};
    v.require(only);
    c.width = v.integer("hidden_size", 768, kWidths);
    c.depth = v.integer("num_hidden_layers", 12, kDepths);
    c.heads = v.integer("num_attention_heads", 12, kWidths);
    c.mlp_width = v.integer("intermediate_size", 3072, {1, 1 << 20});
    c.act = v.has("hidden_act") ? read_hf_act(v) : Act::kGeluTanh;
    c.eps = static_cast<float>(v.number("layer_norm_eps", 1e-6, 0, 1));
    std::tie(c.image_h, c.image_w) = v.pair("image_size", {224, 224}, kSides);
    std::tie(c.patch_h, c.patch_w) = v.pair("patch_size", {16, 16}, kSides);
    c.channels = v.integer("num_channels", 3, kSides);
    c.drop_attn = static_cast<float>(v.number("attention_dropout", 0, 0, 1));
    c.floor_patches = c.image_h % c.patch_h != 0 || c.image_w % c.patch_w != 0;
    c.class_token = false, c.pool = ViTPool::kMap, c.classes = 0;
  }

  static std::string write_hf(const ViTConfig& c, const std::string& dtype) {
    const Json json = {{"architectures", {"SiglipVisionModel"}},
                       {"attention_dropout", tidy(c.drop_attn)},
                       {"dtype", dtype},
                       {"hidden_act", hf_act_name(c.act)},
                       {"hidden_size", c.width},
                       {"image_size", c.image_h},
                       {"intermediate_size", c.mlp_width},
                       {"layer_norm_eps", tidy(c.eps)},
                       {"model_type", "siglip_vision_model"},
                       {"num_attention_heads", c.heads},
                       {"num_channels", c.channels},
                       {"num_hidden_layers", c.depth},
                       {"patch_size", c.patch_h},
                       {"vision_use_head", true}};
    return json.dump();
  }

  static std::string_view hf_base(const ViTConfig&) { return "vision_model"; }

  static void read_preprocessor(const ConfigText& stated, ModelSpec& spec) {
    const auto& c = *spec.config.as<ViTConfig>();
    const std::string& text = stated.text == "{}" ? preprocessor(c) : stated.text;
    read_hf_preprocessor(JsonKeys(text, stated.path), spec.config, spec.preprocess);
  }

  // timm's names of the smaller models compute the erf form of GELU, transformers the tanh form.
  static void as_published(const Dialect& dialect, ViTConfig& c, Preprocessing& p) {
    if (dialect.name != "timm") c.eps = dialect.eps, c.act = dialect.act, p.crop_mode = "squash";
    p.interpolation = "bicubic";
  }

  static void require_plain(const Dialect& dialect, const ViTConfig& c) {
    if (dialect.name == "timm") return;
    const auto require = [&](bool has, const char* what) {
      if (!has) fail_input("{} has no SigLIP {}", dialect.title, what);
    };
    require(c.classes == 0, "with a classifier on its pooled features");
    require(c.pre_norm && !c.norm_pre, "with its norms in other places");
    require(c.patch_order == PatchOrder::kChannelFirst, "with patches flattened channel last");
    require(!c.sincos_positions, "with fixed positions");
    require(c.registers == 0 && c.layer_scale == 0, "with registers or LayerScale");
    require(c.image_h == c.image_w && c.patch_h == c.patch_w, "for images that are not square");
  }

  static void give_biases(const Dialect&, ViTConfig& c) {
    c.norm_bias = c.qkv_bias = c.proj_bias = c.mlp_bias = c.patch_bias = true;
  }
};

}  // namespace

extern constinit const WeightFamily kSiglipWeights = family<Siglip>("vit");

}  // namespace vitrum
