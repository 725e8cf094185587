// The gradient behind GELU, out of the product of the linear layer behind it (sm_90): what the
// product leaves in registers is multiplied by GELU's slope and its columns are added up, instead
// of being written, read and written again.
//
// d (rows, columns) = dy (rows, depth) w (depth, columns), times the slope. A block works on tiles
// of 256 rows and 128 columns. The columns are the rows of its products: a thread has sums of two
// columns only, which add up where they are. One thread starts the copies of dy and w, 64 deep
// each; two warpgroups multiply 64 columns each. Two blocks, a cluster, work on neighbouring
// columns: each asks for one half of dy and both get both, since the card's cache cannot deliver
// everything twice. Meanwhile what GELU saw comes into shared memory. d takes its place there, and
// a thread for each warpgroup sees it off.
//
// What this is written in (primitives/tma.cuh, primitives/wgmma.cuh, primitives/activation.cuh) is
// included before it: there is a second set for tests without a card.
#pragma once
#include <cstddef>
#include <cstdint>

#include "vitrum/cuda/linear/mainloop.cuh"

namespace vitrum::cuda::deep {

constexpr int kGroup = 128, kGroups = 2, kThreads = (kGroups + 1) * kGroup;  // one group copies
constexpr int kTileRows = 256, kColumns = 64, kTileColumns = kGroups * kColumns;
constexpr int kDepth = 64, kStages = 3;
constexpr int kCluster = 2, kShare = kTileRows / kCluster;  // of dy, a block's
constexpr int kBytesDy = kTileRows * kSwizzledRow, kBytesW = kDepth * kSwizzledRow;
// Of a warpgroup's part of a tile: what comes and what goes at a time. Everything at once, in every
// block at the same time, would hold up the operands of the products.
constexpr int kRowsCome = 32, kRowsGo = 128, kParts = kTileRows / kRowsCome;

struct Shared {
  std::byte dy[kStages][kBytesDy], w[kStages][kGroups][kBytesW], tile[kGroups][kBytesDy];
  uint64_t full[kStages], empty[kStages];
  uint64_t seen[kGroups], done[kGroups][kTileRows / kRowsGo], gone[kGroups];  // of `tile`
};

struct Args {
  CUtensorMap dy, w, pre, d;  // pre: what GELU saw
  float* partials;            // column sums of d, one row for each tile of rows; may be null
  int columns;
  int steps, tiles;  // of depth, more than kStages; of a cluster
};

// A block's tiles. Neighbouring clusters share rows: the weights stay in the cache.
struct Walk {
  static constexpr int kAcross = kCluster * kTileColumns;
  int first, clusters, wide, left, down, across;
  __device__ explicit Walk(const Args& g)
      : first(static_cast<int>(blockIdx.x) / kCluster),
        clusters(static_cast<int>(gridDim.x) / kCluster),
        wide(g.columns / kAcross),
        left(g.tiles - first),
        down(first / wide),
        across(first % wide) {}
  __device__ __forceinline__ bool more() const { return left > 0; }
  __device__ __forceinline__ void advance() {
    left -= clusters, down += clusters / wide, across += clusters % wide;
    if (across >= wide) across -= wide, ++down;
  }
  __device__ __forceinline__ int row() const { return down * kTileRows; }
  __device__ __forceinline__ int column(int group) const {
    return across * kAcross + cluster_rank() * kTileColumns + group * kColumns;
  }
};

// Some of what GELU saw, to where the last tile's d is gone.
__device__ __forceinline__ void load_seen(const Args& g, Shared& s, const Walk& at, int part) {
  for (int group = 0; group < kGroups; ++group) {
    expect_bytes(&s.seen[group], kRowsCome * kSwizzledRow);
    load_tile(g.pre, s.tile[group] + part * kRowsCome * kSwizzledRow, &s.seen[group],
              at.column(group), at.row() + part * kRowsCome);
  }
}

__device__ __forceinline__ void produce(const Args& g, Shared& s) {
  constexpr uint16_t kBoth = (1 << kCluster) - 1;
  const int own = cluster_rank() * kShare;
  Ring<kStages> ring;
  uint32_t parity = 0;
  for (Walk at(g); at.more(); at.advance(), parity ^= 1)
    for (int step = 0, part = 0; step < g.steps; ++step, ring.advance()) {
      uint64_t* const full = &s.full[ring.at];
      wait_barrier(&s.empty[ring.at], ring.parity ^ 1);
      expect_bytes(full, kBytesDy + kGroups * kBytesW);
      load_tile(g.dy, s.dy[ring.at] + own * kSwizzledRow, full, step * kDepth, at.row() + own,
                kBoth);
      for (int group = 0; group < kGroups; ++group)
        load_tile(g.w, s.w[ring.at][group], full, at.column(group), step * kDepth);
      // The stages before this one were filled while the last tile was finished.
      if (step == kStages)
        for (int group = 0; group < kGroups; ++group) wait_barrier(&s.gone[group], parity ^ 1);
      for (; part * (g.steps - kStages) < (step + 1 - kStages) * kParts; ++part)
        load_seen(g, s, at, part);
    }
}

__device__ __forceinline__ void see_off(const Args& g, Shared& s, int group) {
  uint32_t parity = 0;
  for (Walk at(g); at.more(); at.advance(), parity ^= 1) {
    for (int row = 0; row < kTileRows; row += kRowsGo) {
      wait_barrier(&s.done[group][row / kRowsGo], parity);
      store_tile(g.d, s.tile[group] + row * kSwizzledRow, at.column(group), at.row() + row);
    }
    wait_for_boxes();
    arrive(&s.gone[group]);
  }
}

struct Consumer {
  using Sums = float[kTileRows / 2];
  const Args& g;
  Shared& s;
  int group, thread;
  int warp = thread / kWarp, lane = thread % kWarp;
  // The row of 8 x 8 matrices that the lane gives: of 16 rows of the tile, the warp's 16 columns.
  std::byte* own = swizzled(s.tile[group], lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
  Ring<kStages> ring = {};

  __device__ __forceinline__ void multiply(Sums& d) {
    multiply_steps(
        d, ring, s.full, g.steps,
        [&](int stage, int i, bool add) {
          multiply_turned(d, describe(s.w[stage][group] + 16 * i * kSwizzledRow),
                          describe(s.dy[stage] + 32 * i), add);
        },
        // Both blocks write into the stage of both.
        [&](int stage) {
          if (thread < kCluster) arrive_at(&s.empty[stage], thread);
        });
  }

  // Leaves d in the tile, and adds up the thread's columns, lane / 4 and 8 further of the warp's.
  __device__ __forceinline__ void slope_tile(const Sums& d, float (&columns)[2]) {
    uint32_t next[4];
    load_four_transposed(next, own);
#pragma unroll
    for (int row = 0; row < kTileRows; row += 16) {
      uint32_t pair[4];  // neighbouring rows, of one column or of the other
#pragma unroll
      for (int i = 0; i < 4; ++i) pair[i] = next[i];
      if (row + 16 < kTileRows) load_four_transposed(next, own + (row + 16) * kSwizzledRow);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x[2] = {__uint_as_float(pair[i] << 16), __uint_as_float(pair[i] & 0xffff0000u)};
        float v[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          v[k] = d[row / 2 + 2 * i + k] * activation_slope<Act::kGelu, bf16>(x[k]);
          columns[i % 2] += v[k];
        }
        pair[i] = pack2(v[0], v[1]);
      }
      store_four_transposed(own + row * kSwizzledRow, pair);
      if ((row + 16) % kRowsGo == 0) {
        publish_shared();
        __syncwarp();
        if (lane == 0) arrive(&s.done[group][row / kRowsGo]);
      }
    }
  }

