// The weights of DINOv2, with and without registers, as transformers and Meta have them: ViTs with
// LayerScale whose classifier reads the class token and the mean of the patches.
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

constexpr NameRule kPatches[] = {
    {"patch_embed.proj.weight", "embeddings.patch_embeddings.projection.weight", {}, kConv},
    {"patch_embed.proj", "embeddings.patch_embeddings.projection"}};
constexpr NameRule kTokens[] = {{"cls_token", "embeddings.cls_token"},
                                {"pos_embed", "embeddings.position_embeddings"}};
// The class token has a position there, and registers, which are put in between later, have none.
#define POSITIONS "embeddings.position_embeddings"
constexpr NameRule kTokensAndRegisters[] = {
    {"cls_token", "embeddings.cls_token", {}, kSame, false, POSITIONS},
    {"pos_embed", POSITIONS "[1:]"},
    {"reg_token", "embeddings.register_tokens"}};
#undef POSITIONS
constexpr NameRule kBlocks[] = {
    {"blocks.{i}.norm1", "encoder.layer.{i}.norm1"},
    {"blocks.{i}.attn.qkv", "encoder.layer.{i}.attention.attention.{query,key,value}"},
    {"blocks.{i}.attn.proj", "encoder.layer.{i}.attention.output.dense"},
    {"blocks.{i}.ls1.gamma", "encoder.layer.{i}.layer_scale1.lambda1"},
    {"blocks.{i}.norm2", "encoder.layer.{i}.norm2"},
    {"blocks.{i}.ls2.gamma", "encoder.layer.{i}.layer_scale2.lambda1"},
    {"norm", "layernorm"},
    {"head", "^classifier"}};
constexpr NameRule kMlp[] = {{"blocks.{i}.mlp", "encoder.layer.{i}.mlp"}};
constexpr NameRule kGatedMlp[] = {{"blocks.{i}.mlp.fc1", "encoder.layer.{i}.mlp.weights_in"},
                                  {"blocks.{i}.mlp.fc2", "encoder.layer.{i}.mlp.weights_out"}};

// Meta's own names are timm's, but for these.
constexpr NameRule kMetaRegisters[] = {{"cls_token", "cls_token", {}, kSame, false, "pos_embed"},
                                       {"pos_embed", "pos_embed[1:]"},
                                       {"reg_token", "register_tokens"}};
constexpr NameRule kMetaGatedMlp[] = {{"blocks.{i}.mlp.fc1", "blocks.{i}.mlp.w12"},
                                      {"blocks.{i}.mlp.fc2", "blocks.{i}.mlp.w3"}};

// By gated and registers.
constexpr auto kHuggingFace00 = joined(kPatches, kTokens, kBlocks, kMlp);
constexpr auto kHuggingFace10 = joined(kPatches, kTokens, kBlocks, kGatedMlp);
constexpr auto kHuggingFace01 = joined(kPatches, kTokensAndRegisters, kBlocks, kMlp);
constexpr auto kHuggingFace11 = joined(kPatches, kTokensAndRegisters, kBlocks, kGatedMlp);
constexpr auto kMeta10 = joined(kMetaGatedMlp, kTimmRules);
constexpr auto kMeta01 = joined(kMetaRegisters, kTimmRules);
constexpr auto kMeta11 = joined(kMetaRegisters, kMetaGatedMlp, kTimmRules);
using Rules = std::span<const NameRule>;
constexpr Rules hf_rules(bool gated, bool registers) {
  if (registers) return gated ? Rules(kHuggingFace11) : kHuggingFace01;
  return gated ? Rules(kHuggingFace10) : kHuggingFace00;
}
constexpr Rules meta_rules(bool gated, bool registers) {
  if (registers) return gated ? Rules(kMeta11) : kMeta01;
  return gated ? Rules(kMeta10) : kTimmRules;
}

// A file of Meta's is told from timm's by the token of pretraining, and from MAE's by LayerScale.
#define META                                                                             \
  "patch_embed.proj.weight", "cls_token", "mask_token", "blocks.0.norm1.weight",         \
      "blocks.0.attn.qkv.weight", "blocks.0.attn.qkv.bias", "blocks.0.attn.proj.weight", \
      "blocks.0.mlp.fc1.weight", "blocks.0.ls1.gamma"
constexpr std::string_view kMetaProbes[] = {META};
constexpr std::string_view kMetaRegisterProbes[] = {META, "reg_token"};
#undef META
// With what tells registers from none.
constexpr std::string_view kRegisterProbes[] = {"patch_embed.proj.weight",
                                                "cls_token",
                                                "reg_token",
                                                "pos_embed",
                                                "blocks.0.norm1.weight",
                                                "blocks.0.attn.qkv.weight",
                                                "blocks.0.attn.qkv.bias",
                                                "blocks.0.attn.proj.weight",
                                                "blocks.0.mlp.fc1.weight",
                                                "norm.weight"};
constexpr std::string_view kIgnored[] = {"embeddings.mask_token"};
constexpr std::string_view kTypes[] = {"dinov2"}, kRegisterTypes[] = {"dinov2_with_registers"};

// The hidden width of a gated MLP: two thirds of the plain one's, a multiple of 8.
constexpr int64_t gated_width(int64_t plain) { return (plain * 2 / 3 + 7) / 8 * 8; }

