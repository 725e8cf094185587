// The weights of ViTs and DeiTs.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "vitrum/core/error.h"
#include "vitrum/weights/family.h"
#include "vitrum/weights/hf_config.h"

namespace vitrum {
namespace {

using enum Layout;
using Names = std::string_view;
using Json = nlohmann::ordered_json;

// What the hub holds and transformers writes; its modules are called otherwise since version 5.
constexpr NameRule kHuggingFace[] = {
    {"patch_embed.proj.weight", "embeddings.patch_embeddings.projection.weight", {}, kConv},
    {"patch_embed.proj", "embeddings.patch_embeddings.projection"},
    {"cls_token", "embeddings.cls_token"},
    {"dist_token", "embeddings.distillation_token"},
    {"pos_embed", "embeddings.position_embeddings"},
    {"blocks.{i}.norm1", "encoder.layer.{i}.layernorm_before", "layers.{i}.layernorm_before"},
    {"blocks.{i}.attn.qkv", "encoder.layer.{i}.attention.attention.{query,key,value}",
     "layers.{i}.attention.{q,k,v}_proj"},
    {"blocks.{i}.attn.proj", "encoder.layer.{i}.attention.output.dense",
     "layers.{i}.attention.o_proj"},
    {"blocks.{i}.norm2", "encoder.layer.{i}.layernorm_after", "layers.{i}.layernorm_after"},
    {"blocks.{i}.mlp.fc1", "encoder.layer.{i}.intermediate.dense", "layers.{i}.mlp.fc1"},
    {"blocks.{i}.mlp.fc2", "encoder.layer.{i}.output.dense", "layers.{i}.mlp.fc2"},
    {"norm", "layernorm"},
    {"head", "^cls_classifier", {}, kSame, /*two_heads=*/true},
    {"head", "^classifier"},
    {"head_dist", "^distillation_classifier", {}, kSame, /*two_heads=*/true},
};

// The second spelling is what the published files have; torchvision renames on loading.
constexpr NameRule kTorchvision[] = {
    {"patch_embed.proj.weight", "conv_proj.weight", {}, kConv},
    {"patch_embed.proj", "conv_proj"},
    {"cls_token", "class_token"},
    {"pos_embed", "encoder.pos_embedding"},
    {"blocks.{i}.norm1", "encoder.layers.encoder_layer_{i}.ln_1"},
    {"blocks.{i}.attn.qkv.weight",
     "encoder.layers.encoder_layer_{i}.self_attention.in_proj_weight"},
    {"blocks.{i}.attn.qkv.bias", "encoder.layers.encoder_layer_{i}.self_attention.in_proj_bias"},
    {"blocks.{i}.attn.proj", "encoder.layers.encoder_layer_{i}.self_attention.out_proj"},
    {"blocks.{i}.norm2", "encoder.layers.encoder_layer_{i}.ln_2"},
    {"blocks.{i}.mlp.fc1", "encoder.layers.encoder_layer_{i}.mlp.0",
     "encoder.layers.encoder_layer_{i}.mlp.linear_1"},
    {"blocks.{i}.mlp.fc2", "encoder.layers.encoder_layer_{i}.mlp.3",
     "encoder.layers.encoder_layer_{i}.mlp.linear_2"},
    {"norm", "encoder.ln"},
    {"head", "heads.head"},
};

// google-research/vision_transformer numbers the modules of a block through; big_vision, the second
// spelling, those of each kind.
#define BLOCK "Transformer/encoderblock_{i}/"
#define ATTENTION(part) \
  BLOCK "MultiHeadDotProductAttention_1/" part, BLOCK "MultiHeadDotProductAttention_0/" part
#define MLP(part) BLOCK "MlpBlock_3/" part, BLOCK "MlpBlock_0/" part
constexpr NameRule kGoogle[] = {
    {"patch_embed.proj.weight", "embedding/kernel", {}, kConvHwio},
    {"patch_embed.proj.bias", "embedding/bias"},
    {"cls_token", "cls"},
    {"pos_embed", "Transformer/posembed_input/pos_embedding", "pos_embedding"},
    {"blocks.{i}.norm1.weight", BLOCK "LayerNorm_0/scale"},
    {"blocks.{i}.norm1.bias", BLOCK "LayerNorm_0/bias"},
    {"blocks.{i}.attn.qkv.weight", ATTENTION("{query,key,value}/kernel"), kHeadKernel},
    {"blocks.{i}.attn.qkv.bias", ATTENTION("{query,key,value}/bias"), kHeadBias},
    {"blocks.{i}.attn.proj.weight", ATTENTION("out/kernel"), kOutKernel},
    {"blocks.{i}.attn.proj.bias", ATTENTION("out/bias")},
    {"blocks.{i}.norm2.weight", BLOCK "LayerNorm_2/scale", BLOCK "LayerNorm_1/scale"},
    {"blocks.{i}.norm2.bias", BLOCK "LayerNorm_2/bias", BLOCK "LayerNorm_1/bias"},
    {"blocks.{i}.mlp.fc1.weight", MLP("Dense_0/kernel"), kKernel},
    {"blocks.{i}.mlp.fc1.bias", MLP("Dense_0/bias")},
    {"blocks.{i}.mlp.fc2.weight", MLP("Dense_1/kernel"), kKernel},
    {"blocks.{i}.mlp.fc2.bias", MLP("Dense_1/bias")},
    {"norm.weight", "Transformer/encoder_norm/scale"},
    {"norm.bias", "Transformer/encoder_norm/bias"},
    {"head.weight", "head/kernel", {}, kKernel},
    {"head.bias", "head/bias"},
};
#undef MLP
#undef ATTENTION
#undef BLOCK

constexpr Names kTimmBefore[] = {"pre_logits."};
constexpr Names kHuggingFaceIgnored[] = {"pooler.", "embeddings.mask_token",
                                         "embeddings.position_ids"};
constexpr Names kTorchvisionBefore[] = {"heads.pre_logits."};
constexpr Names kGoogleBefore[] = {"pre_logits/"};
// The optimiser's state and a training's counters, beside the weights.
constexpr Names kGoogleIgnored[] = {"^opt/", "^extra/"};

constexpr Names kViTProbes[] = {"patch_embed.proj.weight",
                                "cls_token",
                                "pos_embed",
                                "blocks.0.norm1.weight",
                                "blocks.0.attn.qkv.weight",
                                "blocks.0.attn.proj.weight",
                                "blocks.0.mlp.fc1.weight",
                                "norm.weight"};

// Arguments of timm's VisionTransformer that do not change what a trained model computes.
const std::vector<std::string> kTrainingArgs = {"drop_rate", "weight_init", "fix_init",
                                                "dynamic_img_size", "dynamic_img_pad"};
const std::vector<std::string> kModelArgs = {
    "img_size",       "patch_size",     "in_chans",       "num_classes",    "global_pool",
    "embed_dim",      "depth",          "num_heads",      "mlp_ratio",      "qkv_bias",
    "proj_bias",      "init_values",    "class_token",    "act_layer",      "pos_drop_rate",
    "proj_drop_rate", "attn_drop_rate", "drop_path_rate", "patch_drop_rate"};

// Those with a single value that we have, as JSON.
const std::vector<JsonKeys::Fixed> kOnlyArgs = {
    {"qk_norm", "false"},       {"scale_attn_norm", "false"}, {"scale_mlp_norm", "false"},
    {"pos_embed", "\"learn\""}, {"no_embed_class", "false"},  {"reg_tokens", "0"},
    {"pre_norm", "false"},      {"final_norm", "true"},       {"pool_include_prefix", "false"}};

// Keys of relatives of the ViT that would change what the model computes.
const std::vector<JsonKeys::Fixed> kOnly = {{"use_mean_pooling", "false"},
                                            {"use_relative_position_bias", "false"},
                                            {"use_shared_relative_position_bias", "false"},
                                            {"use_absolute_position_embeddings", "true"},
                                            {"use_swiglu_ffn", "false"},
                                            {"layer_scale_init_value", "0"},
                                            {"num_register_tokens", "0"},
                                            {"position_embedding_type", "\"absolute\""}};

// timm's models for CLIP have PyTorch's eps, which no argument can ask for; the norm before the
// blocks, their other difference, one can switch off.
constexpr float kClipEps = 1e-5f;
bool as_clip(const ViTConfig& c) { return c.eps == kClipEps && !c.distilled; }

// Whether timm's VisionTransformer computes the same: its switches are fewer. Its LayerNorm has eps
// 1e-6; that of transformers' models, 1e-12, is taken for the same here and kept in our own object.
bool timm_has(const ViTConfig& c) {
  return c.pre_norm && c.patch_order == PatchOrder::kChannelFirst && c.norm_bias && c.head_bias &&
         c.proj_bias == c.mlp_bias && !c.sincos_positions && c.act != Act::kNone &&
         (c.eps <= 1e-6f || as_clip(c)) && c.distilled == c.two_heads();
}

// timm insists on a name it knows, and takes every size from model_args.
std::string timm_name(const ModelSpec& spec, const ViTConfig& c) {
  if (!timm_has(c)) return "vitrum_vit";
  if (as_clip(c)) return "vit_base_patch16_clip_224";
  const auto fits = [&](const char* part) {
    return spec.architecture.find(part) != std::string::npos;
  };
  if (c.distilled)
    return fits("_distilled_patch") ? spec.architecture : "deit_base_distilled_patch16_224";
  return fits("_patch") ? spec.architecture : "vit_base_patch16_224";
}

Json side(int64_t h, int64_t w) { return h == w ? Json(h) : Json{h, w}; }

// timm truncates embed_dim * mlp_ratio.
double mlp_ratio(const ViTConfig& c) {
  const auto width = static_cast<double>(c.width), wanted = static_cast<double>(c.mlp_width);
  const double ratio = wanted / width;
  return std::floor(width * ratio) == wanted ? ratio : std::nextafter(ratio, 2 * ratio);
}

Json model_args(const ViTConfig& c) {
  Json args = {{"img_size", side(c.image_h, c.image_w)},
               {"patch_size", side(c.patch_h, c.patch_w)},
               {"in_chans", c.channels},
               {"num_classes", c.classes},
               {"global_pool", c.mean_pool ? "avg" : "token"},
               {"embed_dim", c.width},
               {"depth", c.depth},
               {"num_heads", c.heads},
               {"mlp_ratio", mlp_ratio(c)},
               {"qkv_bias", c.qkv_bias},
               {"class_token", c.class_token}};
  if (as_clip(c)) args["pre_norm"] = false;
  if (!c.proj_bias) args["proj_bias"] = false;
  if (c.layer_scale > 0) args["init_values"] = tidy(c.layer_scale);
  if (c.act != Act::kGelu) args["act_layer"] = kActNames[static_cast<size_t>(c.act)];
  if (c.drop_pos > 0) args["pos_drop_rate"] = tidy(c.drop_pos);
  if (c.drop_attn > 0) args["attn_drop_rate"] = tidy(c.drop_attn);
  if (c.drop_path > 0) args["drop_path_rate"] = tidy(c.drop_path);
  if (c.patch_drop > 0) args["patch_drop_rate"] = tidy(c.patch_drop);
  if (c.drop_proj > 0 && c.drop_proj == c.drop_act && c.drop_act == c.drop_mlp)
    args["proj_drop_rate"] = tidy(c.drop_proj);
  return args;
}

std::string hf_class(const ViTConfig& c) {
  const char* family = c.distilled ? "DeiT" : "ViT";
  if (c.classes == 0) return fmt::format("{}Model", family);
  return fmt::format("{}ForImageClassification{}", family, c.two_heads() ? "WithTeacher" : "");
}

// What the published DeiTs have: 256 pixels for a crop of 224, 438 for 384.
std::string deit_preprocessor(const ViTConfig& c) {
  return fmt::format(
      R"({{"do_center_crop": true, "size": {}, "crop_size": {{"height": {}, "width": {}}},
          "resample": 3, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}})",
      std::max(c.image_h, c.image_w) * 256 / 224, c.image_h, c.image_w);
}

