// What every model that cuts its image into patches asks of their sizes.
#pragma once
#include "vitrum/core/error.h"
#include "vitrum/graph/graph.h"

namespace vitrum {

// The image less what is no whole patch at its right and lower edges.
Value whole_patches(Value image, int64_t patch_h, int64_t patch_w);

// Throws a usage error that names the sizes. `cover`: patches cover the whole image.
template <class Config>
void require_patches(const Config& cfg, bool cover = true) {
  if (cfg.image_h <= 0 || cfg.image_w <= 0 || cfg.patch_h <= 0 || cfg.patch_w <= 0 ||
      cfg.channels <= 0)
    fail_usage("image {}x{}x{} with patch {}x{} is not possible", cfg.channels, cfg.image_h,
               cfg.image_w, cfg.patch_h, cfg.patch_w);
  if (cover && (cfg.image_h % cfg.patch_h != 0 || cfg.image_w % cfg.patch_w != 0))
    fail_usage("image size {}x{} is not divisible by patch size {}x{}", cfg.image_h, cfg.image_w,
               cfg.patch_h, cfg.patch_w);
  if (cfg.image_h < cfg.patch_h || cfg.image_w < cfg.patch_w)
    fail_usage("an image of {}x{} is smaller than a patch of {}x{}", cfg.image_h, cfg.image_w,
               cfg.patch_h, cfg.patch_w);
}

}  // namespace vitrum
