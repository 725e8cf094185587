#include "vitrum/models/swin.h"

#include <algorithm>

#include "vitrum/core/error.h"
#include "vitrum/graph/functional.h"
#include "vitrum/models/patches.h"
#include "vitrum/models/swin_blocks.h"

namespace vitrum {
namespace {

constexpr int64_t kMaxStages = 8, kMaxWindowTokens = 4096;

// Where token y of a padded, shifted axis comes from; -1: filled up.
int64_t source(int64_t y, int64_t grid, int64_t padded, int64_t shift, bool pad_first) {
  const int64_t turned = pad_first ? padded : grid;  // what the shift turns round
  const int64_t from = y < turned ? (y + shift) % turned : grid;
  return from < grid ? from : -1;
}

// Tokens of different regions come from opposite ends of the axis, or are not in one window.
int region(int64_t y, int64_t padded, int64_t window, int64_t shift) {
  if (shift == 0) return 0;
  return y < padded - window ? 0 : y < padded - shift ? 1 : 2;
}

// Calls use(y, x) for every place of every window in turn.
template <class Use>
void for_each_place(const SwinWindows& w, const Use& use) {
  for (int64_t i = 0; i < w.down(); ++i)
    for (int64_t j = 0; j < w.across(); ++j)
      for (int64_t y = 0; y < w.window_h; ++y)
        for (int64_t x = 0; x < w.window_w; ++x) use(i * w.window_h + y, j * w.window_w + x);
}

// Four neighbours become one token: (B, N, C) -> (B, N / 4, 2C).
Value merge(Scope s, Value x, const SwinConfig& cfg, int64_t grid_h, int64_t grid_w) {
  const int64_t width = x.dim(2);
  x = swin_neighbours(s, x, grid_h, grid_w);
  x = linear(s / "reduction", layer_norm(s / "norm", x, cfg.eps), 2 * width, {.bias = false});
  return module_output(s, x);
}

// A stage as its blocks see it. The blocks that shift share their mask.
struct Stage {
  int64_t heads;
  SwinWindows even, odd;
  Value mask;
};

Value window_attention(Scope s, Value x, const SwinConfig& cfg, const Stage& stage,
                       const SwinWindows& windows, Value mask) {
  const int64_t width = x.dim(2);
  x = to_windows(s, x, windows);
  Value table = relative_bias_table(s, windows.window_h, windows.window_w, stage.heads);
  x = linear(s / "qkv", x, 3 * width, {.bias = cfg.qkv_bias});
  // Here: backward, nothing then comes between qkv and the norm before it.
  Value bias = relative_bias(s, table, windows.window_h, windows.window_w);
  x = attention(s / "core", x, stage.heads, cfg.drop_attn, bias, mask);
  x = dropout(s / "drop", linear(s / "proj", x, width), cfg.drop_proj);
  return from_windows(s, module_output(s, x), windows);
}

Value block(Scope s, Value x, const SwinConfig& cfg, const Stage& stage, bool odd, float drop) {
  RecomputeUnit unit(s.graph());
  const SwinWindows& windows = odd ? stage.odd : stage.even;
  Value y = layer_norm(s / "norm1", x, cfg.eps);
  y = window_attention(s / "attn", y, cfg, stage, windows, odd ? stage.mask : Value());
  x = x + drop_path(s / "drop_path1", y, drop);
  y = swin_mlp(s / "mlp", layer_norm(s / "norm2", x, cfg.eps), cfg);
  return module_output(s, x + drop_path(s / "drop_path2", y, drop));
}

Stage stage_of(Scope s, const SwinConfig& cfg, int64_t i) {
  Stage stage{cfg.heads[static_cast<size_t>(i)], swin_windows(cfg, i, false),
              swin_windows(cfg, i, true), Value()};
  stage.mask = swin_mask(s, stage.odd, cfg.depths[static_cast<size_t>(i)]);
  return stage;
}

}  // namespace

// A patch embedding starts as PyTorch's convolutions do, everything else with N(0, 0.02).
Value swin_embed(Scope s, Value image, const SwinConfig& cfg) {
  const int64_t pixels = cfg.channels * cfg.patch_h * cfg.patch_w;
  Value x = patchify(image, cfg.patch_h, cfg.patch_w, PatchOrder::kChannelFirst);
  x = linear(s / "proj", x, cfg.width,
             {.weight_init = Init::fan_in(pixels), .bias_init = Init::fan_in(pixels)});
  return module_output(s, layer_norm(s / "norm", x, cfg.eps));
}

Value swin_neighbours(Scope s, Value x, int64_t grid_h, int64_t grid_w) {
  const int64_t down = (grid_h + 1) / 2, across = (grid_w + 1) / 2, width = x.dim(2);
  std::vector<int32_t> from;
  for (int64_t y = 0; y < down; ++y)
    for (int64_t x0 = 0; x0 < across; ++x0)
      for (const auto& [dx, dy] : {std::pair{0, 0}, {0, 1}, {1, 0}, {1, 1}}) {
        const int64_t ty = 2 * y + dy, tx = 2 * x0 + dx;
        from.push_back(ty < grid_h && tx < grid_w ? static_cast<int32_t>(ty * grid_w + tx)
                                                  : int32_t{-1});
      }
  return gather_tokens((s / "neighbours").path(), x, grid_h * grid_w, std::move(from),
                       {x.dim(0), down * across, 4 * width});
}

Value to_windows(Scope s, Value x, const SwinWindows& w) {
  if (w.count() == 1 && w.tokens() == x.dim(1)) return x;
  return gather_tokens((s / "windows").path(), x, x.dim(1), w.places(),
                       {x.dim(0) * w.count(), w.tokens(), x.dim(2)});
}

Value from_windows(Scope s, Value x, const SwinWindows& w) {
  const int64_t grid = w.grid_h * w.grid_w, all = w.count() * w.tokens();
  if (w.count() == 1 && all == grid) return x;
  const std::vector<int32_t> places = w.places();
  std::vector<int32_t> from(static_cast<size_t>(grid));
  for (size_t i = 0; i < places.size(); ++i)
    if (places[i] >= 0) from[static_cast<size_t>(places[i])] = static_cast<int32_t>(i);
  return gather_tokens((s / "reverse").path(), x, all, std::move(from),
                       {x.dim(0) / w.count(), grid, x.dim(2)});
}

Value swin_mlp(Scope s, Value x, const SwinConfig& cfg) {
  const int64_t width = x.dim(2);
  const auto hidden = static_cast<int64_t>(static_cast<double>(width) * cfg.mlp_ratio);
  x = activation(linear(s / "fc1", x, hidden), cfg.act);
  x = linear(s / "fc2", dropout(s / "drop1", x, cfg.drop_act), width);
  return module_output(s, dropout(s / "drop2", x, cfg.drop_mlp));
}

Value swin_mask(Scope s, const SwinWindows& odd, int64_t depth) {
  if (depth < 2 || (odd.shift_h == 0 && odd.shift_w == 0)) return {};
  return s.graph().constant((s / "attn_mask").path(), {odd.count(), odd.tokens(), odd.tokens()},
                            odd.mask());
}

std::vector<int32_t> SwinWindows::places() const {
  std::vector<int32_t> all;
  for_each_place(*this, [&](int64_t y, int64_t x) {
    const int64_t from_y = source(y, grid_h, down() * window_h, shift_h, pad_first),
                  from_x = source(x, grid_w, across() * window_w, shift_w, pad_first);
    all.push_back(from_y < 0 || from_x < 0 ? -1 : static_cast<int32_t>(from_y * grid_w + from_x));
  });
  return all;
}

std::vector<float> SwinWindows::mask() const {
  std::vector<int> regions;
  for_each_place(*this, [&](int64_t y, int64_t x) {
    regions.push_back(3 * region(y, down() * window_h, window_h, shift_h) +
                      region(x, across() * window_w, window_w, shift_w));
  });
  std::vector<float> mask;
  const auto t = static_cast<size_t>(tokens());
  for (size_t first = 0; first < regions.size(); first += t)
    for (size_t query = first; query < first + t; ++query)
      for (size_t key = first; key < first + t; ++key)
        mask.push_back(regions[query] == regions[key] ? 0.f : -100.f);
  return mask;
}

SwinWindows swin_windows(const SwinConfig& cfg, int64_t stage, bool shifted) {
  SwinWindows w{.pad_first = cfg.pad_first};
  const auto axis = [&](int64_t patches, int64_t window, int64_t& grid, int64_t& size,
                        int64_t& shift) {
    grid = patches;
    for (int64_t i = 0; i < stage; ++i) grid = (grid + 1) / 2;
    const int64_t known = cfg.pad_first ? grid : patches >> stage;  // timm rounds down here
    size = cfg.pad_first ? window : std::min(window, known);
    shift = shifted && known > window ? window / 2 : 0;
  };
  axis(cfg.image_h / cfg.patch_h, cfg.window_h, w.grid_h, w.window_h, w.shift_h);
  axis(cfg.image_w / cfg.patch_w, cfg.window_w, w.grid_w, w.window_w, w.shift_w);
  return w;
}

bool fills_up(const SwinConfig& cfg) {
  for (int64_t i = 0; i < cfg.stages(); ++i) {
    const SwinWindows w = swin_windows(cfg, i, false);
    if (w.grid_h % w.window_h != 0 || w.grid_w % w.window_w != 0) return true;
  }
  return false;
}

bool shrinks(const SwinConfig& cfg) {
  const SwinWindows last = swin_windows(cfg, cfg.stages() - 1, false);
  return last.window_h < cfg.window_h || last.window_w < cfg.window_w;
}

Value swin_features(Scope s, Value image, const SwinConfig& cfg) {
  validate(cfg);
  Value x = swin_embed(s / "patch_embed", image, cfg);
  int64_t depth = 0, done = 0;
  for (const int64_t d : cfg.depths) depth += d;
  for (int64_t i = 0; i < cfg.stages(); ++i) {
    const Scope layer = s / "layers" / i;
    if (i > 0) {
      const SwinWindows before = swin_windows(cfg, i - 1, false);
      x = merge(layer / "downsample", x, cfg, before.grid_h, before.grid_w);
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

Value swin_head(Scope s, Value features, const SwinConfig& cfg) {
  if (cfg.classes == 0) return features;
  return linear(s / "head" / "fc", features, cfg.classes, {.bias = cfg.head_bias});
}

Value swin(Scope s, Value image, const SwinConfig& cfg) {
  return swin_head(s, swin_features(s, image, cfg), cfg);
}

void validate(const SwinConfig& cfg) {
  require_patches(cfg);
  if (cfg.depths.empty() || cfg.depths.size() != cfg.heads.size() || cfg.stages() > kMaxStages)
    fail_usage(
        "a Swin has 1 to {} stages, each with a depth and a number of heads; found {} depths "
        "and {} numbers of heads",
        kMaxStages, cfg.depths.size(), cfg.heads.size());
  const int64_t last = cfg.stages() - 1;
  if ((cfg.image_h / cfg.patch_h) >> last == 0 || (cfg.image_w / cfg.patch_w) >> last == 0)
    fail_usage(
        "image size {}x{} with patch size {}x{} is too small for {} stages: at least {}x{} is "
        "needed",
        cfg.image_h, cfg.image_w, cfg.patch_h, cfg.patch_w, cfg.stages(), cfg.patch_h << last,
        cfg.patch_w << last);
  for (int64_t i = 0; i <= last; ++i) {
    const int64_t depth = cfg.depths[static_cast<size_t>(i)],
                  heads = cfg.heads[static_cast<size_t>(i)];
    if (depth <= 0) fail_usage("stage {} has {} blocks; expected at least one", i, depth);
    if (cfg.width <= 0 || heads <= 0 || cfg.stage_width(i) % heads != 0)
      fail_usage("the width {} of stage {} is not divisible by {} heads", cfg.stage_width(i), i,
                 heads);
  }
  if (cfg.window_h <= 0 || cfg.window_w <= 0 || cfg.window_h > kMaxWindowTokens ||
      cfg.window_w > kMaxWindowTokens || cfg.window_h * cfg.window_w > kMaxWindowTokens)
    fail_usage("a window of {}x{} tokens is not possible; expected 1 to {} tokens", cfg.window_h,
               cfg.window_w, kMaxWindowTokens);
  if (!(cfg.mlp_ratio > 0) || static_cast<double>(cfg.width) * cfg.mlp_ratio < 1 || cfg.classes < 0)
    fail_usage("MLP ratio {} and {} classes are not possible", cfg.mlp_ratio, cfg.classes);
  for (float p : {cfg.drop_attn, cfg.drop_proj, cfg.drop_act, cfg.drop_mlp, cfg.drop_path})
    if (!(p >= 0 && p < 1)) fail_usage("a dropout probability must be in [0, 1), not {}", p);
}

}  // namespace vitrum
