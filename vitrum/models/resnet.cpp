#include "vitrum/models/resnet.h"

#include <numeric>
#include <string>

#include "vitrum/core/error.h"
#include "vitrum/graph/functional.h"

namespace vitrum {
namespace {

Value norm(Scope s, Value x, const ResNetConfig& cfg) {
  return batch_norm(s, x, cfg.eps, cfg.momentum);
}

WindowOptions window(int64_t kernel, int64_t stride) {
  return {.kernel = kernel, .stride = stride, .padding = kernel / 2};
}

Value stem(Scope s, Value x, const ResNetConfig& cfg) {
  x = conv2d(s / "conv1", x, cfg.width, cfg.small_stem ? window(3, 1) : window(7, 2));
  x = activation(norm(s / "bn1", x, cfg), Act::kRelu);
  return cfg.small_stem ? x : max_pool(s / "maxpool", x, window(3, 2));
}

// (B, H, W, C) -> (B, H / stride, W / stride, width * expansion). The skip comes first, so that it
// is there when the last norm runs and can add it.
Value block(Scope s, Value x, int64_t width, int64_t stride, float drop, const ResNetConfig& cfg) {
  RecomputeUnit unit(s.graph());
  const int64_t out = width * cfg.expansion();
  Value skip = x;
  if (stride != 1 || x.dim(-1) != out) {
    skip = conv2d(s / "downsample" / 0, x, out, window(1, stride));
    skip = norm(s / "downsample" / 1, skip, cfg);
  }
  if (cfg.bottleneck) {
    x = activation(norm(s / "bn1", conv2d(s / "conv1", x, width, window(1, 1)), cfg), Act::kRelu);
    x = conv2d(s / "conv2", x, width, window(3, stride));
    x = activation(norm(s / "bn2", x, cfg), Act::kRelu);
    x = norm(s / "bn3", conv2d(s / "conv3", x, out, window(1, 1)), cfg);
  } else {
    x = conv2d(s / "conv1", x, width, window(3, stride));
    x = activation(norm(s / "bn1", x, cfg), Act::kRelu);
    x = norm(s / "bn2", conv2d(s / "conv2", x, out, window(3, 1)), cfg);
  }
  return activation(skip + drop_path(s / "drop_path", x, drop), Act::kRelu);
}

}  // namespace

Value resnet_features(Scope s, Value image, const ResNetConfig& cfg) {
  validate(cfg);
  Value x = stem(s, channels_last(image), cfg);
  const int64_t last = std::accumulate(cfg.depths.begin(), cfg.depths.end(), int64_t{-1});
  for (int64_t stage = 0, index = 0; stage < 4; ++stage) {
    const Scope layer = s / ("layer" + std::to_string(stage + 1));
    for (int64_t i = 0; i < cfg.depths[static_cast<size_t>(stage)]; ++i, ++index) {
      const float drop = cfg.drop_path * static_cast<float>(index) / static_cast<float>(last);
      x = block(layer / i, x, cfg.width << stage, stage > 0 && i == 0 ? 2 : 1, drop, cfg);
    }
  }
  return mean_pixels(x);
}

Value resnet_head(Scope s, Value features, const ResNetConfig& cfg) {
  if (cfg.classes == 0) return features;
  const Init init = Init::fan_in(features.dim(-1));
  return linear(s / "fc", features, cfg.classes,
                {.bias = cfg.head_bias, .weight_init = init, .bias_init = init});
}

Value resnet(Scope s, Value image, const ResNetConfig& cfg) {
  return resnet_head(s, resnet_features(s, image, cfg), cfg);
}

void validate(const ResNetConfig& cfg) {
  if (cfg.image_h <= 0 || cfg.image_w <= 0 || cfg.channels <= 0)
    fail_usage("an image of {}x{}x{} is not possible", cfg.channels, cfg.image_h, cfg.image_w);
  if (cfg.width <= 0 || cfg.classes < 0)
    fail_usage("width {} and {} classes are not possible together", cfg.width, cfg.classes);
  for (const int64_t depth : cfg.depths)
    if (depth <= 0) fail_usage("every stage needs at least one block, not {}", depth);
  if (!(cfg.drop_path >= 0 && cfg.drop_path < 1))
    fail_usage("a dropout probability must be in [0, 1), not {}", cfg.drop_path);
  if (!(cfg.eps > 0) || !(cfg.momentum >= 0 && cfg.momentum <= 1))
    fail_usage("batch norm with eps {} and momentum {} is not possible", cfg.eps, cfg.momentum);
}

}  // namespace vitrum