void squash_bilinear(Preprocessing& p) {  // google/vit, in JAX and in transformers
  p.interpolation = "bilinear", p.crop_mode = "squash";
}

// torchvision's IMAGENET1K_V1 files are of 224 pixels (and none is a ViT-H); others are SWAG's,
// fine-tuned at a larger size.
void torchvision_transforms(const ViTConfig& c, Preprocessing& p) {
  constexpr int64_t kSize = 224, kResize = 256, kResizeL16 = 242;
  const bool swag = p.height != kSize || c.depth > 24;
  const bool large16 = c.depth == 24 && c.patch_h == 16;
  if (swag)
    center_crop(p, "bicubic", p.height);
  else
    center_crop(p, "bilinear", large16 ? kResizeL16 : kResize);
  if (c.channels == 3) p.mean = kImageNetMean, p.std = kImageNetStd;
}

// transformers' DeiTs; 438 for 384 pixels.
void deit_transforms(Preprocessing& p) {
  p.interpolation = "bicubic", p.crop_mode = "squash", p.crop_floor = true;
  p.resize = p.height * 256 / 224;
  p.crop_pct = static_cast<double>(p.height) / static_cast<double>(p.resize);
}

Grid grid_of(const ViTConfig& c) { return {c.image_h / c.patch_h, c.image_w / c.patch_w}; }

