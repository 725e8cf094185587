// Mixup and CutMix as timm's `batch` mode does them: one draw a batch, the partner of a sample is
// its mirror image in the batch. The device mixes the pixels (op Mix), the host the targets.
#pragma once
#include <cstdint>
#include <span>

#include "vitrum/core/philox.h"
#include "vitrum/data/image.h"

namespace vitrum {

struct MixConfig {
  double mixup = 0, cutmix = 0;     // alpha of the Beta distribution of shares; 0: not done
  double probability = 1;           // that a batch is mixed
  double switch_probability = 0.5;  // of CutMix where both are on

  bool any() const { return mixup > 0 || cutmix > 0; }
};

// A row of the op's second input: see Mix in graph/op.h.
struct MixRow {
  float partner = 0, own = 1;
  float top = 0, bottom = 0, left = 0, right = 0;
};

// The share of a sample's own label, by the area that is left of its image.
double own_share(const MixRow& row, int height, int width);

// timm's rand_bbox: a box of about (1 - lambda) of the image round (y, x), cut off at the borders.
Window cutmix_box(double lambda, int y, int x, int height, int width);

double draw_beta(double alpha, PhiloxStream& random);  // Beta(alpha, alpha)

// Rows for a batch of which the first `count` samples are real; the others stay as they are.
void draw_mix(const MixConfig& config, int64_t count, int height, int width, PhiloxStream random,
              std::span<MixRow> rows);

// (rows, classes): the shares of both labels.
void mix_targets(std::span<const int32_t> labels, std::span<const MixRow> rows, int height,
                 int width, int64_t classes, std::span<float> targets);

}  // namespace vitrum
