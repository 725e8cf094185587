#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "vitrum/core/error.h"
#include "vitrum/weights/families/timm_args.h"
#include "vitrum/weights/families/vit.h"
#include "vitrum/weights/hf_config.h"

namespace vitrum {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMaxAngles = 1 << 28;

// Beside those of timm_args.h.
const std::vector<std::string> kModelArgs = {
    "proj_bias", "act_layer", "no_embed_class", "reg_tokens", "pre_norm", "fc_norm", "final_norm"};

// Those with a single value that we have, as JSON.
const std::vector<JsonKeys::Fixed> kOnlyArgs = {{"qk_norm", "false"},
                                                {"scale_attn_norm", "false"},
                                                {"scale_mlp_norm", "false"},
                                                {"pos_embed", "\"learn\""},
                                                {"pool_include_prefix", "false"}};

// timm's models for CLIP have PyTorch's eps, which no argument can ask for; the norm before the
// blocks and patches without a bias, their other differences, one can switch off.
constexpr float kClipEps = 1e-5f;
bool as_clip(const ViTConfig& c) { return c.eps == kClipEps && !c.distilled; }

// Gated MLPs have no argument either: one size of DINOv2 has them.
bool as_giant(const ViTConfig& c) {
  return c.gated && c.act == Act::kSilu && c.layer_scale > 0 && !c.norm_pre && !c.distilled;
}

// Whether timm's VisionTransformer computes the same: its switches are fewer. Its LayerNorm has eps
// 1e-6; that of transformers' models, 1e-12, is taken for the same here and kept in our own object.
bool timm_has(const ViTConfig& c) {
  return c.pre_norm && c.patch_order == PatchOrder::kChannelFirst && c.norm_bias && c.head_bias &&
         c.proj_bias == c.mlp_bias && !c.sincos_positions && c.act != Act::kNone &&
         c.norm_pre != c.patch_bias && c.pool != ViTPool::kTokenAndMean &&
         (c.eps <= 1e-6f || as_clip(c)) && c.distilled == c.two_heads() && c.learned_positions &&
         c.position_grid == 0 && c.k_bias && c.rope == Rope::kNone &&
         c.distance_bias == DistanceBias::kNone && !c.attn_norm && !c.mlp_norm &&
         (!c.gated || as_giant(c));
}

// timm insists on a name it knows, and takes every size from model_args.
std::string timm_name(const ModelSpec& spec, const ViTConfig& c) {
  if (!timm_has(c)) return "vitrum_vit";
  if (as_clip(c)) return "vit_base_patch16_clip_224";
  if (c.gated)
    return c.registers > 0 ? "vit_giant_patch14_reg4_dinov2" : "vit_giant_patch14_dinov2";
  const auto fits = [&](const char* part) {
    return spec.architecture.find(part) != std::string::npos;
  };
  if (c.distilled)
    return fits("_distilled_patch") ? spec.architecture : "deit_base_distilled_patch16_224";
  return fits("_patch") ? spec.architecture : "vit_base_patch16_224";
}

// fc1 of a gated MLP gives both halves.
double mlp_factor(const ViTConfig& c) { return c.gated ? 2 : 1; }

constexpr std::array<std::string_view, 3> kPools = {"token", "avg", "map"};
constexpr size_t kAverage = 1;
size_t timm_pool(const ViTConfig& c) {
  switch (c.pool) {
    case ViTPool::kMean:
    case ViTPool::kNormedMean:
    case ViTPool::kBareMean: return kAverage;
    case ViTPool::kMap: return 2;
    case ViTPool::kToken:
    case ViTPool::kTokenAndMean: break;
  }
  return 0;
}

// timm's norm is behind the mean unless told otherwise, and then before it or nowhere.
ViTPool read_pool(const JsonKeys& top, const JsonKeys& args, const ViTConfig& c) {
  const size_t pool =
      args.choice("global_pool", top.choice("global_pool", timm_pool(c), kPools), kPools);
  const bool mean = pool == kAverage;
  const bool normed = args.boolean("final_norm", c.pool != ViTPool::kBareMean),
             behind = args.boolean("fc_norm", mean && c.pool != ViTPool::kNormedMean);
  if (!mean && (behind || !normed))
    fail_input("{}: {} is not supported with global_pool '{}'", args.where(),
               behind ? "fc_norm" : "final_norm", kPools[pool]);
  if (mean) return !normed ? ViTPool::kBareMean : behind ? ViTPool::kMean : ViTPool::kNormedMean;
  return pool == 0 ? ViTPool::kToken : ViTPool::kMap;
}

Json model_args(const ViTConfig& c) {
  Json args = timm_sizes(c, mlp_factor(c));
  args["global_pool"] = kPools[timm_pool(c)];
  if (c.pool == ViTPool::kNormedMean) args["fc_norm"] = false;
  if (c.pool == ViTPool::kBareMean) args["final_norm"] = false;
  if (as_clip(c) || c.norm_pre) args["pre_norm"] = c.norm_pre;
  if (!c.prefix_positions) args["no_embed_class"] = true;
  if (c.registers > 0) args["reg_tokens"] = c.registers;
  if (!c.proj_bias) args["proj_bias"] = false;
  if (c.act != Act::kGelu && !c.gated) args["act_layer"] = kActNames[static_cast<size_t>(c.act)];
  return args;
}

Grid grid_of(const ViTConfig& c) { return {c.image_h / c.patch_h, c.image_w / c.patch_w}; }

// What a parameter goes through where the wanted model is of another size than the stored one.
class ViTAdapter final : public Adapter {
 public:
  ViTAdapter(const ViTConfig& stored, const ViTConfig& wanted, PositionRule rule)
      : stored_(stored), wanted_(wanted), rule_(rule) {}

