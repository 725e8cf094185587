// Convolution as a GEMM whose left operand is never laid out (sm_90a): for every tap of the window
// TMA brings the box of pixels under it, 64 channels at a time, straight from the image, zeros
// where the padding is. y (pixels, columns) = the sum over taps of x (pixels, channels) w(tap)^T.
//
// A CTA computes tiles of 128 pixels (a box) x 64, 128 or 256 columns. Warp specialisation and
// pipeline are those of linear/tile.cuh: a producer warp, two consumer warpgroups with 64 pixels
// each; two CTAs form a cluster, have neighbouring boxes and the same weights, and multicast one
// half of them each. Narrow tiles have two CTAs on an SM: one multiplies while the other ends. The
// rows of w arrive permuted (permuted_rows_map), so that a thread has eight neighbouring columns.
//
// L2 sets the pace of narrow tiles. Where a window has three lines and a box's lines are whole
// eights of pixels, a stage has the three taps of a column of the window: one box, two lines higher
// (a stack), in which each tap's pixels begin a line further, and the weights of all three.
//
// The gradient of the image is the same product, of dy with the window turned round. A norm of
// given statistics, a skip and ReLU may follow before the results leave the registers; or what a
// norm of the batch's statistics wants to know of them is found there (norm/moments.cuh).
//
// The primitives it is written in (device.cuh, tma.cuh, wgmma.cuh) and host/tensor_map.h are
// included before it: tests without a card have a second set.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "vitrum/cuda/conv/windows.h"
#include "vitrum/cuda/linear/mainloop.cuh"
#include "vitrum/cuda/norm/follow.cuh"
#include "vitrum/cuda/norm/moments.cuh"

namespace vitrum::cuda::conv_tile {

using conv::Grid, conv::Tap, conv::kMaxMaps, conv::kMaxTaps;

constexpr int kGroup = 128, kGroups = 2, kThreads = kGroups * kGroup + kWarp;  // and a producer
constexpr int kRows = 64 * kGroups, kDepth = conv::kChannels, kCluster = 2;
static_assert(kRows == kTilePixels);

// What depends on the tile's columns and on the taps that a stage has.
template <int kColumns, int kTaps = 1>
struct Shape {
  static constexpr int kStages = kTaps > 1 ? 2 : kColumns == 128 ? 3 : 4;
  static constexpr int kBlocks = kColumns == 256 ? 1 : 2;  // on an SM
  static constexpr int kShare = kColumns / kCluster;       // of the weights, a block's
  static constexpr int kBytesX = (kTaps > 1 ? kMostStackedPixels : kRows) * kSwizzledRow;
  static constexpr int kBytesW = kColumns * kSwizzledRow;  // of a tap
};

struct Args {
  CUtensorMap x[kMaxMaps], w;
  Tap taps[kMaxTaps];
  int tap_count, channels, columns;
  int box_bytes;  // of 64 channels, as they are copied
  // Of a box in shared memory, bytes: where the second warpgroup's pixels begin, and how much
  // further each tap's that share a stage.
  int second, apart;
  int tiles;  // of a cluster
  Grid grid;
  // Where the results go: elements from one image, line and column to the next.
  bf16* y;
  int64_t image_apart, line_apart, column_apart;
  // y * scale + shift + skip, through ReLU: all of it, the skip or ReLU may be absent.
  const float *scale, *shift;
  const bf16* skip;  // lies as y
  bool relu;
  // Moments of y's columns (moments_chunks(), 3, columns), and which samples count; null: all.
  float* moments;
  const float* weight;
};

template <int kColumns, int kTaps = 1>
struct Shared {
  using S = Shape<kColumns, kTaps>;
  std::byte x[S::kStages][S::kBytesX], w[S::kStages][kTaps][S::kBytesW];
  moments::Shared<kColumns / 32, kGroups * kGroup / kWarp> ends;
  uint64_t full[S::kStages], empty[S::kStages];
};

struct Place {
  int box, column;
};
// A block's tile of this turn. Neighbouring clusters share boxes.
template <int kColumns>
__device__ __forceinline__ bool take_tile(const Args& g, int turn, Place& place) {
  const int clusters = static_cast<int>(gridDim.x) / kCluster,
            wide = (g.columns + kColumns - 1) / kColumns;
  const int i = static_cast<int>(blockIdx.x) / kCluster + turn * clusters;
  place.box = i / wide * kCluster + cluster_rank();
  place.column = i % wide * kColumns;
  return i < g.tiles;
}

template <int kColumns, int kTaps>
__device__ void produce(const Args& g, Shared<kColumns, kTaps>& s) {
  using S = Shape<kColumns, kTaps>;
  constexpr uint16_t kBoth = (1 << kCluster) - 1;
  PipelineState<S::kStages> pipe;
  const int own = cluster_rank() * S::kShare;
  Place place;
  for (int turn = 0; take_tile<kColumns>(g, turn, place); ++turn) {
    const conv::Corner corner = g.grid.corner(place.box);
    for (int t = 0; t < g.tap_count; t += kTaps) {
      const Tap tap = g.taps[t];
      for (int c = 0; c < g.channels; c += kDepth, pipe.advance()) {
        uint64_t* const full = &s.full[pipe.index];
        mbarrier_wait(&s.empty[pipe.index], pipe.phase ^ 1);
        mbarrier_arrive_expect_tx(full, g.box_bytes + kTaps * S::kBytesW);
        tma_load_4d(g.x[tap.map], s.x[pipe.index], full, c, corner.column + tap.column,
                    corner.line + tap.line, corner.image);
#pragma unroll
        for (int k = 0; k < kTaps; ++k)
          tma_load_5d(g.w, s.w[pipe.index][k] + own * kSwizzledRow, full,
                      g.taps[t + k].weight * g.channels + c, (place.column + own) / 32, kBoth);
      }
    }
  }
}

template <int kColumns, int kTaps, Ends kEnds>
struct Consumer {
  using S = Shape<kColumns, kTaps>;
  static constexpr int kParts = kColumns / 32;
  using Accumulators = float[kColumns / 2];
  const Args& g;
  Shared<kColumns, kTaps>& s;
  int group, thread;
  PipelineState<S::kStages> pipe = {};

