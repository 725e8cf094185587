// Writes config.json so that timm's create_model('local-dir:...') builds the same model from it.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "vitrum/weights/family.h"

namespace vitrum {
namespace {

using Json = nlohmann::ordered_json;

// One number a channel, as timm wants it.
Json per_channel(const std::vector<float>& list, int64_t channels, double fallback) {
  Json all = Json::array();
  for (size_t i = 0; i < static_cast<size_t>(channels); ++i)
    all.push_back(list.empty() ? fallback : tidy(list[i % list.size()]));
  return all;
}

Json pretrained_cfg(const ModelSpec& spec, const TimmConfig& timm) {
  const ModelConfig& c = spec.config;
  const Preprocessing& p = spec.preprocess;
  Json cfg = {{"input_size", {c.channels(), c.image_h(), c.image_w()}},
              {"fixed_input_size", weights_of(c).fixed_input_size},
              {"interpolation", p.interpolation},
              {"crop_pct", p.crop_pct},
              {"crop_mode", p.crop_mode},
              {"mean", per_channel(p.mean, c.channels(), 0)},
              {"std", per_channel(p.std, c.channels(), 1)},
              {"num_classes", c.classes()},
              {"pool_size", nullptr},
              {"first_conv", timm.first},
              {"classifier",
               timm.classifiers.size() == 1 ? Json(timm.classifiers[0]) : Json(timm.classifiers)}};
  if (!spec.labels.empty()) cfg["label_names"] = spec.labels;
  if (!spec.class_ids.empty()) {
    cfg["label_names"] = spec.class_ids;
    for (size_t i = 0; i < spec.class_ids.size(); ++i)
      cfg["label_descriptions"][spec.class_ids[i]] = spec.labels[i];
  }
  return cfg;
}

class FieldWriter final : public FieldVisitor {
 public:
  explicit FieldWriter(Json& json) : json_(json) {}
  using FieldVisitor::operator();
  void operator()(const char* key, int64_t& field, IntRange) override { json_[key] = field; }
  void operator()(const char* key, std::vector<int64_t>& field, IntRange) override {
    json_[key] = field;
  }
  void operator()(const char* key, bool& field) override { json_[key] = field; }
  void operator()(const char* key, float& field) override { json_[key] = tidy(field); }
  void operator()(const char* key, double& field) override { json_[key] = field; }

 private:
  size_t choice(const char* key, size_t now, std::span<const std::string_view> names) override {
    json_[key] = names[now];
    return now;
  }

  Json& json_;
};

Json own_object(const ModelSpec& spec) {
  Json own = {{"architecture", spec.architecture},
              {"family", family_of(spec.config)},
              {"fixed_classes", spec.fixed_classes}};
  if (spec.preprocess.resize > 0) own["resize"] = spec.preprocess.resize;
  if (spec.preprocess.crop_floor) own["crop_floor"] = true;
  if (spec.preprocess.max_patches > 0) own["max_patches"] = spec.preprocess.max_patches;
  if (const HeldOut& held = spec.held_out; held.fraction > 0)
    own["held_out"] = {{"fraction", held.fraction}, {"seed", held.seed},
                       {"subset", held.subset},     {"skips_bad", held.skips_bad},
                       {"images", held.images},     {"labels", held.labels}};
  FieldWriter writer(own);
  ModelConfig config = spec.config;
  weights_of(config).fields(writer, config);
  return own;
}

}  // namespace

double tidy(float x) { return std::strtod(fmt::format("{}", x).c_str(), nullptr); }

std::string model_config_text(const ModelSpec& spec) {
  const TimmConfig timm = weights_of(spec.config).write_timm(spec);
  Json json = {{"architecture", timm.architecture},
               {"num_classes", spec.config.classes()},
               {"num_features", feature_width(spec.config)},
               {"global_pool", timm.pool},
               {"model_args", Json::parse(timm.model_args)}};
  json["pretrained_cfg"] = pretrained_cfg(spec, timm);
  json["vitrum"] = own_object(spec);
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace vitrum
