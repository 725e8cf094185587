// A linear layer of little depth with bias and, where it has it, GELU, and the gradient behind GELU
// with the bias' gradient, each in one pass (sm_90). Such products are bound by memory: the weights
// stay where they are needed, and nothing is written that is read again.
//
// A block has some columns of the result for good: their weights, at most 256 deep, are in shared
// memory. One thread starts the copies of x, 64 rows at a time; two or three warpgroups take them
// in turn, so that one multiplies while another activates. The weights' rows arrive in an order
// that gives a thread eight neighbouring columns of every 32, to be written in pieces of 16 bytes.
//
// What this is written in (primitives/tma.cuh, primitives/wgmma.cuh, primitives/activation.cuh) is
// included before it: there is a second set for tests without a card.
#pragma once
#include <cstddef>
#include <cstdint>

namespace vitrum::cuda::shallow {

constexpr int kGroup = 128, kTileRows = 64, kDepth = 64, kMostSteps = 4;

// N columns a block, forward or backward: how many warpgroups work, with how many registers. One
// more copies.
template <int N, Act kActivation, bool kBack = false>
struct Form {
  static constexpr int kColumns = N, kParts = N / 32;
  static constexpr Act kAct = kActivation;
  static constexpr bool kBackward = kBack;
  static constexpr int kGroups = kBack ? 3 : 2, kThreads = (kGroups + 1) * kGroup;
  static constexpr int kRegisters = kBack ? 160 : 232, kOthers = kBack ? 24 : 40;
  // Each belongs to one warpgroup, which therefore sees all its phases: who missed one could take
  // the one before for the one awaited.
  static constexpr int kStages = N > 192 || kBack ? kGroups : 2 * kGroups;
  static constexpr int kBytesX = kTileRows * kSwizzledRow, kBytesW = N * kSwizzledRow;  // a step's
  struct Shared {
    std::byte w[kMostSteps][kBytesW], x[kStages][kMostSteps][kBytesX];
    float sums[kBack ? kGroups * kGroup / kWarp : 1][N];
    uint64_t weights, full[kStages], empty[kStages];
  };
};

struct Args {
  CUtensorMap x, w;
  const bf16 *bias, *seen;  // forward, may be null; backward, what GELU saw
  bf16 *pre, *y;            // pre: forward, what GELU sees; may be null
  float* partials;  // backward: column sums of y, one row for each row of blocks; may be null
  int rows, columns;
  int steps, tiles;  // of depth; of rows
};

// Blocks side by side have the same rows: the cache delivers them but once.
struct Place {
  int wide, column, at, apart;
  __device__ Place(const Args& g, int columns)
      : wide(g.columns / columns),
        column(static_cast<int>(blockIdx.x) % wide * columns),
        at(static_cast<int>(blockIdx.x) / wide),
        apart(static_cast<int>(gridDim.x) / wide) {}
  __device__ __forceinline__ int tile(int turn) const { return at + turn * apart; }
};

template <class F>
__device__ void produce(const Args& g, typename F::Shared& s) {
  const Place place(g, F::kColumns);
  expect_bytes(&s.weights, g.steps * F::kBytesW);
  for (int step = 0; step < g.steps; ++step)
    load_groups(g.w, s.w[step], &s.weights, step * kDepth, place.column / 32);
  Ring<F::kStages> ring;
  for (int turn = 0; place.tile(turn) < g.tiles; ++turn, ring.advance()) {
    wait_barrier(&s.empty[ring.at], ring.parity ^ 1);
    expect_bytes(&s.full[ring.at], g.steps * F::kBytesX);
    for (int step = 0; step < g.steps; ++step)
      load_tile(g.x, s.x[ring.at][step], &s.full[ring.at], step * kDepth,
                place.tile(turn) * kTileRows);
  }
}

// The sum of every column over the eight rows that lanes 4 apart have: each keeps that of one.
__device__ __forceinline__ float sum_rows(const Eight& x, int lane) {
  float four[4], two[2];
  const auto add = [lane](float low, float high, int bit) {
    const bool upper = (lane & bit) != 0;
    return (upper ? high : low) + __shfl_xor_sync(0xffffffffu, upper ? low : high, bit);
  };
#pragma unroll
  for (int i = 0; i < 4; ++i) four[i] = add(x.v[i], x.v[i + 4], 16);
#pragma unroll
  for (int i = 0; i < 2; ++i) two[i] = add(four[i], four[i + 2], 8);
  return add(two[0], two[1], 4);
}

// A thread's part of a tile: columns own to own + 7 of every 32, in rows `row` and `row` + 8.
template <class F>
struct Consumer {
  static constexpr int kParts = F::kParts;
  using Sums = float[F::kColumns / 2];
  using Seen = Raw8<bf16>[2][kParts];
  const Args& g;
  typename F::Shared& s;
  int group, thread;
  int own = thread % 4 * 8, lane = thread % kWarp;
  Place place{g, F::kColumns};
  Raw8<bf16> bias[kParts] = {};
  float columns[kParts] = {};

