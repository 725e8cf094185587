#include "vitrum/weights/families/timm_args.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "vitrum/weights/model_config.h"

namespace vitrum {
namespace {

using Json = nlohmann::ordered_json;

Json side(int64_t h, int64_t w) { return h == w ? Json(h) : Json{h, w}; }

// timm truncates embed_dim * mlp_ratio.
double mlp_ratio(const ViTConfig& c, double per_row) {
  const double width = static_cast<double>(c.width),
               wanted = per_row * static_cast<double>(c.mlp_width);
  const double ratio = wanted / width;
  return std::floor(width * ratio) == wanted ? ratio : std::nextafter(ratio, 2 * ratio);
}

}  // namespace

std::vector<std::string> timm_args(const std::vector<std::string>& more) {
  std::vector<std::string> known = {
      "img_size", "patch_size", "in_chans", "num_classes", "global_pool", "embed_dim", "depth",
      "num_heads", "mlp_ratio", "qkv_bias", "init_values", "class_token", "pos_drop_rate",
      "proj_drop_rate", "attn_drop_rate", "drop_path_rate", "patch_drop_rate",
      // These do not matter to a trained model.
      "drop_rate", "weight_init", "fix_init", "dynamic_img_size", "dynamic_img_pad",
      "head_init_scale"};
  known.insert(known.end(), more.begin(), more.end());
  return known;
}

void read_timm_sizes(const JsonKeys& args, ViTConfig& c, double ratio, double per_row) {
  std::tie(c.image_h, c.image_w) = args.pair("img_size", {c.image_h, c.image_w}, kSides);
  std::tie(c.patch_h, c.patch_w) = args.pair("patch_size", {c.patch_h, c.patch_w}, kSides);
  c.channels = args.integer("in_chans", c.channels, kSides);
  c.classes = args.integer("num_classes", c.classes, kClasses);
  c.width = args.integer("embed_dim", c.width, kWidths);
  c.depth = args.integer("depth", c.depth, kDepths);
  c.heads = args.integer("num_heads", c.heads, kWidths);
  const double hidden = static_cast<double>(c.width) * args.number("mlp_ratio", ratio, 0, 64);
  c.mlp_width = static_cast<int64_t>(std::floor(hidden) / per_row);
  c.qkv_bias = args.boolean("qkv_bias", c.qkv_bias);
  c.class_token = args.boolean("class_token", c.class_token);
  c.layer_scale =
      static_cast<float>(args.number("init_values", static_cast<double>(c.layer_scale), 0, 1));
  const auto rate = [&](const char* key) { return static_cast<float>(args.number(key, 0, 0, 1)); };
  c.drop_pos = rate("pos_drop_rate"), c.drop_attn = rate("attn_drop_rate"),
  c.drop_path = rate("drop_path_rate"), c.patch_drop = rate("patch_drop_rate");
  c.drop_proj = c.drop_act = c.drop_mlp = rate("proj_drop_rate");
}

Json timm_sizes(const ViTConfig& c, double per_row) {
  Json args = {{"img_size", side(c.image_h, c.image_w)},
               {"patch_size", side(c.patch_h, c.patch_w)},
               {"in_chans", c.channels},
               {"num_classes", c.classes},
               {"global_pool", "token"},
               {"embed_dim", c.width},
               {"depth", c.depth},
               {"num_heads", c.heads},
               {"mlp_ratio", mlp_ratio(c, per_row)},
               {"qkv_bias", c.qkv_bias},
               {"class_token", c.class_token}};
  if (c.layer_scale > 0) args["init_values"] = tidy(c.layer_scale);
  if (c.drop_pos > 0) args["pos_drop_rate"] = tidy(c.drop_pos);
  if (c.drop_attn > 0) args["attn_drop_rate"] = tidy(c.drop_attn);
  if (c.drop_path > 0) args["drop_path_rate"] = tidy(c.drop_path);
  if (c.patch_drop > 0) args["patch_drop_rate"] = tidy(c.patch_drop);
  if (c.drop_proj > 0 && c.drop_proj == c.drop_act && c.drop_act == c.drop_mlp)
    args["proj_drop_rate"] = tidy(c.drop_proj);
  return args;
}

bool timm_pools_mean(const JsonKeys& top, const JsonKeys& args, bool fallback) {
  constexpr std::array<std::string_view, 2> kPools = {"token", "avg"};
  const size_t pool = top.choice("global_pool", fallback ? 1 : 0, kPools);
  return args.choice("global_pool", pool, kPools) == 1;
}

}  // namespace vitrum
