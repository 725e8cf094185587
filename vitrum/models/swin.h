// Swin: attention inside windows, which every second block shifts, and neighbours merged from stage
// to stage.
#pragma once
#include <vector>

#include "vitrum/core/ceil_div.h"
#include "vitrum/graph/graph.h"

namespace vitrum {

struct SwinConfig {
  int64_t image_h = 224, image_w = 224, patch_h = 4, patch_w = 4, channels = 3;
  int64_t width = 96;  // of the first stage; each stage has twice the width of the one before
  std::vector<int64_t> depths = {2, 2, 6, 2}, heads = {3, 6, 12, 24};  // by stage
  int64_t window_h = 7, window_w = 7;
  double mlp_ratio = 4;
  int64_t classes = 1000;
  float eps = 1e-5f;
  Act act = Act::kGelu;
  bool qkv_bias = true, head_bias = true;

  // Where tokens do not fill whole windows. timm shifts first and fills up after; where there are
  // fewer tokens than a window it makes the window smaller. torchvision and transformers fill up
  // first, windows keep their size.
  bool pad_first = false;

  // Dropout, by place. drop_path grows linearly from 0 at the first block to its value at the last.
  float drop_attn = 0, drop_proj = 0, drop_act = 0, drop_mlp = 0, drop_path = 0;

  int64_t stages() const { return static_cast<int64_t>(depths.size()); }
  int64_t stage_width(int64_t stage) const { return width << stage; }
  int64_t features() const { return stage_width(stages() - 1); }
  bool operator==(const SwinConfig&) const = default;
};

// How the tokens of a stage are cut into windows.
struct SwinWindows {
  int64_t grid_h = 0, grid_w = 0;      // tokens
  int64_t window_h = 0, window_w = 0;  // of a window
  int64_t shift_h = 0, shift_w = 0;    // 0 in even blocks, and where one window has all
  bool pad_first = false;

  int64_t down() const { return ceil_div(grid_h, window_h); }  // windows
  int64_t across() const { return ceil_div(grid_w, window_w); }
  int64_t count() const { return down() * across(); }
  int64_t tokens() const { return window_h * window_w; }
  // The image's token at each place of each window in turn, -1 where it is filled up.
  std::vector<int32_t> places() const;
  // (count, tokens, tokens): 0 for tokens that were neighbours before the shift, -100 for others.
  std::vector<float> mask() const;
};
SwinWindows swin_windows(const SwinConfig& cfg, int64_t stage, bool shifted);
// Whether some stage has windows that are not full, or smaller than the model's.
bool fills_up(const SwinConfig& cfg);
bool shrinks(const SwinConfig& cfg);

// Throws a usage error that names the impossible combination.
void validate(const SwinConfig& cfg);

// (B, C, H, W) already normalised -> (B, classes): the head on the features. Without a head
// (classes = 0): the features.
Value swin(Scope s, Value image, const SwinConfig& cfg);

// (B, C, H, W) -> the mean of the last stage's tokens (B, features), and (B, features) ->
// (B, classes).
Value swin_features(Scope s, Value image, const SwinConfig& cfg);
Value swin_head(Scope s, Value features, const SwinConfig& cfg);

}  // namespace vitrum
