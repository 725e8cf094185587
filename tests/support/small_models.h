// Configs of models so small that every gradient can be compared with finite differences.
#pragma once
#include "vitrum/models/convnext.h"
#include "vitrum/models/swin.h"
#include "vitrum/models/swin_v2.h"
#include "vitrum/models/vit.h"

namespace vitrum::test {

inline ViTConfig small_vit() {
  return {.image_h = 8,
          .image_w = 12,
          .patch_h = 4,
          .patch_w = 4,
          .channels = 2,
          .width = 8,
          .depth = 2,
          .heads = 2,
          .mlp_width = 12,
          .classes = 5};
}

// Windows of 2 x 2 over 5 x 3, then 3 x 2 tokens: shifted, masked, filled up and merged at odd
// sizes.
inline SwinConfig small_swin() {
  return {.image_h = 10,
          .image_w = 6,
          .patch_h = 2,
          .patch_w = 2,
          .channels = 2,
          .width = 4,
          .depths = {2, 2},
          .heads = {2, 2},
          .window_h = 2,
          .window_w = 2,
          .mlp_ratio = 1.5f,
          .classes = 5};
}

// The same windows, and a stage that has fewer tokens than one.
inline SwinV2Config small_swin_v2() {
  SwinV2Config cfg;
  static_cast<SwinConfig&>(cfg) = small_swin();
  cfg.depths = {2, 2, 1}, cfg.heads = {2, 2, 2}, cfg.pretrained_windows = {0, 3, 3};
  cfg.window_h = cfg.window_w = 3, cfg.image_w = 8;
  return cfg;
}

// 5 x 3 pixels behind the stem, of which the second stage leaves one line out.
inline ConvNeXtConfig small_convnext() {
  return {.image_h = 11,
          .image_w = 6,
          .channels = 2,
          .classes = 5,
          .patch_h = 2,
          .patch_w = 2,
          .depths = {2, 1},
          .widths = {4, 6},
          .kernel = 3,
          .mlp_ratio = 1.5f,
          .layer_scale = 0.5f};
}

}  // namespace vitrum::test
