#include "vitrum/models/model.h"

#include "vitrum/core/error.h"
#include "vitrum/core/nearest.h"
#include "vitrum/core/shown.h"

namespace vitrum {
namespace {

// What tells one family from another, by config.
struct Families {
  static std::string_view name(const ViTConfig&) { return "vit"; }
  static std::string_view name(const SwinConfig&) { return "swin"; }
  static std::string_view name(const SwinV2Config&) { return "swin_v2"; }
  static std::string_view name(const ConvNeXtConfig&) { return "convnext"; }
  static std::string_view name(const ResNetConfig&) { return "resnet"; }

  static Value features(Scope s, Value x, const ViTConfig& c) {
    return vit_features(s, x, c).pooled;
  }
  static Value features(Scope s, Value x, const SwinConfig& c) { return swin_features(s, x, c); }
  static Value features(Scope s, Value x, const SwinV2Config& c) {
    return swin_v2_features(s, x, c);
  }
  static Value features(Scope s, Value x, const ConvNeXtConfig& c) {
    return convnext_features(s, x, c);
  }
  static Value features(Scope s, Value x, const ResNetConfig& c) {
    return resnet_features(s, x, c);
  }

  static Value head(Scope s, Value x, const ViTConfig& c) { return vit_head(s, {x}, c).logits; }
  static Value head(Scope s, Value x, const SwinConfig& c) { return swin_head(s, x, c); }
  static Value head(Scope s, Value x, const SwinV2Config& c) { return swin_v2_head(s, x, c); }
  static Value head(Scope s, Value x, const ConvNeXtConfig& c) { return convnext_head(s, x, c); }
  static Value head(Scope s, Value x, const ResNetConfig& c) { return resnet_head(s, x, c); }

  template <class C>
  static ModelOutput output(Scope s, Value x, const C& c) {
    const Value pooled = features(s, x, c);
    return {pooled, c.classes == 0 ? pooled : head(s, pooled, c)};
  }
  static ModelOutput output(Scope s, Value x, const ViTConfig& c) {
    const ViTFeatures seen = vit_features(s, x, c);
    const ViTLogits said = vit_head(s, seen, c);
    return {seen.pooled, said.logits, said.cls, said.dist};
  }

  static int64_t width(const ViTConfig& c) { return c.feature_width(); }
  static int64_t width(const SwinConfig& c) { return c.features(); }
  static int64_t width(const ConvNeXtConfig& c) { return c.features(); }
  static int64_t width(const ResNetConfig& c) { return c.features(); }

  static std::string_view head_name(const ViTConfig&) { return "head"; }
  static std::string_view head_name(const SwinConfig&) { return "head.fc"; }
  static std::string_view head_name(const ConvNeXtConfig&) { return "head.fc"; }
  static std::string_view head_name(const ResNetConfig&) { return "fc"; }
};

template <size_t I = 0>
bool find_family(std::string_view name, ModelConfig& found, std::vector<std::string>& names) {
  if constexpr (I < std::variant_size_v<ModelConfig::Family>) {
    const ModelConfig config = std::variant_alternative_t<I, ModelConfig::Family>{};
    names.emplace_back(family_of(config));
    if (names.back() == name) return found = config, true;
    return find_family<I + 1>(name, found, names);
  }
  return false;
}

}  // namespace

std::string_view family_of(const ModelConfig& config) {
  return config.visit([](const auto& c) { return Families::name(c); });
}

ModelConfig config_of_family(std::string_view family, const std::string& where) {
  ModelConfig found;
  std::vector<std::string> names;
  if (!find_family(family, found, names))
    fail_input("{}: unknown family '{}'{}", where, shown(family), did_you_mean(family, names));
  return found;
}

void validate(const ModelConfig& config) {
  config.visit([](const auto& c) { validate(c); });
}

Value model_features(Scope s, Value image, const ModelConfig& config) {
  return config.visit([&](const auto& c) { return Families::features(s, image, c); });
}

Value model_head(Scope s, Value features, const ModelConfig& config) {
  if (config.classes() == 0) return features;
  return config.visit([&](const auto& c) { return Families::head(s, features, c); });
}

Value model(Scope s, Value image, const ModelConfig& config) {
  return model_output(s, image, config).logits;
}

ModelOutput model_output(Scope s, Value image, const ModelConfig& config) {
  return config.visit([&](const auto& c) { return Families::output(s, image, c); });
}

int64_t feature_width(const ModelConfig& config) {
  return config.visit([](const auto& c) { return Families::width(c); });
}

bool in_head(const ModelConfig& config, std::string_view param) {
  const std::string_view head = config.visit([](const auto& c) { return Families::head_name(c); });
  if (!param.starts_with(head)) return false;
  param.remove_prefix(head.size());
  return param.starts_with('.') || param.starts_with("_dist.");
}

}  // namespace vitrum
