// Writes config.json so that timm's create_model('local-dir:...') builds the same model from it.
#include <cmath>
#include <nlohmann/json.hpp>

#include "vitrum/core/error.h"
#include "vitrum/weights/model_config.h"

namespace vitrum {
namespace {

using Json = nlohmann::ordered_json;

// Whether timm's VisionTransformer computes the same: its switches are fewer. Its LayerNorm has eps
// 1e-6; that of transformers' models, 1e-12, is taken for the same here and kept in our own object.
bool timm_has(const ViTConfig& c) {
  return c.pre_norm && c.patch_order == PatchOrder::kChannelFirst && c.norm_bias && c.head_bias &&
         c.proj_bias == c.mlp_bias && !c.sincos_positions && c.act != Act::kNone &&
         c.eps <= 1e-6f && c.distilled == c.two_heads();
}

// timm insists on a name it knows, and takes every size from model_args.
std::string timm_name(const ModelSpec& spec, const ViTConfig& c) {
  if (!timm_has(c)) return "vitrum_vit";
  const auto fits = [&](const char* part) {
    return spec.architecture.find(part) != std::string::npos;
  };
  if (c.distilled)
    return fits("_distilled_patch") ? spec.architecture : "deit_base_distilled_patch16_224";
  return fits("_patch") ? spec.architecture : "vit_base_patch16_224";
}

std::string timm_name(const ModelSpec& spec, const SwinConfig& c) {
  if (c.eps != 1e-5f || c.act != Act::kGelu || !c.head_bias || (c.pad_first && fills_up(c)))
    return "vitrum_swin";
  return spec.architecture.find("_patch") != std::string::npos ? spec.architecture
                                                               : "swin_tiny_patch4_window7_224";
}

std::string timm_name(const ModelSpec&, const ResNetConfig& c) {
  const std::string name = preset_name(c);
  const bool same = c.eps == 1e-5f && c.head_bias && !c.small_stem;
  return name.empty() || !same ? "vitrum_resnet" : name;
}

Json side(int64_t h, int64_t w) { return h == w ? Json(h) : Json{h, w}; }

// timm truncates embed_dim * mlp_ratio.
double mlp_ratio(const ViTConfig& c) {
  const auto width = static_cast<double>(c.width), wanted = static_cast<double>(c.mlp_width);
  const double ratio = wanted / width;
  return std::floor(width * ratio) == wanted ? ratio : std::nextafter(ratio, 2 * ratio);
}

Json model_args(const ViTConfig& c) {
  Json args = {{"img_size", side(c.image_h, c.image_w)},
               {"patch_size", side(c.patch_h, c.patch_w)},
               {"in_chans", c.channels},
               {"num_classes", c.classes},
               {"global_pool", c.mean_pool ? "avg" : "token"},
               {"embed_dim", c.width},
               {"depth", c.depth},
               {"num_heads", c.heads},
               {"mlp_ratio", mlp_ratio(c)},
               {"qkv_bias", c.qkv_bias},
               {"class_token", c.class_token}};
  if (!c.proj_bias) args["proj_bias"] = false;
  if (c.layer_scale > 0) args["init_values"] = tidy(c.layer_scale);
  if (c.act != Act::kGelu) args["act_layer"] = kActNames[static_cast<size_t>(c.act)];
  if (c.drop_pos > 0) args["pos_drop_rate"] = tidy(c.drop_pos);
  if (c.drop_attn > 0) args["attn_drop_rate"] = tidy(c.drop_attn);
  if (c.drop_path > 0) args["drop_path_rate"] = tidy(c.drop_path);
  if (c.patch_drop > 0) args["patch_drop_rate"] = tidy(c.patch_drop);
  if (c.drop_proj > 0 && c.drop_proj == c.drop_act && c.drop_act == c.drop_mlp)
    args["proj_drop_rate"] = tidy(c.drop_proj);
  return args;
}

Json model_args(const SwinConfig& c) {
  Json args = {{"img_size", side(c.image_h, c.image_w)},
               {"patch_size", side(c.patch_h, c.patch_w)},
               {"in_chans", c.channels},
               {"num_classes", c.classes},
               {"global_pool", "avg"},
               {"embed_dim", c.width},
               {"depths", c.depths},
               {"num_heads", c.heads},
               {"window_size", side(c.window_h, c.window_w)},
               {"mlp_ratio", c.mlp_ratio},
               {"qkv_bias", c.qkv_bias},
               {"drop_path_rate", tidy(c.drop_path)}};
  if (c.drop_attn > 0) args["attn_drop_rate"] = tidy(c.drop_attn);
  if (c.drop_proj > 0 && c.drop_proj == c.drop_act && c.drop_act == c.drop_mlp)
    args["proj_drop_rate"] = tidy(c.drop_proj);
  return args;
}

const char* pool_name(const SwinConfig&) { return "avg"; }

Json model_args(const ResNetConfig& c) {
  Json args = {{"in_chans", c.channels}, {"num_classes", c.classes}};
  if (c.drop_path > 0) args["drop_path_rate"] = tidy(c.drop_path);
  return args;
}

const char* pool_name(const ResNetConfig&) { return "avg"; }
const char* pool_name(const ViTConfig& c) { return c.mean_pool ? "avg" : "token"; }

// What timm replaces for other channels and classes.
struct Ends {
  const char *first, *last;
};
Ends ends_of(const ViTConfig&) { return {"patch_embed.proj", "head"}; }
Ends ends_of(const SwinConfig&) { return {"patch_embed.proj", "head.fc"}; }
Ends ends_of(const ResNetConfig&) { return {"conv1", "fc"}; }

// One number a channel, as timm wants it.
Json per_channel(const std::vector<float>& list, int64_t channels, double fallback) {
  Json all = Json::array();
  for (size_t i = 0; i < static_cast<size_t>(channels); ++i)
    all.push_back(list.empty() ? fallback : tidy(list[i % list.size()]));
  return all;
}

Json pretrained_cfg(const ModelSpec& spec) {
  const ModelConfig& c = spec.config;
  const Preprocessing& p = spec.preprocess;
  const Ends ends = c.visit([](const auto& config) { return ends_of(config); });
  Json cfg = {{"input_size", {c.channels(), c.image_h(), c.image_w()}},
              {"fixed_input_size", !c.as<ResNetConfig>()},
              {"interpolation", p.interpolation},
              {"crop_pct", p.crop_pct},
              {"crop_mode", p.crop_mode},
              {"mean", per_channel(p.mean, c.channels(), 0)},
              {"std", per_channel(p.std, c.channels(), 1)},
              {"num_classes", c.classes()},
              {"pool_size", nullptr},
              {"first_conv", ends.first},
              {"classifier", ends.last}};
  if (const auto* vit = c.as<ViTConfig>(); vit && vit->two_heads())
    cfg["classifier"] = {"head", "head_dist"};
  if (!spec.labels.empty()) cfg["label_names"] = spec.labels;
  if (!spec.class_ids.empty()) {
    cfg["label_names"] = spec.class_ids;
    for (size_t i = 0; i < spec.class_ids.size(); ++i)
      cfg["label_descriptions"][spec.class_ids[i]] = spec.labels[i];
  }
  return cfg;
}

Json field_value(int64_t x, Range) { return x; }
Json field_value(bool x, int) { return x; }
Json field_value(float x, int) { return tidy(x); }
Json field_value(double x, int) { return x; }
Json field_value(const std::vector<int64_t>& x, Range) { return x; }
template <class Enum, size_t N>
Json field_value(Enum x, const std::array<std::string_view, N>& names) {
  return names[static_cast<size_t>(x)];
}

Json own_object(const ModelSpec& spec) {
  Json own = {{"architecture", spec.architecture},
              {"family", family_of(spec.config)},
              {"fixed_classes", spec.fixed_classes}};
  if (spec.preprocess.resize > 0) own["resize"] = spec.preprocess.resize;
  if (spec.preprocess.crop_floor) own["crop_floor"] = true;
  spec.config.visit([&](const auto& config) {
    visit_fields(config, [&](const char* key, const auto& field, const auto& extra) {
      own[key] = field_value(field, extra);
    });
  });
  return own;
}

}  // namespace

double tidy(float x) { return std::strtod(fmt::format("{}", x).c_str(), nullptr); }

std::string model_config_text(const ModelSpec& spec) {
  Json json = spec.config.visit([&](const auto& c) {
    return Json{{"architecture", timm_name(spec, c)},
                {"num_classes", c.classes},
                {"num_features", feature_width(c)},
                {"global_pool", pool_name(c)},
                {"model_args", model_args(c)}};
  });
  json["pretrained_cfg"] = pretrained_cfg(spec);
  json["vitrum"] = own_object(spec);
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace vitrum
