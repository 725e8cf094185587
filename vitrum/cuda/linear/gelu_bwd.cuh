// Backward of linear -> GELU -> linear (sm_90a): d = (dy w) * gelu'(pre) in the epilogue of the
// GEMM, with the column sums of d (the gradient of the bias) on the way.
//
// d (rows, columns) = dy (rows, K) w (K, columns). A CTA computes tiles of 256 rows x 128 columns,
// transposed: columns are M of its WGMMAs, so that a thread has accumulators of two columns only
// and column sums stay in registers. A producer thread issues the TMA loads of dy and w, 64 of K a
// stage; two consumer warpgroups have 64 columns each. The two CTAs of a cluster have neighbouring
// columns and multicast one half of dy each. Meanwhile the pre-activations arrive in shared memory;
// d is written over them, and one storer thread for each warpgroup issues the TMA stores.
//
// `kAgain`: GELU's result itself, y = gelu(pre), comes out again beside d, so that nobody need have
// kept it. It leaves in boxes of 32 rows, two of which have a place in shared memory; y may be the
// memory of pre, since a tile of that is there as a whole before any of it is computed.
//
// The primitives it is written in (tma.cuh, wgmma.cuh, activation.cuh) are included before it:
// tests without a card have a second set.
#pragma once
#include <cstddef>
#include <cstdint>

#include "vitrum/cuda/linear/mainloop.cuh"

