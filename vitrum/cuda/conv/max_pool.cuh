// Max pooling, eight channels a thread.
//
// Backward, windows are asked which of their pixels they took, in steps of their stride: a block of
// stride x stride pixels is covered by the same windows, of which a thread takes all, and hands
// each one's gradient to the pixel that it took. Nothing is added by two threads.
//
// The primitives it is written in (device.cuh) are included before it: tests without a card have a
// second set.
#pragma once
#include <cstdint>

namespace vitrum::cuda::max_pool {

constexpr int kThreads = 256;

struct Windows {
  int height, width, channels, down, across, kernel, stride, padding;
};

// The first greatest of each channel: where in its window, and what.
struct Greatest {
  int place[8];
  Eight value;
};
// Window (i, j) of an image whose channels begin at `image`.
template <int kKernel, class T>
__device__ __forceinline__ Greatest greatest(const Windows& w, const T* image, int i, int j) {
  const int kernel = kKernel ? kKernel : w.kernel;
  const int top = i * w.stride - w.padding, left = j * w.stride - w.padding;
  Greatest best = {};
  bool any = false;
#pragma unroll
  for (int y = 0; y < kernel; ++y)
#pragma unroll
    for (int x = 0; x < kernel; ++x) {
      if (top + y < 0 || top + y >= w.height || left + x < 0 || left + x >= w.width) continue;
      const Eight v =
          load8(image + (static_cast<int64_t>(top + y) * w.width + left + x) * w.channels);
#pragma unroll
      for (int k = 0; k < 8; ++k)
        if (!any || v.v[k] > best.value.v[k])
          best.value.v[k] = v.v[k], best.place[k] = y * kernel + x;
      any = true;
    }
  return best;
}

// The channels, column, line and image of item `item` of images of down x across pixels.
struct Item {
  int c, j, i;
  int64_t image;
  __device__ __forceinline__ Item(const Windows& w, int down, int across, uint32_t item) {
    const uint32_t eights = static_cast<uint32_t>(w.channels) / 8, pixel = item / eights,
                   line = pixel / static_cast<uint32_t>(across);
    c = static_cast<int>(item % eights) * 8,
    j = static_cast<int>(pixel % static_cast<uint32_t>(across));
    image = line / static_cast<uint32_t>(down),
    i = static_cast<int>(line % static_cast<uint32_t>(down));
  }
};

// Thread `item` of down * across * channels / 8 an image.
template <class T>
__device__ __forceinline__ void pool(const Windows& w, const T* x, T* y, uint32_t item) {
  const Item at(w, w.down, w.across, item);
  const T* const image = x + at.image * w.height * w.width * w.channels + at.c;
  store8(y + static_cast<int64_t>(item) * 8, greatest<0>(w, image, at.i, at.j).value);
}

// Blocks of stride x stride pixels, counted from the padding's first: so many of an image.
inline __host__ __device__ int blocks_down(const Windows& w) {
  return (w.height + w.padding + w.stride - 1) / w.stride;
}
inline __host__ __device__ int blocks_across(const Windows& w) {
  return (w.width + w.padding + w.stride - 1) / w.stride;
}

// Thread `item` of blocks_down * blocks_across * channels / 8 an image. What a pixel gets is added
// in the order of the windows.
template <int kKernel, int kStride, class T>
__device__ __forceinline__ void pool_back(const Windows& w, const T* dy, const T* x, T* dx,
                                          uint32_t item) {
  constexpr int kOver = (kKernel + kStride - 1) / kStride;  // windows over a block, along a side
  const Item at(w, blocks_down(w), blocks_across(w), item);
  const int64_t begin = at.image * w.height * w.width * w.channels + at.c;
  Eight sum[kStride * kStride] = {};
#pragma unroll
  for (int over_y = 0; over_y < kOver; ++over_y)
#pragma unroll
    for (int over_x = 0; over_x < kOver; ++over_x) {
      // The window begins so many pixels before the block.
      const int up = (kOver - 1 - over_y) * kStride, back = (kOver - 1 - over_x) * kStride;
      const int i = at.i - (kOver - 1 - over_y), j = at.j - (kOver - 1 - over_x);
      if (i < 0 || i >= w.down || j < 0 || j >= w.across) continue;
      const Greatest best = greatest<kKernel>(w, x + begin, i, j);
      const Eight d = load8(dy + ((at.image * w.down + i) * w.across + j) * w.channels + at.c);
#pragma unroll
      for (int p = 0; p < kStride * kStride; ++p) {
        const int in_y = up + p / kStride, in_x = back + p % kStride;
        if (in_y >= kKernel || in_x >= kKernel) continue;
#pragma unroll
        for (int k = 0; k < 8; ++k)
          if (best.place[k] == in_y * kKernel + in_x) sum[p].v[k] += d.v[k];
      }
    }
#pragma unroll
  for (int p = 0; p < kStride * kStride; ++p) {
    const int y = at.i * kStride - w.padding + p / kStride,
              column = at.j * kStride - w.padding + p % kStride;
    if (y >= 0 && y < w.height && column >= 0 && column < w.width)
      store8(dx + begin + (static_cast<int64_t>(y) * w.width + column) * w.channels, sum[p]);
  }
}

}  // namespace vitrum::cuda::max_pool
