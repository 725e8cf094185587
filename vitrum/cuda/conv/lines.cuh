// Convolutions over images of few channels (the stem of a ResNet): too few for boxes of pixels.
// What a window has of a line is one run of memory. With a stride of 2 it has at most 32 numbers;
// for every pair of lines and column of the result, both runs are laid out side by side, as 64
// channels of a pixel. The convolution is then one of stride 1, whose window is one pixel wide and
// half as many pairs high, for the kernels of tile.cuh and tile_dw.cuh. With a stride of 1 a run
// has at most 16 numbers, and the runs of up to four lines are all of a window: it is one pixel.
//
// The primitives it is written in (device.cuh, ..) are included before it: tests without a card
// have a second set.
#pragma once
#include <cstdint>

#include "vitrum/cuda/conv/tile.cuh"
#include "vitrum/cuda/conv/tile_dw.cuh"

namespace vitrum::cuda::conv_lines {

constexpr int kThreads = 256, kPixel = conv::kChannels;  // numbers

struct Lines {
  int height, width, channels, kernel, stride, padding;
  int room;           // that a run has
  int pairs, across;  // of what is laid out: groups of kPixel / room lines, columns

  __host__ __device__ int run() const { return kernel * channels; }
  __host__ __device__ int taps() const { return (kernel * room + kPixel - 1) / kPixel; }
};
inline Lines lines_of(const ConvTask& t) {
  const auto narrow = [](int64_t n) { return static_cast<int>(n); };
  Lines l{narrow(t.height),  narrow(t.width),   narrow(t.channels), narrow(t.kernel),
          narrow(t.stride),  narrow(t.padding), line_room(t),       0,
          narrow(t.across())};
  l.pairs = narrow(t.down()) - 1 + l.taps();
  return l;
}

// Thread `item` of images * pairs * across * 8 lays eight numbers.
__device__ __forceinline__ void lay(const Lines& l, const bf16* x, bf16* to, int item) {
  const int at = item % 8 * 8, first = at % l.room, below = at / l.room;
  const int pixel = item / 8, pair = pixel / l.across, image = pair / l.pairs;
  const int column = pixel - pair * l.across,
            line = (pair - image * l.pairs) * l.stride + below - l.padding;
  const int begin = (l.stride * column - l.padding) * l.channels + first,
            wide = l.width * l.channels;
  // Of a single tap: lines below the window belong to no other.
  const bool seen = line >= 0 && line < l.height && (below < l.kernel || l.taps() > 1);
  const bf16* const from = x + (static_cast<int64_t>(image) * l.height + line) * wide;
  Raw8<bf16> raw;
  bf16 numbers[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const bool inside = seen && first + k < l.run() && begin + k >= 0 && begin + k < wide;
    numbers[k] = inside ? from[begin + k] : from_float<bf16>(0.0f);
  }
  static_assert(sizeof raw == sizeof numbers);
  memcpy(&raw, numbers, sizeof raw);
  store_raw(to + static_cast<int64_t>(item) * 8, raw);
}

// Weight `item` of (out, taps, 64), from (out, channels, kernel, kernel).
__device__ __forceinline__ int64_t weight_of(const Lines& l, int64_t item) {
  const int at = static_cast<int>(item % kPixel), run = at % l.room;
  const int64_t row = item / kPixel, out = row / l.taps();
  const int y = static_cast<int>(row % l.taps()) * (kPixel / l.room) + at / l.room;
  if (y >= l.kernel || run >= l.run()) return -1;
  return ((out * l.channels + run % l.channels) * l.kernel + y) * l.kernel + run / l.channels;
}
__device__ __forceinline__ void lay_weight(const Lines& l, const bf16* w, bf16* to, int64_t item) {
  const int64_t from = weight_of(l, item);
  to[item] = from < 0 ? from_float<bf16>(0.0f) : w[from];
}
// The way back, of the sums of `splits`.
__device__ __forceinline__ void add_weight(const Lines& l, const float* partials, int splits,
                                           int64_t count, float* dw, int64_t item) {
  const int64_t to = weight_of(l, item);
  if (to < 0) return;
  float sum = 0;
#pragma unroll 8
  for (int k = 0; k < splits; ++k) sum += partials[k * count + item];
  dw[to] += sum;
}

// ---- what the host says ----

inline std::vector<conv::Tap> taps_of(const Lines& l) {
  std::vector<conv::Tap> taps;
  for (int t = 0; t < l.taps(); ++t) taps.push_back({0, t, 0, t});
  return taps;
}
inline conv::Pixels laid_pixels(const ConvTask& task, const Lines& l, const void* laid) {
  return {laid, task.images, l.pairs, l.across, kPixel};
}
// y from the lines laid out, and weights (out, taps, 64).
inline conv_tile::Product forward_product(const CardInfo& card, const ConvTask& task,
                                          const void* laid, const void* w, bf16* y) {
  const Lines l = lines_of(task);
  const int64_t down = task.down(), across = task.across();
  const TileChoice tile = choose_tile(card, task.images, down, across, task.out, /*stacks=*/false);
  conv_tile::Product p{{}, tile.columns};
  conv_tile::set_product(p.args, taps_of(l), w, l.taps(), kPixel, task.out, tile);
  p.args.x[0] = conv::pixels_map(laid_pixels(task, l, laid), tile.boxes.box);
  p.args.grid = conv::grid_of(tile.boxes, task.images, down, across);
  p.args.y = y, p.args.column_apart = task.out;
  p.args.line_apart = across * task.out, p.args.image_apart = down * p.args.line_apart;
  return p;
}
// Taps are below each other: a stack has three of them.
inline conv_tile_dw::Plan gradient_plan(const CardInfo& card, const ConvTask& task) {
  const int taps = lines_of(task).taps();
  return conv_tile_dw::plan_of(card, conv_tile_dw::result_pixels(task, nullptr), taps,
                               taps >= kStackedTaps);
}
inline conv_tile_dw::Args gradient_args(const ConvTask& task, const conv_tile_dw::Plan& plan,
                                        const void* dy, const void* laid, float* partials) {
  const Lines l = lines_of(task);
  conv_tile_dw::Args args =
      conv_tile_dw::make_args(plan, conv_tile_dw::result_pixels(task, dy), taps_of(l), partials);
  args.x[0] = conv::pixels_map(laid_pixels(task, l, laid), plan.box_of_x());
  return args;
}

}  // namespace vitrum::cuda::conv_lines