// What a parameter goes through where the wanted model is of another size than the stored one.
class ViTAdapter final : public Adapter {
 public:
  ViTAdapter(const ViTConfig& stored, const ViTConfig& wanted, PositionRule rule)
      : stored_(stored), wanted_(wanted), rule_(rule) {}

  bool changes(const std::string& param) const override {
    if (param == "pos_embed") return grid_of(stored_) != grid_of(wanted_);
    return param == "patch_embed.proj.weight" && stored_.channels != wanted_.channels;
  }

  std::vector<float> operator()(const std::string& param,
                                const std::vector<float>& values) const override {
    if (param == "pos_embed")
      return resample_positions(values, stored_.prefix_tokens(), stored_.width, grid_of(stored_),
                                grid_of(wanted_), rule_);
    return adapt_channels(values, stored_.width, stored_.channels, wanted_.channels,
                          stored_.patch_order == PatchOrder::kChannelFirst);
  }

  std::vector<std::string> report() const override {
    std::vector<std::string> all;
    const Grid from = grid_of(stored_), to = grid_of(wanted_);
    if (changes("pos_embed") && !wanted_.sincos_positions)
      all.push_back(fmt::format("positions {}x{} -> {}x{} ({})", from.rows, from.columns, to.rows,
                                to.columns, name_of(rule_)));
    if (stored_.channels != wanted_.channels)
      all.push_back(
          fmt::format("patch embedding of {} -> {} channels", stored_.channels, wanted_.channels));
    return all;
  }

