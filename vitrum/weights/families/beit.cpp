// The weights of BEiT, BEiT v2 and data2vec: ViTs whose attention has a learned bias by distance.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <tuple>

#include "vitrum/core/error.h"
#include "vitrum/weights/families/eva.h"
#include "vitrum/weights/families/timm_args.h"
#include "vitrum/weights/hf_config.h"

namespace vitrum {
namespace {

using Json = nlohmann::ordered_json;
using Names = std::string_view;

#define TABLE "relative_position_bias_table"
constexpr NameRule kHuggingFace[] = {
    {"patch_embed.proj.weight", "embeddings.patch_embeddings.projection.weight", {}, Layout::kConv},
    {"patch_embed.proj", "embeddings.patch_embeddings.projection"},
    {"cls_token", "embeddings.cls_token"},
    {"pos_embed", "embeddings.position_embeddings"},
    {"rel_pos_bias." TABLE, "encoder.relative_position_bias." TABLE},
    {"blocks.{i}.norm1", "encoder.layer.{i}.layernorm_before"},
    {"blocks.{i}.attn.qkv.weight",
     "encoder.layer.{i}.attention.attention.{query,key,value}.weight"},
    {"blocks.{i}.attn.qkv.bias", "encoder.layer.{i}.attention.attention.{query,-,value}.bias"},
    {"blocks.{i}.attn." TABLE,
     "encoder.layer.{i}.attention.attention.relative_position_bias." TABLE},
    {"blocks.{i}.attn.proj", "encoder.layer.{i}.attention.output.dense"},
    {"blocks.{i}.ls1.gamma", "encoder.layer.{i}.lambda_1"},
    {"blocks.{i}.norm2", "encoder.layer.{i}.layernorm_after"},
    {"blocks.{i}.mlp.fc1", "encoder.layer.{i}.intermediate.dense"},
    {"blocks.{i}.mlp.fc2", "encoder.layer.{i}.output.dense"},
    {"blocks.{i}.ls2.gamma", "encoder.layer.{i}.lambda_2"},
    {"norm", "layernorm"},
    {"fc_norm", "pooler.layernorm"},
    {"head", "^classifier"},
};
// Of files of version 4 of transformers, and of the authors', which are timm's else.
constexpr Names kHfIgnored[] = {"embeddings.mask_token", "*.relative_position_index", "lm_head."};
constexpr Names kAuthorsIgnored[] = {"mask_token", "*.relative_position_index", "lm_head."};
// Without what a plain ViT has alone.
constexpr Names kProbes[] = {"patch_embed.proj.weight",   "cls_token",
                             "blocks.0.norm1.weight",     "blocks.0.attn.qkv.weight",
                             "blocks.0.attn.proj.weight", "blocks.0.attn." TABLE,
                             "rel_pos_bias." TABLE,       "blocks.0.mlp.fc1.weight",
                             "blocks.0.ls1.gamma",        "fc_norm.weight"};
#undef TABLE

struct Beit : EvaFiles {
  static constexpr Dialect kDialects[] = {
      {"vit",
       "timm",
       "timm",
       kEvaRules,
       kAuthorsIgnored,
       {},
       kProbes,
       PositionRule::kBicubicAntialias,
       1e-6f,
       Act::kGelu},
      {"vit",
       "hf",
       "Hugging Face transformers",
       kHuggingFace,
       kHfIgnored,
       {},
       kProbes,
       PositionRule::kBicubic,
       1e-12f,
       Act::kGelu},
      // Microsoft's names are timm's.
      {"vit",
       "microsoft",
       "Microsoft",
       kEvaRules,
       kAuthorsIgnored,
       {},
       kProbes,
       PositionRule::kBicubicAntialias,
       1e-6f,
       Act::kGelu,
       /*original=*/true},
  };
  // The last is how data2vec's files begin names.
  static constexpr std::string_view kHf[] = {"beit", "data2vec-vision", "data2vec_vision"};

