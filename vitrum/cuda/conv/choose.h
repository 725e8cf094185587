// Which kernel computes a convolution, and in which boxes of pixels: functions of shape, type and
// card. Host only; tests/cuda/choose_test.cpp holds choices against what kernels take, and
// docs/kernels.md has the table.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

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

// Taps of the same column of a window of three lines, with a stride of one, see the same box a line
// further each. Where a box's lines are whole eights of pixels, as products in shared memory want
// them, one that is two lines higher serves all three: it is a stack of them.
constexpr int kStackedTaps = 3;
inline bool can_stack(const ConvTask& task) {
  return task.kernel == kStackedTaps && task.stride == 1;
}
inline int stacked_pixels(const Box& box) { return box.w * (box.h + kStackedTaps - 1) * box.n; }
// Of so many pixels each, at least `least` of an image, whose stages take the fewest clocks:
// clocks(pixels that are copied).
template <class Clocks>
Boxes choose_stacked_boxes(int64_t images, int64_t down, int64_t across, int pixels, int least,
                           const Clocks& clocks) {
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  Boxes best;
  std::pair<int64_t, int> shortest{INT64_MAX, 0};  // of equals the one that copies least
  for (int w = 8; w <= pixels; w *= 2)
    for (int h = 1; w * h <= pixels; h *= 2) {
      const Box box{w, h, pixels / (w * h)};
      const Boxes boxes{box, up(across, w), up(down, h), up(images, box.n)};
      const int copied = stacked_pixels(box);
      const std::pair time{boxes.count() * clocks(copied), copied};
      if (w * h >= least && time < shortest) best = boxes, shortest = time;
    }
  return best;
}
// Clocks that a stage takes: of products, 2,048 multiply-adds each, or of L2, which gives an SM
// about 32 bytes a clock.
constexpr int64_t stage_clocks(int64_t multiply_adds, int64_t bytes) {
  return std::max(multiply_adds / 2048, bytes / 32);
}
// The same where L2 is not what waits: products then reach about four fifths of that.
constexpr int64_t stacked_clocks(int64_t multiply_adds, int64_t bytes) {
  return stage_clocks(multiply_adds * 5 / 4, bytes);
}

// A tile of conv/tile.cuh: boxes of so many columns of the result, single ones or stacks.
struct TileChoice {
  Boxes boxes;
  int columns = 0;
  bool stacked = false;
};
inline Box copied_box(const TileChoice& tile) {
  Box box = tile.boxes.box;
  if (tile.stacked) box.h += kStackedTaps - 1;
  return box;
}

// The tiles that take least: rounds of all SMs, two neighbouring boxes a cluster, times the clocks
// of a tap and 64 channels. A cluster's blocks bring one half of the weights each. stacks: the taps
// of a column of the window may be one box, in tiles of 64 columns. columns: of a tile, if not 0.
constexpr int kMostStackedPixels = kTilePixels * 3 / 2, kStackedColumns = 64;
inline TileChoice choose_tile(const CardInfo& card, int64_t images, int64_t down, int64_t across,
                              int64_t out, bool stacks, int columns = 0) {
  constexpr int64_t kRow = 128;  // bytes of 64 channels
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const auto rounds = [&](const Boxes& boxes, int wide) {
    return up(up(boxes.count(), 2) * up(out, wide), card.processors / 2);
  };
  TileChoice best{choose_boxes(images, down, across, kTilePixels, /*exact=*/false)};
  int64_t least = INT64_MAX;
  for (const int wide : {256, 128, 64}) {
    const int64_t time = rounds(best.boxes, wide) * stage_clocks(int64_t{kTilePixels} * wide * 64,
                                                                 (kTilePixels + wide / 2) * kRow);
    if ((columns == 0 || wide == columns) && time < least) least = time, best.columns = wide;
  }
  if (!stacks || (columns != 0 && columns != kStackedColumns)) return best;
  const auto clocks = [&](int copied) {
    return stacked_clocks(int64_t{kStackedTaps} * kTilePixels * kStackedColumns * 64,
                          (copied + kStackedTaps * kStackedColumns / 2) * kRow);
  };
  // A warpgroup's pixels are half of a box of one image, or one of two.
  const Boxes boxes =
      choose_stacked_boxes(images, down, across, kTilePixels, kTilePixels / 2, clocks);
  const int copied = stacked_pixels(boxes.box);
  const int64_t time = rounds(boxes, kStackedColumns) * clocks(copied);
  if (copied > kMostStackedPixels || 10 * time >= 9 * kStackedTaps * least) return best;
  return {boxes, kStackedColumns, true};
}

