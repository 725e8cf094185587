// config.json of a model directory, to and from text. Internal to weights/.
#pragma once
#include <array>
#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>

#include "vitrum/weights/json_keys.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

// `path` is for messages. The text is not trusted: types, ranges, nesting and total size are
// checked.
ModelSpec parse_model_config(const std::string& text, const std::string& path);
std::string model_config_text(const ModelSpec& spec);

// ---- transformers' layout ----

struct ConfigText {
  std::string text, path;
};
// Whether config.json is transformers' (it has a model_type) and not timm's.
bool is_hf_config(const std::string& text, const std::string& path);
// config.json and preprocessor_config.json ("{}": what transformers has for a ViT without one).
ModelSpec parse_hf_config(const ConfigText& config, const ConfigText& preprocessor);
std::string hf_config_text(const ModelSpec& spec, const std::string& dtype = "float32");
std::string hf_preprocessor_text(const ModelSpec& spec);

// Fails, naming the file, where a model cannot be or is too large to be meant.
void check_config(const ModelConfig& config, const std::string& path);
void check_size(const ModelConfig& config, const std::string& path);

// ---- what reading and writing share ----

// The double that prints as the float does: 1e-06, not 9.999999974752427e-07.
double tidy(float x);
// The preset with these sizes, or "" where there is none.
std::string preset_name(const ViTConfig& config);
std::string preset_name(const SwinConfig& config);
std::string preset_name(const ResNetConfig& config);
// mean and std as the model uses them, one a channel; fails naming `where` on numbers that do not
// fit.
void set_normalization(Preprocessing& p, std::vector<float> mean, std::vector<float> std,
                       int64_t channels, const std::string& where);

inline constexpr std::array<std::string_view, 4> kActNames = {"none", "gelu", "gelu_tanh", "relu"};
inline constexpr std::array<std::string_view, 2> kPatchOrderNames = {"channel_first",
                                                                     "channel_last"};
inline constexpr std::array<std::string_view, 5> kInitNames = {"timm", "minvit", "notes", "lesson",
                                                               "mnist"};

inline constexpr Range kSides{1, 1 << 14}, kWidths{1, 1 << 16}, kDepths{0, 1024},
    kClasses{0, 10'000'000};

// Calls visit(key, field, extra) for every field of a ViTConfig, const or not. `extra` is the range
// of a whole number, the names of an enumeration, or 0.
template <class Config, class Visit>
void visit_fields(Config& c, const Visit& visit) {
  visit("image_h", c.image_h, kSides), visit("image_w", c.image_w, kSides);
  visit("patch_h", c.patch_h, kSides), visit("patch_w", c.patch_w, kSides);
  visit("channels", c.channels, kSides), visit("width", c.width, kWidths);
  visit("depth", c.depth, kDepths), visit("heads", c.heads, kWidths);
  visit("mlp_width", c.mlp_width, Range{1, 1 << 20}), visit("classes", c.classes, kClasses);
  visit("eps", c.eps, 0), visit("act", c.act, kActNames);
  visit("patch_order", c.patch_order, kPatchOrderNames), visit("init", c.init, kInitNames);
  visit("pre_norm", c.pre_norm, 0), visit("class_token", c.class_token, 0);
  visit("mean_pool", c.mean_pool, 0), visit("sincos_positions", c.sincos_positions, 0);
  visit("distilled", c.distilled, 0), visit("dist_head", c.dist_head, 0);
  visit("qkv_bias", c.qkv_bias, 0), visit("proj_bias", c.proj_bias, 0),
      visit("mlp_bias", c.mlp_bias, 0);
  visit("norm_bias", c.norm_bias, 0), visit("head_bias", c.head_bias, 0);
  visit("layer_scale", c.layer_scale, 0), visit("drop_pos", c.drop_pos, 0);
  visit("drop_attn", c.drop_attn, 0), visit("drop_proj", c.drop_proj, 0),
      visit("drop_act", c.drop_act, 0);
  visit("drop_mlp", c.drop_mlp, 0), visit("drop_path", c.drop_path, 0),
      visit("patch_drop", c.patch_drop, 0);
}

template <class Config, class Visit>
requires std::same_as<std::remove_const_t<Config>, SwinConfig>
void visit_fields(Config& c, const Visit& visit) {
  visit("image_h", c.image_h, kSides), visit("image_w", c.image_w, kSides);
  visit("patch_h", c.patch_h, kSides), visit("patch_w", c.patch_w, kSides);
  visit("channels", c.channels, kSides), visit("width", c.width, kWidths);
  visit("depths", c.depths, kDepths), visit("heads", c.heads, kWidths);
  visit("window_h", c.window_h, kSides), visit("window_w", c.window_w, kSides);
  visit("mlp_ratio", c.mlp_ratio, 0), visit("classes", c.classes, kClasses);
  visit("eps", c.eps, 0), visit("act", c.act, kActNames), visit("qkv_bias", c.qkv_bias, 0);
  visit("head_bias", c.head_bias, 0), visit("pad_first", c.pad_first, 0);
  visit("drop_attn", c.drop_attn, 0), visit("drop_proj", c.drop_proj, 0),
      visit("drop_act", c.drop_act, 0);
  visit("drop_mlp", c.drop_mlp, 0), visit("drop_path", c.drop_path, 0);
}

template <class Config, class Visit>
requires std::same_as<std::remove_const_t<Config>, ResNetConfig>
void visit_fields(Config& c, const Visit& visit) {
  constexpr Range kBlocks{1, 1024};
  visit("image_h", c.image_h, kSides), visit("image_w", c.image_w, kSides);
  visit("channels", c.channels, kSides), visit("classes", c.classes, kClasses);
  visit("depth1", c.depths[0], kBlocks), visit("depth2", c.depths[1], kBlocks);
  visit("depth3", c.depths[2], kBlocks), visit("depth4", c.depths[3], kBlocks);
  visit("width", c.width, Range{1, 1 << 12}), visit("bottleneck", c.bottleneck, 0);
  visit("small_stem", c.small_stem, 0), visit("head_bias", c.head_bias, 0);
  visit("eps", c.eps, 0), visit("momentum", c.momentum, 0), visit("drop_path", c.drop_path, 0);
}

}  // namespace vitrum
