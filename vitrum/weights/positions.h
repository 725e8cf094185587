// Position embeddings for another patch grid. Frameworks disagree on how, and a model gives the
// best results with the rule of the one it comes from.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace vitrum {

enum class PositionRule : uint8_t {
  kBicubicAntialias,     // timm; support grows when shrinking, a = -0.5 as in Pillow
  kBicubic,              // transformers, DeiT: align_corners=False, a = -0.75
  kBicubicOffset,        // Meta's DINOv2: the same, with steps as if there were 0.1 patches more
  kBicubicAlignCorners,  // torchvision
  kBilinear,             // align_corners=False
  kGeometric,            // timm's bias tables: see positions.cpp
  kZoom,                 // Google's scipy.ndimage.zoom of order 1: corners stay in place
};

const char* name_of(PositionRule rule);  // for people

struct Grid {
  int64_t rows = 0, columns = 0;
  bool operator==(const Grid&) const = default;
};

// (prefix + from.rows * from.columns, width) -> (prefix + to.rows * to.columns, width). The first
// `prefix` rows belong to class tokens and stay as they are.
std::vector<float> resample_positions(std::span<const float> positions, int64_t prefix,
                                      int64_t width, Grid from, Grid to, PositionRule rule);

// FlexiViT's weights for patches of another size: those that give the same products with patches
// that are resized by `rule` as the stored ones with what they were made from, or come nearest to
// that. (rows, from) -> (rows, to) for each of `rows` outputs and channels.
std::vector<float> resample_patches(std::span<const float> weights, Grid from, Grid to,
                                    PositionRule rule);

}  // namespace vitrum
