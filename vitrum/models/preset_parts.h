// What presets are made of. Internal to models/.
#pragma once
#include <fmt/format.h>

#include "vitrum/models/registry.h"

namespace vitrum {
namespace preset {

inline const std::vector<float> kHalf = {0.5f, 0.5f, 0.5f};
inline const std::vector<float> kImageNetMean = {0.485f, 0.456f, 0.406f},
                                kImageNetStd = {0.229f, 0.224f, 0.225f};
inline const std::vector<float> kCifarMean = {0.4914f, 0.4822f, 0.4465f},
                                kCifarStd = {0.2470f, 0.2435f, 0.2616f};

inline const std::vector<float> kClipMean = {0.48145466f, 0.4578275f, 0.40821073f},
                                kClipStd = {0.26862954f, 0.26130258f, 0.27577711f};

struct Size {
  const char* name;
  int64_t width, depth, heads;
};
inline constexpr Size kTiny{"tiny", 192, 12, 3}, kSmall{"small", 384, 12, 6},
    kMedium{"medium", 512, 12, 8}, kBase{"base", 768, 12, 12}, kLarge{"large", 1024, 24, 16},
    kHuge{"huge", 1280, 32, 16}, kGiant{"giant", 1536, 40, 24},
    kSmallPlus{"small_plus", 384, 12, 6}, kHugePlus{"huge_plus", 1280, 32, 20},
    k7B{"7b", 4096, 40, 32}, kSo400m{"so400m", 1152, 27, 16}, kGiantOpt{"giantopt", 1536, 40, 16};

inline ViTConfig sized(const Size& size, int64_t image, int64_t patch) {
  return {.image_h = image,
          .image_w = image,
          .patch_h = patch,
          .patch_w = patch,
          .width = size.width,
          .depth = size.depth,
          .heads = size.heads,
          .mlp_width = 4 * size.width};
}

inline Preset timm(const Size& size, int64_t patch, int64_t image,
                   std::vector<std::string> aliases = {}, std::string weights = {}) {
  return {.name = fmt::format("vit_{}_patch{}_{}", size.name, patch, image),
          .family = "vit",
          .config = sized(size, image, patch),
          .aliases = std::move(aliases),
          .mean = kHalf,
          .std = kHalf,
          .public_weights = std::move(weights)};
}

}  // namespace preset

// Those of registry_foundation.cpp.
std::vector<Preset> foundation_presets();

}  // namespace vitrum