  __device__ __forceinline__ void multiply(Accumulators& d) {
    const int own = kTaps > 1 ? group * g.second : group * 64 * kSwizzledRow;
    mainloop(
        d, pipe, s.full, g.tap_count / kTaps * ((g.channels + kDepth - 1) / kDepth),
        [&](int stage, int i, bool add) {
#pragma unroll
          for (int k = 0; k < kTaps; ++k)
            wgmma_ss(d, make_descriptor(s.x[stage] + own + k * g.apart + 32 * i),
                     make_descriptor(s.w[stage][k] + 32 * i), add || k > 0);
        },
        // Both blocks write into the weights of both.
        [&](int stage) {
          if (thread < kCluster) mbarrier_arrive_cluster(&s.empty[stage], thread);
        });
  }

  __device__ __forceinline__ int row_of(int half) const {
    return group * 64 + thread / kWarp * 16 + thread % kWarp / 4 + 8 * half;
  }
  // Where pixel `row` of a box begins; -1: outside.
  __device__ __forceinline__ int64_t place_of(const conv::Corner& corner, int row) const {
    const Box& box = g.grid.box;
    const int below = row / box.w, behind = below / box.h;
    const int column = corner.column + row - below * box.w,
              line = corner.line + below - behind * box.h, image = corner.image + behind;
    const bool inside =
        behind < box.n && column < g.grid.columns && line < g.grid.lines && image < g.grid.images;
    return inside ? image * g.image_apart + line * g.line_apart + column * g.column_apart : -1;
  }

  __device__ __forceinline__ bool has(const Place& place, int part) const {
    return place.column + 32 * part < g.columns;
  }

  // One of the thread's two rows. Skips are loaded some parts at a time: a load behind a store
  // would wait for it, and all of them would not fit into the registers.
  __device__ __forceinline__ void leave(const Accumulators& d, const Place& place, int half) const {
    constexpr int kAtATime = kColumns == 256 ? 4 : 2;
    const int column = place.column + thread % 4 * 8;
    const int64_t begin = place_of(g.grid.corner(place.box), row_of(half)), at = begin + column;
    if (begin < 0) return;
#pragma unroll
    for (int first = 0; first < kParts; first += kAtATime) {
      Raw8<bf16> skip[kAtATime] = {};
      if constexpr (kEnds == Ends::kFollowed)
#pragma unroll
        for (int i = 0; i < kAtATime; ++i)
          if (g.skip && has(place, first + i)) skip[i] = load_raw(g.skip + at + 32 * (first + i));
#pragma unroll
      for (int i = 0; i < kAtATime; ++i) {
        const int part = first + i;
        if (!has(place, part)) continue;
        Eight v;
#pragma unroll
        for (int k = 0; k < 8; ++k) v.v[k] = d[permuted_accumulator(part, half, k)];
        if constexpr (kEnds == Ends::kFollowed)
          follow(v, load8(g.scale + column + 32 * part), load8(g.shift + column + 32 * part),
                 skip[i], g.skip != nullptr, g.relu);
        store8(g.y + at + 32 * part, v);
      }
    }
  }

