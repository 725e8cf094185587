// Writes what transformers' from_pretrained reads.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "vitrum/core/error.h"
#include "vitrum/weights/family.h"
#include "vitrum/weights/hf_config.h"

namespace vitrum {
namespace {

using Json = nlohmann::ordered_json;

std::string dumped(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
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
  return static_cast<int>(std::ranges::find(kPillowFilters, interpolation) -
                          kPillowFilters.begin());
}

// Its processor keeps the shapes of images, always.
std::string naflex_preprocessor_text(const ModelSpec& spec, const ViTConfig& c) {
  const Preprocessing& p = spec.preprocess;
  const Json json = {{"image_processor_type", "Siglip2ImageProcessor"},
                     {"do_resize", true},
                     {"max_num_patches", p.max_patches > 0 ? p.max_patches : c.patches()},
                     {"patch_size", c.patch_h},
                     {"resample", resample_code(p.interpolation)},
                     {"do_rescale", true},
                     {"rescale_factor", 1.0 / 255},
                     {"do_normalize", !p.mean.empty()},
                     {"image_mean", numbers(p.mean, c.channels, 0)},
                     {"image_std", numbers(p.std, c.channels, 1)}};
  return dumped(json);
}

}  // namespace

std::string hf_config_text(const ModelSpec& spec, const std::string& dtype) {
  Json json = Json::parse(weights_of(spec.config).write_hf(spec.config, dtype));
  if (spec.config.classes() > 0 && !json.contains("projection_dim")) {
    json["id2label"] = id2label(spec);
    Json& indices = json["label2id"] = Json::object();
    // Two classes may share a description; the later one would hide the earlier.
    for (const auto& [index, label] : json["id2label"].items())
      if (const auto name = label.get<std::string>(); !indices.contains(name))
        indices[name] = std::stoll(index);
  }
  return dumped(json);
}

std::string with_quantization(const std::string& config, const std::vector<std::string>& floats,
                              DType eight_bits) {
  Json json = Json::parse(config);
  const bool floating = eight_bits == DType::kE4M3;
  const char* type = floating ? "float" : "int";
  const Json weights = {{"num_bits", 8},
                        {"type", type},
                        {"symmetric", true},
                        {"strategy", "channel"},
                        {"dynamic", false}},
             activations = {{"num_bits", 8},
                            {"type", type},
                            {"symmetric", floating},
                            {"strategy", "token"},
                            {"dynamic", true}};
  json["quantization_config"] = {
      {"quant_method", "compressed-tensors"},
      {"format", floating ? "float-quantized" : "int-quantized"},
      {"quantization_status", "compressed"},
      {"ignore", floats},
      {"config_groups",
       {{"group_0",
         {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", activations}}}}}};
  return dumped(json);
}

// transformers' ViT processor squashes; what squashes and crops is DeiT's, and what keeps the
// aspect ratio and crops, in every version, CLIP's.
std::string hf_preprocessor_text(const ModelSpec& spec) {
  const Preprocessing& p = spec.preprocess;
  if (const auto* vit = spec.config.as<ViTConfig>(); vit && vit->position_grid > 0)
    return naflex_preprocessor_text(spec, *vit);
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
