// The weights of DINOv3: timm's, transformers', and Meta's own.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "vitrum/core/error.h"
#include "vitrum/weights/families/eva.h"
#include "vitrum/weights/hf_config.h"

namespace vitrum {
namespace {

using Json = nlohmann::ordered_json;
using Names = std::string_view;

#define HF_OUTSIDE                                                                                \
  {"patch_embed.proj.weight", "embeddings.patch_embeddings.weight", {}, Layout::kConv},           \
      {"patch_embed.proj", "embeddings.patch_embeddings"}, {"cls_token", "embeddings.cls_token"}, \
      {"reg_token", "embeddings.register_tokens"}, {                                              \
    "norm", "norm"                                                                                \
  }
#define HF_BLOCK                                                                                  \
  {"blocks.{i}.norm1", "layer.{i}.norm1"},                                                        \
      {"blocks.{i}.attn.qkv.weight", "layer.{i}.attention.{q_proj,k_proj,v_proj}.weight"},        \
      {"blocks.{i}.attn.qkv.bias", "layer.{i}.attention.{q_proj,-,v_proj}.bias"},                 \
      {"blocks.{i}.attn.proj", "layer.{i}.attention.o_proj"},                                     \
      {"blocks.{i}.ls1.gamma", "layer.{i}.layer_scale1.lambda1"},                                 \
      {"blocks.{i}.norm2", "layer.{i}.norm2"}, {"blocks.{i}.mlp.fc2", "layer.{i}.mlp.down_proj"}, \
  {                                                                                               \
    "blocks.{i}.ls2.gamma", "layer.{i}.layer_scale2.lambda1"                                      \
  }
constexpr NameRule kHuggingFace[] = {
    HF_OUTSIDE, HF_BLOCK, {"blocks.{i}.mlp.fc1", "layer.{i}.mlp.up_proj"}};
constexpr NameRule kHuggingFaceGated[] = {
    HF_OUTSIDE, HF_BLOCK, {"blocks.{i}.mlp.fc1", "layer.{i}.mlp.{gate_proj,up_proj}"}};
#undef HF_BLOCK
#undef HF_OUTSIDE

// Their qkv.bias has all three parts; that of keys is masked with zeros.
constexpr NameRule kMeta[] = {
    {"patch_embed.proj.weight", "patch_embed.proj.weight", {}, Layout::kConv},
    {"reg_token", "storage_tokens"},
    {"", ""}};
constexpr NameRule kMetaGated[] = {
    {"patch_embed.proj.weight", "patch_embed.proj.weight", {}, Layout::kConv},
    {"reg_token", "storage_tokens"},
    {"blocks.{i}.mlp.fc1", "blocks.{i}.mlp.{w1,w2}"},
    {"blocks.{i}.mlp.fc2", "blocks.{i}.mlp.w3"},
    {"", ""}};

constexpr Names kHfIgnored[] = {"embeddings.mask_token"};
constexpr Names kMetaIgnored[] = {"mask_token", "*.bias_mask", "local_cls_norm.", "projectors.",
                                  "rope_embed."};
constexpr Names kMetaProbes[] = {"patch_embed.proj.weight",
                                 "cls_token",
                                 "reg_token",
                                 "blocks.0.norm1.weight",
                                 "blocks.0.attn.qkv.weight",
                                 "blocks.0.attn.qkv.bias",
                                 "blocks.0.attn.proj.weight",
                                 "blocks.0.mlp.fc1.weight",
                                 "blocks.0.mlp.fc2.weight",
                                 "norm.weight"};
constexpr float kEps = 1e-5f;
constexpr const char* kPeriods = "rope_embed.periods";

constexpr std::string_view kType[] = {"dinov3_vit"};

template <bool kGated>
struct Dinov3 : EvaFiles {
  static constexpr Act kAct = kGated ? Act::kSilu : Act::kGelu;
  static constexpr Dialect kDialects[] = {
      {"vit",
       "timm",
       "timm",
       kGated ? std::span<const NameRule>(kEvaTwoFc1) : kEvaRules,
       {},
       {},
       kEvaProbes,
       PositionRule::kBicubicAntialias,
       kEps,
       kAct},
      {"vit",
       "hf",
       "Hugging Face transformers",
       kGated ? std::span<const NameRule>(kHuggingFaceGated) : kHuggingFace,
       kHfIgnored,
       {},
       kEvaProbes,
       PositionRule::kBicubic,
       kEps,
       kAct},
      {"vit",
       "meta",
       "Meta",
       kGated ? std::span<const NameRule>(kMetaGated) : kMeta,
       kMetaIgnored,
       {},
       kMetaProbes,
       PositionRule::kBicubicAntialias,
       kEps,
       kAct,
       /*original=*/true},
  };
  // transformers' one model_type reads both kinds.
  static constexpr std::span<const std::string_view> kHf =
      kGated ? std::span<const std::string_view>() : std::span(kType);