  // Whether pixel `row` of a box is one, of a sample that counts.
  __device__ __forceinline__ bool counts(const conv::Corner& corner, int row) const {
    if (place_of(corner, row) < 0) return false;
    return !g.weight || g.weight[corner.image + row / (g.grid.box.w * g.grid.box.h)] > 0;
  }
  // As a tensor holds them.
  __device__ __forceinline__ Eight rounded_part(const Accumulators& d, int part, int half) const {
    Eight v;
#pragma unroll
    for (int k = 0; k < 8; ++k) v.v[k] = rounded<bf16>(d[permuted_accumulator(part, half, k)]);
    return v;
  }

  // A block's tiles all have the same columns where moments are wanted.
  __device__ void run() {
    constexpr bool kMoments = kEnds == Ends::kMoments;
    Accumulators d;
    Place place;
    moments::Seen<kParts> seen(s.ends, group * kGroup + thread);
    for (int turn = 0; take_tile<kColumns>(g, turn, place); ++turn) {
      bool first = false, second = false;
      if constexpr (kMoments) {
        const conv::Corner corner = g.grid.corner(place.box);
        first = counts(corner, row_of(0)), second = counts(corner, row_of(1));
      }
      multiply(d);
      if constexpr (kMoments) {
        const moments::Rows rows(first, second);
        const moments::Merge into(seen.count, rows.count);
#pragma unroll
        for (int part = 0; part < kParts; ++part)
          seen.add(part, rounded_part(d, part, 0), rounded_part(d, part, 1), rows, into,
                   thread % kWarp);
        seen.count += rows.count;
      }
      leave(d, place, 0), leave(d, place, 1);
    }
    if constexpr (kMoments) {
      take_tile<kColumns>(g, 0, place);
      const int wide = (g.columns + kColumns - 1) / kColumns,
                cluster = static_cast<int>(blockIdx.x) / kCluster / wide,
                chunk = cluster * kCluster + cluster_rank();
      moments::leave(seen, s.ends, group * kGroup + thread,
                     g.moments + static_cast<int64_t>(chunk) * 3 * g.columns, place.column,
                     g.columns);
    }
  }
};

// A block of the kernel.
template <int kColumns, int kTaps, Ends kEnds>
__device__ __forceinline__ void work(const Args& g, Shared<kColumns, kTaps>& s) {
  using S = Shape<kColumns, kTaps>;
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i)
      mbarrier_init(&s.full[i], 1), mbarrier_init(&s.empty[i], kGroups * kCluster);
    fence_barrier_init();
  }
  __syncwarp();
  sync_cluster();
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  if (group < kGroups) {
    Consumer<kColumns, kTaps, kEnds>{g, s, group, static_cast<int>(threadIdx.x) % kGroup}.run();
  } else if (threadIdx.x == kGroups * kGroup) {
    produce<kColumns, kTaps>(g, s);
  }
  // The other block may still write here.
  __syncwarp();
  sync_cluster();
}

// ---- what the host says ----

// The weights of taps one behind the other, a row for every column of the result.
inline CUtensorMap weights_map(const void* w, int64_t columns, int64_t row, int share) {
  const auto all = static_cast<cuuint64_t>(columns), wide = static_cast<cuuint64_t>(row);
  return make_tensor_map(w, {wide, 2, 4, 4, all / 32}, {wide * 2, wide * 16, wide * 4, wide * 64},
                         {kDepth, 2, 4, 4, static_cast<cuuint32_t>(share / 32)});
}

// Taps of a stack one behind the other, from the first line on.
inline std::vector<Tap> stacked_taps(std::vector<Tap> taps) {
  std::sort(taps.begin(), taps.end(), [](const Tap& a, const Tap& b) {
    return a.column != b.column ? a.column < b.column : a.line < b.line;
  });
  return taps;
}