 private:
  const ViTConfig stored_, wanted_;
  PositionRule rule_;
};

struct ViT {
  using Config = ViTConfig;
  static constexpr Dialect kDialects[] = {
      {"vit",
       "timm",
       "timm",
       kTimmRules,
       {},
       kTimmBefore,
       kViTProbes,
       PositionRule::kBicubicAntialias,
       1e-6f,
       Act::kGelu},
      {"vit",
       "hf",
       "Hugging Face transformers",
       kHuggingFace,
       kHuggingFaceIgnored,
       {},
       kViTProbes,
       PositionRule::kBicubic,
       1e-12f,
       Act::kGelu},
      {"vit",
       "torchvision",
       "torchvision",
       kTorchvision,
       {},
       kTorchvisionBefore,
       kViTProbes,
       PositionRule::kBicubicAlignCorners,
       1e-6f,
       Act::kGelu},
      // JAX's gelu is the tanh form unless told otherwise.
      {"vit", "npz", "Google", kGoogle, kGoogleIgnored, kGoogleBefore, kViTProbes,
       PositionRule::kZoom, 1e-6f, Act::kGeluTanh},
  };
  static constexpr std::string_view kHf[] = {"vit", "deit"};
  static constexpr bool kFixedInputSize = true;

  static void fields(FieldVisitor& visit, ViTConfig& c) {
    visit("image_h", c.image_h, kSides), visit("image_w", c.image_w, kSides);
    visit("patch_h", c.patch_h, kSides), visit("patch_w", c.patch_w, kSides);
    visit("channels", c.channels, kSides), visit("width", c.width, kWidths);
    visit("depth", c.depth, kDepths), visit("heads", c.heads, kWidths);
    visit("mlp_width", c.mlp_width, IntRange{1, 1 << 20}), visit("classes", c.classes, kClasses);
    visit("eps", c.eps), visit("act", c.act, kActNames);
    visit("patch_order", c.patch_order, kPatchOrderNames), visit("init", c.init, kInitNames);
    visit("pre_norm", c.pre_norm), visit("class_token", c.class_token);
    visit("mean_pool", c.mean_pool), visit("sincos_positions", c.sincos_positions);
    visit("sincos_endpoint", c.sincos_endpoint), visit("floor_patches", c.floor_patches);
    visit("distilled", c.distilled), visit("dist_head", c.dist_head);
    visit("qkv_bias", c.qkv_bias), visit("proj_bias", c.proj_bias), visit("mlp_bias", c.mlp_bias);
    visit("norm_bias", c.norm_bias), visit("head_bias", c.head_bias);
    visit("layer_scale", c.layer_scale), visit("drop_pos", c.drop_pos);
    visit("drop_attn", c.drop_attn), visit("drop_proj", c.drop_proj), visit("drop_act", c.drop_act);
    visit("drop_mlp", c.drop_mlp), visit("drop_path", c.drop_path),
        visit("patch_drop", c.patch_drop);
  }

