// config.json and preprocessor_config.json as transformers writes them.
#include "vitrum/weights/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "vitrum/core/error.h"
#include "vitrum/core/join.h"
#include "vitrum/weights/family.h"

namespace vitrum {
namespace {

struct ActName {
  std::string_view name;
  Act act;
};
constexpr std::array<ActName, 8> kActs = {{{"gelu", Act::kGelu},
                                           {"gelu_new", Act::kGeluTanh},
                                           {"gelu_pytorch_tanh", Act::kGeluTanh},
                                           {"gelu_fast", Act::kGeluTanh},
                                           {"relu", Act::kRelu},
                                           {"quick_gelu", Act::kQuickGelu},
                                           {"silu", Act::kSilu},
                                           {"swish", Act::kSilu}}};

// A model without a head says so by its class; the labels may be there all the same.
bool has_head(const JsonKeys& keys) {
  return keys.texts("architectures").empty() || is_hf_class(keys, kOneHead) ||
         is_hf_class(keys, kTwoHeads);
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

// By model_type.
const WeightFamily& family_of_type(const JsonKeys& keys) {
  const std::string type = keys.text("model_type", {});
  std::vector<std::string> types;
  for (const WeightFamily* family : weight_families())
    for (const std::string_view known : family->model_types) {
      if (type == known) return *family;
      types.push_back(fmt::format("'{}'", known));
    }
  const std::string last = types.back();
  types.pop_back();
  fail_input("{}: model_type '{}' is not supported; expected {} or {}", keys.where(), type,
             join(types, ", "), last);
}

// These resize the shorter edge where `size` is one number; the ViT's own makes it a square.
bool keeps_aspect(const JsonKeys& keys) {
  const std::string type =
      keys.text("image_processor_type", keys.text("feature_extractor_type", {}));
  return type.starts_with("CLIP") || type.starts_with("Bit") || type.starts_with("Siglip");
}

}  // namespace

Act read_hf_act(const JsonKeys& keys) {
  std::vector<std::string_view> names;
  for (const ActName& a : kActs) names.push_back(a.name);
  return kActs[keys.choice("hidden_act", 0, names)].act;
}

const char* hf_act_name(Act act) {
  switch (act) {
    case Act::kRelu: return "relu";
    case Act::kGeluTanh: return "gelu_pytorch_tanh";
    case Act::kQuickGelu: return "quick_gelu";
    case Act::kSilu: return "silu";
    case Act::kGelu:
    case Act::kSigmoid:
    case Act::kNone: break;
  }
  return "gelu";
}

bool is_hf_class(const JsonKeys& keys, std::string_view ending) {
  const std::vector<std::string> classes = keys.texts("architectures");
  return std::any_of(classes.begin(), classes.end(),
                     [&](const std::string& c) { return c.ends_with(ending); });
}

HfSize read_hf_size(const JsonKeys& keys, const std::string& key, HfSize fallback,
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

void read_hf_normalization(const JsonKeys& keys, int64_t channels, Preprocessing& p) {
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

namespace {

// Edges before the crop, and what is left of them.
struct HfCut {
  bool crops;
  HfSize size, crop;
};
HfCut read_cut(const JsonKeys& keys, const ModelConfig& config) {
  const bool crops = keys.boolean("do_center_crop", false);
  const HfSize size =
      read_hf_size(keys, "size", {config.image_h(), config.image_w()}, keeps_aspect(keys));
  return {crops, size, crops ? read_hf_size(keys, "crop_size", size, false) : size};
}

}  // namespace

void read_hf_preprocessor_any_size(const JsonKeys& keys, ModelSpec& spec) {
  const auto [crops, size, crop] = read_cut(keys, spec.config);
  const StoredSize saved{spec.config.image_h(), spec.config.image_w()};
  if ((crops || !size.shortest) && StoredSize{crop.height, crop.width} != saved) {
    spec.stored = saved;
    spec.config.set_image_size(crop.height, crop.width);
    check_config(spec.config, keys.where());
  }
  read_hf_preprocessor(keys, spec.config, spec.preprocess);
}

void read_hf_preprocessor(const JsonKeys& keys, const ModelConfig& config, Preprocessing& p) {
  const std::array<JsonKeys::Fixed, 2> only = {{{"do_resize", "true"}, {"do_pad", "false"}}};
  keys.require(only);
  if (keys.has("crop_pct")) fail_input("{}: crop_pct is not supported with a ViT", keys.where());
  const auto [crops, size, crop] = read_cut(keys, config);
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
  p.interpolation = kPillowFilters[static_cast<size_t>(keys.integer("resample", 2, {0, 5}))];
  p.crop_mode = size.shortest ? "center" : "squash";
  p.crop_floor = crops;
  if (crops) p.resize = size.height;
  if (crops) p.crop_pct = static_cast<double>(crop.height) / static_cast<double>(size.height);
  read_hf_normalization(keys, config.channels(), p);
}

bool is_hf_config(const JsonKeys& keys) {
  return keys.has("model_type") && !keys.has("architecture");
}

ModelSpec parse_hf_config(const JsonKeys& keys, const ConfigText& preprocessor) {
  const WeightFamily& family = family_of_type(keys);
  ModelSpec spec;
  spec.config = family.defaults();
  read_classes(keys, spec);
  family.read_hf(keys, spec.config);  // which knows what to call classes where there is no head
  check_config(spec.config, keys.where());
  const std::string preset = preset_name(spec.config);
  spec.architecture = preset.empty() ? family.name : preset;
  spec.preprocess.assumed = preprocessor.text == "{}";
  family.read_preprocessor(preprocessor, spec);
  return spec;
}

}  // namespace vitrum
