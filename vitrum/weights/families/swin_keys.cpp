#include "vitrum/weights/families/swin_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <tuple>

#include "vitrum/core/error.h"
#include "vitrum/weights/hf_config.h"

namespace vitrum {
namespace {

using Json = nlohmann::ordered_json;

// A shifted block's mask has a number for each pair of tokens in a window.
constexpr double kMaxPairs = 1 << 28;

Json side(int64_t h, int64_t w) { return h == w ? Json(h) : Json{h, w}; }

}  // namespace

void swin_fields(FieldVisitor& visit, SwinConfig& c) {
  visit("image_h", c.image_h, kSides), visit("image_w", c.image_w, kSides);
  visit("patch_h", c.patch_h, kSides), visit("patch_w", c.patch_w, kSides);
  visit("channels", c.channels, kSides), visit("width", c.width, kWidths);
  visit("depths", c.depths, kDepths), visit("heads", c.heads, kWidths);
  visit("window_h", c.window_h, kSides), visit("window_w", c.window_w, kSides);
  visit("mlp_ratio", c.mlp_ratio), visit("classes", c.classes, kClasses);
  visit("eps", c.eps), visit("act", c.act, kActNames), visit("qkv_bias", c.qkv_bias);
  visit("head_bias", c.head_bias), visit("pad_first", c.pad_first);
  visit("drop_attn", c.drop_attn), visit("drop_proj", c.drop_proj), visit("drop_act", c.drop_act);
  visit("drop_mlp", c.drop_mlp), visit("drop_path", c.drop_path);
}

bool same_swin_sizes(const SwinConfig& p, const SwinConfig& c) {
  return p.width == c.width && p.depths == c.depths && p.heads == c.heads &&
         p.patch_h == c.patch_h && p.patch_w == c.patch_w && p.window_h == c.window_h &&
         p.window_w == c.window_w && p.mlp_ratio == c.mlp_ratio && p.image_h == c.image_h;
}

void EitherSwin::check_size(const SwinConfig& c, const std::string& path) {
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  double width = real(c.width);
  double total = width * real(c.channels) * real(c.patch_h) * real(c.patch_w);
  for (const int64_t depth : c.depths) {
    total += real(depth) * width * width * (4 + 2 * c.mlp_ratio) + 2 * width * width;
    width *= 2;
  }
  total += width * real(c.classes);
  const double tokens = real(c.image_h) / real(c.patch_h) * (real(c.image_w) / real(c.patch_w));
  const double pairs = tokens * real(c.window_h) * real(c.window_w);
  if (total > kMaxParameters || tokens > kMaxTokens || pairs > kMaxPairs)
    fail_input(
        "{}: a model of {:.3g} parameters, {:.3g} tokens and windows of {}x{} is too large "
        "to be meant",
        path, total, tokens, c.window_h, c.window_w);
}

void read_swin_timm(const JsonKeys& top, const JsonKeys& args, SwinConfig& c,
                    const std::vector<std::string>& more) {
  const std::vector<JsonKeys::Fixed> only = {{"always_partition", "false"}};
  std::vector<std::string> known = {
      "img_size",    "patch_size",     "in_chans",       "num_classes",    "global_pool",
      "embed_dim",   "depths",         "num_heads",      "window_size",    "mlp_ratio",
      "qkv_bias",    "proj_drop_rate", "attn_drop_rate", "drop_path_rate", "drop_rate",
      "weight_init", "strict_img_size"};
  known.insert(known.end(), more.begin(), more.end());
  args.only(known, only);
  std::tie(c.image_h, c.image_w) = args.pair("img_size", {c.image_h, c.image_w}, kSides);
  std::tie(c.patch_h, c.patch_w) = args.pair("patch_size", {c.patch_h, c.patch_w}, kSides);
  std::tie(c.window_h, c.window_w) = args.pair("window_size", {c.window_h, c.window_w}, kSides);
  c.channels = args.integer("in_chans", c.channels, kSides);
  c.classes = args.integer("num_classes", c.classes, kClasses);
  c.width = args.integer("embed_dim", c.width, kWidths);
  if (args.has("depths")) c.depths = args.integers("depths", kDepths);
  if (args.has("num_heads")) c.heads = args.integers("num_heads", kWidths);
  c.mlp_ratio = args.number("mlp_ratio", c.mlp_ratio, 0, 64);
  c.qkv_bias = args.boolean("qkv_bias", c.qkv_bias);
  const auto rate = [&](const char* key, double usual) {
    return static_cast<float>(args.number(key, usual, 0, 1));
  };
  c.drop_attn = rate("attn_drop_rate", 0), c.drop_path = rate("drop_path_rate", 0.1);
  c.drop_proj = c.drop_act = c.drop_mlp = rate("proj_drop_rate", 0);
  constexpr std::array<std::string_view, 1> kPools = {"avg"};
  args.choice("global_pool", top.choice("global_pool", 0, kPools), kPools);
}

Json swin_timm_sizes(const SwinConfig& c) {
  Json args = {{"img_size", side(c.image_h, c.image_w)},
               {"patch_size", side(c.patch_h, c.patch_w)},
               {"in_chans", c.channels},
               {"num_classes", c.classes},
               {"global_pool", "avg"},
               {"embed_dim", c.width},
               {"depths", c.depths},
               {"num_heads", c.heads},
               {"window_size", side(c.window_h, c.window_w)},
               {"mlp_ratio", c.mlp_ratio},
               {"qkv_bias", c.qkv_bias},
               {"drop_path_rate", tidy(c.drop_path)}};
  if (c.drop_attn > 0) args["attn_drop_rate"] = tidy(c.drop_attn);
  if (c.drop_proj > 0 && c.drop_proj == c.drop_act && c.drop_act == c.drop_mlp)
    args["proj_drop_rate"] = tidy(c.drop_proj);
  return args;
}

TimmConfig swin_timm_config(const std::string& architecture, const Json& model_args) {
  return {.architecture = architecture,
          .pool = "avg",
          .model_args = model_args.dump(),
          .first = "patch_embed.proj",
          .classifiers = {"head.fc"}};
}

void read_swin_hf(const JsonKeys& keys, SwinConfig& c) {
  const std::array<JsonKeys::Fixed, 1> only = {{{"use_absolute_embeddings", "false"}}};
  keys.require(only);
  c.width = keys.integer("embed_dim", 96, kWidths);
  if (keys.has("depths")) c.depths = keys.integers("depths", kDepths);
  if (keys.has("num_heads")) c.heads = keys.integers("num_heads", kWidths);
  c.window_h = c.window_w = keys.integer("window_size", 7, kSides);
  c.mlp_ratio = keys.number("mlp_ratio", 4, 0, 64);
  c.act = read_hf_act(keys);
  c.eps = static_cast<float>(keys.number("layer_norm_eps", 1e-5, 0, 1));
  std::tie(c.image_h, c.image_w) = keys.pair("image_size", {224, 224}, kSides);
  std::tie(c.patch_h, c.patch_w) = keys.pair("patch_size", {4, 4}, kSides);
  c.channels = keys.integer("num_channels", 3, kSides);
  c.qkv_bias = keys.boolean("qkv_bias", true);
  c.pad_first = true;
  const auto rate = [&](const char* key, double usual) {
    return static_cast<float>(keys.number(key, usual, 0, 1));
  };
  c.drop_attn = rate("attention_probs_dropout_prob", 0);
  c.drop_proj = c.drop_mlp = rate("hidden_dropout_prob", 0);
  c.drop_path = rate("drop_path_rate", 0.1);
}

Json swin_hf_keys(const SwinConfig& c, const std::string& kind, const std::string& dtype) {
  return {{"architectures", {kind + (c.classes > 0 ? "ForImageClassification" : "Model")}},
          {"attention_probs_dropout_prob", tidy(c.drop_attn)},
          {"depths", c.depths},
          {"drop_path_rate", tidy(c.drop_path)},
          {"dtype", dtype},
          {"embed_dim", c.width},
          {"encoder_stride", 32},
          {"hidden_act", hf_act_name(c.act)},
          {"hidden_dropout_prob", tidy(c.drop_mlp)},
          {"hidden_size", c.features()},
          {"image_size", side(c.image_h, c.image_w)},
          {"initializer_range", 0.02},
          {"layer_norm_eps", tidy(c.eps)},
          {"mlp_ratio", c.mlp_ratio},
          {"model_type", kind == "Swin" ? "swin" : "swinv2"},
          {"num_channels", c.channels},
          {"num_heads", c.heads},
          {"num_layers", c.stages()},
          {"patch_size", side(c.patch_h, c.patch_w)},
          {"qkv_bias", c.qkv_bias},
          {"use_absolute_embeddings", false},
          {"window_size", c.window_h}};
}

void take_swin_dims(SwinConfig& c, const StoredDims& dims) {
  const std::vector<int64_t> head = dims("head.fc.weight", 2);
  c.classes = !head.empty() && head[1] == c.features() ? head[0] : 0;
  c.head_bias = c.classes == 0 || !dims("head.fc.bias", 1).empty();
  const std::vector<int64_t> patch = dims("patch_embed.proj.weight", 4);
  if (!patch.empty() && patch[0] == c.width && patch[2] == c.patch_h && patch[3] == c.patch_w)
    c.channels = std::max<int64_t>(patch[1], 1);
}

std::vector<std::string> swin_notes(const Dialect& dialect, const SwinConfig& c, bool fills_up,
                                    bool says_so) {
  std::vector<std::string> all = computed_otherwise(dialect, c.eps, c.act, says_so);
  const bool pads_first = dialect.name == "torchvision" || dialect.name == "hf";
  if (fills_up && c.pad_first != pads_first)
    all.push_back(fmt::format("{} fills up windows {} they are shifted, the model does not",
                              dialect.title, pads_first ? "before" : "after"));
  return all;
}

void EitherSwin::read_preprocessor(const ConfigText& stated, ModelSpec& spec) {
  read_hf_preprocessor(JsonKeys(stated.text, stated.path), spec.config, spec.preprocess);
}

}  // namespace vitrum
