#include "vitrum/weights/families/vision_tower.h"

#include <nlohmann/json.hpp>
#include <tuple>

#include "vitrum/core/error.h"
#include "vitrum/weights/hf_config.h"

namespace vitrum {

using Json = nlohmann::ordered_json;

bool is_tower_pair(const JsonKeys& keys, std::string_view pair) {
  return keys.text("model_type", {}) == pair;
}

JsonKeys tower_keys(const JsonKeys& keys, std::string_view pair) {
  return is_tower_pair(keys, pair) ? keys.object("vision_config") : keys;
}

void read_tower(const JsonKeys& keys, ViTConfig& c) {
  c.width = keys.integer("hidden_size", 768, kWidths);
  c.depth = keys.integer("num_hidden_layers", 12, kDepths);
  c.heads = keys.integer("num_attention_heads", 12, kWidths);
  c.mlp_width = keys.integer("intermediate_size", 3072, {1, 1 << 20});
  if (keys.has("hidden_act")) c.act = read_hf_act(keys);
  c.eps = static_cast<float>(keys.number("layer_norm_eps", static_cast<double>(c.eps), 0, 1));
  std::tie(c.image_h, c.image_w) = keys.pair("image_size", {224, 224}, kSides);
  std::tie(c.patch_h, c.patch_w) = keys.pair("patch_size", {c.patch_h, c.patch_w}, kSides);
  c.channels = keys.integer("num_channels", 3, kSides);
  c.drop_attn = static_cast<float>(keys.number("attention_dropout", 0, 0, 1));
  c.floor_patches = c.image_h % c.patch_h != 0 || c.image_w % c.patch_w != 0;
}

Json write_tower(const ViTConfig& c, const std::string& type) {
  return {{"attention_dropout", tidy(c.drop_attn)},
          {"hidden_act", hf_act_name(c.act)},
          {"hidden_size", c.width},
          {"image_size", c.image_h},
          {"intermediate_size", c.mlp_width},
          {"layer_norm_eps", tidy(c.eps)},
          {"model_type", type},
          {"num_attention_heads", c.heads},
          {"num_channels", c.channels},
          {"num_hidden_layers", c.depth},
          {"patch_size", c.patch_h}};
}

std::string write_tower_classifier(const std::string& kind, const std::string& pair,
                                   const Json& tower, const std::string& dtype) {
  const Json json = {{"architectures", {kind + std::string(kOneHead)}},
                     {"dtype", dtype},
                     {"model_type", pair},
                     {"vision_config", tower}};
  return json.dump();
}

void require_plain_tower(const Dialect& dialect, const ViTConfig& c, const char* kind) {
  const auto require = [&](bool has, const char* what) {
    if (!has) fail_input("{} has no {} {}", dialect.title, kind, what);
  };
  require(c.pre_norm, "with the norms after the blocks");
  require(c.patch_order == PatchOrder::kChannelFirst, "with patches flattened channel last");
  require(!c.sincos_positions, "with fixed positions");
  require(c.registers == 0 && c.layer_scale == 0, "with registers or LayerScale");
  require(c.image_h == c.image_w && c.patch_h == c.patch_w, "for images that are not square");
}

}  // namespace vitrum
