// How the windows of a convolution lie in its image, as TMA sees them: every tap of the window is
// one shifted box of pixels. With a stride, pixels of the same remainders of line and column are a
// tensor of their own, in which neighbouring windows are neighbours.
//
// make_tensor_map() (host/tensor_map.h) is included before it: tests without a card have their own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "vitrum/cuda/conv/choose.h"

namespace vitrum::cuda::conv {

constexpr int kMaxTaps = 25, kMaxMaps = 4;
constexpr int kChannels = 64;  // of a box

// Where a tap finds the box whose first window is (line, column): that much further on, in that
// map. `weight`: which of the window's taps it is.
struct Tap {
  int map, line, column, weight;
};

inline int floor_div(int a, int b) { return (a - ((a % b) + b) % b) / b; }

// Of map i, pixels whose line and column have remainders i / stride and i % stride.
inline std::vector<Tap> window_taps(const ConvTask& task) {
  const int kernel = static_cast<int>(task.kernel), stride = static_cast<int>(task.stride),
            padding = static_cast<int>(task.padding);
  std::vector<Tap> taps;
  for (int y = 0; y < kernel; ++y)
    for (int x = 0; x < kernel; ++x) {
      const int line = floor_div(y - padding, stride), column = floor_div(x - padding, stride);
      const int map = (y - padding - line * stride) * stride + x - padding - column * stride;
      taps.push_back({map, line, column, y * kernel + x});
    }
  return taps;
}

// Of the gradient's pixels with these remainders: the windows over such a pixel, of dy's one map.
inline std::vector<Tap> covering_taps(const ConvTask& task, int line_rest, int column_rest) {
  const int kernel = static_cast<int>(task.kernel), stride = static_cast<int>(task.stride),
            padding = static_cast<int>(task.padding);
  std::vector<Tap> taps;
  for (int y = 0; y < kernel; ++y)
    for (int x = 0; x < kernel; ++x) {
      const int line = line_rest + padding - y, column = column_rest + padding - x;
      if (line % stride == 0 && column % stride == 0)
        taps.push_back({0, line / stride, column / stride, y * kernel + x});
    }
  return taps;
}

// (images, height, width, channels) of bf16, every stride-th line and column from these on.
struct Pixels {
  const void* data;
  int64_t images, height, width, channels, stride = 1, line = 0, column = 0;

  int64_t lines() const { return (height - line + stride - 1) / stride; }
  int64_t columns() const { return (width - column + stride - 1) / stride; }
};
inline CUtensorMap pixels_map(const Pixels& x, const Box& box) {
  const auto size = [](int64_t n) { return static_cast<cuuint64_t>(n); };
  const int64_t pixel = x.channels * 2;
  return make_tensor_map(
      static_cast<const std::byte*>(x.data) + (x.line * x.width + x.column) * pixel,
      {size(x.channels), size(x.columns()), size(x.lines()), size(x.images)},
      {size(x.stride * pixel), size(x.stride * x.width * pixel), size(x.height * x.width * pixel)},
      {kChannels, static_cast<cuuint32_t>(box.w), static_cast<cuuint32_t>(box.h),
       static_cast<cuuint32_t>(box.n)});
}
// The maps that window_taps() mean.
inline void set_window_maps(const ConvTask& task, const void* x, const Box& box,
                            CUtensorMap (&maps)[kMaxMaps]) {
  for (int64_t line = 0; line < task.stride; ++line)
    for (int64_t column = 0; column < task.stride; ++column)
      maps[line * task.stride + column] = pixels_map(
          {x, task.images, task.height, task.width, task.channels, task.stride, line, column}, box);
}

// Box `index` of a tensor's: its first pixel.
struct Corner {
  int image, line, column;
};
struct Grid {
  Box box;
  int wide, high;  // boxes beside and below each other
  int images, lines, columns;

  __host__ __device__ __forceinline__ Corner corner(int index) const {
    const int below = index / wide, behind = below / high;
    return {behind * box.n, (below - behind * high) * box.h, (index - below * wide) * box.w};
  }
};
inline Grid grid_of(const Boxes& boxes, int64_t images, int64_t lines, int64_t columns) {
  const auto narrow = [](int64_t n) { return static_cast<int>(n); };
  return {boxes.box,      narrow(boxes.wide), narrow(boxes.high),
          narrow(images), narrow(lines),      narrow(columns)};
}

}  // namespace vitrum::cuda::conv