// ---- weight gradients (conv/tile_dw.cuh) ----

constexpr int kGradientPixels = 64;  // of a pipeline stage
constexpr int kGradientRows = 128, kGradientPanels = 3;

// A tile is 128 of y's channels by three panels, each 64 of x's channels for one tap: so many
// panels there are in all.
inline int64_t gradient_panels(const ConvTask& task) {
  return task.kernel * task.kernel * ((task.channels + 63) / 64);
}
// What brings pixels to the least clocks: single boxes, or stacks of them.
struct GradientBoxes {
  Boxes boxes;
  bool stacked = false;
};
inline GradientBoxes choose_gradient_boxes(int64_t images, int64_t down, int64_t across,
                                           int64_t out, bool stacks) {
  constexpr int kPixels = kGradientPixels, kLeast = 16;  // pixels of a product's step
  const Boxes single = choose_boxes(images, down, across, kPixels, /*exact=*/true);
  if (!stacks) return {single};
  constexpr int64_t kRow = 128;  // bytes of 64 channels
  const int64_t rows = std::min<int64_t>((out + 63) / 64 * 64, kGradientRows),
                products = rows * kPixels * 64 * kGradientPanels;
  const auto clocks = [&](int copied) { return stacked_clocks(products, (rows + copied) * kRow); };
  const Boxes stacked = choose_stacked_boxes(images, down, across, kPixels, kLeast, clocks);
  const int64_t of_single = single.count() * clocks(kPixels * kGradientPanels),
                of_stacked = stacked.count() * clocks(stacked_pixels(stacked.box));
  if (10 * of_stacked >= 9 * of_single) return {single};
  return {stacked, true};
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
// read, in inference with a skip of as many: their weights stay where they are, and two warpgroups
// take turns at products and results.
constexpr int64_t kSmallKColumns = 256, kSmallKDepth = 256;
inline bool takes_small_k(const CardInfo& card, const ConvTask& task) {
  constexpr int64_t kMinRows = 8192, kMostRows = 1 << 30, kMostColumns = 2048;
  const int64_t rows = task.images * task.height * task.width;
  return card.has_tma_wgmma && task.bf16 && task.aligned && task.pixel_by_pixel() &&
         task.channels % 8 == 0 && task.channels >= 64 && task.channels <= kSmallKDepth &&
         task.out % kSmallKColumns == 0 && task.out <= kMostColumns && rows >= kMinRows &&
         rows <= kMostRows;
}

inline ConvKernel choose_conv(const CardInfo& card, const ConvTask& task, ConvPass pass) {
  const bool can = takes_tile(card, task, pass);
  const int64_t rows = task.images * task.down() * task.across(),
                wide = pass == ConvPass::kInputGradient ? task.channels : task.out;
  // Fewer pixels leave most SMs idle, where cuBLASLt would divide the depth.
  const bool fills = pass == ConvPass::kWeightGradient
                         ? rows >= 4096
                         : rows / kTilePixels * ((wide + 63) / 64) >= card.processors / 2;
  if (pass == ConvPass::kForward && task.followed && takes_small_k(card, task))
    return ConvKernel::kSmallK;
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

// Whether a convolution leaves what a batch norm behind it wants to know of its result: one that
// choose_conv() gives boxes, or a linear layer whose weights stay where they are.
inline bool leaves_moments(const CardInfo& card, const ConvTask& task) {
  if (task.followed) return false;
  if (task.pixel_by_pixel()) return takes_small_k(card, task);
  return task.out <= 64 * (card.processors / 2) &&
         choose_conv(card, task, ConvPass::kForward) == ConvKernel::kTile;
}

}  // namespace vitrum::cuda