namespace vitrum::cuda::gelu_bwd {

constexpr int kGroup = 128, kGroups = 2, kThreads = (kGroups + 1) * kGroup;  // and a producer
constexpr int kTileRows = 256, kColumns = 64, kTileColumns = kGroups * kColumns;
constexpr int kDepth = 64, kStages = 3;
constexpr int kCluster = 2, kShare = kTileRows / kCluster;  // of dy, a block's
constexpr int kBytesDy = kTileRows * kSwizzledRow, kBytesW = kDepth * kSwizzledRow;
// Of a warpgroup's part of a tile: what comes and what goes at a time. Everything at once, in every
// block at the same time, would hold up the operands of the products.
constexpr int kRowsCome = 32, kRowsGo = 128, kParts = kTileRows / kRowsCome;
constexpr int kRowsAgain = 32, kBoxes = 2;  // of y; places of boxes
static_assert(kTileRows / kRowsAgain % (2 * kBoxes) == 0, "each tile begins with the same phases");

struct Shared {
  std::byte dy[kStages][kBytesDy], w[kStages][kGroups][kBytesW], tile[kGroups][kBytesDy];
  std::byte y[kGroups][kBoxes][kRowsAgain * kSwizzledRow];
  uint64_t full[kStages], empty[kStages];
  uint64_t pre_full[kGroups], d_ready[kGroups][kTileRows / kRowsGo],
      d_stored[kGroups];  // of `tile`
  uint64_t y_ready[kGroups][kBoxes], y_stored[kGroups][kBoxes];
};

struct Args {
  CUtensorMap dy, w, pre, d, y;  // pre: the pre-activations
  float* partials;               // column sums of d, one row for each tile of rows; may be null
  int columns;
  int steps, tiles;  // of depth, more than kStages; of a cluster
};

// A CTA's tiles. Neighbouring clusters share rows: the weights stay in the cache.
struct TileScheduler {
  static constexpr int kAcross = kCluster * kTileColumns;
  int first, clusters, wide, left, down, across;
  __device__ explicit TileScheduler(const Args& g)
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

// Some of the pre-activations, over the last tile's d once that is stored.
__device__ __forceinline__ void load_pre_activation(const Args& g, Shared& s,
                                                    const TileScheduler& at, int part) {
  for (int group = 0; group < kGroups; ++group) {
    mbarrier_arrive_expect_tx(&s.pre_full[group], kRowsCome * kSwizzledRow);
    tma_load_2d(g.pre, s.tile[group] + part * kRowsCome * kSwizzledRow, &s.pre_full[group],
                at.column(group), at.row() + part * kRowsCome);
  }
}

__device__ __forceinline__ void produce(const Args& g, Shared& s) {
  constexpr uint16_t kBoth = (1 << kCluster) - 1;
  const int own = cluster_rank() * kShare;
  PipelineState<kStages> pipe;
  uint32_t parity = 0;
  for (TileScheduler at(g); at.more(); at.advance(), parity ^= 1)
    for (int step = 0, part = 0; step < g.steps; ++step, pipe.advance()) {
      uint64_t* const full = &s.full[pipe.index];
      mbarrier_wait(&s.empty[pipe.index], pipe.phase ^ 1);
      mbarrier_arrive_expect_tx(full, kBytesDy + kGroups * kBytesW);
      tma_load_2d(g.dy, s.dy[pipe.index] + own * kSwizzledRow, full, step * kDepth, at.row() + own,
                  kBoth);
      for (int group = 0; group < kGroups; ++group)
        tma_load_2d(g.w, s.w[pipe.index][group], full, at.column(group), step * kDepth);
      // The stages before this one were filled while the last tile was finished.
      if (step == kStages)
        for (int group = 0; group < kGroups; ++group) mbarrier_wait(&s.d_stored[group], parity ^ 1);
      for (; part * (g.steps - kStages) < (step + 1 - kStages) * kParts; ++part)
        load_pre_activation(g, s, at, part);
    }
}

// Which of a group's boxes of y these rows of a tile leave in, and how often it was used by then,
// modulo 2: a tile uses each an even number of times.
__device__ __forceinline__ int box_of(int row) { return row / kRowsAgain % kBoxes; }
__device__ __forceinline__ uint32_t box_phase(int row) { return row / (kRowsAgain * kBoxes) % 2; }

__device__ __forceinline__ void store_again(const Args& g, Shared& s, int group, int column,
                                            int above, int first) {
  for (int row = first; row < first + kRowsGo; row += kRowsAgain) {
    const int box = box_of(row);
    mbarrier_wait(&s.y_ready[group][box], box_phase(row));
    tma_store_2d(g.y, s.y[group][box], column, above + row);
    tma_store_wait();
    mbarrier_arrive(&s.y_stored[group][box]);
  }
}

template <bool kAgain>
__device__ __forceinline__ void store_tiles(const Args& g, Shared& s, int group) {
  uint32_t parity = 0;
  for (TileScheduler at(g); at.more(); at.advance(), parity ^= 1) {
    for (int row = 0; row < kTileRows; row += kRowsGo) {
      if constexpr (kAgain) store_again(g, s, group, at.column(group), at.row(), row);
      mbarrier_wait(&s.d_ready[group][row / kRowsGo], parity);
      tma_store_2d(g.d, s.tile[group] + row * kSwizzledRow, at.column(group), at.row() + row);
    }
    tma_store_wait();
    mbarrier_arrive(&s.d_stored[group]);
  }
}

template <bool kAgain>
struct Consumer {
  using Accumulators = float[kTileRows / 2];
  const Args& g;
  Shared& s;
  int group, thread;
  int warp = thread / kWarp, lane = thread % kWarp;
  // The row of 8 x 8 matrices that the lane gives: of 16 rows of the tile, the warp's 16 columns.
  std::byte* own = swizzled(s.tile[group], lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
  std::byte* own_y = swizzled(s.y[group][0], lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
  PipelineState<kStages> pipe = {};

  __device__ __forceinline__ void multiply(Accumulators& d) {
    mainloop(
        d, pipe, s.full, g.steps,
        [&](int stage, int i, bool add) {
          wgmma_ss_at(d, make_descriptor(s.w[stage][group] + 16 * i * kSwizzledRow),
                      make_descriptor(s.dy[stage] + 32 * i), add);
        },
        // Both blocks write into the stage of both.
        [&](int stage) {
          if (thread < kCluster) mbarrier_arrive_cluster(&s.empty[stage], thread);
        });
  }

  // Leaves d in the tile, and adds up the thread's columns, lane / 4 and 8 further of the warp's.
  __device__ __forceinline__ void gelu_backward_tile(const Accumulators& d, float (&columns)[2]) {
    uint32_t next[4];
    ldmatrix_x4_trans(next, own);
#pragma unroll
    for (int row = 0; row < kTileRows; row += 16) {
      uint32_t pair[4], again[4];  // neighbouring rows, of one column or of the other
#pragma unroll
      for (int i = 0; i < 4; ++i) pair[i] = next[i];
      if (row + 16 < kTileRows) ldmatrix_x4_trans(next, own + (row + 16) * kSwizzledRow);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x[2] = {__uint_as_float(pair[i] << 16), __uint_as_float(pair[i] & 0xffff0000u)};
        if constexpr (kAgain)
          again[i] = pack2(activate<Act::kGelu, bf16>(x[0]), activate<Act::kGelu, bf16>(x[1]));
        float v[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          v[k] = d[row / 2 + 2 * i + k] * activation_derivative<Act::kGelu, bf16>(x[k]);
          columns[i % 2] += v[k];
        }
        pair[i] = pack2(v[0], v[1]);
      }
      stmatrix_x4_trans(own + row * kSwizzledRow, pair);
      if constexpr (kAgain) leave_again(row, again);
      if ((row + 16) % kRowsGo == 0) {
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&s.d_ready[group][row / kRowsGo]);
      }
    }
  }

