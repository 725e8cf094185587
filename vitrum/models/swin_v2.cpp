#include "vitrum/models/swin_v2.h"

#include <algorithm>
#include <cmath>

#include "vitrum/core/error.h"
#include "vitrum/graph/functional.h"
#include "vitrum/models/swin_blocks.h"

namespace vitrum {
namespace {

constexpr int64_t kBiasWidth = 512;  // of the MLP that makes the bias
constexpr float kMostBias = 16;

// A stage as its blocks see it.
struct Stage {
  int64_t heads, pretrained;
  SwinWindows even, odd;
  Value mask;
};

// Distances along an axis, -1 to 1 over a window of `pretrained` tokens, on a scale that grows
// slower further out.
float distance(int64_t tokens, int64_t window, int64_t pretrained) {
  const int64_t whole = std::max<int64_t>((pretrained > 0 ? pretrained : window) - 1, 1);
  const double d = 8 * static_cast<double>(tokens) / static_cast<double>(whole);
  return static_cast<float>(std::copysign(std::log2(std::abs(d) + 1) / 3, d));
}

// Of the bias nothing is rounded to bf16, and its parameters do not decay.
Value exactly(Value x) {
  Graph& g = x.graph();
  g.info(x).exact = true;
  for (const ValueId id : g.nodes.back().in) {
    if (id == kAbsent || g.values[static_cast<size_t>(id)].role != Role::kParam) continue;
    g.params[static_cast<size_t>(g.values[static_cast<size_t>(id)].param)].decay = false;
  }
  return x;
}

// The bias by distance inside a window, (H, T, T), made by an MLP.
Value position_bias(Scope s, const SwinWindows& w, int64_t pretrained, int64_t heads) {
  Graph& g = s.graph();
  std::vector<float> places;
  for (int64_t y = 1 - w.window_h; y < w.window_h; ++y)
    for (int64_t x = 1 - w.window_w; x < w.window_w; ++x) {
      places.push_back(distance(y, w.window_h, pretrained));
      places.push_back(distance(x, w.window_w, pretrained));
    }
  const Scope mlp = s / "cpb_mlp";
  const auto rows = static_cast<int64_t>(places.size() / 2);
  Value x = g.constant((s / "distances").path(), {rows, 2}, std::move(places));
  x = exactly(linear(mlp / 0, x, kBiasWidth));
  x = exactly(activation(x, Act::kRelu));
  x = exactly(linear(mlp / 2, x, heads, {.bias = false}));
  x = exactly(activation(x, Act::kSigmoid));
  Value most = g.constant((mlp / "most").path(), {heads},
                          std::vector<float>(static_cast<size_t>(heads), kMostBias));
  x = exactly(g.emit((mlp / "scale").path(), ChannelScale{}, {x, most}, {x.shape()}));
  return relative_bias(s, x, w.window_h, w.window_w);
}

Value window_attention(Scope s, Value x, const SwinV2Config& cfg, const Stage& stage,
                       const SwinWindows& windows, Value mask) {
  const int64_t width = x.dim(2);
  x = to_windows(s, x, windows);
  // Keys have no bias.
  x = linear(s / "qkv", x, 3 * width, {.bias = cfg.qkv_bias, .held = {width, width}});
  x = cosine_heads(s, x, stage.heads);
  Value bias = position_bias(s, windows, stage.pretrained, stage.heads);
  x = attention(s / "core", x, stage.heads, cfg.drop_attn, bias, mask);
  x = dropout(s / "drop", linear(s / "proj", x, width), cfg.drop_proj);
  return from_windows(s, module_output(s, x), windows);
}

// The norms behind the branches start at zero, so that a block starts as the identity.
Value block(Scope s, Value x, const SwinV2Config& cfg, const Stage& stage, bool odd, float drop) {
  RecomputeUnit unit(s.graph());
  Value y = window_attention(s / "attn", x, cfg, stage, odd ? stage.odd : stage.even,
                             odd ? stage.mask : Value());
  y = layer_norm(s / "norm1", y, cfg.eps, /*bias=*/true, /*start=*/0);
  x = x + drop_path(s / "drop_path1", y, drop);
  y = layer_norm(s / "norm2", swin_mlp(s / "mlp", x, cfg), cfg.eps, /*bias=*/true, /*start=*/0);
  return module_output(s, x + drop_path(s / "drop_path2", y, drop));
}

Stage stage_of(Scope s, const SwinV2Config& cfg, int64_t i) {
  const auto at = static_cast<size_t>(i);
  Stage stage{cfg.heads[at], at < cfg.pretrained_windows.size() ? cfg.pretrained_windows[at] : 0,
              swin_windows(cfg, i, false), swin_windows(cfg, i, true), Value()};
  stage.mask = swin_mask(s, stage.odd, cfg.depths[at]);
  return stage;
}

}  // namespace

SwinWindows swin_windows(const SwinV2Config& cfg, int64_t stage, bool shifted) {
  SwinWindows w{.pad_first = cfg.pad_first};
  const auto axis = [&](int64_t patches, int64_t window, int64_t& grid, int64_t& size,
                        int64_t& shift) {
    grid = patches;
    for (int64_t i = 0; i < stage; ++i) grid = (grid + 1) / 2;
    // transformers, which fills up first and makes windows smaller, rounds down here.
    const int64_t known =
        cfg.pad_first && cfg.shrink_windows ? std::max<int64_t>(patches >> stage, 1) : grid;
    size = cfg.shrink_windows ? std::min(window, known) : window;
    shift = shifted && known > window ? window / 2 : 0;
  };
  axis(cfg.image_h / cfg.patch_h, cfg.window_h, w.grid_h, w.window_h, w.shift_h);
  axis(cfg.image_w / cfg.patch_w, cfg.window_w, w.grid_w, w.window_w, w.shift_w);
  return w;
}

Value swin_v2_features(Scope s, Value image, const SwinV2Config& cfg) {
  validate(cfg);
  Value x = swin_embed(s / "patch_embed", image, cfg);
  int64_t depth = 0, done = 0;
  for (const int64_t d : cfg.depths) depth += d;
  for (int64_t i = 0; i < cfg.stages(); ++i) {
    const Scope layer = s / "layers" / i;
    if (i > 0) {
      const Scope merge = layer / "downsample";
      const SwinWindows before = swin_windows(cfg, i - 1, false);
      x = swin_neighbours(merge, x, before.grid_h, before.grid_w);
      x = linear(merge / "reduction", x, cfg.stage_width(i), {.bias = false});
      x = module_output(merge, layer_norm(merge / "norm", x, cfg.eps));
    }
    const Stage stage = stage_of(layer, cfg, i);
    for (int64_t b = 0; b < cfg.depths[static_cast<size_t>(i)]; ++b, ++done) {
      const float share =
          static_cast<float>(done) / static_cast<float>(std::max<int64_t>(1, depth - 1));
      x = block(layer / "blocks" / b, x, cfg, stage, b % 2 == 1, cfg.drop_path * share);
    }
    module_output(layer, x);
  }
  return mean_tokens(layer_norm(s / "norm", x, cfg.eps), 0);
}

Value swin_v2_head(Scope s, Value features, const SwinV2Config& cfg) {
  return swin_head(s, features, cfg);
}

Value swin_v2(Scope s, Value image, const SwinV2Config& cfg) {
  return swin_v2_head(s, swin_v2_features(s, image, cfg), cfg);
}

void validate(const SwinV2Config& cfg) {
  validate(static_cast<const SwinConfig&>(cfg));
  const auto& windows = cfg.pretrained_windows;
  if ((!windows.empty() && windows.size() != cfg.depths.size()) ||
      std::ranges::any_of(windows, [](int64_t w) { return w < 0; }))
    fail_usage("a Swin V2 of {} stages has as many windows of pretraining, none below 0; found {}",
               cfg.stages(), windows.size());
}

}  // namespace vitrum
