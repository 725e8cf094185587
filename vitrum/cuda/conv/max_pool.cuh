// Max pooling, eight channels a thread.
//
// Backward, windows are asked which of their pixels they took, in steps of their stride: a block of
// stride x stride pixels is covered by the same windows, of which a thread takes all, and hands
// each one's gradient to the pixel that it took. Nothing is added by two threads. A thread walks
// down a strip of blocks, and asks windows that cover two of them once.
//
// The primitives it is written in (device.cuh) are included before it: tests without a card have a
// second set.
#pragma once
#include <cstdint>

namespace vitrum::cuda::max_pool {

constexpr int kThreads = 256, kStrip = 8;  // blocks that a thread walks down

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
  const auto inside = [&](int y, int x) {
    return top + y >= 0 && top + y < w.height && left + x >= 0 && left + x < w.width;
  };
  const auto pixel = [&](int y, int x) {
    return image + (static_cast<int64_t>(top + y) * w.width + left + x) * w.channels;
  };
  const auto compare = [&](int y, int x, const Raw8<T>& raw) {
    const Eight v = unpack(raw);
#pragma unroll
    for (int k = 0; k < 8; ++k)
      if (!any || v.v[k] > best.value.v[k])
        best.value.v[k] = v.v[k], best.place[k] = y * kernel + x;
    any = true;
  };
  if constexpr (kKernel > 0) {
    Raw8<T> raw[kKernel][kKernel] = {};  // all asked for before any is looked at
#pragma unroll
    for (int k = 0; k < kKernel * kKernel; ++k)
      if (inside(k / kKernel, k % kKernel))
        raw[k / kKernel][k % kKernel] = load_raw(pixel(k / kKernel, k % kKernel));
#pragma unroll
    for (int k = 0; k < kKernel * kKernel; ++k)
      if (inside(k / kKernel, k % kKernel))
        compare(k / kKernel, k % kKernel, raw[k / kKernel][k % kKernel]);
  } else {
    for (int y = 0; y < kernel; ++y)
      for (int x = 0; x < kernel; ++x)
        if (inside(y, x)) compare(y, x, load_raw(pixel(y, x)));
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
inline __host__ __device__ int strips_down(const Windows& w) {
  return (blocks_down(w) + kStrip - 1) / kStrip;
}

// Which pixel a window took of each channel, four bits each, and the gradient that it hands on.
template <class T>
struct Taken {
  uint32_t places;
  Raw8<T> d;

  __device__ __forceinline__ int place(int k) const {
    return static_cast<int>(places >> (4 * k) & 15u);
  }
};
template <int kKernel, class T>
__device__ __forceinline__ Taken<T> take(const Windows& w, const T* image, const T* dy, int i,
                                         int j) {
  static_assert(kKernel * kKernel < 16);  // a place that no pixel has
  if (i < 0 || i >= w.down || j < 0 || j >= w.across) return {~0u, {}};
  const Greatest best = greatest<kKernel>(w, image, i, j);
  Taken<T> taken{0, load_raw(dy + (static_cast<int64_t>(i) * w.across + j) * w.channels)};
#pragma unroll
  for (int k = 0; k < 8; ++k) taken.places |= static_cast<uint32_t>(best.place[k]) << (4 * k);
  return taken;
}

// Thread `item` of strips_down * blocks_across * channels / 8 an image. What a pixel gets is added
// in the order of the windows.
template <int kKernel, int kStride, class T>
__device__ __forceinline__ void pool_back(const Windows& w, const T* dy, const T* x, T* dx,
                                          uint32_t item) {
  constexpr int kOver = (kKernel + kStride - 1) / kStride;  // windows over a block, along a side
  const Item at(w, strips_down(w), blocks_across(w), item);
  const int64_t begin = at.image * w.height * w.width * w.channels + at.c;
  const T* const of_image = dy + at.image * w.down * w.across * w.channels + at.c;
  const int first = at.i * kStrip,
            end = first + kStrip < blocks_down(w) ? first + kStrip : blocks_down(w);
  Taken<T> taken[kOver][kOver];  // the windows over a block
  const auto take_line = [&](Taken<T>(&line)[kOver], int i) {
#pragma unroll
    for (int over = 0; over < kOver; ++over)
      line[over] = take<kKernel>(w, x + begin, of_image, i, at.j - (kOver - 1 - over));
  };
#pragma unroll
  for (int over = 0; over + 1 < kOver; ++over)
    take_line(taken[over + 1], first - (kOver - 1 - over));
  for (int block = first; block < end; ++block) {
#pragma unroll
    for (int over = 0; over + 1 < kOver; ++over)
#pragma unroll
      for (int k = 0; k < kOver; ++k) taken[over][k] = taken[over + 1][k];
    take_line(taken[kOver - 1], block);
    Eight sum[kStride * kStride] = {};
#pragma unroll
    for (int over_y = 0; over_y < kOver; ++over_y)
#pragma unroll
      for (int over_x = 0; over_x < kOver; ++over_x) {
        // The window begins so many pixels before the block.
        const int up = (kOver - 1 - over_y) * kStride, back = (kOver - 1 - over_x) * kStride;
        const Taken<T>& window = taken[over_y][over_x];
        const Eight d = unpack(window.d);
#pragma unroll
        for (int p = 0; p < kStride * kStride; ++p) {
          const int in_y = up + p / kStride, in_x = back + p % kStride;
          if (in_y >= kKernel || in_x >= kKernel) continue;
#pragma unroll
          for (int k = 0; k < 8; ++k)
            if (window.place(k) == in_y * kKernel + in_x) sum[p].v[k] += d.v[k];
        }
      }
#pragma unroll
    for (int p = 0; p < kStride * kStride; ++p) {
      const int y = block * kStride - w.padding + p / kStride,
                column = at.j * kStride - w.padding + p % kStride;
      if (y >= 0 && y < w.height && column >= 0 && column < w.width)
        store8(dx + begin + (static_cast<int64_t>(y) * w.width + column) * w.channels, sum[p]);
    }
  }
}

}  // namespace vitrum::cuda::max_pool
