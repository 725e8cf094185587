// Which kernel computes a convolution, and in which boxes of pixels: functions of shape, type and
// card. Host only; tests/cuda/choose_test.cpp holds choices against what kernels take, and
// docs/kernels.md has the table.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "vitrum/cuda/host/card_info.h"

namespace vitrum::cuda {

// y (images, down, across, out) from x (images, height, width, channels).
struct ConvTask {
  int64_t images = 1, height = 1, width = 1, channels = 1, out = 1;
  int64_t kernel = 1, stride = 1, padding = 0;
  bool bf16 = true;       // x, w and y
  bool followed = false;  // by a norm of given statistics, or more
  bool aligned = true;    // every address to 16 bytes

  int64_t down() const { return (height + 2 * padding - kernel) / stride + 1; }
  int64_t across() const { return (width + 2 * padding - kernel) / stride + 1; }
  bool pixel_by_pixel() const { return kernel == 1 && stride == 1 && padding == 0; }
  // A linear layer over pixels as one of images of a pixel: no edges for boxes to reach over.
  ConvTask flattened() const {
    ConvTask task = *this;
    if (pixel_by_pixel()) task.images *= height * width, task.height = task.width = 1;
    return task;
  }
};

enum class ConvPass : uint8_t { kForward, kInputGradient, kWeightGradient };

// kLinear: a linear layer over pixels. kTile: TMA boxes of pixels and WGMMA (conv/tile.cuh,
// conv/tile_dw.cuh). kLines: the same of an image of few channels, whose lines are laid out first
// (conv/lines.cuh). kUnfold: windows laid out as rows for cuBLASLt. kSmallK: single pixels, whose
// weights stay in shared memory (linear/small_k.cuh).
enum class ConvKernel : uint8_t { kLinear, kTile, kLines, kUnfold, kSmallK };

constexpr std::string_view name_of(ConvKernel kernel) {
  constexpr std::string_view kNames[] = {"linear", "tile", "lines", "unfold", "small_k"};
  return kNames[static_cast<size_t>(kernel)];
}

// ---- boxes of pixels ----

struct Box {
  int w = 1, h = 1, n = 1;
  int pixels() const { return w * h * n; }
};
// A tensor's pixels in boxes: so many beside, below and behind each other.
struct Boxes {
  Box box;
  int64_t wide = 1, high = 1, deep = 1;
  int64_t count() const { return wide * high * deep; }
};
// As few as there can be, of at most `pixels` each; of those the ones of the fewest images.
// exact: each of so many, if need be beyond the tensor, where TMA finds zeros.
inline Boxes choose_boxes(int64_t images, int64_t down, int64_t across, int pixels, bool exact) {
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  Boxes best;
  int64_t fewest = INT64_MAX;
  for (int w = 1; w <= pixels; ++w)
    for (int h = 1; w * h <= pixels; ++h) {
      const int n = pixels / (w * h);
      if (exact ? w * h * n != pixels : (w > across || h > down)) continue;
      const Box box{w, h, exact ? n : static_cast<int>(std::min<int64_t>(n, images))};
      const Boxes boxes{box, up(across, box.w), up(down, box.h), up(images, box.n)};
      if (boxes.count() > fewest || (boxes.count() == fewest && box.n >= best.box.n)) continue;
      best = boxes, fewest = boxes.count();
    }
  return best;
}

constexpr int kTilePixels = 128;  // of conv/tile.cuh, rows of a block's tile

// The columns of a tile of conv/tile.cuh, two neighbouring boxes a cluster: what the SMs would take
// for all of them, in clocks a stage, where either the products or L2 (about 32 bytes a clock and
// SM) set the pace.
inline int choose_tile_columns(const CardInfo& card, int64_t boxes, int64_t columns) {
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  int best = 0;
  int64_t least = INT64_MAX;
  for (const int wide : {256, 128, 64}) {
    const int64_t rounds = up(up(boxes, 2) * up(columns, wide), card.processors / 2),
                  clocks = std::max(4 * wide, (128 * 128 + wide * 64) / 32);
    if (rounds * clocks < least) least = rounds * clocks, best = wide;
  }
  return best;
}

// ---- weight gradients (conv/tile_dw.cuh) ----

constexpr int kGradientPixels = 64;  // of a pipeline stage
constexpr int kGradientRows = 128, kGradientPanels = 3;

// A tile is 128 of y's channels by three panels, each 64 of x's channels for one tap: so many
// panels there are in all.
inline int64_t gradient_panels(const ConvTask& task) {
  return task.kernel * task.kernel * ((task.channels + 63) / 64);
}
struct GradientPlan {
  int64_t panels = 1, wide = 1, high = 1;  // panels in all; tiles beside and below each other
  int64_t splits = 1, boxes_each = 1;      // each split takes so many boxes of pixels
};
inline GradientPlan plan_weight_gradient(const CardInfo& card, int64_t panels, int64_t out,
                                         int64_t boxes) {
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  constexpr int64_t kMinBoxes = 16;  // fewer would not pay for the partial sums
  GradientPlan plan;
  plan.panels = panels;
  plan.wide = up(panels, kGradientPanels), plan.high = up(out, kGradientRows);
  const int64_t tiles = plan.wide * plan.high, most = std::max<int64_t>(1, boxes / kMinBoxes);
  // The fewest splits whose last wave leaves few SMs idle.
  int64_t best = INT64_MAX;
  for (int64_t splits = 1; splits <= std::min<int64_t>(most, card.processors); ++splits) {
    const int64_t each = up(boxes, splits), waves = up(tiles * up(boxes, each), card.processors);
    const int64_t time = waves * (each + 8);  // begin and end of a tile, as boxes
    if (20 * time < 19 * best) best = time, plan.splits = up(boxes, each), plan.boxes_each = each;
  }
  return plan;
}

// ---- choices ----

inline bool takes_tile(const CardInfo& card, const ConvTask& task, ConvPass pass) {
  constexpr int64_t kMaxTaps = 25, kMaxSide = 1 << 15, kMaxImages = 1 << 30;
  // What the product sums over, a stage at a time, and what it is wide.
  const int64_t deep = pass == ConvPass::kInputGradient ? task.out : task.channels,
                wide = pass == ConvPass::kInputGradient ? task.channels : task.out;
  return card.has_tma_wgmma && task.bf16 && task.aligned && task.kernel * task.kernel <= kMaxTaps &&
         task.stride <= 2 && task.padding < task.kernel && task.height >= task.stride &&
         task.width >= task.stride && task.height <= kMaxSide && task.width <= kMaxSide &&
         task.images <= kMaxImages && deep % 8 == 0 && deep >= 32 && wide >= 32 &&
         wide % (pass == ConvPass::kWeightGradient ? 8 : 32) == 0;
}

// Lines of a window side by side as 64 channels: two of up to 32 numbers each with a stride of two,
// four of up to 16 with a stride of one, which then are all of it.
constexpr int line_room(const ConvTask& task) { return task.stride == 2 ? 32 : 16; }
inline bool takes_lines(const CardInfo& card, const ConvTask& task, ConvPass pass) {
  constexpr int64_t kMaxSide = 1 << 12, kMaxImages = 1 << 30;
  return card.has_tma_wgmma && task.bf16 && task.aligned && pass != ConvPass::kInputGradient &&
         (task.stride == 2 || (task.stride == 1 && task.kernel <= 4)) && task.kernel > 1 &&
         task.kernel * task.channels <= line_room(task) && task.padding < task.kernel &&
         task.height <= kMaxSide && task.width <= kMaxSide && task.images <= kMaxImages &&
         task.out % 32 == 0;
}

// Memory is what takes the time of 1x1 convolutions that write many channels for few that they
// read, with a skip of as many: their weights stay where they are, and two warpgroups take turns at
// products and results.
constexpr int64_t kSmallKColumns = 256, kSmallKDepth = 256;
inline bool takes_small_k(const CardInfo& card, const ConvTask& task) {
  constexpr int64_t kMinRows = 8192, kMostRows = 1 << 30, kMostColumns = 2048;
  const int64_t rows = task.images * task.height * task.width;
  return card.has_tma_wgmma && task.bf16 && task.aligned && task.followed &&
         task.pixel_by_pixel() && task.channels % 8 == 0 && task.channels >= 64 &&
         task.channels <= kSmallKDepth && task.out % kSmallKColumns == 0 &&
         task.out <= kMostColumns && rows >= kMinRows && rows <= kMostRows;
}

inline ConvKernel choose_conv(const CardInfo& card, const ConvTask& task, ConvPass pass) {
  const bool can = takes_tile(card, task, pass);
  const int64_t rows = task.images * task.down() * task.across(),
                wide = pass == ConvPass::kInputGradient ? task.channels : task.out;
  // Fewer pixels leave most SMs idle, where cuBLASLt would divide the depth.
  const bool fills = pass == ConvPass::kWeightGradient
                         ? rows >= 4096
                         : rows / kTilePixels * ((wide + 63) / 64) >= card.processors / 2;
  if (pass == ConvPass::kForward && takes_small_k(card, task)) return ConvKernel::kSmallK;
  if (task.pixel_by_pixel()) {
    // Small gradients of many pixels: a GEMM of few tiles and great depth.
    const bool deep = pass == ConvPass::kWeightGradient && rows >= 1 << 16 &&
                      std::min(task.channels, task.out) <= 256;
    const bool suits = pass == ConvPass::kForward ? task.followed : deep;
    return can && fills && suits ? ConvKernel::kTile : ConvKernel::kLinear;
  }
  if (!fills) return ConvKernel::kUnfold;
  if (can) return ConvKernel::kTile;
  return takes_lines(card, task, pass) ? ConvKernel::kLines : ConvKernel::kUnfold;
}

}  // namespace vitrum::cuda
