// Convolution of every channel with a window of its own, 7 x 7, and the gradient of the windows,
// bound by multiplications rather than by loads. A thread has two neighbouring channels and a strip
// of seven columns, and goes down the lines of an image. A line of x is loaded and unpacked once
// and goes into the seven lines of y that it is seen from, whose sums are in registers; the
// gradient has the 49 sums of the window in registers, and the seven lines of dy as they are
// stored.
//
// Sixteen neighbours of a block have a group of 32 channels, whose windows lie in shared memory;
// its eight slots have a strip each. Lines outside of the image are left out, columns are zeros.
//
// Written in primitives/device.cuh, which is included before it: tests without a card have another.
#pragma once
#include "vitrum/cuda/conv/depthwise.h"

namespace vitrum::cuda::depthwise {

constexpr int kColumns = kStrip + kKernel - 1;  // of x, seen from a strip
constexpr int kRow = kChannels + 2;             // a window's place in shared memory: no conflicts

struct alignas(16) Shared {
  union {
    float window[kPlaces][kRow];
    float sums[kSlots][kKernel * kChannels];
  };
};

// What a thread works on.
struct Place {
  int group, pair, slot, block;  // block: of those that have this group
  __device__ int channel() const { return group * kChannels + 2 * pair; }
};
__device__ __forceinline__ Place place_of(const Plan& plan) {
  const int thread = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
  return {block % plan.groups, thread % kPairs, thread / kPairs, block / plan.groups};
}
struct Item {
  int64_t image;
  int column, begin, end;  // of y
};
__device__ __forceinline__ Item item_of(const Plan& plan, const Windows& g, int64_t i) {
  const auto part = static_cast<int>(i / plan.strips % plan.parts);
  return {i / plan.strips / plan.parts, static_cast<int>(i % plan.strips) * kStrip,
          part * plan.rows, min(g.down, (part + 1) * plan.rows)};
}

struct Pair {
  float v[2];
};
__device__ __forceinline__ Pair unpack_pair(uint32_t raw) {
  return {{__uint_as_float(raw << 16), __uint_as_float(raw & 0xffff0000u)}};
}
// Columns from `column` on of one line; zeros where the image has none.
template <int kCount>
__device__ __forceinline__ void load_line(uint32_t (&to)[kCount], const bf16* line, int column,
                                          int width, int channels, bool inside) {
  line += int64_t{column} * channels;
#pragma unroll
  for (int u = 0; u < kCount; ++u, line += channels) {
    const bool there = inside && static_cast<unsigned>(column + u) < static_cast<unsigned>(width);
    to[u] = there ? *reinterpret_cast<const uint32_t*>(line) : 0u;
  }
}

// w (channels, places); turned: the window turned round by half.
__device__ __forceinline__ void load_windows(Shared& s, const Windows& g, const float* w, int group,
                                             bool turned) {
  const int first = group * kChannels, count = min(kChannels, g.channels - first) * kPlaces;
  for (int i = static_cast<int>(threadIdx.x); i < kChannels * kPlaces; i += kThreads) {
    const int channel = i / kPlaces, place = i % kPlaces;
    s.window[turned ? kPlaces - 1 - place : place][channel] =
        i < count ? w[int64_t{first} * kPlaces + i] : 0.0f;
  }
}

struct ConvolveArgs {
  Windows g;
  Plan plan;
  const bf16* x;
  const float *w, *bias;  // bias: may be null
  bf16* y;
  bool turned;
};

// sums[ky]: of the line of y that sees this line of x through line ky of its window.
using Sums = float[kKernel][kStrip][2];

// The line of y that was seen through ky is seen through ky + 1 by the next line of x.
__device__ __forceinline__ void add_line(Sums& sums, const uint32_t (&raw)[kColumns],
                                         const float (&window)[kPlaces][kRow], int pair,
                                         const Pair& bias) {
  Pair v[kColumns];
#pragma unroll
  for (int u = 0; u < kColumns; ++u) v[u] = unpack_pair(raw[u]);
#pragma unroll
  for (int ky = kKernel - 1; ky >= 0; --ky)
#pragma unroll
    for (int kx = 0; kx < kKernel; ++kx) {
      const float2 weight = *reinterpret_cast<const float2*>(&window[ky * kKernel + kx][2 * pair]);
      const float weights[2] = {weight.x, weight.y};
#pragma unroll
      for (int t = 0; t < kStrip; ++t)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float sum = kx > 0 ? sums[ky][t][e] : ky > 0 ? sums[ky - 1][t][e] : bias.v[e];
          sums[ky][t][e] = fmaf(v[t + kx].v[e], weights[e], sum);
        }
    }
}
__device__ __forceinline__ void skip_line(Sums& sums, const Pair& bias) {
#pragma unroll
  for (int ky = kKernel - 1; ky >= 0; --ky)
#pragma unroll
    for (int t = 0; t < kStrip; ++t)
#pragma unroll
      for (int e = 0; e < 2; ++e) sums[ky][t][e] = ky > 0 ? sums[ky - 1][t][e] : bias.v[e];
}