  static bool same_sizes(const ViTConfig& p, const ViTConfig& c) {
    return p.init == InitStyle::kTimm && p.width == c.width && p.depth == c.depth &&
           p.heads == c.heads && p.mlp_width == c.mlp_width && p.patch_h == c.patch_h &&
           p.patch_w == c.patch_w && p.image_h == c.image_h && p.distilled == c.distilled;
  }

  static void check_size(const ViTConfig& c, const std::string& path) {
    const auto real = [](int64_t n) { return static_cast<double>(n); };
    const double width = real(c.width),
                 patch = real(c.channels) * real(c.patch_h) * real(c.patch_w);
    const double tokens =
        real(c.image_h) / real(c.patch_h) * (real(c.image_w) / real(c.patch_w)) + 2;
    const double block = width * (4 * width + 2 * real(c.mlp_width));
    const double total = real(c.depth) * block + width * (tokens + patch + real(c.classes));
    if (total > kMaxParameters || tokens > kMaxTokens)
      fail_input("{}: a model of {:.3g} parameters and {:.3g} tokens is too large to be meant",
                 path, total, tokens);
  }

  static void read_timm(const JsonKeys& top, const JsonKeys& args, ViTConfig& c) {
    std::vector<std::string> known = kModelArgs;
    known.insert(known.end(), kTrainingArgs.begin(), kTrainingArgs.end());
    args.only(known, kOnlyArgs);
    const double ratio = static_cast<double>(c.mlp_width) / static_cast<double>(c.width);
    std::tie(c.image_h, c.image_w) = args.pair("img_size", {c.image_h, c.image_w}, kSides);
    std::tie(c.patch_h, c.patch_w) = args.pair("patch_size", {c.patch_h, c.patch_w}, kSides);
    c.channels = args.integer("in_chans", c.channels, kSides);
    c.classes = args.integer("num_classes", c.classes, kClasses);
    c.width = args.integer("embed_dim", c.width, kWidths);
    c.depth = args.integer("depth", c.depth, kDepths);
    c.heads = args.integer("num_heads", c.heads, kWidths);
    c.mlp_width =
        static_cast<int64_t>(static_cast<double>(c.width) * args.number("mlp_ratio", ratio, 0, 64));
    c.qkv_bias = args.boolean("qkv_bias", c.qkv_bias);
    c.proj_bias = c.mlp_bias = args.boolean("proj_bias", c.proj_bias);
    c.class_token = args.boolean("class_token", c.class_token);
    c.layer_scale = static_cast<float>(args.number("init_values", 0, 0, 1));
    c.act = static_cast<Act>(args.choice("act_layer", static_cast<size_t>(c.act), kActNames));
    const auto rate = [&](const char* key) {
      return static_cast<float>(args.number(key, 0, 0, 1));
    };
    c.drop_pos = rate("pos_drop_rate"), c.drop_attn = rate("attn_drop_rate"),
    c.drop_path = rate("drop_path_rate"), c.patch_drop = rate("patch_drop_rate");
    c.drop_proj = c.drop_act = c.drop_mlp = rate("proj_drop_rate");
    constexpr std::array<std::string_view, 2> kPools = {"token", "avg"};
    c.mean_pool =
        args.choice("global_pool", top.choice("global_pool", c.mean_pool, kPools), kPools) == 1;
  }

