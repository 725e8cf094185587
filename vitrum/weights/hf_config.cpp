// config.json and preprocessor_config.json as transformers writes them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "vitrum/core/error.h"
#include "vitrum/weights/model_config.h"

namespace vitrum {
namespace {

// Keys of relatives of the ViT that would change what the model computes.
const std::vector<JsonKeys::Fixed> kOnly = {{"use_mean_pooling", "false"},
                                            {"use_relative_position_bias", "false"},
                                            {"use_shared_relative_position_bias", "false"},
                                            {"use_absolute_position_embeddings", "true"},
                                            {"use_swiglu_ffn", "false"},
                                            {"layer_scale_init_value", "0"},
                                            {"num_register_tokens", "0"},
                                            {"position_embedding_type", "\"absolute\""}};

struct ActName {
  std::string_view name;
  Act act;
};
constexpr std::array<ActName, 5> kActs = {{{"gelu", Act::kGelu},
                                           {"gelu_new", Act::kGeluTanh},
                                           {"gelu_pytorch_tanh", Act::kGeluTanh},
                                           {"gelu_fast", Act::kGeluTanh},
                                           {"relu", Act::kRelu}}};

Act read_act(const JsonKeys& keys) {
  std::vector<std::string_view> names;
  for (const ActName& a : kActs) names.push_back(a.name);
  return kActs[keys.choice("hidden_act", 0, names)].act;
}

bool is_class(const JsonKeys& keys, std::string_view ending) {
  const std::vector<std::string> classes = keys.texts("architectures");
  return std::any_of(classes.begin(), classes.end(),
                     [&](const std::string& c) { return c.ends_with(ending); });
}

constexpr std::string_view kOneHead = "ForImageClassification",
                           kTwoHeads = "ForImageClassificationWithTeacher";

// A model without a head says so by its class; the labels may be there all the same.
bool has_head(const JsonKeys& keys) {
  return keys.texts("architectures").empty() || is_class(keys, kOneHead) ||
         is_class(keys, kTwoHeads);
}

bool placeholders(const std::vector<std::string>& labels) {
  for (size_t i = 0; i < labels.size(); ++i)
    if (labels[i] != fmt::format("LABEL_{}", i)) return false;
  return true;
}

void read_classes(const JsonKeys& keys, ModelSpec& spec) {
  spec.config.set_classes(0);
  if (!has_head(keys)) return;
  std::vector<std::string> labels = keys.numbered_texts("id2label");
  constexpr int64_t kDefault = 2;  // transformers'
  spec.config.set_classes(labels.empty() ? keys.integer("num_labels", kDefault, {1, kClasses.high})
                                         : static_cast<int64_t>(labels.size()));
  if (!placeholders(labels)) spec.labels = std::move(labels);
}

void read_model(const JsonKeys& keys, ViTConfig& c) {
  keys.require(kOnly);
  c.distilled = keys.text("model_type", {}) == "deit";
  c.dist_head = !c.distilled || is_class(keys, kTwoHeads);
  c.width = keys.integer("hidden_size", 768, kWidths);
  c.depth = keys.integer("num_hidden_layers", 12, kDepths);
  c.heads = keys.integer("num_attention_heads", 12, kWidths);
  c.mlp_width = keys.integer("intermediate_size", 3072, {1, 1 << 20});
  c.act = read_act(keys);
  c.eps = static_cast<float>(keys.number("layer_norm_eps", 1e-12, 0, 1));
  std::tie(c.image_h, c.image_w) = keys.pair("image_size", {224, 224}, kSides);
  std::tie(c.patch_h, c.patch_w) = keys.pair("patch_size", {16, 16}, kSides);
  c.channels = keys.integer("num_channels", 3, kSides);
  c.qkv_bias = keys.boolean("qkv_bias", true);
  if (keys.has("head_dim") && keys.integer("head_dim", 0, kWidths) * c.heads != c.width)
    fail_input("{}: head_dim is not hidden_size / num_attention_heads", keys.where());
  const auto rate = [&](const char* key) { return static_cast<float>(keys.number(key, 0, 0, 1)); };
  c.drop_attn = rate("attention_probs_dropout_prob");
  c.drop_pos = c.drop_proj = c.drop_mlp = rate("hidden_dropout_prob");
}

void read_model(const JsonKeys& keys, SwinConfig& c) {
  const std::array<JsonKeys::Fixed, 1> only = {{{"use_absolute_embeddings", "false"}}};
  keys.require(only);
  c.width = keys.integer("embed_dim", 96, kWidths);
  if (keys.has("depths")) c.depths = keys.integers("depths", kDepths);
  if (keys.has("num_heads")) c.heads = keys.integers("num_heads", kWidths);
  c.window_h = c.window_w = keys.integer("window_size", 7, kSides);
  c.mlp_ratio = keys.number("mlp_ratio", 4, 0, 64);
  c.act = read_act(keys);
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

void read_model(const JsonKeys& keys, ResNetConfig& c) {
  constexpr std::array<std::string_view, 2> kTypes = {"basic", "bottleneck"};
  const std::array<JsonKeys::Fixed, 3> only = {{{"hidden_act", "\"relu\""},
                                                {"downsample_in_first_stage", "false"},
                                                {"downsample_in_bottleneck", "false"}}};
  keys.require(only);
  c.bottleneck = keys.choice("layer_type", 1, kTypes) == 1;
  c.channels = keys.integer("num_channels", 3, kSides);
  c.width = keys.integer("embedding_size", 64, {1, 1 << 12});
  const std::vector<int64_t> depths = keys.integers("depths", {1, kDepths.high}),
                             sizes = keys.integers("hidden_sizes", kWidths);
  c.depths = {3, 4, 6, 3};
  if (!depths.empty() && depths.size() != 4)
    fail_input("{}: depths must be 4 numbers", keys.where());
  std::copy(depths.begin(), depths.end(), c.depths.begin());
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes.size() != 4 || sizes[i] != c.expansion() * c.width << i)
      fail_input("{}: hidden_sizes must be {} and doubles of it", keys.where(),
                 c.expansion() * c.width);
}

struct Size {
  int64_t height = 0, width = 0;
  bool shortest = false;  // height is the shorter edge, the aspect ratio is kept
};

// 224, {"height": 224, "width": 224} or {"shortest_edge": 224}.
Size read_size(const JsonKeys& keys, const std::string& key, Size fallback,
               bool number_is_shortest) {
  if (!keys.has(key)) return fallback;
  if (keys.is_number(key)) {
    const int64_t n = keys.integer(key, 0, kSides);
    return {n, n, number_is_shortest};
  }
  const JsonKeys size = keys.object(key);
  if (size.has("shortest_edge") && !size.has("longest_edge")) {
    const int64_t n = size.integer("shortest_edge", 0, kSides);
    return {n, n, true};
  }
  if (!size.has("height") || !size.has("width"))
    fail_input("{}: expected height and width, or shortest_edge alone", size.where());
  return {size.integer("height", 0, kSides), size.integer("width", 0, kSides)};
}

// Pillow's numbers for its filters.
constexpr std::array<std::string_view, 6> kFilters = {"nearest", "lanczos", "bilinear",
                                                      "bicubic", "box",     "hamming"};

// (x * factor - mean) / std of bytes x, as (x / 255 - mean') / std'.
void read_normalization(const JsonKeys& keys, int64_t channels, Preprocessing& p) {
  double factor =
      keys.boolean("do_rescale", true) ? keys.number("rescale_factor", 1.0 / 255, 1e-9, 1e3) : 1.0;
  factor *= 255;
  if (std::abs(factor - 1) < 1e-9) factor = 1;
  std::vector<float> mean = {0}, std = {1};
  if (keys.boolean("do_normalize", true)) {
    mean = keys.has("image_mean") ? keys.floats("image_mean") : std::vector<float>{0.5f};
    std = keys.has("image_std") ? keys.floats("image_std") : std::vector<float>{0.5f};
  }
  for (auto* list : {&mean, &std})
    for (float& x : *list) x = static_cast<float>(static_cast<double>(x) / factor);
  set_normalization(p, std::move(mean), std::move(std), channels, keys.where());
}

// These resize the shorter edge where `size` is one number; the ViT's own makes it a square.
bool keeps_aspect(const JsonKeys& keys) {
  const std::string type =
      keys.text("image_processor_type", keys.text("feature_extractor_type", {}));
  return type.starts_with("CLIP") || type.starts_with("Bit") || type.starts_with("Siglip");
}

void read_preprocessor(const JsonKeys& keys, const ModelConfig& config, Preprocessing& p) {
  const std::array<JsonKeys::Fixed, 2> only = {{{"do_resize", "true"}, {"do_pad", "false"}}};
  keys.require(only);
  if (keys.has("crop_pct")) fail_input("{}: crop_pct is not supported with a ViT", keys.where());
  const bool crops = keys.boolean("do_center_crop", false);
  const Size size =
      read_size(keys, "size", {config.image_h(), config.image_w()}, keeps_aspect(keys));
  const Size crop = crops ? read_size(keys, "crop_size", size, false) : size;
  if (!crops && size.shortest)
    fail_input("{}: size.shortest_edge without do_center_crop gives images of any size",
               keys.where());
  if (crop.height != config.image_h() || crop.width != config.image_w())
    fail_input("{}: images become {} x {}, config.json's image_size is {} x {}", keys.where(),
               crop.height, crop.width, config.image_h(), config.image_w());
  if (crops && (size.height != size.width || size.height < std::max(crop.height, crop.width)))
    fail_input("{}: a crop of {} x {} from {} x {} is not supported", keys.where(), crop.height,
               crop.width, size.height, size.width);
  p.height = config.image_h(), p.width = config.image_w();
  p.interpolation = kFilters[static_cast<size_t>(keys.integer("resample", 2, {0, 5}))];
  p.crop_mode = size.shortest ? "center" : "squash";
  p.crop_floor = crops;
  if (crops) p.resize = size.height;
  if (crops) p.crop_pct = static_cast<double>(crop.height) / static_cast<double>(size.height);
  read_normalization(keys, config.channels(), p);
}

template <class Config>
ModelSpec parse_as(const JsonKeys& keys, const ConfigText& preprocessor) {
  ModelSpec spec;
  Config c;
  read_model(keys, c);
  spec.config = c;
  read_classes(keys, spec);
  check_config(spec.config, keys.where());
  const std::string preset = preset_name(c);
  spec.architecture = preset.empty() ? family_of(spec.config) : preset;
  spec.preprocess.assumed = preprocessor.text == "{}";
  read_preprocessor(JsonKeys(preprocessor.text, preprocessor.path), spec.config, spec.preprocess);
  return spec;
}

// What the published DeiTs have: 256 pixels for a crop of 224, 438 for 384.
std::string deit_preprocessor(const JsonKeys& keys) {
  const auto [height, width] = keys.pair("image_size", {224, 224}, kSides);
  return fmt::format(
      R"({{"do_center_crop": true, "size": {}, "crop_size": {{"height": {}, "width": {}}},
          "resample": 3, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}})",
      std::max(height, width) * 256 / 224, height, width);
}

