#include "vitrum/weights/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <tuple>

#include "vitrum/core/error.h"
#include "vitrum/core/nearest.h"
#include "vitrum/models/registry.h"

namespace vitrum {
namespace {

constexpr double kMaxParameters = 1e11, kMaxTokens = 1 << 20, kMaxPairs = 1 << 28;
constexpr double kMaxPixels = 1e10;  // times the channels of a ResNet's first stage

// ---- our own object: every field of the config ----

void read_field(const JsonKeys& keys, const char* key, int64_t& field, Range range) {
  field = keys.integer(key, field, range);
}
void read_field(const JsonKeys& keys, const char* key, bool& field, int) {
  field = keys.boolean(key, field);
}
void read_field(const JsonKeys& keys, const char* key, float& field, int) {
  field = static_cast<float>(keys.number(key, static_cast<double>(field), 0, 1));
}
void read_field(const JsonKeys& keys, const char* key, double& field, int) {
  field = keys.number(key, field, 0, 64);
}
void read_field(const JsonKeys& keys, const char* key, std::vector<int64_t>& field, Range range) {
  if (keys.has(key)) field = keys.integers(key, range);
}
template <class Enum, size_t N>
void read_field(const JsonKeys& keys, const char* key, Enum& field,
                const std::array<std::string_view, N>& names) {
  field = static_cast<Enum>(keys.choice(key, static_cast<size_t>(field), names));
}

void read_own(const JsonKeys& keys, ModelSpec& spec) {
  std::vector<std::string> known = {"architecture", "family", "fixed_classes", "resize",
                                    "crop_floor"};
  spec.config = config_of_family(keys.text("family", "vit"), keys.where());
  spec.config.visit([&](auto& config) {
    visit_fields(config, [&](const char* key, auto& field, const auto& extra) {
      known.emplace_back(key);
      read_field(keys, key, field, extra);
    });
  });
  keys.only(known);
  spec.architecture = keys.text("architecture", spec.architecture);
  spec.fixed_classes = keys.boolean("fixed_classes", false);
  spec.preprocess.resize = keys.integer("resize", 0, {0, kSides.high});
  spec.preprocess.crop_floor = keys.boolean("crop_floor", false);
}

// ---- timm's keys ----

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

void read_model_args(const JsonKeys& args, ViTConfig& c) {
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
  const auto rate = [&](const char* key) { return static_cast<float>(args.number(key, 0, 0, 1)); };
  c.drop_pos = rate("pos_drop_rate"), c.drop_attn = rate("attn_drop_rate"),
  c.drop_path = rate("drop_path_rate"), c.patch_drop = rate("patch_drop_rate");
  c.drop_proj = c.drop_act = c.drop_mlp = rate("proj_drop_rate");
}

void read_pool(const JsonKeys& top, const JsonKeys& args, ViTConfig& c) {
  constexpr std::array<std::string_view, 2> kPools = {"token", "avg"};
  c.mean_pool =
      args.choice("global_pool", top.choice("global_pool", c.mean_pool, kPools), kPools) == 1;
}

void read_model_args(const JsonKeys& args, SwinConfig& c) {
  const std::vector<JsonKeys::Fixed> only = {{"always_partition", "false"}};
  args.only({"img_size", "patch_size", "in_chans", "num_classes", "global_pool", "embed_dim",
             "depths", "num_heads", "window_size", "mlp_ratio", "qkv_bias", "proj_drop_rate",
             "attn_drop_rate", "drop_path_rate", "drop_rate", "weight_init", "strict_img_size"},
            only);
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
}

void read_pool(const JsonKeys& top, const JsonKeys& args, SwinConfig&) {
  constexpr std::array<std::string_view, 1> kPools = {"avg"};
  args.choice("global_pool", top.choice("global_pool", 0, kPools), kPools);
}

// Arguments of timm's ResNet that do not change what a trained model computes, and those with a
// single value that we have.
const std::vector<JsonKeys::Fixed> kOnlyResNetArgs = {
    {"cardinality", "1"},    {"base_width", "64"},  {"stem_type", "\"\""},
    {"output_stride", "32"}, {"avg_down", "false"}, {"replace_stem_pool", "false"}};

void read_model_args(const JsonKeys& args, ResNetConfig& c) {
  args.only({"in_chans", "num_classes", "global_pool", "layers", "stem_width", "drop_rate",
             "drop_path_rate", "zero_init_last", "img_size"},
            kOnlyResNetArgs);
  std::tie(c.image_h, c.image_w) = args.pair("img_size", {c.image_h, c.image_w}, kSides);
  c.channels = args.integer("in_chans", c.channels, kSides);
  c.classes = args.integer("num_classes", c.classes, kClasses);
  c.width = args.integer("stem_width", c.width, {c.width, c.width});
  c.drop_path = static_cast<float>(args.number("drop_path_rate", 0, 0, 1));
  const std::vector<int64_t> layers = args.integers("layers", {1, kDepths.high});
  if (!layers.empty() && layers.size() != c.depths.size())
    fail_input("{}: layers must be 4 numbers", args.where());
  std::copy(layers.begin(), layers.end(), c.depths.begin());
}

void read_pool(const JsonKeys& top, const JsonKeys& args, ResNetConfig&) {
  constexpr std::array<std::string_view, 1> kPools = {"avg"};
  args.choice("global_pool", top.choice("global_pool", 0, kPools), kPools);
}

// timm's rule: an input size in pretrained_cfg sets the channels, and the image size where it is
// fixed.
void read_timm(const JsonKeys& top, const JsonKeys& args, const JsonKeys& pretrained,
               ModelSpec& spec) {
  const std::string name =
      spec.architecture.substr(0, spec.architecture.find('.'));  // less the tag of the weights
  const auto all = presets();
  if (std::none_of(all.begin(), all.end(), [&](const Preset& p) { return p.name == name; })) {
    std::vector<std::string> names;
    for (const Preset& p : all) names.push_back(p.name);
    fail_input("{}: unknown architecture '{}'{}", top.where(), spec.architecture,
               did_you_mean(name, names));
  }
  ModelConfig& c = spec.config = find_preset(name).config;
  spec.fixed_classes = find_preset(name).fixed_classes;
  const std::vector<int64_t> size = pretrained.integers("input_size", kSides);
  if (!size.empty() && size.size() != 3)
    fail_input("{}: input_size must be [channels, height, width]", pretrained.where());
  if (!size.empty()) c.set_channels(size[0]);
  // A ResNet takes images of any size; the one it is published with is as good a default as any.
  if (!size.empty() && (c.as<ResNetConfig>() || pretrained.boolean("fixed_input_size", true)))
    c.set_image_size(size[1], size[2]);
  c.set_classes(top.integer("num_classes", pretrained.integer("num_classes", c.classes(), kClasses),
                            kClasses));
  c.visit([&](auto& config) {
    read_model_args(args, config);
    read_pool(top, args, config);
  });
}

void read_preprocessing(const JsonKeys& keys, const ModelConfig& config, Preprocessing& p) {
  constexpr std::array<std::string_view, 6> kFilters = {"nearest", "box",     "bilinear",
                                                        "hamming", "bicubic", "lanczos"};
  constexpr std::array<std::string_view, 3> kCrops = {"center", "squash", "border"};
  p.height = config.image_h(), p.width = config.image_w();
  p.interpolation = kFilters[keys.choice("interpolation", 4, kFilters)];
  p.crop_pct = keys.number("crop_pct", 1, 0.01, 1);
  p.crop_mode = kCrops[keys.choice("crop_mode", 0, kCrops)];
  set_normalization(p, keys.floats("mean"), keys.floats("std"), config.channels(), keys.where());
}

// Names, or where timm gives descriptions for them (WordNet ids), those.
void read_labels(const JsonKeys& top, const JsonKeys& pretrained, ModelSpec& spec) {
  const JsonKeys& at = top.has("label_names") ? top : pretrained;
  spec.labels = at.texts("label_names");
  if (!at.has("label_descriptions")) return;
  const JsonKeys descriptions = at.object("label_descriptions");
  spec.class_ids = spec.labels;
  for (std::string& label : spec.labels) label = descriptions.text(label, label);
}

void check_family_size(const ViTConfig& c, const std::string& path) {
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  const double width = real(c.width), patch = real(c.channels) * real(c.patch_h) * real(c.patch_w);
  const double tokens = real(c.image_h) / real(c.patch_h) * (real(c.image_w) / real(c.patch_w)) + 2;
  const double block = width * (4 * width + 2 * real(c.mlp_width));
  const double total = real(c.depth) * block + width * (tokens + patch + real(c.classes));
  if (total > kMaxParameters || tokens > kMaxTokens)
    fail_input("{}: a model of {:.3g} parameters and {:.3g} tokens is too large to be meant", path,
               total, tokens);
}

void check_family_size(const SwinConfig& c, const std::string& path) {
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  double width = real(c.width);
  double total = width * real(c.channels) * real(c.patch_h) * real(c.patch_w);
  for (const int64_t depth : c.depths) {
    total += real(depth) * width * width * (4 + 2 * c.mlp_ratio) + 2 * width * width;
    width *= 2;
  }
  total += width * real(c.classes);
  const double tokens = real(c.image_h) / real(c.patch_h) * (real(c.image_w) / real(c.patch_w));
  // A shifted block's mask has a number for each pair of tokens in a window.
  const double pairs = tokens * real(c.window_h) * real(c.window_w);
  if (total > kMaxParameters || tokens > kMaxTokens || pairs > kMaxPairs)
    fail_input(
        "{}: a model of {:.3g} parameters, {:.3g} tokens and windows of {}x{} is too large "
        "to be meant",
        path, total, tokens, c.window_h, c.window_w);
}

void check_family_size(const ResNetConfig& c, const std::string& path) {
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  double total = real(c.features()) * real(c.classes) + 49 * real(c.channels) * real(c.width);
  for (size_t stage = 0; stage < c.depths.size(); ++stage)
    total += 18 * real(c.depths[stage]) * std::pow(real(c.width << stage), 2);
  const double pixels = real(c.image_h) * real(c.image_w) * real(c.width);
  if (total > kMaxParameters || pixels > kMaxPixels)
    fail_input("{}: a model of {:.3g} parameters for images of {}x{} is too large to be meant",
               path, total, c.image_h, c.image_w);
}

}  // namespace

void check_size(const ModelConfig& config, const std::string& path) {
  config.visit([&](const auto& c) { check_family_size(c, path); });
}

void check_config(const ModelConfig& config, const std::string& path) {
  check_size(config, path);
  try {
    validate(config);
  } catch (const Error& e) {  // a usage error on the command line, bad input here
    fail_input("{}: {}", path, e.what());
  }
}

void set_normalization(Preprocessing& p, std::vector<float> mean, std::vector<float> std,
                       int64_t count, const std::string& where) {
  p.mean = std::move(mean), p.std = std::move(std);
  const auto channels = static_cast<size_t>(count);
  for (const auto* list : {&p.mean, &p.std})
    if (list->size() > 1 && list->size() != channels)
      fail_input("{}: {} has {} numbers for {} channels", where, list == &p.mean ? "mean" : "std",
                 list->size(), channels);
  if (std::any_of(p.std.begin(), p.std.end(), [](float s) { return !(s > 0); }))
    fail_input("{}: std must be above 0", where);
  const auto all = [](const std::vector<float>& list, float x) {
    return std::all_of(list.begin(), list.end(), [&](float y) { return y == x; });
  };
  if (all(p.mean, 0) && all(p.std, 1)) {  // pixels as they are
    p.mean.clear(), p.std.clear();
  } else {
    p.mean.resize(channels, p.mean.size() == 1 ? p.mean[0] : 0.f);
    p.std.resize(channels, p.std.size() == 1 ? p.std[0] : 1.f);
  }
}

std::string preset_name(const ViTConfig& c) {
  for (const Preset& preset : presets()) {
    const ViTConfig* p = preset.config.as<ViTConfig>();
    if (p && p->init == InitStyle::kTimm && p->width == c.width && p->depth == c.depth &&
        p->heads == c.heads && p->mlp_width == c.mlp_width && p->patch_h == c.patch_h &&
        p->patch_w == c.patch_w && p->image_h == c.image_h && p->distilled == c.distilled)
      return preset.name;
  }
  return {};
}

std::string preset_name(const SwinConfig& c) {
  for (const Preset& preset : presets()) {
    const SwinConfig* p = preset.config.as<SwinConfig>();
    if (p && p->width == c.width && p->depths == c.depths && p->heads == c.heads &&
        p->patch_h == c.patch_h && p->patch_w == c.patch_w && p->window_h == c.window_h &&
        p->window_w == c.window_w && p->mlp_ratio == c.mlp_ratio && p->image_h == c.image_h)
      return preset.name;
  }
  return {};
}

std::string preset_name(const ResNetConfig& c) {
  for (const Preset& preset : presets()) {
    const ResNetConfig* p = preset.config.as<ResNetConfig>();
    if (p && p->depths == c.depths && p->bottleneck == c.bottleneck && p->width == c.width &&
        p->small_stem == c.small_stem)
      return preset.name;
  }
  return {};
}

ModelSpec parse_model_config(const std::string& text, const std::string& path) {
  const JsonKeys top(text, path);
  ModelSpec spec;
  spec.architecture = top.text("architecture", "");
  if (spec.architecture.empty())
    fail_input("{}: has no 'architecture'; expected a model in timm's or transformers' layout",
               path);
  // Older timm files have the keys of pretrained_cfg at the top.
  const JsonKeys pretrained = top.has("pretrained_cfg") ? top.object("pretrained_cfg") : top;
  if (top.has("vitrum"))
    read_own(top.object("vitrum"), spec);
  else
    read_timm(top, top.object("model_args"), pretrained, spec);
  check_config(spec.config, path);
  read_preprocessing(pretrained, spec.config, spec.preprocess);
  read_labels(top, pretrained, spec);
  if (!spec.labels.empty() && static_cast<int64_t>(spec.labels.size()) > spec.config.classes())
    fail_input("{}: {} label names for {} classes", path, spec.labels.size(),
               spec.config.classes());
  return spec;
}

}  // namespace vitrum