  bool changes(const std::string& param) const override {
    if (param == "pos_embed" || is_table(param))
      return wanted_.position_grid == 0 && grid_of(stored_) != grid_of(wanted_);
    return param == "patch_embed.proj.weight" &&
           (stored_.channels != wanted_.channels || patch_of(stored_) != patch_of(wanted_));
  }

  std::vector<float> operator()(const std::string& param,
                                const std::vector<float>& values) const override {
    if (param == "pos_embed")
      return resample_positions(values, stored_.positions() - stored_.patches(), stored_.width,
                                grid_of(stored_), grid_of(wanted_), rule_);
    if (is_table(param)) return resample_table(values);
    if (patch_of(stored_) == patch_of(wanted_)) return adapt_channels(values);
    return adapt_channels(
        resample_patches(values, patch_of(stored_), patch_of(wanted_), patch_rule()));
  }

  std::vector<std::string> report() const override {
    std::vector<std::string> all;
    const Grid from = grid_of(stored_), to = grid_of(wanted_);
    const auto add = [&](const char* what, PositionRule rule) {
      all.push_back(fmt::format("{} {}x{} -> {}x{} ({})", what, from.rows, from.columns, to.rows,
                                to.columns, name_of(rule)));
    };
    if (changes("pos_embed") && wanted_.learned_positions && !wanted_.sincos_positions)
      add("positions", rule_);
    if (changes("pos_embed") && wanted_.distance_bias != DistanceBias::kNone)
      add("position biases", table_rule());
    if (patch_of(stored_) != patch_of(wanted_))
      all.push_back(fmt::format("patches {}x{} -> {}x{} ({}, pseudo-inverse)", stored_.patch_h,
                                stored_.patch_w, wanted_.patch_h, wanted_.patch_w,
                                name_of(patch_rule())));
    if (stored_.channels != wanted_.channels)
      all.push_back(
          fmt::format("patch embedding of {} -> {} channels", stored_.channels, wanted_.channels));
    return all;
  }

