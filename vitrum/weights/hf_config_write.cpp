// Writes what transformers' from_pretrained reads.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "vitrum/core/error.h"
#include "vitrum/weights/model_config.h"

namespace vitrum {
namespace {

using Json = nlohmann::ordered_json;

Json side(int64_t h, int64_t w) { return h == w ? Json(h) : Json{h, w}; }

std::string dumped(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

const char* act_name(Act act) {
  return act == Act::kGelu ? "gelu" : act == Act::kRelu ? "relu" : "gelu_pytorch_tanh";
}

// Labels where there are some, else the placeholders that transformers makes itself.
Json id2label(const ModelSpec& spec) {
  Json labels = Json::object();
  for (int64_t i = 0; i < spec.config.classes(); ++i) {
    const auto at = static_cast<size_t>(i);
    labels[std::to_string(i)] =
        at < spec.labels.size() ? spec.labels[at] : fmt::format("LABEL_{}", i);
  }
  return labels;
}

Json numbers(const std::vector<float>& list, int64_t channels, double fallback) {
  Json all = Json::array();
  for (size_t i = 0; i < static_cast<size_t>(channels); ++i)
    all.push_back(list.empty() ? fallback : tidy(list[i % list.size()]));
  return all;
}

// Pillow's numbers.
int resample_code(const std::string& interpolation) {
  constexpr std::array<std::string_view, 6> kFilters = {"nearest", "lanczos", "bilinear",
                                                        "bicubic", "box",     "hamming"};
  return static_cast<int>(std::find(kFilters.begin(), kFilters.end(), interpolation) -
                          kFilters.begin());
}

std::string hf_class(const ViTConfig& c) {
  const char* family = c.distilled ? "DeiT" : "ViT";
  if (c.classes == 0) return fmt::format("{}Model", family);
  return fmt::format("{}ForImageClassification{}", family, c.two_heads() ? "WithTeacher" : "");
}

Json hf_config(const ViTConfig& c, const std::string& dtype) {
  return {{"architectures", {hf_class(c)}},
          {"attention_probs_dropout_prob", tidy(c.drop_attn)},
          {"dtype", dtype},
          {"hidden_act", act_name(c.act)},
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
}

Json hf_config(const SwinConfig& c, const std::string& dtype) {
  return {{"architectures", {c.classes > 0 ? "SwinForImageClassification" : "SwinModel"}},
          {"attention_probs_dropout_prob", tidy(c.drop_attn)},
          {"depths", c.depths},
          {"drop_path_rate", tidy(c.drop_path)},
          {"dtype", dtype},
          {"embed_dim", c.width},
          {"encoder_stride", 32},
          {"hidden_act", act_name(c.act)},
          {"hidden_dropout_prob", tidy(c.drop_mlp)},
          {"hidden_size", c.features()},
          {"image_size", side(c.image_h, c.image_w)},
          {"initializer_range", 0.02},
          {"layer_norm_eps", tidy(c.eps)},
          {"mlp_ratio", c.mlp_ratio},
          {"model_type", "swin"},
          {"num_channels", c.channels},
          {"num_heads", c.heads},
          {"num_layers", c.stages()},
          {"patch_size", side(c.patch_h, c.patch_w)},
          {"qkv_bias", c.qkv_bias},
          {"use_absolute_embeddings", false},
          {"window_size", c.window_h}};
}

Json hf_config(const ResNetConfig& c, const std::string& dtype) {
  Json sizes = Json::array();
  for (int64_t i = 0; i < 4; ++i) sizes.push_back(c.expansion() * c.width << i);
  return {{"architectures", {c.classes > 0 ? "ResNetForImageClassification" : "ResNetModel"}},
          {"depths", c.depths},
          {"downsample_in_bottleneck", false},
          {"downsample_in_first_stage", false},
          {"dtype", dtype},
          {"embedding_size", c.width},
          {"hidden_act", "relu"},
          {"hidden_sizes", sizes},
          {"layer_type", c.bottleneck ? "bottleneck" : "basic"},
          {"model_type", "resnet"},
          {"num_channels", c.channels}};
}

}  // namespace

std::string hf_config_text(const ModelSpec& spec, const std::string& dtype) {
  Json json = spec.config.visit([&](const auto& c) { return hf_config(c, dtype); });
  if (spec.config.classes() > 0) {
    json["id2label"] = id2label(spec);
    Json& indices = json["label2id"] = Json::object();
    // Two classes may share a description; the later one would hide the earlier.
    for (const auto& [index, label] : json["id2label"].items())
      if (const auto name = label.get<std::string>(); !indices.contains(name))
        indices[name] = std::stoll(index);
  }
  return dumped(json);
}

// transformers' ViT processor squashes; what squashes and crops is DeiT's, and what keeps the
// aspect ratio and crops, in every version, CLIP's.
std::string hf_preprocessor_text(const ModelSpec& spec) {
  const Preprocessing& p = spec.preprocess;
  if (p.crop_mode == "border")
    fail_input(
        "{} is shown images with a border (crop_mode \"border\"), which transformers cannot make",
        spec.architecture);
  const auto edge = [&](int64_t size) {
    return p.resize > 0 ? p.resize : static_cast<int64_t>(static_cast<double>(size) / p.crop_pct);
  };
  const int64_t height = edge(p.height), width = edge(p.width);
  const bool center = p.crop_mode == "center";
  const bool crops = center || height != p.height || width != p.width;
  Json json = {{"image_processor_type", center  ? "CLIPImageProcessor"
                                        : crops ? "DeiTImageProcessor"
                                                : "ViTImageProcessor"},
               {"do_resize", true},
               {"size", center ? Json{{"shortest_edge", std::min(height, width)}}
                               : Json{{"height", height}, {"width", width}}},
               {"resample", resample_code(p.interpolation)},
               {"do_center_crop", crops}};
  if (crops) json["crop_size"] = {{"height", p.height}, {"width", p.width}};
  json["do_rescale"] = true;
  json["rescale_factor"] = 1.0 / 255;
  json["do_normalize"] = !p.mean.empty();
  json["image_mean"] = numbers(p.mean, spec.config.channels(), 0);
  json["image_std"] = numbers(p.std, spec.config.channels(), 1);
  return dumped(json);
}

}  // namespace vitrum
