// ConvNeXt and ConvNeXt V2: a convolution of every channel for itself in the place of attention,
// between the norms and MLPs of a transformer.
#pragma once
#include <vector>

#include "vitrum/graph/graph.h"

namespace vitrum {

struct ConvNeXtConfig {
  int64_t image_h = 224, image_w = 224, channels = 3, classes = 1000;
  int64_t patch_h = 4, patch_w = 4;                                          // of the stem
  std::vector<int64_t> depths = {3, 3, 9, 3}, widths = {96, 192, 384, 768};  // by stage
  int64_t kernel = 7;                                                        // of a block's windows
  double mlp_ratio = 4;
  float layer_scale = 1e-6f;   // start value; 0: none
  bool response_norm = false;  // behind the MLP's activation: V2
  float eps = 1e-6f, head_eps = 1e-6f;
  Act act = Act::kGelu;
  bool head_bias = true;
  bool conv_mlp = false;  // timm stores the MLPs of the small ones as convolutions of one pixel
  float drop_path = 0;    // grows linearly from 0 at the first block to its value at the last

  int64_t stages() const { return static_cast<int64_t>(depths.size()); }
  int64_t features() const { return widths.back(); }
  bool operator==(const ConvNeXtConfig&) const = default;
};

// Throws a usage error that names the impossible combination.
void validate(const ConvNeXtConfig& cfg);

// (B, C, H, W) already normalised -> (B, classes): the head on the features. Without a head
// (classes = 0): the features.
Value convnext(Scope s, Value image, const ConvNeXtConfig& cfg);

// (B, C, H, W) -> the norm of the mean of the last stage's pixels (B, features), and (B, features)
// -> (B, classes).
Value convnext_features(Scope s, Value image, const ConvNeXtConfig& cfg);
Value convnext_head(Scope s, Value features, const ConvNeXtConfig& cfg);

}  // namespace vitrum