  static bool holds(const ViTConfig& c) {
    return c.rope == Rope::kDinov3 && c.gated == kGated && holds_k_bias(c) && !c.attn_norm &&
           !c.mlp_norm;
  }

  static void read_hf(const JsonKeys& keys, ViTConfig& c) {
    const JsonKeys::Fixed only[] = {{"key_bias", "false"}};
    keys.require(only);
    c.width = keys.integer("hidden_size", 384, kWidths);
    c.depth = keys.integer("num_hidden_layers", 12, kDepths);
    c.heads = keys.integer("num_attention_heads", 6, kWidths);
    c.mlp_width = keys.integer("intermediate_size", 1536, {1, 1 << 20});
    c.gated = keys.boolean("use_gated_mlp", false);
    c.act = read_hf_act(keys);
    c.eps = static_cast<float>(keys.number("layer_norm_eps", 1e-5, 0, 1));
    std::tie(c.image_h, c.image_w) = keys.pair("image_size", {224, 224}, kSides);
    std::tie(c.patch_h, c.patch_w) = keys.pair("patch_size", {16, 16}, kSides);
    c.channels = keys.integer("num_channels", 3, kSides);
    c.registers = keys.integer("num_register_tokens", 0, {0, 1024});
    c.rope = Rope::kDinov3,
    c.rope_theta = static_cast<int64_t>(keys.number("rope_theta", 100, 1, 1e9));
    c.learned_positions = c.k_bias = false;
    c.qkv_bias = keys.boolean("query_bias", true);
    if (keys.boolean("value_bias", true) != c.qkv_bias)
      fail_input("{}: query_bias and value_bias differ, which is not supported", keys.where());
    c.proj_bias = keys.boolean("proj_bias", true), c.mlp_bias = keys.boolean("mlp_bias", true);
    // Where LayerScale starts says nothing of what a file holds; timm's value keeps it there.
    c.layer_scale = 1e-5f;
    c.drop_attn = static_cast<float>(keys.number("attention_dropout", 0, 0, 1));
    c.drop_path = static_cast<float>(keys.number("drop_path_rate", 0, 0, 1));
  }

  static std::string write_hf(const ViTConfig& c, const std::string& dtype) {
    const Json json = {{"architectures", {"DINOv3ViTModel"}},
                       {"attention_dropout", tidy(c.drop_attn)},
                       {"drop_path_rate", tidy(c.drop_path)},
                       {"dtype", dtype},
                       {"hidden_act", hf_act_name(c.act)},
                       {"hidden_size", c.width},
                       {"image_size", c.image_h},
                       {"initializer_range", 0.02},
                       {"intermediate_size", c.mlp_width},
                       {"key_bias", false},
                       {"layer_norm_eps", tidy(c.eps)},
                       {"layerscale_value", 1.0},
                       {"mlp_bias", c.mlp_bias},
                       {"model_type", kType[0]},
                       {"num_attention_heads", c.heads},
                       {"num_channels", c.channels},
                       {"num_hidden_layers", c.depth},
                       {"num_register_tokens", c.registers},
                       {"patch_size", c.patch_h},
                       {"proj_bias", c.proj_bias},
                       {"query_bias", c.qkv_bias},
                       {"rope_theta", static_cast<double>(c.rope_theta)},
                       {"use_gated_mlp", c.gated},
                       {"value_bias", c.qkv_bias}};
    return json.dump();
  }