template <bool kGated, bool kRegisters>
struct Dinov2 : ViTFiles {
  static constexpr Act kAct = kGated ? Act::kSilu : Act::kGelu;
  static constexpr Dialect kDialects[] = {
      // Before timm's, whose names such a file has, too.
      {"vit",
       "meta",
       "Meta",
       meta_rules(kGated, kRegisters),
       kTimmIgnored,
       {},
       kRegisters ? std::span<const std::string_view>(kMetaRegisterProbes) : kMetaProbes,
       kRegisters ? PositionRule::kBicubicAntialias : PositionRule::kBicubicOffset,
       1e-6f,
       kAct,
       /*original=*/true},
      kTimmViT,
      {"vit",
       "hf",
       "Hugging Face transformers",
       hf_rules(kGated, kRegisters),
       kIgnored,
       {},
       kRegisters ? std::span<const std::string_view>(kRegisterProbes) : kViTProbes,
       kRegisters ? PositionRule::kBicubicAntialias : PositionRule::kBicubic,
       1e-6f,
       kAct},
  };
  // One model_type reads both kinds of MLPs.
  static constexpr std::span<const std::string_view> kType =
      kRegisters ? std::span(kRegisterTypes) : std::span(kTypes);
  static constexpr std::span<const std::string_view> kHf =
      kGated ? std::span<const std::string_view>() : kType;

  static bool holds(const ViTConfig& c) {
    return c.gated == kGated && c.rope == Rope::kNone && c.distance_bias == DistanceBias::kNone &&
           c.learned_positions && c.k_bias && !c.attn_norm && !c.mlp_norm && c.layer_scale > 0 &&
           (c.registers > 0) == kRegisters && c.prefix_positions != kRegisters && !c.distilled &&
           (c.pool == ViTPool::kTokenAndMean || (c.classes == 0 && c.pool == ViTPool::kToken));
  }

  static void read_hf(const JsonKeys& keys, ViTConfig& c) {
    constexpr std::pair<int64_t, int64_t> kUsual =
        kRegisters ? std::pair(16, 16) : std::pair(14, 14);
    if (kRegisters) {
      c.registers = keys.integer("num_register_tokens", 4, {1, 1024});
      c.prefix_positions = false;
    }
    c.width = keys.integer("hidden_size", 768, kWidths);
    c.depth = keys.integer("num_hidden_layers", 12, kDepths);
    c.heads = keys.integer("num_attention_heads", 12, kWidths);
    c.mlp_width = c.width * keys.integer("mlp_ratio", 4, {1, 64});
    c.gated = keys.boolean("use_swiglu_ffn", false);
    if (c.gated) c.mlp_width = gated_width(c.mlp_width);
    c.act = c.gated ? Act::kSilu : read_hf_act(keys);
    c.eps = static_cast<float>(keys.number("layer_norm_eps", 1e-6, 0, 1));
    std::tie(c.image_h, c.image_w) = keys.pair("image_size", {224, 224}, kSides);
    std::tie(c.patch_h, c.patch_w) = keys.pair("patch_size", kUsual, kSides);
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
    const char* kind = kRegisters ? "Dinov2WithRegisters" : "Dinov2";
    Json json = {{"architectures",
                  {fmt::format("{}{}", kind, c.classes > 0 ? "ForImageClassification" : "Model")}},
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
                 {"model_type", kType[0]},
                 {"num_attention_heads", c.heads},
                 {"num_channels", c.channels},
                 {"num_hidden_layers", c.depth},
                 {"patch_size", c.patch_h},
                 {"qkv_bias", c.qkv_bias},
                 {"use_swiglu_ffn", kGated}};
    if (kRegisters) json["num_register_tokens"] = c.registers;
    return json.dump();
  }

  static std::string_view hf_base(const ViTConfig&) { return kType[0]; }

  static void read_preprocessor(const ConfigText& stated, ModelSpec& spec) {
    read_hf_preprocessor_any_size(JsonKeys(stated.text, stated.path), spec);
  }

  static void as_published(const Dialect& dialect, ViTConfig& c, Preprocessing& p) {
    c.eps = dialect.eps, c.act = kAct;
    p.interpolation = "bicubic";
  }

  static void require_plain(const Dialect& dialect, const ViTConfig& c) {
    if (dialect.name == "timm") return;
    const RequirePlain require{dialect, "DINOv2"};
    require(c.pre_norm, "with the norms after the blocks");
    require(c.patch_order == PatchOrder::kChannelFirst, "with patches flattened channel last");
    require(!c.sincos_positions, "with fixed positions");
    require(!c.norm_pre && c.patch_bias, "with a norm before the blocks");
    require(c.image_h == c.image_w && c.patch_h == c.patch_w, "for images that are not square");
    require(dialect.original || plain_ratio(c) > 0, "whose MLP is no whole multiple of its width");
    require(!dialect.original || c.classes == 0, "with a classifier");
    require(!kGated || c.act == Act::kSilu, "whose gates are not SiLU's");
  }

  static void give_biases(const Dialect& dialect, ViTConfig& c) {
    c.head_bias = c.norm_bias = c.proj_bias = c.mlp_bias = true;
    if (dialect.original) c.qkv_bias = true;
  }

  // Meta's code does not load a file without it.
  static std::vector<BesideTensor> beside(const Dialect& dialect, const ViTConfig& c) {
    if (!dialect.original) return {};
    return {{"mask_token", {1, c.width}, std::vector<float>(static_cast<size_t>(c.width))}};
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

extern constinit const WeightFamily kDinov2Weights = family<Dinov2<false, false>>("vit");
extern constinit const WeightFamily kDinov2GatedWeights = family<Dinov2<true, false>>("vit");
extern constinit const WeightFamily kDinov2RegistersWeights = family<Dinov2<false, true>>("vit");
extern constinit const WeightFamily kDinov2GatedRegistersWeights =
    family<Dinov2<true, true>>("vit");

}  // namespace vitrum
