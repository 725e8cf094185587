// The weights of DINOv2 as transformers has them: ViTs with LayerScale whose classifier reads the
// class token and the mean of the patches.
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

#define OUTSIDE                                                                               \
  {"patch_embed.proj.weight", "embeddings.patch_embeddings.projection.weight", {}, kConv},    \
      {"patch_embed.proj", "embeddings.patch_embeddings.projection"},                         \
      {"cls_token", "embeddings.cls_token"}, {"pos_embed", "embeddings.position_embeddings"}, \
      {"norm", "layernorm"}, {                                                                \
    "head", "^classifier"                                                                     \
  }
#define BLOCK                                                                             \
  {"blocks.{i}.norm1", "encoder.layer.{i}.norm1"},                                        \
      {"blocks.{i}.attn.qkv", "encoder.layer.{i}.attention.attention.{query,key,value}"}, \
      {"blocks.{i}.attn.proj", "encoder.layer.{i}.attention.output.dense"},               \
      {"blocks.{i}.ls1.gamma", "encoder.layer.{i}.layer_scale1.lambda1"},                 \
      {"blocks.{i}.norm2", "encoder.layer.{i}.norm2"}, {                                  \
    "blocks.{i}.ls2.gamma", "encoder.layer.{i}.layer_scale2.lambda1"                      \
  }
constexpr NameRule kHuggingFace[] = {OUTSIDE,
                                     BLOCK,
                                     {"blocks.{i}.mlp.fc1", "encoder.layer.{i}.mlp.fc1"},
                                     {"blocks.{i}.mlp.fc2", "encoder.layer.{i}.mlp.fc2"}};
constexpr NameRule kHuggingFaceGated[] = {
    OUTSIDE,
    BLOCK,
    {"blocks.{i}.mlp.fc1", "encoder.layer.{i}.mlp.weights_in"},
    {"blocks.{i}.mlp.fc2", "encoder.layer.{i}.mlp.weights_out"}};
#undef BLOCK
#undef OUTSIDE
constexpr std::string_view kIgnored[] = {"embeddings.mask_token"};
constexpr std::string_view kType[] = {"dinov2"};

// The hidden width of a gated MLP: two thirds of the plain one's, a multiple of 8.
constexpr int64_t gated_width(int64_t plain) { return (plain * 2 / 3 + 7) / 8 * 8; }

template <bool kGated>
struct Dinov2 : ViTFiles {
  static constexpr Dialect kDialects[] = {
      kTimmViT,
      {"vit",
       "hf",
       "Hugging Face transformers",
       kGated ? std::span<const NameRule>(kHuggingFaceGated) : kHuggingFace,
       kIgnored,
       {},
       kViTProbes,
       PositionRule::kBicubic,
       1e-6f,
       kGated ? Act::kSilu : Act::kGelu},
  };
  // One model_type reads both kinds.
  static constexpr std::span<const std::string_view> kHf =
      kGated ? std::span<const std::string_view>() : std::span(kType);

  static bool holds(const ViTConfig& c) {
    return c.gated == kGated && c.rope == Rope::kNone && c.distance_bias == DistanceBias::kNone &&
           c.learned_positions && c.k_bias && !c.attn_norm && !c.mlp_norm && c.layer_scale > 0 &&
           c.registers == 0 && c.prefix_positions && !c.distilled &&
           (c.pool == ViTPool::kTokenAndMean || (c.classes == 0 && c.pool == ViTPool::kToken));
  }