  static TimmConfig write_timm(const ModelSpec& spec, const ViTConfig& c) {
    return {.architecture = timm_name(spec, c),
            .pool = c.mean_pool ? "avg" : "token",
            .model_args = model_args(c).dump(),
            .first = "patch_embed.proj",
            .classifiers = c.two_heads() ? std::vector<std::string>{"head", "head_dist"}
                                         : std::vector<std::string>{"head"},
            .says_eps = timm_has(c) && as_clip(c)};
  }

  static void read_hf(const JsonKeys& keys, ViTConfig& c) {
    keys.require(kOnly);
    c.distilled = keys.text("model_type", {}) == "deit";
    c.dist_head = !c.distilled || is_hf_class(keys, kTwoHeads);
    c.width = keys.integer("hidden_size", 768, kWidths);
    c.depth = keys.integer("num_hidden_layers", 12, kDepths);
    c.heads = keys.integer("num_attention_heads", 12, kWidths);
    c.mlp_width = keys.integer("intermediate_size", 3072, {1, 1 << 20});
    c.act = read_hf_act(keys);
    c.eps = static_cast<float>(keys.number("layer_norm_eps", 1e-12, 0, 1));
    std::tie(c.image_h, c.image_w) = keys.pair("image_size", {224, 224}, kSides);
    std::tie(c.patch_h, c.patch_w) = keys.pair("patch_size", {16, 16}, kSides);
    c.floor_patches = c.image_h % c.patch_h != 0 || c.image_w % c.patch_w != 0;
    c.channels = keys.integer("num_channels", 3, kSides);
    c.qkv_bias = keys.boolean("qkv_bias", true);
    if (keys.has("head_dim") && keys.integer("head_dim", 0, kWidths) * c.heads != c.width)
      fail_input("{}: head_dim is not hidden_size / num_attention_heads", keys.where());
    const auto rate = [&](const char* key) {
      return static_cast<float>(keys.number(key, 0, 0, 1));
    };
    c.drop_attn = rate("attention_probs_dropout_prob");
    c.drop_pos = c.drop_proj = c.drop_mlp = rate("hidden_dropout_prob");
  }

  static std::string write_hf(const ViTConfig& c, const std::string& dtype) {
    const Json json = {{"architectures", {hf_class(c)}},
                       {"attention_probs_dropout_prob", tidy(c.drop_attn)},
                       {"dtype", dtype},
                       {"hidden_act", hf_act_name(c.act)},
                       {"hidden_dropout_prob", tidy(c.drop_mlp)},
                       {"hidden_size", c.width},
                       {"image_size", side(c.image_h, c.image_w)},
                       {"initializer_range", 0.02},
                       {"intermediate_size", c.mlp_width},
                       {"layer_norm_eps", tidy(c.eps)},
                       {"model_type", c.distilled ? "deit" : "vit"},
                       {"num_attention_heads", c.heads},
                       {"num_channels", c.channels},
                       {"num_hidden_layers", c.depth},
                       {"patch_size", side(c.patch_h, c.patch_w)},
                       {"qkv_bias", c.qkv_bias}};
    return json.dump();
  }

  static std::string_view hf_base(const ViTConfig& c) { return c.distilled ? "deit" : "vit"; }

  static void read_preprocessor(const ConfigText& stated, ModelSpec& spec) {
    const auto& c = *spec.config.as<ViTConfig>();
    const bool missing = c.distilled && stated.text == "{}";
    read_hf_preprocessor(JsonKeys(missing ? deit_preprocessor(c) : stated.text, stated.path),
                         spec.config, spec.preprocess);
  }

