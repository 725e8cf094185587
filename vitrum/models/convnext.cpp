#include "vitrum/models/convnext.h"

#include <algorithm>

#include "vitrum/core/error.h"
#include "vitrum/graph/functional.h"
#include "vitrum/models/patches.h"

namespace vitrum {
namespace {

constexpr int64_t kMaxStages = 8, kMaxKernel = 63;

// A convolution whose windows lie side by side is a linear layer on the pixels of each; what is
// over at the right and below is not seen. (B, C, H, W) -> (B, H', W', width)
Value stem(Scope s, Value image, const ConvNeXtConfig& cfg) {
  Value x = patch_image(whole_patches(image, cfg.patch_h, cfg.patch_w), cfg.patch_h, cfg.patch_w);
  return layer_norm(s / 1, linear(s / 0, x, cfg.widths[0]), cfg.eps);
}

// Four neighbours become one pixel: (B, H, W, C) -> (B, H / 2, W / 2, width).
Value downsample(Scope s, Value x, int64_t width, float eps) {
  x = layer_norm(s / 0, x, eps);
  const int64_t down = x.dim(1) / 2, across = x.dim(2) / 2, line = x.dim(2);
  std::vector<int32_t> from;
  for (int64_t i = 0; i < down; ++i)
    for (int64_t j = 0; j < across; ++j)
      for (const int64_t place : {int64_t{0}, int64_t{1}, line, line + 1})
        from.push_back(static_cast<int32_t>(2 * i * line + 2 * j + place));
  x = gather_tokens((s / "neighbours").path(), x, x.dim(1) * line, std::move(from),
                    {x.dim(0), down, across, 4 * x.dim(3)});
  return module_output(s, linear(s / 1, x, width));
}

Value mlp(Scope s, Value x, const ConvNeXtConfig& cfg) {
  const int64_t width = x.dim(3);
  const auto hidden = static_cast<int64_t>(static_cast<double>(width) * cfg.mlp_ratio);
  x = activation(linear(s / "fc1", x, hidden), cfg.act);
  if (cfg.response_norm) x = response_norm(s / "grn", x);
  return module_output(s, linear(s / "fc2", x, width));
}

Value block(Scope s, Value x, const ConvNeXtConfig& cfg, float drop) {
  RecomputeUnit unit(s.graph());
  Value y = layer_norm(s / "norm", depthwise_conv(s / "conv_dw", x, cfg.kernel), cfg.eps);
  y = mlp(s / "mlp", y, cfg);
  if (cfg.layer_scale > 0) {
    Value gamma = s.param("gamma", {y.dim(3)}, Init::constant(cfg.layer_scale), /*decay=*/false);
    y = s.graph().emit((s / "layer_scale").path(), ChannelScale{}, {y, gamma}, {y.shape()});
  }
  return module_output(s, x + drop_path(s / "drop_path", y, drop));
}

}  // namespace

Value convnext_features(Scope s, Value image, const ConvNeXtConfig& cfg) {
  validate(cfg);
  Value x = module_output(s / "stem", stem(s / "stem", image, cfg));
  int64_t depth = 0, done = 0;
  for (const int64_t d : cfg.depths) depth += d;
  for (int64_t i = 0; i < cfg.stages(); ++i) {
    const Scope stage = s / "stages" / i;
    const int64_t width = cfg.widths[static_cast<size_t>(i)];
    if (i > 0) x = downsample(stage / "downsample", x, width, cfg.eps);
    for (int64_t b = 0; b < cfg.depths[static_cast<size_t>(i)]; ++b, ++done) {
      const float share =
          static_cast<float>(done) / static_cast<float>(std::max<int64_t>(1, depth - 1));
      x = block(stage / "blocks" / b, x, cfg, cfg.drop_path * share);
    }
    module_output(stage, x);
  }
  return layer_norm(s / "head" / "norm", mean_pixels(x), cfg.head_eps);
}

Value convnext_head(Scope s, Value features, const ConvNeXtConfig& cfg) {
  if (cfg.classes == 0) return features;
  return linear(s / "head" / "fc", features, cfg.classes, {.bias = cfg.head_bias});
}

Value convnext(Scope s, Value image, const ConvNeXtConfig& cfg) {
  return convnext_head(s, convnext_features(s, image, cfg), cfg);
}

void validate(const ConvNeXtConfig& cfg) {
  require_patches(cfg, /*cover=*/false);
  if (cfg.depths.empty() || cfg.depths.size() != cfg.widths.size() || cfg.stages() > kMaxStages)
    fail_usage(
        "a ConvNeXt has 1 to {} stages, each with a depth and a width; found {} depths and {} "
        "widths",
        kMaxStages, cfg.depths.size(), cfg.widths.size());
  const int64_t last = cfg.stages() - 1;
  if ((cfg.image_h / cfg.patch_h) >> last == 0 || (cfg.image_w / cfg.patch_w) >> last == 0)
    fail_usage("image size {}x{} is too small for {} stages: at least {}x{} is needed", cfg.image_h,
               cfg.image_w, cfg.stages(), cfg.patch_h << last, cfg.patch_w << last);
  for (size_t i = 0; i < cfg.depths.size(); ++i)
    if (cfg.depths[i] <= 0 || cfg.widths[i] <= 0 ||
        static_cast<double>(cfg.widths[i]) * cfg.mlp_ratio < 1)
      fail_usage("stage {} of {} blocks of width {} is not possible", i, cfg.depths[i],
                 cfg.widths[i]);
  if (cfg.kernel <= 0 || cfg.kernel % 2 == 0 || cfg.kernel > kMaxKernel)
    fail_usage("windows of {} pixels are not possible; expected an odd number up to {}", cfg.kernel,
               kMaxKernel);
  if (!(cfg.mlp_ratio > 0) || cfg.classes < 0 || !(cfg.layer_scale >= 0))
    fail_usage("MLP ratio {}, layer scale {} and {} classes are not possible", cfg.mlp_ratio,
               cfg.layer_scale, cfg.classes);
  if (!(cfg.eps > 0) || !(cfg.head_eps > 0))
    fail_usage("norms with eps {} and {} are not possible", cfg.eps, cfg.head_eps);
  if (!(cfg.drop_path >= 0 && cfg.drop_path < 1))
    fail_usage("a dropout probability must be in [0, 1), not {}", cfg.drop_path);
}

}  // namespace vitrum
