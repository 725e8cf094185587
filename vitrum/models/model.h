// A model of any family. A family is a config struct and the functions that take it; each struct
// has members named image_h, image_w, channels, classes, head_bias and drop_path, which is all that
// code outside models/ and weights/ needs to know about most models.
#pragma once
#include <concepts>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "vitrum/models/convnext.h"
#include "vitrum/models/resnet.h"
#include "vitrum/models/swin.h"
#include "vitrum/models/swin_v2.h"
#include "vitrum/models/vit.h"

namespace vitrum {

class ModelConfig {
 public:
  using Family = std::variant<ViTConfig, SwinConfig, SwinV2Config, ConvNeXtConfig, ResNetConfig>;

  ModelConfig() = default;
  template <class C>
  requires std::constructible_from<Family, C> ModelConfig(C config) : family_(std::move(config)) {}

  template <class F>
  decltype(auto) visit(F&& f) const {
    return std::visit(std::forward<F>(f), family_);
  }
  template <class F>
  decltype(auto) visit(F&& f) {
    return std::visit(std::forward<F>(f), family_);
  }
  // Null where the model is of another family.
  template <class C>
  const C* as() const {
    return std::get_if<C>(&family_);
  }
  template <class C>
  C* as() {
    return std::get_if<C>(&family_);
  }
  bool same_family(const ModelConfig& other) const {
    return family_.index() == other.family_.index();
  }

  int64_t image_h() const {
    return visit([](const auto& c) { return c.image_h; });
  }
  int64_t image_w() const {
    return visit([](const auto& c) { return c.image_w; });
  }
  int64_t channels() const {
    return visit([](const auto& c) { return c.channels; });
  }
  int64_t classes() const {  // 0: the model has no head
    return visit([](const auto& c) { return c.classes; });
  }
  bool head_bias() const {
    return visit([](const auto& c) { return c.head_bias; });
  }

  void set_image_size(int64_t height, int64_t width) {
    visit([&](auto& c) { c.image_h = height, c.image_w = width; });
  }
  void set_channels(int64_t channels) {
    visit([&](auto& c) { c.channels = channels; });
  }
  void set_classes(int64_t classes) {
    visit([&](auto& c) { c.classes = classes; });
  }
  void set_head_bias(bool bias) {
    visit([&](auto& c) { c.head_bias = bias; });
  }
  void set_drop_path(float drop) {
    visit([&](auto& c) { c.drop_path = drop; });
  }

  bool operator==(const ModelConfig&) const = default;

 private:
  Family family_;
};

// "vit": as presets and config files name it; and a config of that family, all defaults.
std::string_view family_of(const ModelConfig& config);
ModelConfig config_of_family(std::string_view family, const std::string& where);

// Throws a usage error that names the impossible combination.
void validate(const ModelConfig& config);

// (B, C, H, W) already normalised -> the pooled features (B, width); -> (B, classes).
Value model_features(Scope s, Value image, const ModelConfig& config);
Value model_head(Scope s, Value features, const ModelConfig& config);
// The head on the features; without a head (classes = 0) the features.
Value model(Scope s, Value image, const ModelConfig& config);

// All that a model gives. Two heads answer as one by their mean; training may want each one's own.
struct ModelOutput {
  Value features;             // (B, width)
  Value logits;               // (B, classes), as model()
  Value cls = {}, dist = {};  // of a distilled ViT: the logits of its class and distillation heads
};
ModelOutput model_output(Scope s, Value image, const ModelConfig& config);

int64_t feature_width(const ModelConfig& config);
// Whether a parameter belongs to the classifier, which is replaced for other classes.
bool in_head(const ModelConfig& config, std::string_view param);

}  // namespace vitrum