// A block of the convolution.
__device__ __forceinline__ void convolve(const ConvolveArgs& a, Shared& s) {
  const Windows& g = a.g;
  const Place at = place_of(a.plan);
  load_windows(s, g, a.w, at.group, a.turned);
  __syncthreads();
  const int64_t number = int64_t{at.block} * kSlots + at.slot;
  const int c = at.channel();
  if (number >= a.plan.items || c >= g.channels) return;
  const Item item = item_of(a.plan, g, number);
  const bf16* const x = a.x + item.image * g.height * g.width * g.channels + c;
  bf16* const y = a.y + item.image * g.down * g.across * g.channels + c;
  const Pair bias = a.bias ? Pair{{a.bias[c], a.bias[c + 1]}} : Pair{};
  const auto inside = [&](int i) { return i >= 0 && i < g.height; };
  const auto load = [&](uint32_t(&raw)[kColumns], int i) {
    load_line(raw, x + int64_t{i} * g.width * g.channels, item.column - g.padding, g.width,
              g.channels, inside(i));
  };
  Sums sums = {};
  uint32_t raw[kColumns];
  const int first = item.begin - g.padding, last = item.end - 1 - g.padding + kKernel - 1;
  load(raw, first);
#pragma unroll 1
  for (int i = first; i <= last; ++i) {
    uint32_t next[kColumns];
    load(next, i < last ? i + 1 : -1);
    if (inside(i))
      add_line(sums, raw, s.window, at.pair, bias);
    else
      skip_line(sums, bias);
    const int line = i + g.padding - (kKernel - 1);  // whose sums are complete
    if (line >= item.begin) {
      bf16* const to = y + (int64_t{line} * g.across + item.column) * g.channels;
#pragma unroll
      for (int t = 0; t < kStrip; ++t)
        if (item.column + t < g.across)
          *reinterpret_cast<uint32_t*>(to + int64_t{t} * g.channels) =
              pack2(sums[kKernel - 1][t][0], sums[kKernel - 1][t][1]);
    }
#pragma unroll
    for (int u = 0; u < kColumns; ++u) raw[u] = next[u];
  }
}

struct GradientArgs {
  Windows g;  // from x to dy
  Plan plan;
  const bf16 *x, *dy;
  float* partials;  // (chunks, places + 1, channels), the bias' last
};

// Of a window, and of the bias.
struct WindowSums {
  float place[kKernel][kKernel][2], bias[2];
};
// Seven lines of dy, that which the line of x is seen from through ky, as it is stored.
using Lines = uint32_t[kKernel][kStrip];