  static std::string_view hf_base(const ViTConfig&) { return kType[0]; }

  static void read_preprocessor(const ConfigText& stated, ModelSpec& spec) {
    read_hf_preprocessor_any_size(JsonKeys(stated.text, stated.path), spec);
  }

  // Meta's models read the class token.
  static void as_published(const Dialect& dialect, ViTConfig& c, Preprocessing&) {
    c.eps = kEps, c.act = kAct;
    if (dialect.name != "timm") c.pool = ViTPool::kToken;
  }

  // Meta's published files have periods rounded to bf16, and compute with what the file has.
  static ViTConfig stored_sizes(ViTConfig c, const Dialect& dialect, const StoredDims& dims) {
    c = EvaFiles::stored_sizes(c, dialect, dims);
    if (!dialect.original) return c;
    const std::vector<float> stated = dims.values(kPeriods);
    const auto all = [&](bool rounded) {
      c.rope_bf16 = rounded;
      const std::vector<float> ours = rope_periods(c);
      return std::ranges::equal(
          ours, stated, [](float a, float b) { return std::abs(a - b) <= 1e-5f * std::abs(a); });
    };
    c.rope_bf16 = !stated.empty() && !all(false) && all(true);
    return c;
  }

  // What Meta's code does not load a file without.
  static std::vector<BesideTensor> beside(const Dialect& dialect, const ViTConfig& c) {
    if (!dialect.original) return {};
    const auto width = static_cast<size_t>(c.width);
    std::vector<BesideTensor> all = {{"mask_token", {1, c.width}, std::vector<float>(width)}};
    std::vector<float> periods = rope_periods(c);
    const auto count = static_cast<int64_t>(periods.size());
    all.push_back({kPeriods, {count}, std::move(periods)});
    std::vector<float> mask(3 * width, 1.f);  // keys have no bias
    std::fill_n(mask.begin() + c.width, width, 0.f);
    for (int64_t i = 0; i < c.depth && c.qkv_bias; ++i)
      all.push_back({fmt::format("blocks.{}.attn.qkv.bias_mask", i), {3 * c.width}, mask});
    return all;
  }

  static void require_plain(const Dialect& dialect, const ViTConfig& c) {
    if (dialect.name == "timm") return;
    const RequirePlain require{dialect, "DINOv3"};
    require(c.classes == 0, "with a classifier");
    require(c.pre_norm, "with the norms after the blocks");
    require(c.patch_order == PatchOrder::kChannelFirst, "with patches flattened channel last");
    require(!c.sincos_positions && !c.learned_positions, "with positions beside the rotary ones");
    require(!c.norm_pre && c.patch_bias, "with a norm before the blocks");
    require(c.class_token && c.layer_scale > 0, "without a class token or LayerScale");
    require(c.pool != ViTPool::kMean, "with a norm behind the mean of its patches");
    require(!c.rope_bf16 || dialect.original, "with periods rounded to bf16");
    require(c.image_h == c.image_w && c.patch_h == c.patch_w, "for images that are not square");
  }

  static std::vector<std::string> notes(const Dialect& dialect, const ViTConfig& c, bool says_so) {
    std::vector<std::string> all = ViTFiles::notes(dialect, c, says_so);
    if (dialect.name != "timm" && c.pool == ViTPool::kNormedMean)
      all.push_back(fmt::format("{} gives the class token, the model the mean of its patches",
                                dialect.title));
    return all;
  }
};

}  // namespace

extern constinit const WeightFamily kDinov3Weights = family<Dinov3<false>>("vit");
extern constinit const WeightFamily kDinov3GatedWeights = family<Dinov3<true>>("vit");

}  // namespace vitrum
