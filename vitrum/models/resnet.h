// Residual networks (He et al., 2015) as torchvision has them: the convolutional counterpart of the
// ViTs, and a teacher for them.
#pragma once
#include <array>

#include "vitrum/graph/graph.h"

namespace vitrum {

struct ResNetConfig {
  int64_t image_h = 224, image_w = 224, channels = 3, classes = 1000;
  std::array<int64_t, 4> depths = {2, 2, 2, 2};  // blocks of each stage
  int64_t width = 64;                            // channels of the first stage; each doubles them
  bool bottleneck = false;  // blocks of 1x1, 3x3 (with the stride), 1x1 instead of two 3x3
  bool small_stem = false;  // for images of 32 pixels: 3x3 without stride and no pooling, else 7x7
  bool head_bias = true;
  float eps = 1e-5f, momentum = 0.1f;  // of batch norm
  float drop_path = 0;  // grows linearly from 0 at the first block to its value at the last

  int64_t expansion() const { return bottleneck ? 4 : 1; }
  int64_t features() const { return 8 * width * expansion(); }
  bool operator==(const ResNetConfig&) const = default;
};

// Throws a usage error that names the impossible combination.
void validate(const ResNetConfig& cfg);

// (B, C, H, W) already normalised -> (B, classes), as vit() and its parts are.
Value resnet(Scope s, Value image, const ResNetConfig& cfg);
Value resnet_features(Scope s, Value image, const ResNetConfig& cfg);
Value resnet_head(Scope s, Value features, const ResNetConfig& cfg);

}  // namespace vitrum