__device__ __forceinline__ void add_products(WindowSums& sums, const uint32_t (&raw)[kColumns],
                                             const Lines& lines) {
  Pair v[kColumns];
#pragma unroll
  for (int u = 0; u < kColumns; ++u) v[u] = unpack_pair(raw[u]);
#pragma unroll
  for (int ky = 0; ky < kKernel; ++ky)
#pragma unroll
    for (int t = 0; t < kStrip; ++t) {
      const Pair d = unpack_pair(lines[ky][t]);
#pragma unroll
      for (int kx = 0; kx < kKernel; ++kx)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          sums.place[ky][kx][e] = fmaf(v[t + kx].v[e], d.v[e], sums.place[ky][kx][e]);
    }
}

__device__ __forceinline__ void add_item(WindowSums& sums, const GradientArgs& a, const Item& item,
                                         int c) {
  const Windows& g = a.g;
  const bf16* const x = a.x + item.image * g.height * g.width * g.channels + c;
  const bf16* const dy = a.dy + item.image * g.down * g.across * g.channels + c;
  const auto inside = [&](int i) { return i >= 0 && i < g.height; };
  const auto load = [&](uint32_t(&raw)[kColumns], int i) {
    load_line(raw, x + int64_t{i} * g.width * g.channels, item.column - g.padding, g.width,
              g.channels, inside(i));
  };
  const auto load_gradient = [&](uint32_t(&raw)[kStrip], int line) {
    load_line(raw, dy + int64_t{line} * g.across * g.channels, item.column, g.across, g.channels,
              line < item.end);
  };
  Lines lines = {};
  uint32_t raw[kColumns];
  const int first = item.begin - g.padding, last = item.end - 1 - g.padding + kKernel - 1;
  load(raw, first);
  load_gradient(lines[0], item.begin);
#pragma unroll 1
  for (int i = first; i <= last; ++i) {
    uint32_t next[kColumns], next_line[kStrip];
    load(next, i < last ? i + 1 : -1);
    load_gradient(next_line, i + 1 + g.padding);
    if (inside(i)) add_products(sums, raw, lines);
#pragma unroll
    for (int t = 0; t < kStrip; ++t) {
      const Pair d = unpack_pair(lines[0][t]);
      sums.bias[0] += d.v[0], sums.bias[1] += d.v[1];
#pragma unroll
      for (int ky = kKernel - 1; ky > 0; --ky) lines[ky][t] = lines[ky - 1][t];
      lines[0][t] = next_line[t];
    }
#pragma unroll
    for (int u = 0; u < kColumns; ++u) raw[u] = next[u];
  }
}

// The slots' sums, one after the other, of kCount places from `place` on.
template <int kCount>
__device__ __forceinline__ void add_slots(Shared& s, const GradientArgs& a, const Place& at,
                                          const float (&own)[kCount][2], int place) {
#pragma unroll
  for (int k = 0; k < kCount; ++k)
#pragma unroll
    for (int e = 0; e < 2; ++e) s.sums[at.slot][k * kChannels + 2 * at.pair + e] = own[k][e];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kCount * kChannels; i += kThreads) {
    float sum = 0;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) sum += s.sums[slot][i];
    const int c = at.group * kChannels + i % kChannels;
    const int64_t to = int64_t{at.block} * (kPlaces + 1) + place + i / kChannels;
    if (c < a.g.channels) a.partials[to * a.g.channels + c] = sum;
  }
  __syncthreads();
}

// A block of the windows' gradient: a chunk of items of a group of channels.
__device__ __forceinline__ void sum_windows(const GradientArgs& a, Shared& s) {
  const Place at = place_of(a.plan);
  WindowSums sums = {};
  const int64_t begin = at.block * a.plan.each, end = begin + a.plan.each;
  if (at.channel() < a.g.channels)
    for (int64_t i = begin + at.slot; i < end && i < a.plan.items; i += kSlots)
      add_item(sums, a, item_of(a.plan, a.g, i), at.channel());
#pragma unroll
  for (int ky = 0; ky < kKernel; ++ky) add_slots(s, a, at, sums.place[ky], ky * kKernel);
  const float bias[1][2] = {{sums.bias[0], sums.bias[1]}};
  add_slots(s, a, at, bias, kPlaces);
}

}  // namespace vitrum::cuda::depthwise
