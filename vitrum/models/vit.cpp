#include "vitrum/models/vit.h"

#include <cmath>
#include <numbers>
#include <numeric>

#include "vitrum/core/error.h"
#include "vitrum/graph/functional.h"
#include "vitrum/models/patches.h"
#include "vitrum/models/position_grid.h"

namespace vitrum {

// MoCo v3, big_vision; without the endpoint MAE.
std::vector<float> sincos_table(const ViTConfig& cfg) {
  const int64_t rows = cfg.image_h / cfg.patch_h, columns = cfg.image_w / cfg.patch_w,
                quarter = cfg.width / 4, last = cfg.sincos_endpoint ? quarter - 1 : quarter;
  std::vector<float> data(static_cast<size_t>(cfg.positions() * cfg.width), 0.f);
  float* at = data.data() + (cfg.positions() - cfg.patches()) * cfg.width;
  for (int64_t y = 0; y < rows; ++y)
    for (int64_t x = 0; x < columns; ++x, at += cfg.width)
      for (int64_t i = 0; i < quarter; ++i) {
        const double exponent = last > 0 ? static_cast<double>(i) / static_cast<double>(last) : 0;
        const double omega = std::pow(10000.0, -exponent);
        at[i] = static_cast<float>(std::sin(static_cast<double>(x) * omega));
        at[i + quarter] = static_cast<float>(std::cos(static_cast<double>(x) * omega));
        at[i + 2 * quarter] = static_cast<float>(std::sin(static_cast<double>(y) * omega));
        at[i + 3 * quarter] = static_cast<float>(std::cos(static_cast<double>(y) * omega));
      }
  return data;
}

namespace {

Value distance_bias(Scope s, const ViTConfig& cfg) {  // (H, T, T)
  const int64_t rows = cfg.image_h / cfg.patch_h, columns = cfg.image_w / cfg.patch_w;
  Value table = relative_bias_table(s, rows, columns, cfg.heads, cfg.prefix_tokens());
  return relative_bias(s, table, rows, columns, cfg.prefix_tokens());
}

std::vector<double> exact_periods(const ViTConfig& cfg) {
  const int64_t quarter = cfg.width / cfg.heads / 4;
  std::vector<double> periods;
  for (int64_t j = 0; j < quarter; ++j) {
    const double exponent = static_cast<double>(j) / static_cast<double>(quarter);
    const double period = std::pow(static_cast<double>(cfg.rope_theta), exponent);
    periods.push_back(cfg.rope_bf16 ? from_bf16(to_bf16(static_cast<float>(period))) : period);
  }
  return periods;
}

// The cosines and sines of every patch's angles: Rotate's table.
Value rope_table(Graph& g, const ViTConfig& cfg) {
  const int64_t rows = cfg.image_h / cfg.patch_h, columns = cfg.image_w / cfg.patch_w,
                head = cfg.width / cfg.heads;
  const auto place = [&](int64_t index, int64_t count) {
    const auto i = static_cast<double>(index), n = static_cast<double>(count);
    return cfg.rope == Rope::kEva ? i * static_cast<double>(cfg.rope_grid) / n
                                  : 2 * std::numbers::pi * (2 * (i + 0.5) / n - 1);
  };
  const std::vector<double> periods = exact_periods(cfg);
  std::vector<float> data;
  data.reserve(static_cast<size_t>(rows * columns * head));
  const auto add = [&](int64_t y, int64_t x, double (*wave)(double)) {
    for (const double at : {place(y, rows), place(x, columns)})
      for (const double period : periods) data.push_back(static_cast<float>(wave(at / period)));
  };
  for (int64_t y = 0; y < rows; ++y)
    for (int64_t x = 0; x < columns; ++x) add(y, x, std::cos), add(y, x, std::sin);
  return g.constant("rope", {rows * columns, head}, std::move(data));
}

// The options of one linear layer of `in` inputs under the config's initialisation style.
LinearOptions dense(const ViTConfig& cfg, Scope s, int64_t in, bool bias) {
  if (cfg.init == InitStyle::kTimm) return {.bias = bias};
  LinearOptions options{
      .bias = bias, .weight_init = Init::fan_in(in), .bias_init = Init::fan_in(in)};
  if (cfg.init == InitStyle::kMnist && s.path().starts_with("blocks.")) {
    const std::string leaf =
        s.path().substr(s.path().find('.', 7));  // "blocks.2.mlp.fc1" shares a key with block 0
    options.weight_init.key = "blocks.0" + leaf + ".weight";
    options.bias_init.key = "blocks.0" + leaf + ".bias";
  }
  return options;
}

// (B, T, C) -> (B, T, C)
Value self_attention(Scope s, Value x, const ViTConfig& cfg, const ViTAttends& extra) {
  LinearOptions qkv = dense(cfg, s / "qkv", cfg.width, cfg.qkv_bias);
  if (!cfg.k_bias) qkv.held = {cfg.width, cfg.width};
  LinearOptions proj = dense(cfg, s / "proj", cfg.width, cfg.proj_bias);
  if (cfg.init == InitStyle::kNotes || cfg.init == InitStyle::kMnist) {  // nn.MultiheadAttention
    const std::string key = qkv.weight_init.key;
    qkv.weight_init = Init::xavier(cfg.width, 3 * cfg.width);
    qkv.weight_init.key = key;
    qkv.bias_init = proj.bias_init = Init::zeros();
  }
  x = linear(s / "qkv", x, 3 * cfg.width, qkv);
  if (extra.angles)
    x = rotate(s / "rope", x, extra.angles, cfg.heads, cfg.prefix_tokens(),
               cfg.rope == Rope::kDinov3);
  Value bias = extra.bias;
  if (cfg.distance_bias == DistanceBias::kEach) bias = distance_bias(s, cfg);
  x = attention(s / "core", x, cfg.heads, cfg.drop_attn, bias, extra.mask);
  if (cfg.attn_norm) x = layer_norm(s / "norm", x, cfg.eps, cfg.norm_bias);
  x = linear(s / "proj", x, cfg.width, proj);
  return module_output(s, dropout(s / "drop", x, cfg.drop_proj));
}

Value mlp(Scope s, Value x, const ViTConfig& cfg) {
  x = linear(s / "fc1", x, cfg.gated ? 2 * cfg.mlp_width : cfg.mlp_width,
             dense(cfg, s / "fc1", cfg.width, cfg.mlp_bias));
  x = cfg.gated ? gate(x, cfg.act) : activation(x, cfg.act);
  x = dropout(s / "drop1", x, cfg.drop_act);
  if (cfg.mlp_norm) x = layer_norm(s / "norm", x, cfg.eps, cfg.norm_bias);
  x = linear(s / "fc2", x, cfg.width, dense(cfg, s / "fc2", cfg.mlp_width, cfg.mlp_bias));
  return module_output(s, dropout(s / "drop2", x, cfg.drop_mlp));
}

// What a residual branch goes through before it is added: LayerScale and stochastic depth.
Value branch(Scope s, Value x, const ViTConfig& cfg, int n, int64_t index) {
  const std::string suffix = std::to_string(n);
  if (cfg.layer_scale > 0) x = layer_scale(s / ("ls" + suffix), x, cfg.layer_scale);
  const auto last = static_cast<float>(std::max<int64_t>(1, cfg.depth - 1));
  return drop_path(s / ("drop_path" + suffix), x, cfg.drop_path * static_cast<float>(index) / last);
}

struct TokenInit {
  Init token, positions;
};
TokenInit token_init(InitStyle style) {
  switch (style) {
    case InitStyle::kTimm: return {Init::normal(1e-6f), Init::normal(0.02f)};
    case InitStyle::kMinViT: return {Init::zeros(), Init::zeros()};
    case InitStyle::kMnist: return {Init::normal(1), Init::uniform(0, 1)};
    case InitStyle::kNotes:
    case InitStyle::kLesson: break;
  }
  return {Init::normal(1), Init::normal(1)};
}

// The table of a square, which is the same for images of every shape, as a parameter of its own:
// (C, side * side), so that a product resizes it to the patches there are. Their sum stays f32, as
// positions are elsewhere.
Value resized_positions(Scope s, const ViTConfig& cfg, const Init& start) {
  const int64_t side = cfg.position_grid, cells = side * side;
  const int64_t rows = cfg.image_h / cfg.patch_h, columns = cfg.image_w / cfg.patch_w;
  Value table = s.param("pos_grid", {cfg.width, cells}, start, /*decay=*/false);
  Value resize = s.graph().constant((s / "pos_resize").path(), {1, rows * columns, cells},
                                    grid_resize(side, rows, columns));
  Value positions =
      s.graph().emit((s / "pos_embed").path(), Linear{}, {resize, table, Value(), Value()},
                     {{1, rows * columns, cfg.width}});
  s.graph().info(positions).exact = true;
  return positions;
}

// (B, C, H, W) -> (B, T, C); with a choice only those tokens.
Value embed(Scope s, Value image, const ViTConfig& cfg, const TokenChoice* choice = nullptr) {
  Value x = patchify(whole_patches(image, cfg.patch_h, cfg.patch_w), cfg.patch_h, cfg.patch_w,
                     cfg.patch_order);
  const int64_t patch_values = cfg.channels * cfg.patch_h * cfg.patch_w;
  // A patch embedding is a convolution in every framework, so it starts as one, also in timm.
  x = linear(s / "patch_embed" / "proj", x, cfg.width,
             {.bias = cfg.patch_bias,
              .weight_init = Init::fan_in(patch_values),
              .bias_init = Init::fan_in(patch_values)});
  module_output(s / "patch_embed", x);
  const TokenInit start = token_init(cfg.init);
  std::vector<Value> prefix;
  if (cfg.class_token)
    prefix.push_back(s.param("cls_token", {1, 1, cfg.width}, start.token, /*decay=*/false));
  if (cfg.distilled)  // timm starts it as it starts positions
    prefix.push_back(s.param("dist_token", {1, 1, cfg.width}, start.positions, /*decay=*/false));
  if (cfg.registers > 0)  // as it starts the class token
    prefix.push_back(
        s.param("reg_token", {1, cfg.registers, cfg.width}, start.token, /*decay=*/false));
  Value positions;
  if (cfg.sincos_positions)
    positions = s.graph().constant("pos_embed", {1, cfg.positions(), cfg.width}, sincos_table(cfg));
  else if (cfg.position_grid > 0)
    positions = resized_positions(s, cfg, start.positions);
  else if (cfg.learned_positions)
    positions = s.param("pos_embed", {1, cfg.positions(), cfg.width}, start.positions,
                        /*decay=*/false);
  if (positions && !cfg.prefix_positions) x = add_tokens(x, {}, positions), positions = Value();
  x = dropout(s / "pos_drop", add_tokens(x, prefix, positions), cfg.drop_pos);
  x = choice ? keep_tokens(s / "patch_drop", x, *choice)
             : keep_tokens(s / "patch_drop", x, cfg.prefix_tokens(), cfg.patch_drop);
  return cfg.norm_pre ? layer_norm(s / "norm_pre", x, cfg.eps, cfg.norm_bias) : x;
}

// SigLIP's head, timm's AttentionPoolLatent: (B, T, C) -> (B, C).
Value map_pool(Scope s, Value x, const ViTConfig& cfg) {
  const float deviation = 1 / std::sqrt(static_cast<float>(cfg.width));
  Value latent = s.param("latent", {1, 1, cfg.width}, Init::normal(deviation), /*decay=*/false);
  Value q = linear(s / "q", as_token(s / "latent", latent), cfg.width);
  Value kv = linear(s / "kv", x, 2 * cfg.width);
  x = linear(s / "proj", attend_pool(s / "core", kv, q, cfg.heads), cfg.width);
  return module_output(s,
                       x + mlp(s / "mlp", layer_norm(s / "norm", x, cfg.eps, cfg.norm_bias), cfg));
}

}  // namespace

std::vector<float> rope_periods(const ViTConfig& cfg) {
  const std::vector<double> periods = exact_periods(cfg);
  return {periods.begin(), periods.end()};
}

ViTAttends vit_attends(Scope s, const ViTConfig& cfg) {
  return {.angles = cfg.rope == Rope::kNone ? Value() : rope_table(s.graph(), cfg),
          .bias = cfg.distance_bias == DistanceBias::kShared
                      ? distance_bias(s / "rel_pos_bias", cfg)
                      : Value()};
}

Value vit_block(Scope s, Value x, const ViTConfig& cfg, int64_t index, const ViTAttends& extra) {
  RecomputeUnit unit(s.graph());
  const auto attend = [&](Value v) { return self_attention(s / "attn", v, cfg, extra); };
  const auto norm = [&](const char* name, Value v) {
    return layer_norm(s / name, v, cfg.eps, cfg.norm_bias);
  };
  if (cfg.pre_norm) {
    x = x + branch(s, attend(norm("norm1", x)), cfg, 1, index);
    x = x + branch(s, mlp(s / "mlp", norm("norm2", x), cfg), cfg, 2, index);
  } else {
    x = norm("norm1", x + branch(s, attend(x), cfg, 1, index));
    x = norm("norm2", x + branch(s, mlp(s / "mlp", x, cfg), cfg, 2, index));
  }
  return module_output(s, x);
}

ViTFeatures vit_features(Scope s, Value image, const ViTConfig& cfg) {
  validate(cfg);
  Value x = embed(s, image, cfg);
  const ViTAttends extra = vit_attends(s, cfg);
  for (int64_t i = 0; i < cfg.depth; ++i) x = vit_block(s / "blocks" / i, x, cfg, i, extra);
  if (cfg.pool == ViTPool::kMean || cfg.pool == ViTPool::kBareMean) {
    x = mean_tokens(x, cfg.prefix_tokens());
    const bool normed = cfg.pre_norm && cfg.pool == ViTPool::kMean;
    return {normed ? layer_norm(s / "fc_norm", x, cfg.eps) : x};
  }
  if (cfg.pre_norm) x = layer_norm(s / "norm", x, cfg.eps);
  if (cfg.pool == ViTPool::kNormedMean) return {mean_tokens(x, cfg.prefix_tokens())};
  if (cfg.pool == ViTPool::kMap) return {map_pool(s / "attn_pool", x, cfg)};
  if (cfg.two_heads()) return {mean_tokens(x, 0, 2), take_token(x, 0), take_token(x, 1)};
  if (cfg.pool == ViTPool::kTokenAndMean)
    return {side_by_side(take_token(x, 0), mean_tokens(x, cfg.prefix_tokens()))};
  return {take_token(x, 0)};
}

Value vit_encode(Scope s, Value image, const ViTConfig& cfg, const TokenChoice& choice) {
  Value x = embed(s, image, cfg, &choice);
  for (int64_t i = 0; i < cfg.depth; ++i) x = vit_block(s / "blocks" / i, x, cfg, i);
  if (!cfg.pre_norm) return x;
  // One that norms the mean of the patches starts as what normed them one by one.
  x = layer_norm(s / (cfg.pool == ViTPool::kMean ? "fc_norm" : "norm"), x, cfg.eps);
  if (cfg.pool == ViTPool::kMap) map_pool(s / "attn_pool", x, cfg);  // it does not learn here
  return x;
}

ViTLogits vit_head(Scope s, const ViTFeatures& features, const ViTConfig& cfg) {
  if (cfg.classes == 0) return {features.pooled};
  const auto head = [&](const char* name, Value x) {
    return linear(s / name, x, cfg.classes,
                  dense(cfg, s / name, cfg.feature_width(), cfg.head_bias));
  };
  if (!cfg.two_heads()) return {head("head", features.pooled)};
  if (!features.cls) fail("a model with two heads needs what each of them sees");
  Value cls = head("head", features.cls);
  Value dist = head("head_dist", features.dist);
  s.graph().info(cls).exact = s.graph().info(dist).exact = true;  // f32, as one head's logits are
  return {average(cls, dist), cls, dist};
}

Value vit(Scope s, Value image, const ViTConfig& cfg) {
  return vit_head(s, vit_features(s, image, cfg), cfg).logits;
}

void validate(const ViTConfig& cfg) {
  require_patches(cfg, /*cover=*/!cfg.floor_patches);
  if (cfg.width <= 0 || cfg.heads <= 0 || cfg.width % cfg.heads != 0)
    fail_usage("width {} is not divisible by {} heads", cfg.width, cfg.heads);
  if (cfg.depth < 0 || cfg.mlp_width <= 0 || cfg.classes < 0)
    fail_usage("depth {}, MLP width {} and {} classes are not possible together", cfg.depth,
               cfg.mlp_width, cfg.classes);
  if (cfg.sincos_positions && cfg.width % 4 != 0)
    fail_usage("2-D sine-cosine positions need a width divisible by 4, not {}", cfg.width);
  if (cfg.position_grid < 0 || cfg.position_grid > 256 ||
      (cfg.position_grid > 0 &&
       (!cfg.learned_positions || cfg.sincos_positions || cfg.prefix_tokens() > 0)))
    fail_usage(
        "positions of a square of {} patches a side need 1 to 256, learned positions, and no other "
        "tokens",
        cfg.position_grid);
  if (cfg.registers < 0 || cfg.registers > 1024)
    fail_usage("{} register tokens are not possible", cfg.registers);
  if (cfg.rope != Rope::kNone && cfg.width / cfg.heads % 4 != 0)
    fail_usage("rotary positions need heads of a multiple of 4 values, not {}",
               cfg.width / cfg.heads);
  if (cfg.rope_theta < 1 || cfg.rope_grid < 1)
    fail_usage("rotary positions with theta {} over a grid of {} are not possible", cfg.rope_theta,
               cfg.rope_grid);
  if (cfg.patch_drop > 0 && (cfg.rope != Rope::kNone || cfg.distance_bias != DistanceBias::kNone))
    fail_usage("patches cannot be dropped where attention has positions of its own");
  if (!cfg.class_token && (cfg.pool == ViTPool::kToken || cfg.pool == ViTPool::kTokenAndMean))
    fail_usage("a model without a class token needs mean or attention pooling");
  if (cfg.distilled && (!cfg.class_token || cfg.pool != ViTPool::kToken || cfg.registers > 0))
    fail_usage(
        "a distillation token stands beside a class token, not beside mean pooling or registers");
  for (float p : {cfg.drop_pos, cfg.drop_attn, cfg.drop_proj, cfg.drop_act, cfg.drop_mlp,
                  cfg.drop_path, cfg.patch_drop})
    if (!(p >= 0 && p < 1)) fail_usage("a dropout probability must be in [0, 1), not {}", p);
}

}  // namespace vitrum