ModelSpec parse_deit(const JsonKeys& keys, const ConfigText& preprocessor) {
  if (preprocessor.text != "{}") return parse_as<ViTConfig>(keys, preprocessor);
  ModelSpec spec = parse_as<ViTConfig>(keys, {deit_preprocessor(keys), preprocessor.path});
  spec.preprocess.assumed = true;
  return spec;
}

// ConvNeXt's processor, which transformers has for ResNets: below 384 pixels a crop from an image
// larger by crop_pct, else a squash. Others say what they crop to, and with that the image's size.
void read_resnet_preprocessor(const JsonKeys& keys, ModelSpec& spec) {
  constexpr int64_t kNoCrop = 384;
  const Size size = read_size(keys, "size", {224, 224, true}, true);
  const bool crops = keys.boolean("do_center_crop", false);
  const Size image = crops ? read_size(keys, "crop_size", size, false) : size;
  set_image_size(spec, image.height, image.width);
  if (crops) return read_preprocessor(keys, spec.config, spec.preprocess);
  Preprocessing& p = spec.preprocess;
  p.interpolation = kFilters[static_cast<size_t>(keys.integer("resample", 2, {0, 5}))];
  p.crop_mode = image.height < kNoCrop ? "center" : "squash";
  if (image.height < kNoCrop) {
    p.crop_pct = keys.number("crop_pct", 224.0 / 256, 0.01, 1);
    p.resize = static_cast<int64_t>(static_cast<double>(image.height) / p.crop_pct);
    p.crop_floor = true;
  }
  read_normalization(keys, spec.config.channels(), p);
}

