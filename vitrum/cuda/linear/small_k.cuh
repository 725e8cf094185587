// Linear layers with small K, at most 256 (sm_90a): bias and optional GELU forward, or what follows
// a 1x1 convolution: the norm of given statistics, the skip and the ReLU, or moments of the results
// for a norm of the batch's (norm/moments.cuh); backward the pre-activation gradient with the
// gradient of the bias. Bound by memory, so weights stay resident and nothing is
// written that is read again.
//
// Persistent and weight-stationary: a CTA keeps the weights of its columns, all of K, in shared
// memory. A producer thread issues the TMA loads of x, 64 rows a stage; two or three consumer
// warpgroups take stages in turn, so that one runs WGMMA while another runs its epilogue. The rows
// of w arrive permuted, so that a thread's accumulators are eight neighbouring columns of every 32
// and leave as 16-byte stores.
//
// The primitives it is written in (tma.cuh, wgmma.cuh, activation.cuh) are included before it:
// tests without a card have a second set.
#pragma once
#include <cstddef>
#include <cstdint>

#include "vitrum/cuda/norm/follow.cuh"
#include "vitrum/cuda/norm/moments.cuh"

namespace vitrum::cuda::small_k {

constexpr int kGroup = 128, kTileRows = 64, kDepth = 64, kMaxSteps = 4;

// N columns a block, forward or backward: how many warpgroups work, with how many registers. One
// more copies.
template <int N, Act kActivation, bool kBack = false, Ends kEnd = Ends::kPlain>
struct Traits {
  static constexpr int kColumns = N, kParts = N / 32;
  static constexpr Act kAct = kActivation;
  static constexpr bool kBackward = kBack, kFollowed = kEnd == Ends::kFollowed,
                        kMoments = kEnd == Ends::kMoments;
  static constexpr int kGroups = kBack ? 3 : 2, kThreads = (kGroups + 1) * kGroup;
  static constexpr int kConsumerRegisters = kBack ? 160 : 232, kProducerRegisters = kBack ? 24 : 40;
  // Each belongs to one warpgroup, which therefore sees all its phases: who missed one could take
  // the one before for the one awaited.
  static constexpr int kStages = N > 192 || kBack ? kGroups : 2 * kGroups;
  static constexpr int kBytesX = kTileRows * kSwizzledRow, kBytesW = N * kSwizzledRow;  // a step's
  struct Shared {
    std::byte w[kMaxSteps][kBytesW], x[kStages][kMaxSteps][kBytesX];
    float sums[kBack ? kGroups * kGroup / kWarp : 1][N];
    float affine[2][kFollowed ? N : 4];
    moments::Shared<kMoments ? kParts : 1, kGroups * kGroup / kWarp> ends;
    uint64_t weights, full[kStages], empty[kStages];
  };
};

struct Args {
  CUtensorMap x, w;
  const bf16 *bias, *saved;  // may be null: of a layer; backward, the pre-activations; or the skip
  bf16 *pre, *y;             // pre: forward, the pre-activations; may be null
  float* partials;  // backward: column sums of y, one row for each row of blocks; may be null
  int rows, columns;
  int steps, tiles;                                // of depth; of rows
  const float *scale = nullptr, *shift = nullptr;  // of the norm behind it
  bool relu = false;
  // Moments of y's columns (rows of blocks, 3, columns), and which samples count, null: all; rows
  // of a sample.
  float* moments = nullptr;
  const float* weight = nullptr;
  int each = 1;
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
  mbarrier_arrive_expect_tx(&s.weights, g.steps * F::kBytesW);
  for (int step = 0; step < g.steps; ++step)
    tma_load_5d(g.w, s.w[step], &s.weights, step * kDepth, place.column / 32);
  PipelineState<F::kStages> pipe;
  for (int turn = 0; place.tile(turn) < g.tiles; ++turn, pipe.advance()) {
    mbarrier_wait(&s.empty[pipe.index], pipe.phase ^ 1);
    mbarrier_arrive_expect_tx(&s.full[pipe.index], g.steps * F::kBytesX);
    for (int step = 0; step < g.steps; ++step)
      tma_load_2d(g.x, s.x[pipe.index][step], &s.full[pipe.index], step * kDepth,
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
  using Accumulators = float[F::kColumns / 2];
  using Saved = Raw8<bf16>[2][kParts];
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
  __device__ __forceinline__ void prefetch_saved(Saved& saved, int row) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        saved[half][part] = load_raw(g.saved + where(min(row + 8 * half, g.rows - 1), part));
  }

  __device__ __forceinline__ void multiply(Accumulators& d, int stage) {
    for (int step = 0; step < g.steps; ++step) {
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kDepth / 16; ++i)
        wgmma_ss(d, make_descriptor(s.x[stage][step] + 32 * i), make_descriptor(s.w[step] + 32 * i),
                 step > 0 || i > 0);
      wgmma_commit();
    }
    wgmma_wait<0>();
    fence_accumulators(d);
    if (thread == 0) mbarrier_arrive(&s.empty[stage]);
  }