  // 16 rows of y, into a box that has left.
  __device__ __forceinline__ void leave_again(int row, const uint32_t (&again)[4]) {
    const int box = box_of(row);
    if (row % kRowsAgain == 0) mbarrier_wait(&s.y_stored[group][box], box_phase(row) ^ 1);
    stmatrix_x4_trans(own_y + row % (kRowsAgain * kBoxes) * kSwizzledRow, again);
    if ((row + 16) % kRowsAgain != 0) return;
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&s.y_ready[group][box]);
  }

  __device__ __forceinline__ void leave_columns(float (&columns)[2], const TileScheduler& at) {
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
    Accumulators d;
    uint32_t parity = 0;
    for (TileScheduler at(g); at.more(); at.advance(), parity ^= 1) {
      multiply(d);
      mbarrier_wait(&s.pre_full[group], parity);
      float columns[2] = {};
      gelu_backward_tile(d, columns);
      if (g.partials) leave_columns(columns, at);
    }
    trigger_dependents();
  }
};

// A block of the kernel.
template <bool kAgain>
__device__ __forceinline__ void work(const Args& g, Shared& s) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i)
      mbarrier_init(&s.full[i], 1), mbarrier_init(&s.empty[i], kGroups * kCluster);
    for (int i = 0; i < kGroups; ++i) {
      mbarrier_init(&s.pre_full[i], kParts), mbarrier_init(&s.d_stored[i], 1);
      for (uint64_t& ready : s.d_ready[i]) mbarrier_init(&ready, kGroup / kWarp);
      for (uint64_t& ready : s.y_ready[i]) mbarrier_init(&ready, kGroup / kWarp);
      for (uint64_t& stored : s.y_stored[i]) mbarrier_init(&stored, 1);
    }
    fence_barrier_init();
  }
  __syncwarp();
  sync_cluster();
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  const int thread = static_cast<int>(threadIdx.x) % kGroup;
  if (group < kGroups) {
    reg_alloc<232>();
    Consumer<kAgain>{g, s, group, thread}.run();
  } else {
    reg_dealloc<40>();
    if (thread % kWarp == 0 && thread / kWarp < kGroups) store_tiles<kAgain>(g, s, thread / kWarp);
    if (thread == kGroups * kWarp) produce(g, s);
  }
  // The other block may still write here.
  __syncwarp();
  sync_cluster();
}

}  // namespace vitrum::cuda::gelu_bwd