 private:
  static Grid patch_of(const ViTConfig& c) { return {c.patch_h, c.patch_w}; }
  // As timm: FlexiViT's were trained with bilinear resizing.
  PositionRule patch_rule() const {
    return rule_ == PositionRule::kBilinear ? rule_ : PositionRule::kBicubicAntialias;
  }
  std::vector<float> adapt_channels(const std::vector<float>& values) const {
    if (stored_.channels == wanted_.channels) return values;
    return vitrum::adapt_channels(values, stored_.width, stored_.channels, wanted_.channels,
                                  stored_.patch_order == PatchOrder::kChannelFirst);
  }
  static bool is_table(const std::string& param) {
    return param.ends_with("relative_position_bias_table");
  }
  // Frameworks have another rule for tables than for positions: timm BEiT's, transformers bilinear.
  PositionRule table_rule() const {
    return rule_ == PositionRule::kBicubicAntialias ? PositionRule::kGeometric
                                                    : PositionRule::kBilinear;
  }
  // By distances of -(n - 1) to n - 1; the rows of prefix tokens, the last, stay.
  std::vector<float> resample_table(const std::vector<float>& values) const {
    const auto distances = [](Grid g) { return Grid{2 * g.rows - 1, 2 * g.columns - 1}; };
    const Grid from = distances(grid_of(stored_)), to = distances(grid_of(wanted_));
    const auto count = static_cast<size_t>(from.rows * from.columns * stored_.heads);
    std::vector<float> table = resample_positions(std::span(values).first(count), 0, stored_.heads,
                                                  from, to, table_rule());
    table.insert(table.end(), values.begin() + static_cast<ptrdiff_t>(count), values.end());
    return table;
  }

  const ViTConfig stored_, wanted_;
  PositionRule rule_;
};

}  // namespace

void ViTFiles::fields(FieldVisitor& visit, ViTConfig& c) {
  visit("image_h", c.image_h, kSides), visit("image_w", c.image_w, kSides);
  visit("patch_h", c.patch_h, kSides), visit("patch_w", c.patch_w, kSides);
  visit("channels", c.channels, kSides), visit("width", c.width, kWidths);
  visit("depth", c.depth, kDepths), visit("heads", c.heads, kWidths);
  visit("mlp_width", c.mlp_width, IntRange{1, 1 << 20}), visit("classes", c.classes, kClasses);
  visit("eps", c.eps), visit("act", c.act, kActNames);
  visit("patch_order", c.patch_order, kPatchOrderNames), visit("init", c.init, kInitNames);
  visit("pre_norm", c.pre_norm), visit("class_token", c.class_token);
  bool mean = c.pool == ViTPool::kMean;  // what older directories say instead of "pool"
  visit("mean_pool", mean);
  if (mean != (c.pool == ViTPool::kMean)) c.pool = mean ? ViTPool::kMean : ViTPool::kToken;
  visit("pool", c.pool, kPoolNames), visit("registers", c.registers, IntRange{0, 1024});
  visit("prefix_positions", c.prefix_positions), visit("norm_pre", c.norm_pre);
  visit("patch_bias", c.patch_bias), visit("sincos_positions", c.sincos_positions);
  visit("sincos_endpoint", c.sincos_endpoint), visit("floor_patches", c.floor_patches);
  visit("distilled", c.distilled), visit("dist_head", c.dist_head);
  visit("qkv_bias", c.qkv_bias), visit("proj_bias", c.proj_bias), visit("mlp_bias", c.mlp_bias);
  visit("norm_bias", c.norm_bias), visit("head_bias", c.head_bias);
  visit("k_bias", c.k_bias), visit("learned_positions", c.learned_positions);
  visit("position_grid", c.position_grid, IntRange{0, 256});
  visit("rope", c.rope, kRopeNames), visit("rope_theta", c.rope_theta, IntRange{1, 1 << 30});
  visit("rope_grid", c.rope_grid, kSides), visit("rope_bf16", c.rope_bf16);
  visit("distance_bias", c.distance_bias, kDistanceBiasNames), visit("gated", c.gated);
  visit("attn_norm", c.attn_norm), visit("mlp_norm", c.mlp_norm);
  visit("layer_scale", c.layer_scale), visit("drop_pos", c.drop_pos);
  visit("drop_attn", c.drop_attn), visit("drop_proj", c.drop_proj), visit("drop_act", c.drop_act);
  visit("drop_mlp", c.drop_mlp), visit("drop_path", c.drop_path), visit("patch_drop", c.patch_drop);
}