  __device__ __forceinline__ void leave_columns(float (&columns)[2], const Walk& at) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      columns[i] += __shfl_xor_sync(0xffffffffu, columns[i], 1);
      columns[i] += __shfl_xor_sync(0xffffffffu, columns[i], 2);
    }
    float* const to =
        g.partials + int64_t{at.down} * g.columns + at.column(group) + warp * 16 + lane / 4;
    if (lane % 4 == 0) to[0] = columns[0], to[8] = columns[1];
  }

  __device__ void run() {
    Sums d;
    uint32_t parity = 0;
    for (Walk at(g); at.more(); at.advance(), parity ^= 1) {
      multiply(d);
      wait_barrier(&s.seen[group], parity);
      float columns[2] = {};
      slope_tile(d, columns);
      if (g.partials) leave_columns(columns, at);
    }
    let_next_begin();
  }
};

// A block of the kernel.
__device__ __forceinline__ void work(const Args& g, Shared& s) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i)
      init_barrier(&s.full[i], 1), init_barrier(&s.empty[i], kGroups * kCluster);
    for (int i = 0; i < kGroups; ++i) {
      init_barrier(&s.seen[i], kParts), init_barrier(&s.gone[i], 1);
      for (uint64_t& done : s.done[i]) init_barrier(&done, kGroup / kWarp);
    }
    publish_barriers();
  }
  __syncwarp();
  sync_cluster();
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  const int thread = static_cast<int>(threadIdx.x) % kGroup;
  if (group < kGroups) {
    take_registers<232>();
    Consumer{g, s, group, thread}.run();
  } else {
    give_registers<40>();
    if (thread % kWarp == 0 && thread / kWarp < kGroups) see_off(g, s, thread / kWarp);
    if (thread == kGroups * kWarp) produce(g, s);
  }
  // The other block may still write here.
  __syncwarp();
  sync_cluster();
}

}  // namespace vitrum::cuda::deep