  __device__ __forceinline__ void activate_tile(const Accumulators& d, int row) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const Eight b = unpack(bias[part]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Eight v;
#pragma unroll
        for (int i = 0; i < 8; ++i) v.v[i] = d[permuted_accumulator(part, half, i)] + b.v[i];
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

  // Which columns a block has does not change.
  __device__ __forceinline__ void fill_affine() {
    const int column = group * kGroup + thread;
    if (column < F::kColumns) {
      s.affine[0][column] = g.scale[place.column + column];
      s.affine[1][column] = g.shift[place.column + column];
    }
    sync_threads<F::kGroups * kGroup>();
  }
  __device__ __forceinline__ void follow_tile(const Accumulators& d, const Saved& skip, int row) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const Eight scale = load8(s.affine[0] + own + 32 * part),
                  shift = load8(s.affine[1] + own + 32 * part);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Eight v;
#pragma unroll
        for (int i = 0; i < 8; ++i) v.v[i] = d[permuted_accumulator(part, half, i)];
        follow(v, scale, shift, skip[half][part], g.saved != nullptr, g.relu);
        store_if(row + 8 * half < g.rows, g.y + where(row + 8 * half, part), pack<bf16>(v));
      }
    }
  }

  __device__ __forceinline__ bool counts(int row) const {
    return row < g.rows && (!g.weight || g.weight[row / g.each] > 0);
  }
  // Of what a tensor holds of a tile.
  __device__ __forceinline__ void add_moments(moments::Seen<kParts>& seen, const Accumulators& d,
                                              const moments::Rows& rows) const {
    const moments::Merge into(seen.count, rows.count);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      Eight v[2];
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 8; ++i)
          v[half].v[i] = rounded<bf16>(d[permuted_accumulator(part, half, i)]);
      seen.add(part, v[0], v[1], rows, into, lane);
    }
    seen.count += rows.count;
  }

  // As PreActivationGradient in primitives/column_sums.cu.
  __device__ __forceinline__ void gelu_backward_tile(const Accumulators& d, const Saved& saved,
                                                     int row) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      Eight both = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Eight x = unpack(saved[half][part]);
        Eight v;
#pragma unroll
        for (int i = 0; i < 8; ++i)
          v.v[i] = __fmul_rn(rounded<bf16>(d[permuted_accumulator(part, half, i)]),
                             activation_derivative<F::kAct, bf16>(x.v[i]));
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
    if constexpr (F::kFollowed) fill_affine();
    mbarrier_wait(&s.weights, 0);
    PipelineState<F::kStages> pipe;
    moments::Seen<F::kMoments ? kParts : 1> seen(s.ends, group * kGroup + thread);
    for (int turn = 0; place.tile(turn) < g.tiles; ++turn, pipe.advance()) {
      if (turn % F::kGroups != group) continue;
      const int row = place.tile(turn) * kTileRows + in_tile;
      Accumulators d;
      if constexpr (F::kBackward || F::kFollowed) {
        Saved saved = {};
        if (F::kBackward || g.saved) prefetch_saved(saved, row);
        mbarrier_wait(&s.full[pipe.index], pipe.phase);
        multiply(d, pipe.index);
        if constexpr (F::kBackward)
          gelu_backward_tile(d, saved, row);
        else
          follow_tile(d, saved, row);
      } else {
        bool first = false, second = false;
        if constexpr (F::kMoments) first = counts(row), second = counts(row + 8);
        mbarrier_wait(&s.full[pipe.index], pipe.phase);
        multiply(d, pipe.index);
        activate_tile(d, row);
        if constexpr (F::kMoments) add_moments(seen, d, {first, second});
      }
    }
    if constexpr (F::kMoments)
      moments::leave(seen, s.ends, group * kGroup + thread,
                     g.moments + int64_t{place.at} * 3 * g.columns, place.column, g.columns);
    if constexpr (F::kBackward) {
      trigger_dependents();
      if (g.partials) leave_columns();
    }
  }
};

// A block of the kernel.
template <class F>
__device__ __forceinline__ void work(const Args& g, typename F::Shared& s) {
  if (threadIdx.x == 0) {
    mbarrier_init(&s.weights, 1);
    for (int i = 0; i < F::kStages; ++i)
      mbarrier_init(&s.full[i], 1), mbarrier_init(&s.empty[i], 1);
    fence_barrier_init();
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  if (group < F::kGroups) {
    reg_alloc<F::kConsumerRegisters>();
    Consumer<F>{g, s, group, static_cast<int>(threadIdx.x) % kGroup}.run();
  } else {
    reg_dealloc<F::kProducerRegisters>();
    if (threadIdx.x == F::kGroups * kGroup) produce<F>(g, s);
  }
}

}  // namespace vitrum::cuda::small_k