// w: (columns, taps, channels), of so many taps in all.
inline void set_product(Args& args, const std::vector<Tap>& taps, const void* w, int64_t all_taps,
                        int64_t channels, int64_t columns, const TileChoice& tile) {
  const Box& box = tile.boxes.box;
  args.w = weights_map(w, columns, all_taps * channels, tile.columns / kCluster);
  const std::vector<Tap> ordered = tile.stacked ? stacked_taps(taps) : taps;
  std::copy(ordered.begin(), ordered.end(), args.taps);
  args.tap_count = static_cast<int>(taps.size());
  args.channels = static_cast<int>(channels), args.columns = static_cast<int>(columns);
  args.box_bytes = copied_box(tile).pixels() * kSwizzledRow;
  // Half of a box of one image, or the second image.
  args.second = (box.n > 1 ? copied_box(tile).w * copied_box(tile).h : 64) * kSwizzledRow;
  args.apart = tile.stacked ? box.w * kSwizzledRow : 0;
  args.tiles = static_cast<int>((tile.boxes.count() + 1) / 2 *
                                ((columns + tile.columns - 1) / tile.columns));
}

struct Product {
  Args args;
  int wide;
  bool stacked = false;
};
// Clusters of a launch, of an SM's so many blocks at most. With moments every one keeps its
// columns.
inline int clusters_of(const Product& p, int processors, int blocks) {
  const int wide = (p.args.columns + p.wide - 1) / p.wide,
            most = std::min(p.args.tiles, processors / kCluster * blocks);
  return p.args.moments ? most / wide * wide : most;
}
inline int blocks_of(const Product& p) { return p.wide == 256 ? 1 : 2; }  // as Shape has it
// Blocks with the same columns leave so many moments of them; 0: more columns than blocks.
inline int moments_chunks(Product p, int processors) {
  float any = 0;
  p.args.moments = &any;
  const int wide = (p.args.columns + p.wide - 1) / p.wide;
  return clusters_of(p, processors, blocks_of(p)) / wide * kCluster;
}

void allow(const Product& p);  // before its first launch
void launch(const Product& p, int processors, cudaStream_t stream);

// y from x and w (out, taps, channels). wide: columns of a tile, 0: as the card likes them.
inline Product forward_product(const CardInfo& card, const ConvTask& task, const void* x,
                               const void* w, bf16* y, int wide = 0) {
  const int64_t down = task.down(), across = task.across();
  const TileChoice tile =
      choose_tile(card, task.images, down, across, task.out, can_stack(task), wide);
  Product p{{}, tile.columns, tile.stacked};
  set_product(p.args, conv::window_taps(task), w, task.kernel * task.kernel, task.channels,
              task.out, tile);
  conv::set_window_maps(task, x, copied_box(tile), p.args.x);
  p.args.grid = conv::grid_of(tile.boxes, task.images, down, across);
  p.args.y = y, p.args.column_apart = task.out;
  p.args.line_apart = across * task.out, p.args.image_apart = down * p.args.line_apart;
  return p;
}
// dx from dy and w (channels, taps, out): a product for every remainder that pixels have, divided
// by the stride. Where no window lies over such pixels there is none: they are zero.
inline std::vector<Product> input_gradient_products(const CardInfo& card, const ConvTask& task,
                                                    const void* dy, const void* w, bf16* dx,
                                                    int wide = 0) {
  const int stride = static_cast<int>(task.stride);
  std::vector<Product> products;
  for (int rest = 0; rest < stride * stride; ++rest) {
    const int line = rest / stride, column = rest % stride;
    const std::vector<Tap> taps = conv::covering_taps(task, line, column);
    if (taps.empty()) continue;
    const conv::Pixels to{dx,          task.images, task.height, task.width, task.channels,
                          task.stride, line,        column};
    const TileChoice tile = choose_tile(card, task.images, to.lines(), to.columns(), task.channels,
                                        can_stack(task), wide);
    Product p{{}, tile.columns, tile.stacked};
    set_product(p.args, taps, w, task.kernel * task.kernel, task.out, task.channels, tile);
    p.args.x[0] =
        conv::pixels_map({dy, task.images, task.down(), task.across(), task.out}, copied_box(tile));
    p.args.grid = conv::grid_of(tile.boxes, task.images, to.lines(), to.columns());
    p.args.y = dx + (line * task.width + column) * task.channels;
    p.args.column_apart = task.stride * task.channels;
    p.args.line_apart = task.stride * task.width * task.channels;
    p.args.image_apart = task.height * task.width * task.channels;
    products.push_back(std::move(p));
  }
  return products;
}

}  // namespace vitrum::cuda::conv_tile