  static bool holds(const ViTConfig& c) {
    return c.distance_bias != DistanceBias::kNone && holds_k_bias(c) && c.rope == Rope::kNone &&
           !c.gated && !c.attn_norm && !c.mlp_norm;
  }

  static void read_timm(const JsonKeys& top, const JsonKeys& args, ViTConfig& c) {
    const JsonKeys::Fixed only[] = {{"swiglu_mlp", "false"}, {"scale_mlp", "false"}};
    args.only(timm_args({"use_abs_pos_emb", "use_rel_pos_bias", "use_shared_rel_pos_bias",
                         "use_fc_norm"}),
              only);
    read_timm_sizes(args, c, static_cast<double>(c.mlp_width) / static_cast<double>(c.width));
    c.learned_positions = args.boolean("use_abs_pos_emb", c.learned_positions);
    const bool each = args.boolean("use_rel_pos_bias", c.distance_bias == DistanceBias::kEach),
               shared = args.boolean("use_shared_rel_pos_bias",
                                     c.distance_bias == DistanceBias::kShared);
    read_biases(args, each, shared, c);
    const bool mean = timm_pools_mean(top, args, c.pool != ViTPool::kToken);
    const bool normed = !args.boolean("use_fc_norm", mean);
    if (!mean && !normed)
      fail_input("{}: use_fc_norm without a mean is not supported", args.where());
    c.pool = !mean ? ViTPool::kToken : normed ? ViTPool::kNormedMean : ViTPool::kMean;
  }

  static TimmConfig write_timm(const ModelSpec& spec, const ViTConfig& c) {
    Json args = timm_sizes(c);
    args.erase("class_token");
    const bool mean = c.pool == ViTPool::kMean || c.pool == ViTPool::kNormedMean;
    args["global_pool"] = mean ? "avg" : "token";
    args["use_abs_pos_emb"] = c.learned_positions;
    args["use_rel_pos_bias"] = c.distance_bias == DistanceBias::kEach;
    args["use_shared_rel_pos_bias"] = c.distance_bias == DistanceBias::kShared;
    if (c.pool == ViTPool::kNormedMean) args["use_fc_norm"] = false;
    return {.architecture = timm_name(spec, c),
            .pool = mean ? "avg" : "token",
            .model_args = args.dump(),
            .first = "patch_embed.proj",
            .classifiers = {"head"}};
  }

  static void read_hf(const JsonKeys& keys, ViTConfig& c) {
    read_hf_sizes(keys, c);
    c.k_bias = false;
    c.learned_positions = keys.boolean("use_absolute_position_embeddings", false);
    read_biases(keys, keys.boolean("use_relative_position_bias", false),
                keys.boolean("use_shared_relative_position_bias", false), c);
    c.layer_scale = static_cast<float>(keys.number("layer_scale_init_value", 0.1, 0, 1));
    c.pool = keys.boolean("use_mean_pooling", true) ? ViTPool::kMean : ViTPool::kToken;
    const auto rate = [&](const char* key, double fallback) {
      return static_cast<float>(keys.number(key, fallback, 0, 1));
    };
    c.drop_attn = rate("attention_probs_dropout_prob", 0);
    c.drop_pos = c.drop_proj = c.drop_mlp = rate("hidden_dropout_prob", 0);
    c.drop_path = rate("drop_path_rate", 0.1);
  }

  static std::string write_hf(const ViTConfig& c, const std::string& dtype) {
    const Json json = {
        {"architectures", {c.classes > 0 ? "BeitForImageClassification" : "BeitModel"}},
        {"attention_probs_dropout_prob", tidy(c.drop_attn)},
        {"drop_path_rate", tidy(c.drop_path)},
        {"dtype", dtype},
        {"hidden_act", hf_act_name(c.act)},
        {"hidden_dropout_prob", tidy(c.drop_mlp)},
        {"hidden_size", c.width},
        {"image_size", c.image_h},
        {"initializer_range", 0.02},
        {"intermediate_size", c.mlp_width},
        {"layer_norm_eps", tidy(c.eps)},
        {"layer_scale_init_value", tidy(c.layer_scale)},
        {"model_type", "beit"},
        {"num_attention_heads", c.heads},
        {"num_channels", c.channels},
        {"num_hidden_layers", c.depth},
        {"patch_size", c.patch_h},
        {"use_absolute_position_embeddings", c.learned_positions},
        {"use_mask_token", false},
        {"use_mean_pooling", c.pool == ViTPool::kMean},
        {"use_relative_position_bias", c.distance_bias == DistanceBias::kEach},
        {"use_shared_relative_position_bias", c.distance_bias == DistanceBias::kShared}};
    return json.dump();
  }

