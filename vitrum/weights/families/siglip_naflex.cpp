// The image towers of SigLIP 2 for images of any shape (NaFlex), transformers' and timm's. A patch
// is a row of numbers there, channels last, and positions are a square of them that is resized to
// the patches of each image.
#include <array>
#include <nlohmann/json.hpp>

#include "vitrum/core/error.h"
#include "vitrum/weights/families/timm_args.h"
#include "vitrum/weights/families/vision_tower.h"
#include "vitrum/weights/families/vit.h"
#include "vitrum/weights/hf_config.h"

namespace vitrum {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kPatches = 256;  // transformers' default, of a model and of an image

constexpr NameRule kTimm[] = {
    {"patch_embed.proj.weight", "embeds.proj.weight", {}, Layout::kPatch},
    {"patch_embed.proj", "embeds.proj"},
    {"pos_grid", "embeds.pos_embed", {}, Layout::kGrid},
    {"", ""},
};
constexpr std::string_view kTimmProbes[] = {"patch_embed.proj.weight", "patch_embed.proj.bias",
                                            "pos_grid", "blocks.0.norm1.weight", "norm.weight"};

const std::vector<std::string> kArgs = {"act_layer", "fc_norm", "pos_embed_grid_size"};
// Those with a single value that we have, as JSON.
const std::vector<JsonKeys::Fixed> kOnlyArgs = {{"pos_embed", "\"learned\""},
                                                {"pos_embed_interp_mode", "\"bilinear\""},
                                                {"pos_embed_ar_preserving", "false"},
                                                {"reg_tokens", "0"},
                                                {"qk_norm", "false"},
                                                {"proj_bias", "true"},
                                                {"pre_norm", "false"},
                                                {"final_norm", "true"}};
constexpr std::array<std::string_view, 2> kPools = {"map", "avg"};

struct SiglipNaflex : ViTFiles {
  static constexpr bool kFixedInputSize = false;
  static constexpr Dialect kDialects[] = {
      {"vit",
       "timm",
       "timm",
       kTimm,
       {},
       {},
       kTimmProbes,
       PositionRule::kBilinear,
       1e-6f,
       Act::kGeluTanh},
      kSiglipHf,
  };
  static constexpr std::string_view kHf[] = {"siglip2", "siglip2_vision_model"};

  static bool holds(const ViTConfig& c) { return c.position_grid > 0; }

  // ---- timm's NaFlexVit ----

  static void read_timm(const JsonKeys& top, const JsonKeys& args, ViTConfig& c) {
    const double ratio = static_cast<double>(c.mlp_width) / static_cast<double>(c.width);
    args.only(timm_args(kArgs), kOnlyArgs);
    read_timm_sizes(args, c, ratio, 1);
    c.act = static_cast<Act>(args.choice("act_layer", static_cast<size_t>(c.act), kActNames));
    const auto [rows, columns] =
        args.pair("pos_embed_grid_size", {c.position_grid, c.position_grid}, {1, 256});
    if (rows != columns)
      fail_input("{}: a pos_embed_grid_size that is not square is not supported", args.where());
    c.position_grid = rows;
    const size_t usual = c.pool == ViTPool::kMap ? 0 : 1;
    const bool mean = args.choice("global_pool", top.choice("global_pool", usual, kPools), kPools);
    if (args.boolean("fc_norm", mean))
      fail_input("{}: fc_norm is not supported with images of any shape", args.where());
    c.pool = mean ? ViTPool::kNormedMean : ViTPool::kMap;
  }

  static TimmConfig write_timm(const ModelSpec& spec, const ViTConfig& c) {
    Json args = timm_sizes(c, 1);
    args.erase("img_size");
    args["pos_embed_grid_size"] = {c.position_grid, c.position_grid};
    args["act_layer"] = kActNames[static_cast<size_t>(c.act)];
    args["global_pool"] = kPools[c.pool == ViTPool::kMap ? 0 : 1];
    if (c.pool != ViTPool::kMap) args["fc_norm"] = false;
    return {.architecture = timm_has(c) ? timm_name(spec) : "vitrum_vit",
            .pool = args["global_pool"],
            .model_args = args.dump(),
            .first = "embeds.proj",
            .classifiers = {"head"}};
  }

  // ---- transformers' Siglip2Model ----

