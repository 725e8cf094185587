// Swin V2: cosine attention, a bias that an MLP makes of the distance of two tokens, and norms
// behind the branches. Nothing is stored by position, so windows and images may have any size.
#pragma once
#include "vitrum/models/swin.h"

namespace vitrum {

struct SwinV2Config : SwinConfig {
  // By stage, windows that the model was trained with before: distances are in units of them. 0, or
  // none: those that it has.
  std::vector<int64_t> pretrained_windows = {};
  // Where a stage has fewer tokens than a window, the window gets smaller; torchvision fills it up.
  bool shrink_windows = true;

  bool operator==(const SwinV2Config&) const = default;
};

SwinWindows swin_windows(const SwinV2Config& cfg, int64_t stage, bool shifted);

// Throws a usage error that names the impossible combination.
void validate(const SwinV2Config& cfg);

// As those of Swin.
Value swin_v2(Scope s, Value image, const SwinV2Config& cfg);
Value swin_v2_features(Scope s, Value image, const SwinV2Config& cfg);
Value swin_v2_head(Scope s, Value features, const SwinV2Config& cfg);

}  // namespace vitrum
