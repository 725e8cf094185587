// The image towers of SigLIP and SigLIP 2 (of one image size) as transformers has them, alone or
// beside a text tower: ViTs without a class token that one learned query pools. Those for any shape
// of image are in siglip_naflex.cpp.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "vitrum/core/error.h"
#include "vitrum/weights/families/vision_tower.h"
#include "vitrum/weights/families/vit.h"
#include "vitrum/weights/hf_config.h"

namespace vitrum {
namespace {

using Json = nlohmann::ordered_json;

std::string preprocessor(const ViTConfig& c) {
  return fmt::format(R"({{"size": {{"height": {}, "width": {}}}, "resample": 3}})", c.image_h,
                     c.image_w);
}

struct Siglip : ViTFiles {
  static constexpr Dialect kDialects[] = {
      kTimmViT,
      kSiglipHf,
      // Its towers are timm's.
      {"vit",
       "open_clip",
       "OpenCLIP",
       kTimmRules,
       kTimmIgnored,
       {},
       kViTProbes,
       PositionRule::kBicubicAntialias,
       1e-6f,
       Act::kGelu,
       /*original=*/true,
       /*prefix=*/"visual.trunk."},
  };
  static constexpr std::string_view kHf[] = {"siglip", "siglip_vision_model"};

  static bool holds(const ViTConfig& c) {
    return !c.class_token && c.position_grid == 0 &&
           (c.pool == ViTPool::kMap || c.pool == ViTPool::kNormedMean);
  }

  // A classifier reads the mean of the tokens, and so do towers without a pooling head ("gap").
  static void read_hf(const JsonKeys& keys, ViTConfig& c) {
    const JsonKeys v = tower_keys(keys, kHf[0]);
    c.act = Act::kGeluTanh, c.eps = 1e-6f, c.patch_h = c.patch_w = 16;
    read_tower(v, c);
    const bool classifies = is_hf_class(keys, kOneHead);
    const bool pools = v.boolean("vision_use_head", true) && !classifies;
    c.class_token = false, c.pool = pools ? ViTPool::kMap : ViTPool::kNormedMean;
    if (!classifies) c.classes = 0;
  }

  static std::string write_hf(const ViTConfig& c, const std::string& dtype) {
    Json json = write_tower(c, "siglip_vision_model");
    json["vision_use_head"] = c.pool == ViTPool::kMap;
    if (c.classes > 0) return write_tower_classifier("Siglip", "siglip", json, dtype);
    json["architectures"] = {"SiglipVisionModel"};
    json["dtype"] = dtype;
    return json.dump();
  }

  static std::string_view hf_base(const ViTConfig&) { return "vision_model"; }

  static void read_preprocessor(const ConfigText& stated, ModelSpec& spec) {
    const auto& c = *spec.config.as<ViTConfig>();
    const std::string& text = stated.text == "{}" ? preprocessor(c) : stated.text;
    read_hf_preprocessor(JsonKeys(text, stated.path), spec.config, spec.preprocess);
  }

  // timm's names of the smaller models compute the erf form of GELU, transformers the tanh form.
  static void as_published(const Dialect& dialect, ViTConfig& c, Preprocessing& p) {
    if (dialect.name != "timm") c.eps = dialect.eps, c.act = dialect.act, p.crop_mode = "squash";
    p.interpolation = "bicubic";
  }

  static void require_plain(const Dialect& dialect, const ViTConfig& c) {
    if (dialect.name == "timm") return;
    require_plain_tower(dialect, c, "SigLIP");
    if (c.pool == ViTPool::kMap && c.classes > 0)
      fail_input("{} has no SigLIP with a classifier on its pooled features", dialect.title);
    if (dialect.original && c.classes > 0)
      fail_input("{} has no SigLIP with a classifier", dialect.title);
  }

  static void give_biases(const Dialect&, ViTConfig& c) {
    c.norm_bias = c.qkv_bias = c.proj_bias = c.mlp_bias = c.patch_bias = c.head_bias = true;
  }
};

}  // namespace

extern constinit const WeightFamily kSiglipWeights = family<Siglip>("vit");

}  // namespace vitrum