  static std::string_view hf_base(const ViTConfig&) { return "beit"; }

  static void read_preprocessor(const ConfigText& stated, ModelSpec& spec) {
    read_hf_preprocessor(JsonKeys(stated.text, stated.path), spec.config, spec.preprocess);
  }

  // The number of a table's rows says how large images are.
  static ViTConfig stored_sizes(ViTConfig c, const Dialect& dialect, const StoredDims& dims) {
    c = EvaFiles::stored_sizes(c, dialect, dims);
    const bool each = c.distance_bias == DistanceBias::kEach;
    const std::vector<int64_t> table = dims(each ? "blocks.0.attn.relative_position_bias_table"
                                                 : "rel_pos_bias.relative_position_bias_table",
                                            2);
    const int64_t extra = c.prefix_tokens() > 0 ? 3 : 0;
    const int64_t distances = table.empty() ? 0 : square_root(table[0] - extra);
    if (distances % 2 == 1)
      c.image_h = (distances + 1) / 2 * c.patch_h, c.image_w = (distances + 1) / 2 * c.patch_w;
    return c;
  }

  static void as_published(const Dialect& dialect, ViTConfig& c, Preprocessing&) {
    c.eps = dialect.name == "hf" ? 1e-12f : 1e-6f, c.act = Act::kGelu;
  }

  static void require_plain(const Dialect& dialect, const ViTConfig& c) {
    if (dialect.name == "timm") return;
    const RequirePlain require{dialect, "BEiT"};
    require(c.pre_norm, "with the norms after the blocks");
    require(c.patch_order == PatchOrder::kChannelFirst, "with patches flattened channel last");
    require(!c.sincos_positions, "with fixed positions");
    require(!c.norm_pre && c.patch_bias, "with a norm before the blocks");
    require(c.class_token && c.registers == 0 && !c.distilled, "with other prefix tokens");
    require(c.prefix_positions || !c.learned_positions, "whose class token has no position");
    require(c.qkv_bias, "without biases of queries and values");
    require(c.pool == ViTPool::kMean || c.pool == ViTPool::kToken, "that pools so");
    require(c.image_h == c.image_w && c.patch_h == c.patch_w, "for images that are not square");
  }

 private:
  static void read_biases(const JsonKeys& keys, bool each, bool shared, ViTConfig& c) {
    if (each && shared)
      fail_input("{}: a table a block and one for all blocks together are not supported",
                 keys.where());
    if (!each && !shared)
      fail_input("{}: a BEiT without a bias by distance is not supported", keys.where());
    c.distance_bias = each ? DistanceBias::kEach : DistanceBias::kShared;
  }

  static std::string timm_name(const ModelSpec& spec, const ViTConfig& c) {
    const bool has = c.pre_norm && c.eps <= 1e-6f && c.act == Act::kGelu && c.norm_bias &&
                     c.head_bias && c.proj_bias && c.mlp_bias && c.patch_bias && !c.norm_pre &&
                     !c.distilled && !c.sincos_positions && c.class_token && c.registers == 0 &&
                     c.patch_order == PatchOrder::kChannelFirst && c.prefix_positions &&
                     c.pool != ViTPool::kTokenAndMean && c.patch_drop == 0;
    if (!has) return "vitrum_vit";
    return spec.architecture.starts_with("beit") ? spec.architecture : "beit_base_patch16_224";
  }
};

}  // namespace

extern constinit const WeightFamily kBeitWeights = family<Beit>("vit");

}  // namespace vitrum
