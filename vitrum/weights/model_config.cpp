#include "vitrum/weights/model_config.h"

#include <algorithm>
#include <span>

#include "vitrum/core/error.h"
#include "vitrum/core/nearest.h"
#include "vitrum/core/shown.h"
#include "vitrum/models/registry.h"
#include "vitrum/weights/family.h"

namespace vitrum {
namespace {

// ---- our own object: every field of the config ----

class FieldReader final : public FieldVisitor {
 public:
  explicit FieldReader(const JsonKeys& keys) : keys_(keys) {}
  using FieldVisitor::operator();
  void operator()(const char* key, int64_t& field, IntRange range) override {
    field = keys_.integer(seen(key), field, range);
  }
  void operator()(const char* key, std::vector<int64_t>& field, IntRange range) override {
    if (keys_.has(seen(key))) field = keys_.integers(key, range);
  }
  void operator()(const char* key, bool& field) override {
    field = keys_.boolean(seen(key), field);
  }
  void operator()(const char* key, float& field) override {
    field = static_cast<float>(keys_.number(seen(key), static_cast<double>(field), 0, 1));
  }
  void operator()(const char* key, double& field) override {
    field = keys_.number(seen(key), field, 0, 64);
  }
  std::vector<std::string> keys_seen() && { return std::move(seen_); }

 private:
  size_t choice(const char* key, size_t now, std::span<const std::string_view> names) override {
    return keys_.choice(seen(key), now, names);
  }
  const char* seen(const char* key) { return seen_.emplace_back(key), key; }

  const JsonKeys& keys_;
  std::vector<std::string> seen_;
};

HeldOut read_held_out(const JsonKeys& keys) {
  constexpr IntRange kAny{0, int64_t{1} << 53};
  keys.only({"fraction", "seed", "subset", "skips_bad", "images", "labels"});
  return {.fraction = keys.number("fraction", 0, 0, 1),
          .seed = keys.integer("seed", 0, kAny),
          .subset = keys.integer("subset", 0, kAny),
          .skips_bad = keys.boolean("skips_bad", false),
          .images = keys.integer("images", 0, kAny),
          .labels = keys.text("labels", "")};
}

void read_own(const JsonKeys& keys, ModelSpec& spec) {
  spec.config = config_of_family(keys.text("family", "vit"), keys.where());
  FieldReader reader(keys);
  weights_of(spec.config).fields(reader, spec.config);
  std::vector<std::string> known = std::move(reader).keys_seen();
  known.insert(known.end(), {"architecture", "family", "fixed_classes", "resize", "crop_floor",
                             "max_patches", "held_out"});
  keys.only(known);
  spec.architecture = keys.text("architecture", spec.architecture);
  spec.fixed_classes = keys.boolean("fixed_classes", false);
  spec.preprocess.resize = keys.integer("resize", 0, {0, kSides.high});
  spec.preprocess.crop_floor = keys.boolean("crop_floor", false);
  spec.preprocess.max_patches = keys.integer("max_patches", 0, kPatchCounts);
  spec.held_out = read_held_out(keys.object("held_out"));
}

// ---- timm's keys ----

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
    fail_input("{}: unknown architecture '{}'{}", top.where(), shown(spec.architecture),
               did_you_mean(name, names));
  }
  ModelConfig& c = spec.config = find_preset(name).config;
  spec.fixed_classes = find_preset(name).fixed_classes;
  const std::vector<int64_t> size = pretrained.integers("input_size", kSides);
  if (!size.empty() && size.size() != 3)
    fail_input("{}: input_size must be [channels, height, width]", pretrained.where());
  if (!size.empty()) c.set_channels(size[0]);
  // What takes images of any size starts with the one it is published with.
  const WeightFamily& family = weights_of(c);
  if (!size.empty() && (!family.fixed_input_size || pretrained.boolean("fixed_input_size", true)))
    c.set_image_size(size[1], size[2]);
  c.set_classes(top.integer("num_classes", pretrained.integer("num_classes", c.classes(), kClasses),
                            kClasses));
  family.read_timm(top, args, c);
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

}  // namespace

void check_size(const ModelConfig& config, const std::string& path) {
  weights_of(config).check_size(config, path);
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

std::string preset_name(const ModelConfig& config) {
  for (const Preset& preset : presets())
    if (weights_of(config).same_sizes(preset.config, config)) return preset.name;
  return {};
}

ModelSpec parse_model_config(const JsonKeys& top) {
  const std::string& path = top.where();
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