  static LayoutSizes layout_sizes(const ViTConfig& c) {
    return {.patch_h = c.patch_h,
            .patch_w = c.patch_w,
            .channels = c.channels,
            .heads = c.heads,
            .head_dim = c.width / c.heads,
            .channel_last = c.patch_order == PatchOrder::kChannelLast};
  }

  // Only what agrees with the rest of the model is taken: a size is then no larger than the file.
  static ViTConfig stored_sizes(ViTConfig c, const Dialect& dialect, const StoredDims& dims) {
    const std::vector<int64_t> head = dims("head.weight", 2);
    c.classes = !head.empty() && head[1] == c.width ? head[0] : 0;
    c.head_bias = c.classes == 0 || !dims("head.bias", 1).empty();
    // timm's distilled models have two heads; transformers' may have none that reads the token.
    if (c.distilled)
      c.dist_head = c.classes == 0 ? dialect.name == "timm" : !dims("head_dist.weight", 2).empty();
    const std::vector<int64_t> patch = dims("patch_embed.proj.weight", 4);
    if (!patch.empty() && patch[0] == c.width && patch[2] == c.patch_h && patch[3] == c.patch_w)
      c.channels = std::max<int64_t>(patch[1], 1);
    const std::vector<int64_t> positions = dims("pos_embed", 3);
    if (!positions.empty() && positions[2] == c.width) {
      const int64_t side = square_root(positions[1] - c.prefix_tokens());
      if (side > 0) c.image_h = side * c.patch_h, c.image_w = side * c.patch_w;
    }
    return c;
  }

  static void as_published(const Dialect& dialect, ViTConfig& c, Preprocessing& p) {
    if (c.init == InitStyle::kTimm)  // our own models state theirs
      c.eps = dialect.eps, c.act = dialect.act;
    if (dialect.name == "torchvision")
      torchvision_transforms(c, p);
    else if (dialect.name == "hf" && p.mean == kImageNetMean)
      deit_transforms(p);
    else if (dialect.name == "hf" || dialect.name == "npz")
      squash_bilinear(p);
    else if (c.image_h == 224)  // timm's ViTs; those of 384 pixels are not cropped
      p.crop_pct = 0.9;
  }

  static void take_stored(ViTConfig&, const ViTConfig&) {}
  static std::unique_ptr<Adapter> adapt(const ViTConfig& stored, const ViTConfig& wanted,
                                        PositionRule rule) {
    return std::make_unique<ViTAdapter>(stored, wanted, rule);
  }

  // What other frameworks' ViTs have no switch for. timm's directories keep ours beside timm's.
  static void require_plain(const Dialect& dialect, const ViTConfig& c) {
    if (dialect.name == "timm") return;
    const auto require = [&](bool has, const char* what) {
      if (!has) fail_input("{} has no ViT {}", dialect.title, what);
    };
    require(c.pre_norm, "with the norms after the blocks");
    require(c.patch_order == PatchOrder::kChannelFirst, "with patches flattened channel last");
    require(c.class_token && !c.mean_pool, "that pools by the mean");
    require(!c.distilled || dialect.name == "hf", "with a distillation token");
    require(!c.sincos_positions, "with fixed positions");
    require(c.layer_scale == 0, "with LayerScale");
    const bool square = c.image_h == c.image_w && c.patch_h == c.patch_w;
    require(square || dialect.name != "torchvision", "for images that are not square");
    require(!c.floor_patches || dialect.name != "torchvision",
            "whose patches do not cover the image");
  }

  static void give_biases(const Dialect& dialect, ViTConfig& c) {
    const bool switches = dialect.name == "timm";
    c.head_bias = c.norm_bias = true;
    if (!switches || c.proj_bias != c.mlp_bias) c.proj_bias = c.mlp_bias = true;
    if (!switches && dialect.name != "hf") c.qkv_bias = true;
  }

  static std::vector<std::string> notes(const Dialect& dialect, const ViTConfig& c, bool says_so) {
    return computed_otherwise(dialect, c.eps, c.act, says_so);
  }
  static bool two_heads(const ViTConfig& c) { return c.two_heads(); }
};

}  // namespace

extern constinit const WeightFamily kViTWeights = family<ViT>("vit");

}  // namespace vitrum
