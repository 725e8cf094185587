// Persistent TMA/WGMMA GEMM for large linear layers (sm_90a), y = x w^T, with an Epilogue that
// works on the accumulators before they leave the registers.
//
// A CTA computes tiles of 128 x 256. Warp specialisation: one producer thread issues TMA loads of x
// and w, 64 of K a pipeline stage; two consumer warpgroups run WGMMA on 64 rows each. Two CTAs form
// a cluster, work on neighbouring rows with the same weights and multicast one half of w each,
// since L2 cannot deliver everything twice. The rows of w arrive permuted (permuted_rows_map), so
// that a thread's accumulators are eight neighbouring columns of every 32 and leave as 16-byte
// stores.
//
// The primitives it is written in (device.cuh, tma.cuh, wgmma.cuh) are included before it: tests
// without a card have a second set.
#pragma once
#include <cstddef>
#include <cstdint>

#include "vitrum/cuda/linear/mainloop.cuh"

namespace vitrum::cuda::tile {

constexpr int kGroup = 128, kGroups = 2, kThreads = (kGroups + 1) * kGroup;  // and a producer
constexpr int kRows = 64 * kGroups, kColumns = 256, kDepth = 64, kStages = 4;
constexpr int kCluster = 2, kShare = kColumns / kCluster;  // of the weights, a block's
constexpr int kBytesX = kRows * kSwizzledRow, kBytesW = kColumns * kSwizzledRow;

// A thread has columns `column` to `column` + 7 of every 32 of a tile, in rows `row` and `row` + 8.
constexpr int kParts = kColumns / 32;
using Accumulators = float[kColumns / 2];

// An Epilogue has:
//   kConsumerRegisters, kProducerRegisters: of a thread, by setmaxnreg
//   Table: what it keeps in shared memory; fill(table, thread, threads)
//   Prefetched: what it loads before the main loop, since a load behind the stores of the last
//         tile would wait for them; prefetch(prefetched, row, column)
//   finish(accumulators, prefetched, table, row, column)
template <class Epilogue>
struct Args {
  CUtensorMap x, w;
  int columns;
  int steps, tiles;  // of depth; of a cluster
  // Rows of w from a tile to the next, and from one block's share of a tile to the other's.
  int next = kColumns, apart = kShare;
  Epilogue epilogue;
};

template <class Epilogue>
struct Shared {
  std::byte x[kStages][kBytesX], w[kStages][kBytesW];
  uint64_t full[kStages], empty[kStages];
  typename Epilogue::Table table;
};

struct Tile {
  int row, column;
};
// A cluster's tile of this turn. Neighbouring clusters share rows: the weights stay in the cache.
template <class Epilogue>
__device__ __forceinline__ bool take_tile(const Args<Epilogue>& g, int turn, Tile& tile) {
  const int clusters = static_cast<int>(gridDim.x) / kCluster,
            wide = (g.columns + kColumns - 1) / kColumns;
  const int i = static_cast<int>(blockIdx.x) / kCluster + turn * clusters;
  tile.row = (i / wide * kCluster + cluster_rank()) * kRows;
  tile.column = i % wide * kColumns;
  return i < g.tiles;
}

template <class Epilogue>
__device__ void produce(const Args<Epilogue>& g, Shared<Epilogue>& s) {
  constexpr uint16_t kBoth = (1 << kCluster) - 1;
  PipelineState<kStages> pipe;
  const int own = cluster_rank() * kShare, first = cluster_rank() * g.apart;
  Tile tile;
  for (int turn = 0; take_tile(g, turn, tile); ++turn)
    for (int step = 0; step < g.steps; ++step, pipe.advance()) {
      uint64_t* const full = &s.full[pipe.index];
      mbarrier_wait(&s.empty[pipe.index], pipe.phase ^ 1);
      mbarrier_arrive_expect_tx(full, kBytesX + kBytesW);
      tma_load_2d(g.x, s.x[pipe.index], full, step * kDepth, tile.row);
      tma_load_5d(g.w, s.w[pipe.index] + own * kSwizzledRow, full, step * kDepth,
                  (tile.column / kColumns * g.next + first) / 32, kBoth);
    }
}

template <class Epilogue>
struct Consumer {
  const Args<Epilogue>& g;
  Shared<Epilogue>& s;
  int group, thread;
  PipelineState<kStages> pipe = {};

  __device__ __forceinline__ void multiply(Accumulators& d) {
    mainloop(
        d, pipe, s.full, g.steps,
        [&](int stage, int i, bool add) {
          multiply_for<Epilogue>(d,
                                 make_descriptor(s.x[stage] + group * 64 * kSwizzledRow + 32 * i),
                                 make_descriptor(s.w[stage] + 32 * i), add);
        },
        // Both blocks write into the stage of both.
        [&](int stage) {
          if (thread < kCluster) mbarrier_arrive_cluster(&s.empty[stage], thread);
        });
  }

  __device__ void run() {
    const int in_tile = group * 64 + thread / kWarp * 16 + thread % kWarp / 4, own = thread % 4 * 8;
    g.epilogue.fill(s.table, group * kGroup + thread, kGroups * kGroup);
    sync_threads<kGroups * kGroup>();
    Accumulators d;
    typename Epilogue::Prefetched prefetched;
    Tile tile;
    for (int turn = 0; take_tile(g, turn, tile); ++turn) {
      g.epilogue.prefetch(prefetched, tile.row + in_tile, tile.column + own);
      multiply(d);
      g.epilogue.finish(d, prefetched, s.table, tile.row + in_tile, tile.column + own);
    }
  }
};

// A block of the kernel.
template <class Epilogue>
__device__ __forceinline__ void work(const Args<Epilogue>& g, Shared<Epilogue>& s) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i)
      mbarrier_init(&s.full[i], 1), mbarrier_init(&s.empty[i], kGroups * kCluster);
    fence_barrier_init();
  }
  __syncwarp();
  sync_cluster();
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  if (group < kGroups) {
    reg_alloc<Epilogue::kConsumerRegisters>();
    Consumer<Epilogue>{g, s, group, static_cast<int>(threadIdx.x) % kGroup}.run();
  } else {
    reg_dealloc<Epilogue::kProducerRegisters>();
    if (threadIdx.x == kGroups * kGroup) produce(g, s);
  }
  // The other block may still write here.
  __syncwarp();
  sync_cluster();
}

}  // namespace vitrum::cuda::tile
