// From attention weights to one number a patch: what a layer looks at, and what all layers together
// carry from the patches to the tokens that the head reads.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "vitrum/explain/layer_attention.h"

namespace vitrum {

// One number a patch.
struct PatchMap {
  int64_t rows = 0, columns = 0;
  std::vector<double> values = {};
};

enum class HeadFusion : uint8_t { kMean, kMax, kMin };

// How much the tokens that are read look at each patch in one layer, by one head or by all of them
// fused. Where the mean of all patches is read, how much an average patch does.
PatchMap attention_map(const LayerAttention& layer, HeadFusion fusion,
                       std::optional<int64_t> head = {});

// Attention rollout (Abnar and Zuidema, 2020): heads are fused, the identity is added for the
// residual path, rows are normalised, and the layers multiplied. `discard` is the share of each
// matrix, its smallest elements, that counts as 0.
struct RolloutOptions {
  HeadFusion fusion = HeadFusion::kMean;
  double discard = 0;
};
PatchMap rollout(std::span<const LayerAttention> layers, const RolloutOptions& options = {});

// Gradient-weighted attention (Chefer, Gur and Wolf, 2021): R = I, and layer by layer
// R += mean over heads of max(0, gradient * weights) R.
PatchMap gradient_relevance(std::span<const LayerAttention> layers);

// For each head, how far a patch looks on average (Dosovitskiy et al., 2021, figure 11): the mean
// over patches of their distances to all patches, weighted by attention, in pixels of the model's
// input. What goes to class tokens does not count.
std::vector<double> mean_distances(const LayerAttention& layer, int64_t image_h, int64_t image_w);

}  // namespace vitrum
