// Products of large linear layers (sm_90), and what becomes of the sums before they leave the
// registers: that is an Ending's.
//
// A block works on tiles of 128 rows and 256 columns. One thread starts the copies of x and of the
// weights, 64 columns deep each; two warpgroups multiply 64 rows each. Two blocks, a cluster, work
// on neighbouring rows with the same weights: each asks for one half of them and both get both,
// since the card's cache cannot deliver everything twice. The weights' rows arrive in an order that
// gives a thread eight neighbouring columns of every 32, to be written in pieces of 16 bytes.
//
// What this is written in (primitives/device.cuh, primitives/tma.cuh, primitives/wgmma.cuh) is
// included before it: there is a second set for tests without a card.
#pragma once
#include <cstddef>
#include <cstdint>

#include "vitrum/cuda/linear/mainloop.cuh"

namespace vitrum::cuda::tile {

constexpr int kGroup = 128, kGroups = 2, kThreads = (kGroups + 1) * kGroup;  // one group copies
constexpr int kRows = 64 * kGroups, kColumns = 256, kDepth = 64, kStages = 4;
constexpr int kCluster = 2, kShare = kColumns / kCluster;  // of the weights, a block's
constexpr int kBytesX = kRows * kSwizzledRow, kBytesW = kColumns * kSwizzledRow;

// A thread has columns `column` to `column` + 7 of every 32 of a tile, in rows `row` and `row` + 8.
constexpr int kParts = kColumns / 32;
using Sums = float[kColumns / 2];

// What an Ending has:
//   kRegisters, kOthers: for each thread that multiplies, and for the others
//   Table: what it keeps in shared memory; fill(table, thread, threads)
//   Held: what it asks for before the products, since a load behind the stores of the last tile
//         would wait for them; hold(held, row, column)
//   finish(sums, held, table, row, column)
template <class Ending>
struct Args {
  CUtensorMap x, w;
  int columns;
  int steps, tiles;  // of depth; of a cluster
  Ending ending;
};

template <class Ending>
struct Shared {
  std::byte x[kStages][kBytesX], w[kStages][kBytesW];
  uint64_t full[kStages], empty[kStages];
  typename Ending::Table table;
};

struct Tile {
  int row, column;
};
// A cluster's tile of this turn. Neighbouring clusters share rows: the weights stay in the cache.
template <class Ending>
__device__ __forceinline__ bool take_tile(const Args<Ending>& g, int turn, Tile& tile) {
  const int clusters = static_cast<int>(gridDim.x) / kCluster, wide = g.columns / kColumns;
  const int i = static_cast<int>(blockIdx.x) / kCluster + turn * clusters;
  tile.row = (i / wide * kCluster + cluster_rank()) * kRows;
  tile.column = i % wide * kColumns;
  return i < g.tiles;
}

template <class Ending>
__device__ void produce(const Args<Ending>& g, Shared<Ending>& s) {
  constexpr uint16_t kBoth = (1 << kCluster) - 1;
  Ring<kStages> ring;
  const int own = cluster_rank() * kShare;
  Tile tile;
  for (int turn = 0; take_tile(g, turn, tile); ++turn)
    for (int step = 0; step < g.steps; ++step, ring.advance()) {
      uint64_t* const full = &s.full[ring.at];
      wait_barrier(&s.empty[ring.at], ring.parity ^ 1);
      expect_bytes(full, kBytesX + kBytesW);
      load_tile(g.x, s.x[ring.at], full, step * kDepth, tile.row);
      load_groups(g.w, s.w[ring.at] + own * kSwizzledRow, full, step * kDepth,
                  (tile.column + own) / 32, kBoth);
    }
}

template <class Ending>
struct Consumer {
  const Args<Ending>& g;
  Shared<Ending>& s;
  int group, thread;
  Ring<kStages> ring = {};

  __device__ __forceinline__ void multiply(Sums& d) {
    multiply_steps(
        d, ring, s.full, g.steps,
        [&](int stage, int i, bool add) {
          multiply_shared(d, describe(s.x[stage] + group * 64 * kSwizzledRow + 32 * i),
                          describe(s.w[stage] + 32 * i), add);
        },
        // Both blocks write into the stage of both.
        [&](int stage) {
          if (thread < kCluster) arrive_at(&s.empty[stage], thread);
        });
  }

  __device__ void run() {
    const int in_tile = group * 64 + thread / kWarp * 16 + thread % kWarp / 4, own = thread % 4 * 8;
    g.ending.fill(s.table, group * kGroup + thread, kGroups * kGroup);
    sync_threads<kGroups * kGroup>();
    Sums d;
    typename Ending::Held held;
    Tile tile;
    for (int turn = 0; take_tile(g, turn, tile); ++turn) {
      g.ending.hold(held, tile.row + in_tile, tile.column + own);
      multiply(d);
      g.ending.finish(d, held, s.table, tile.row + in_tile, tile.column + own);
    }
  }
};

// A block of the kernel.
template <class Ending>
__device__ __forceinline__ void work(const Args<Ending>& g, Shared<Ending>& s) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i)
      init_barrier(&s.full[i], 1), init_barrier(&s.empty[i], kGroups * kCluster);
    publish_barriers();
  }
  __syncwarp();
  sync_cluster();
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  if (group < kGroups) {
    take_registers<Ending::kRegisters>();
    Consumer<Ending>{g, s, group, static_cast<int>(threadIdx.x) % kGroup}.run();
  } else {
    give_registers<Ending::kOthers>();
    if (threadIdx.x == kGroups * kGroup) produce(g, s);
  }
  // The other block may still write here.
  __syncwarp();
  sync_cluster();
}

}  // namespace vitrum::cuda::tile