  // A classifier reads the mean of the tokens.
  static void read_hf(const JsonKeys& keys, ViTConfig& c) {
    const JsonKeys v = tower_keys(keys, kHf[0]);
    c.act = Act::kGeluTanh, c.eps = 1e-6f, c.patch_h = c.patch_w = 16;
    read_tower(v, c);
    const int64_t patches = v.integer("num_patches", kPatches, {1, kPatchCounts.high});
    c.position_grid = square_root(patches);
    if (c.position_grid == 0)
      fail_input("{}: num_patches is {}; positions are those of a square", v.where(), patches);
    c.image_h = c.position_grid * c.patch_h, c.image_w = c.position_grid * c.patch_w;
    c.floor_patches = false, c.class_token = false;
    const bool classifies = is_hf_class(keys, kOneHead);
    const bool pools = v.boolean("vision_use_head", true) && !classifies;
    c.pool = pools ? ViTPool::kMap : ViTPool::kNormedMean;
    if (!classifies) c.classes = 0;
  }

  static std::string write_hf(const ViTConfig& c, const std::string& dtype) {
    Json json = write_tower(c, "siglip2_vision_model");
    json.erase("image_size");
    json["num_patches"] = c.position_grid * c.position_grid;
    json["vision_use_head"] = c.pool == ViTPool::kMap;
    if (c.classes > 0) return write_tower_classifier("Siglip2", "siglip2", json, dtype);
    json["architectures"] = {"Siglip2VisionModel"};
    json["dtype"] = dtype;
    return json.dump();
  }

  static std::string_view hf_base(const ViTConfig&) { return "vision_model"; }

  static void read_preprocessor(const ConfigText& stated, ModelSpec& spec) {
    const JsonKeys keys(stated.text, stated.path);
    const std::array<JsonKeys::Fixed, 1> only = {{{"do_resize", "true"}}};
    keys.require(only);
    const auto& c = *spec.config.as<ViTConfig>();
    if (keys.integer("patch_size", c.patch_h, kSides) != c.patch_h)
      fail_input("{}: patch_size is not config.json's, {}", keys.where(), c.patch_h);
    Preprocessing& p = spec.preprocess;
    p.interpolation = kPillowFilters[static_cast<size_t>(keys.integer("resample", 2, {0, 5}))];
    read_hf_normalization(keys, c.channels, p);
    set_max_patches(spec, keys.integer("max_num_patches", kPatches, {1, kPatchCounts.high}));
    vitrum::check_size(spec.config, keys.where());
  }

  // ---- files ----

  static void as_published(const Dialect& dialect, ViTConfig& c, Preprocessing& p) {
    c.eps = dialect.eps, c.act = dialect.act;
    if (dialect.name == "timm") return;
    p.interpolation = "bilinear", p.crop_mode = "squash";
  }

  static void require_plain(const Dialect& dialect, const ViTConfig& c) {
    if (dialect.name == "timm") return;
    const RequirePlain require{dialect, "SigLIP 2"};
    require(plain(c), "with other switches than its own");
    require(c.patch_h == c.patch_w, "with patches that are not square");
    require(c.pool != ViTPool::kMap || c.classes == 0, "with a classifier on its pooled features");
  }

  static void give_biases(const Dialect&, ViTConfig& c) {
    c.norm_bias = c.qkv_bias = c.proj_bias = c.mlp_bias = c.patch_bias = c.head_bias = true;
  }

 private:
  static bool plain(const ViTConfig& c) {
    return c.pre_norm && c.patch_order == PatchOrder::kChannelFirst && c.layer_scale == 0 &&
           c.rope == Rope::kNone && c.distance_bias == DistanceBias::kNone && !c.gated &&
           !c.attn_norm && !c.mlp_norm && !c.norm_pre && c.k_bias &&
           (c.pool == ViTPool::kMap || c.pool == ViTPool::kNormedMean);
  }
  // timm computes LayerNorm with eps 1e-6, and has no switch for it.
  static bool timm_has(const ViTConfig& c) {
    return plain(c) && c.eps == 1e-6f && c.norm_bias && c.patch_bias && c.head_bias &&
           c.proj_bias && c.mlp_bias && c.act != Act::kNone;
  }
  static std::string timm_name(const ModelSpec& spec) {
    return spec.architecture.starts_with("naflexvit_") ? spec.architecture
                                                       : "naflexvit_base_patch16_siglip";
  }
};

}  // namespace

extern constinit const WeightFamily kSiglipNaflexWeights = family<SiglipNaflex>("vit");

}  // namespace vitrum