ModelSpec parse_resnet(const JsonKeys& keys, const ConfigText& preprocessor) {
  ModelSpec spec;
  ResNetConfig resnet;
  read_model(keys, resnet);
  spec.config = resnet;
  read_classes(keys, spec);
  read_resnet_preprocessor(JsonKeys(preprocessor.text, preprocessor.path), spec);
  check_config(spec.config, keys.where());
  const std::string preset = preset_name(resnet);
  spec.architecture = preset.empty() ? "resnet" : preset;
  spec.preprocess.assumed = preprocessor.text == "{}";
  return spec;
}

}  // namespace

bool is_hf_config(const std::string& text, const std::string& path) {
  const JsonKeys keys(text, path);
  return keys.has("model_type") && !keys.has("architecture");
}

ModelSpec parse_hf_config(const ConfigText& config, const ConfigText& preprocessor) {
  const JsonKeys keys(config.text, config.path);
  const std::string type = keys.text("model_type", {});
  if (type == "vit") return parse_as<ViTConfig>(keys, preprocessor);
  if (type == "deit") return parse_deit(keys, preprocessor);
  if (type == "swin") return parse_as<SwinConfig>(keys, preprocessor);
  if (type == "resnet") return parse_resnet(keys, preprocessor);
  fail_input("{}: model_type '{}' is not supported; expected 'vit', 'deit', 'swin' or 'resnet'",
             config.path, type);
}

}  // namespace vitrum