bool ViTFiles::same_sizes(const ViTConfig& p, const ViTConfig& c) {
  // A DINOv3 is the same for images of any size, and has two presets.
  const bool image = p.rope == Rope::kDinov3 ? p.qkv_bias == c.qkv_bias
                     : p.position_grid > 0   ? p.position_grid == c.position_grid
                                             : p.image_h == c.image_h;
  return p.init == InitStyle::kTimm && p.width == c.width && p.depth == c.depth &&
         p.heads == c.heads && p.mlp_width == c.mlp_width && p.patch_h == c.patch_h &&
         p.patch_w == c.patch_w && image && p.distilled == c.distilled &&
         p.class_token == c.class_token && (p.position_grid > 0) == (c.position_grid > 0) &&
         p.registers == c.registers && p.prefix_positions == c.prefix_positions &&
         p.norm_pre == c.norm_pre && (p.pool == ViTPool::kMap) == (c.pool == ViTPool::kMap) &&
         (p.layer_scale > 0) == (c.layer_scale > 0) && p.rope == c.rope &&
         p.distance_bias == c.distance_bias && p.gated == c.gated && p.attn_norm == c.attn_norm &&
         p.mlp_norm == c.mlp_norm;
}

void ViTFiles::check_size(const ViTConfig& c, const std::string& path) {
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  const double width = real(c.width), patch = real(c.channels) * real(c.patch_h) * real(c.patch_w);
  const double tokens = real(c.image_h) / real(c.patch_h) * (real(c.image_w) / real(c.patch_w)) +
                        2 + real(c.registers);
  const double block = width * (4 * width + (c.gated ? 3 : 2) * real(c.mlp_width)) +
                       (c.distance_bias == DistanceBias::kNone ? 0 : 4 * tokens * real(c.heads));
  const double grid = real(c.position_grid * c.position_grid);
  const double total = real(c.depth) * block + width * (tokens + grid + patch + real(c.classes));
  // Rotary angles are no parameters, nor is what resizes positions, but tables of them are made.
  const double angles =
      tokens * grid +
      (c.rope == Rope::kNone ? 0 : tokens * width / real(std::max<int64_t>(1, c.heads)));
  if (total > kMaxParameters || tokens > kMaxTokens || angles > kMaxAngles)
    fail_input("{}: a model of {:.3g} parameters and {:.3g} tokens is too large to be meant", path,
               total, tokens);
}

void ViTFiles::read_timm(const JsonKeys& top, const JsonKeys& args, ViTConfig& c) {
  const double ratio = static_cast<double>(c.mlp_width) / static_cast<double>(c.width);
  args.only(timm_args(kModelArgs), kOnlyArgs);
  read_timm_sizes(args, c, mlp_factor(c) * ratio, mlp_factor(c));
  c.proj_bias = c.mlp_bias = args.boolean("proj_bias", c.proj_bias);
  c.prefix_positions = !args.boolean("no_embed_class", !c.prefix_positions);
  c.registers = args.integer("reg_tokens", c.registers, {0, 1024});
  c.norm_pre = args.boolean("pre_norm", c.norm_pre), c.patch_bias = !c.norm_pre;
  c.act = static_cast<Act>(args.choice("act_layer", static_cast<size_t>(c.act), kActNames));
  c.pool = read_pool(top, args, c);
}