  __device__ __forceinline__ int64_t where(int row, int part) const {
    return int64_t{row} * g.columns + place.column + own + 32 * part;
  }

  // Asked for before the products. Rows beyond the last one take its values, and are not stored.
  __device__ __forceinline__ void read_seen(Seen& seen, int row) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        seen[half][part] = load_raw(g.seen + where(min(row + 8 * half, g.rows - 1), part));
  }

  __device__ __forceinline__ void multiply(Sums& d, int stage) {
    for (int step = 0; step < g.steps; ++step) {
      begin_products();
#pragma unroll
      for (int i = 0; i < kDepth / 16; ++i)
        multiply_shared(d, describe(s.x[stage][step] + 32 * i), describe(s.w[step] + 32 * i),
                        step > 0 || i > 0);
      commit_products();
    }
    wait_for_products<0>();
    settle(d);
    if (thread == 0) arrive(&s.empty[stage]);
  }

  __device__ __forceinline__ void activate_tile(const Sums& d, int row) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const Eight b = unpack(bias[part]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Eight v;
#pragma unroll
        for (int i = 0; i < 8; ++i) v.v[i] = d[shuffled_sum(part, half, i)] + b.v[i];
        Raw8<bf16> raw = pack<bf16>(v);
        const int64_t to = where(row + 8 * half, part);
        const bool inside = row + 8 * half < g.rows;
        if constexpr (F::kAct != Act::kNone) {
          store_if(inside && g.pre, g.pre + to, raw);
          v = unpack(raw);
#pragma unroll
          for (int i = 0; i < 8; ++i) v.v[i] = activate<F::kAct, bf16>(v.v[i]);
          raw = pack<bf16>(v);
        }
        store_if(inside, g.y + to, raw);
      }
    }
  }

  // As Gradient in primitives/column_sums.cu.
  __device__ __forceinline__ void slope_tile(const Sums& d, const Seen& seen, int row) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      Eight both = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Eight x = unpack(seen[half][part]);
        Eight v;
#pragma unroll
        for (int i = 0; i < 8; ++i)
          v.v[i] = __fmul_rn(rounded<bf16>(d[shuffled_sum(part, half, i)]),
                             activation_slope<F::kAct, bf16>(x.v[i]));
        const Raw8<bf16> raw = pack<bf16>(v);
        const bool inside = row + 8 * half < g.rows;
        store_if(inside, g.y + where(row + 8 * half, part), raw);
        v = unpack(raw);
#pragma unroll
        for (int i = 0; i < 8; ++i) both.v[i] += inside ? v.v[i] : 0.0f;
      }
      columns[part] += sum_rows(both, lane);
    }
  }

  // Whose sums they are in turn.
  __device__ __forceinline__ void leave_columns() {
    const int mine = own + (lane & 16 ? 4 : 0) + (lane & 8 ? 2 : 0) + (lane & 4 ? 1 : 0);
    constexpr int kWarps = F::kGroups * kGroup / kWarp;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      s.sums[group * (kGroup / kWarp) + thread / kWarp][32 * part + mine] = columns[part];
    sync_threads<F::kGroups * kGroup>();
    const int column = group * kGroup + thread;
    if (column >= F::kColumns) return;
    float total = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) total += s.sums[warp][column];
    g.partials[int64_t{place.at} * g.columns + place.column + column] = total;
  }

  __device__ void run() {
    const int in_tile = thread / kWarp * 16 + lane / 4;
    if (g.bias)
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        bias[part] = load_raw(g.bias + place.column + own + 32 * part);
    wait_barrier(&s.weights, 0);
    Ring<F::kStages> ring;
    for (int turn = 0; place.tile(turn) < g.tiles; ++turn, ring.advance()) {
      if (turn % F::kGroups != group) continue;
      const int row = place.tile(turn) * kTileRows + in_tile;
      Sums d;
      if constexpr (F::kBackward) {
        Seen seen;
        read_seen(seen, row);
        wait_barrier(&s.full[ring.at], ring.parity);
        multiply(d, ring.at);
        slope_tile(d, seen, row);
      } else {
        wait_barrier(&s.full[ring.at], ring.parity);
        multiply(d, ring.at);
        activate_tile(d, row);
      }
    }
    if constexpr (F::kBackward) {
      let_next_begin();
      if (g.partials) leave_columns();
    }
  }
};

// A block of the kernel.
template <class F>
__device__ __forceinline__ void work(const Args& g, typename F::Shared& s) {
  if (threadIdx.x == 0) {
    init_barrier(&s.weights, 1);
    for (int i = 0; i < F::kStages; ++i) init_barrier(&s.full[i], 1), init_barrier(&s.empty[i], 1);
    publish_barriers();
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  if (group < F::kGroups) {
    take_registers<F::kRegisters>();
    Consumer<F>{g, s, group, static_cast<int>(threadIdx.x) % kGroup}.run();
  } else {
    give_registers<F::kOthers>();
    if (threadIdx.x == F::kGroups * kGroup) produce<F>(g, s);
  }
}

}  // namespace vitrum::cuda::shallow