  static void read_hf(const JsonKeys& keys, ViTConfig& c) {
    c.width = keys.integer("hidden_size", 768, kWidths);
    c.depth = keys.integer("num_hidden_layers", 12, kDepths);
    c.heads = keys.integer("num_attention_heads", 12, kWidths);
    c.mlp_width = c.width * keys.integer("mlp_ratio", 4, {1, 64});
    c.gated = keys.boolean("use_swiglu_ffn", false);
    if (c.gated) c.mlp_width = gated_width(c.mlp_width);
    c.act = c.gated ? Act::kSilu : read_hf_act(keys);
    c.eps = static_cast<float>(keys.number("layer_norm_eps", 1e-6, 0, 1));
    std::tie(c.image_h, c.image_w) = keys.pair("image_size", {224, 224}, kSides);
    std::tie(c.patch_h, c.patch_w) = keys.pair("patch_size", {14, 14}, kSides);
    c.channels = keys.integer("num_channels", 3, kSides);
    c.qkv_bias = keys.boolean("qkv_bias", true);
    // Where LayerScale starts says nothing of what a file holds; timm's value keeps it there.
    c.layer_scale = 1e-5f;
    const auto rate = [&](const char* key) {
      return static_cast<float>(keys.number(key, 0, 0, 1));
    };
    c.drop_attn = rate("attention_probs_dropout_prob"), c.drop_path = rate("drop_path_rate");
    c.drop_proj = c.drop_pos = c.drop_mlp = rate("hidden_dropout_prob");
    if (is_hf_class(keys, kOneHead)) c.pool = ViTPool::kTokenAndMean;
  }

  static std::string write_hf(const ViTConfig& c, const std::string& dtype) {
    const Json json = {
        {"architectures", {c.classes > 0 ? "Dinov2ForImageClassification" : "Dinov2Model"}},
        {"attention_probs_dropout_prob", tidy(c.drop_attn)},
        {"drop_path_rate", tidy(c.drop_path)},
        {"dtype", dtype},
        {"hidden_act", kGated ? "gelu" : hf_act_name(c.act)},
        {"hidden_dropout_prob", tidy(c.drop_mlp)},
        {"hidden_size", c.width},
        {"image_size", c.image_h},
        {"initializer_range", 0.02},
        {"layer_norm_eps", tidy(c.eps)},
        {"layerscale_value", 1.0},
        {"mlp_ratio", plain_ratio(c)},
        {"model_type", "dinov2"},
        {"num_attention_heads", c.heads},
        {"num_channels", c.channels},
        {"num_hidden_layers", c.depth},
        {"patch_size", c.patch_h},
        {"qkv_bias", c.qkv_bias},
        {"use_swiglu_ffn", kGated}};
    return json.dump();
  }

  static std::string_view hf_base(const ViTConfig&) { return "dinov2"; }

  static void read_preprocessor(const ConfigText& stated, ModelSpec& spec) {
    read_hf_preprocessor_any_size(JsonKeys(stated.text, stated.path), spec);
  }

  static void as_published(const Dialect& dialect, ViTConfig& c, Preprocessing& p) {
    c.eps = dialect.eps, c.act = kGated ? Act::kSilu : dialect.act;
    p.interpolation = "bicubic";
  }

  static void require_plain(const Dialect& dialect, const ViTConfig& c) {
    if (dialect.name == "timm") return;
    const auto require = [&](bool has, const char* what) {
      if (!has) fail_input("{} has no DINOv2 {}", dialect.title, what);
    };
    require(c.pre_norm, "with the norms after the blocks");
    require(c.patch_order == PatchOrder::kChannelFirst, "with patches flattened channel last");
    require(!c.sincos_positions, "with fixed positions");
    require(!c.norm_pre && c.patch_bias, "with a norm before the blocks");
    require(c.image_h == c.image_w && c.patch_h == c.patch_w, "for images that are not square");
    require(plain_ratio(c) > 0, "whose MLP is no whole multiple of its width");
    require(!kGated || c.act == Act::kSilu, "whose gates are not SiLU's");
  }

  static void give_biases(const Dialect&, ViTConfig& c) {
    c.head_bias = c.norm_bias = c.proj_bias = c.mlp_bias = true;
  }

 private:
  // transformers' mlp_ratio; 0 where none gives the width.
  static int64_t plain_ratio(const ViTConfig& c) {
    for (int64_t ratio = 1; ratio <= 64; ++ratio)
      if ((kGated ? gated_width(ratio * c.width) : ratio * c.width) == c.mlp_width) return ratio;
    return 0;
  }
};

}  // namespace

extern constinit const WeightFamily kDinov2Weights = family<Dinov2<false>>("vit");
extern constinit const WeightFamily kDinov2GatedWeights = family<Dinov2<true>>("vit");

}  // namespace vitrum