TimmConfig ViTFiles::write_timm(const ModelSpec& spec, const ViTConfig& c) {
  return {.architecture = timm_name(spec, c),
          .pool = std::string(kPools[timm_pool(c)]),
          .model_args = model_args(c).dump(),
          .first = "patch_embed.proj",
          .classifiers = c.two_heads() ? std::vector<std::string>{"head", "head_dist"}
                                       : std::vector<std::string>{"head"},
          .says_eps = timm_has(c) && as_clip(c)};
}

void ViTFiles::read_hf_sizes(const JsonKeys& keys, ViTConfig& c) {
  c.width = keys.integer("hidden_size", 768, kWidths);
  c.depth = keys.integer("num_hidden_layers", 12, kDepths);
  c.heads = keys.integer("num_attention_heads", 12, kWidths);
  c.mlp_width = keys.integer("intermediate_size", 3072, {1, 1 << 20});
  c.act = read_hf_act(keys);
  c.eps = static_cast<float>(keys.number("layer_norm_eps", 1e-12, 0, 1));
  std::tie(c.image_h, c.image_w) = keys.pair("image_size", {224, 224}, kSides);
  std::tie(c.patch_h, c.patch_w) = keys.pair("patch_size", {16, 16}, kSides);
  c.channels = keys.integer("num_channels", 3, kSides);
}

LayoutSizes ViTFiles::layout_sizes(const ViTConfig& c) {
  return {.patch_h = c.patch_h,
          .patch_w = c.patch_w,
          .channels = c.channels,
          .heads = c.heads,
          .head_dim = c.width / c.heads,
          .channel_last = c.patch_order == PatchOrder::kChannelLast,
          .patch_rows = c.position_grid > 0};
}

ViTConfig ViTFiles::stored_sizes(ViTConfig c, const Dialect& dialect, const StoredDims& dims) {
  const std::vector<int64_t> head = dims("head.weight", 2);
  c.classes = !head.empty() && head[1] == c.feature_width() ? head[0] : 0;
  c.head_bias = c.classes == 0 || !dims("head.bias", 1).empty();
  // timm's distilled models have two heads; transformers' may have none that reads the token.
  if (c.distilled)
    c.dist_head = c.classes == 0 ? dialect.name == "timm" : !dims("head_dist.weight", 2).empty();
  const std::vector<int64_t> patch = dims("patch_embed.proj.weight", 4);
  if (!patch.empty() && patch[0] == c.width && patch[2] == c.patch_h && patch[3] == c.patch_w)
    c.channels = std::max<int64_t>(patch[1], 1);
  const std::vector<int64_t> positions = dims("pos_embed", 3);
  if (!positions.empty() && positions[2] == c.width) {
    const int64_t side = square_root(positions[1] - (c.positions() - c.patches()));
    if (side > 0) c.image_h = side * c.patch_h, c.image_w = side * c.patch_w;
  }
  return c;
}

// What the head reads may be something else, as long as it is behind the same norm.
void ViTFiles::take_stored(ViTConfig& wanted, const ViTConfig& stored) {
  const auto normed = [](ViTPool pool) {
    return pool == ViTPool::kToken || pool == ViTPool::kNormedMean ||
           pool == ViTPool::kTokenAndMean;
  };
  if (normed(wanted.pool) && normed(stored.pool)) wanted.pool = stored.pool;
  wanted.patch_h = stored.patch_h, wanted.patch_w = stored.patch_w;
}

std::unique_ptr<Adapter> ViTFiles::adapt(const ViTConfig& stored, const ViTConfig& wanted,
                                         PositionRule rule) {
  return std::make_unique<ViTAdapter>(stored, wanted, rule);
}

std::vector<std::string> ViTFiles::notes(const Dialect& dialect, const ViTConfig& c, bool says_so) {
  return computed_otherwise(dialect, c.eps, c.act, says_so);
}

bool ViTFiles::two_heads(const ViTConfig& c) { return c.two_heads(); }

}  // namespace vitrum
