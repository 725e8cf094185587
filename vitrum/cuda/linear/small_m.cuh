// Linear layers with small M (sm_90a), the rows of an image or two. They are bound by latency: that
// of the kernel before, of loading the weights, and of the last CTA.
//
// A CTA has one tile of 64 rows x 96 or 128 columns, as many pipeline stages as shared memory
// holds, a producer warp for TMA and one consumer warpgroup. Programmatic dependent launch: it
// loads its weights before the kernel that makes x has ended. Split-K where tiles are fewer than
// SMs: the CTAs of a cluster divide K, and each sends its partial accumulators through distributed
// shared memory to the CTA that finishes their rows, which adds them in the order of the splits.
//
// An Epilogue finishes rows. A LayerNorm between two layers is folded into them as in
// linear/linear_norm_linear.cuh: ResidualEpilogue writes the row moments of its columns,
// FoldedNormEpilogue normalises after the product with weights that hold the norm's scale.
//
// The primitives it is written in (activation.cuh, layer_norm.cuh, tma.cuh, wgmma.cuh) are included
// before it: tests without a card have a second set.
#pragma once
#include <cstddef>
#include <cstdint>

#include "vitrum/cuda/linear/mainloop.cuh"
#include "vitrum/cuda/linear/row_moments.cuh"

namespace vitrum::cuda::small_m {

constexpr int kGroup = 128, kThreads = kGroup + kWarp;  // and a producer warp
constexpr int kRows = 64, kDepth = 64;
constexpr int kMaxTiles = 16;  // of a row that a norm is of
constexpr int kSlots = 8;      // of a tile, eight rows each: a row for every four lanes of a warp
constexpr int kMaxSplits = 4;
constexpr int kBytes = 220'000;  // of shared memory, about

// An Epilogue has:
//   kTables: how many values of a column it keeps in shared memory; fill(tables, i, column)
//   Prefetched: what it loads before the main loop; prefetch(row, column)
//   finish(accumulators, prefetched, tables, row, column, own): a lane has eight columns of every
//   32 of a tile,
//     from `column` + `own` on, and a quad's lanes a whole row of it
template <class Epilogue>
struct Args {
  CUtensorMap x, w;
  int steps, splits;  // of depth; of a tile
  int high;           // tiles of rows
  Epilogue epilogue;
};

template <class Epilogue>
struct Shared {
  static constexpr int kColumns = Epilogue::kColumns;
  static constexpr int kBytesX = kRows * kSwizzledRow, kBytesW = kColumns * kSwizzledRow;
  static constexpr int kExchange = (kSlots + 1) * (kRows / kSlots) * kColumns;  // in three splits
  // As many as there is room for: copies under way are all that hides how far memory is.
  static constexpr int kStages = (kBytes - kExchange * 4) / (kBytesX + kBytesW);

  std::byte x[kStages][kBytesX], w[kStages][kBytesW];
  // Of splits, slots, parts and halves of eight columns: four columns of each lane.
  float exchange[kExchange];
  float tables[Epilogue::kTables][kColumns];
  uint64_t full[kStages], empty[kStages];
};

template <class Epilogue>
struct Block {
  static constexpr int kColumns = Epilogue::kColumns, kParts = kColumns / 32,
                       kStages = Shared<Epilogue>::kStages;
  using Accumulators = float[kColumns / 2];
  using Eights = Eight[kParts];

  const Args<Epilogue>& g;
  Shared<Epilogue>& s;
  int split;
  int row, column;  // the tile's first
  int first, last;  // steps
  int slots;        // that a split's CTA finishes

  __device__ __forceinline__ Block(const Args<Epilogue>& args, Shared<Epilogue>& shared)
      : g(args), s(shared) {
    const int tile = static_cast<int>(blockIdx.x) / g.splits;
    split = static_cast<int>(blockIdx.x) % g.splits;
    // Blocks with the same weights begin together.
    row = tile % g.high * kRows, column = tile / g.high * kColumns;
    first = g.steps * split / g.splits, last = g.steps * (split + 1) / g.splits;
    slots = (kSlots + g.splits - 1) / g.splits;
  }

  __device__ __forceinline__ void load_weights(int stage, int step) const {
    mbarrier_arrive_expect_tx(&s.full[stage], s.kBytesX + s.kBytesW);
    tma_load_5d(g.w, s.w[stage], &s.full[stage], step * kDepth, column / 32);
  }
  __device__ __forceinline__ void load_rows(int stage, int step) const {
    tma_load_2d(g.x, s.x[stage], &s.full[stage], step * kDepth, row);
  }
  __device__ void produce() const {
    const int at_once = min(last - first, kStages);
    for (int i = 0; i < at_once; ++i) load_weights(i, first + i);
    wait_on_previous_grid();
    for (int i = 0; i < at_once; ++i) load_rows(i, first + i);
    PipelineState<kStages> pipe;
    for (int step = first + at_once; step < last; ++step, pipe.advance()) {
      mbarrier_wait(&s.empty[pipe.index], pipe.phase);
      load_weights(pipe.index, step), load_rows(pipe.index, step);
    }
  }

  __device__ __forceinline__ void multiply(Accumulators& d) const {
    PipelineState<kStages> pipe;
    mainloop(
        d, pipe, s.full, last - first,
        [&](int stage, int i, bool add) {
          multiply_for<Epilogue>(d, make_descriptor(s.x[stage] + 32 * i),
                                 make_descriptor(s.w[stage] + 32 * i), add);
        },
        [&](int stage) {
          if (threadIdx.x == 0) mbarrier_arrive(&s.empty[stage]);
        });
  }

  // A lane's place in the exchange.
  __device__ __forceinline__ float* exchanged(int from, int slot, int part) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    return s.exchange + (((from * slots + slot) * kParts + part) * 2 * kWarp + lane) * 4;
  }
  // What a thread has of row 8 half of its warp's, to the block that finishes it.
  __device__ __forceinline__ void send(const Eights& v, int half) const {
    const int slot = static_cast<int>(threadIdx.x) / kWarp * 2 + half, to = slot / slots;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float* const at = exchanged(split, slot % slots, part);
      store4_cluster(at, to, v[part].v), store4_cluster(at + 4 * kWarp, to, v[part].v + 4);
    }
  }
  __device__ __forceinline__ void receive(Eights& v, int slot) const {
    for (int from = 0; from < g.splits; ++from)
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float more = exchanged(from, slot, part)[i / 4 * 4 * kWarp + i % 4];
          v[part].v[i] = from > 0 ? v[part].v[i] + more : more;
        }
  }
  __device__ __forceinline__ static void pick(Eights& v, const Accumulators& d, int half) {
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int i = 0; i < 8; ++i) v[part].v[i] = d[permuted_accumulator(part, half, i)];
  }

  __device__ void consume() const {
    const int warp = static_cast<int>(threadIdx.x) / kWarp,
              lane_row = static_cast<int>(threadIdx.x) % kWarp / 4,
              own = static_cast<int>(threadIdx.x) % 4 * 8;
    for (int i = static_cast<int>(threadIdx.x); i < kColumns; i += kGroup)
      g.epilogue.fill(s.tables, i, column + i);
    sync_threads<kGroup>();
    const bool whole = g.splits == 1;
    // With split-K a warp finishes one of the slots that are this block's, or none.
    const int slot = whole ? 2 * warp : split * slots + warp, to = row + 8 * slot + lane_row;
    const bool finishes = whole || (warp < slots && slot < kSlots);
    wait_on_previous_grid();
    typename Epilogue::Prefetched prefetched[2] = {};
    if (finishes) prefetched[0] = g.epilogue.prefetch(to, column + own);
    if (whole) prefetched[1] = g.epilogue.prefetch(to + 8, column + own);
    Accumulators d;
    multiply(d);
    Eights v;
    if (whole) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        pick(v, d, half);
        g.epilogue.finish(v, prefetched[half], s.tables, to + 8 * half, column, own);
      }
      return;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) pick(v, d, half), send(v, half);
    sync_cluster();
    if (!finishes) return;
    receive(v, warp);
    g.epilogue.finish(v, prefetched[0], s.tables, to, column, own);
  }
};

// A block of the kernel. Nothing that another kernel of the program writes is touched before
// wait_on_previous_grid(): weights, biases and what is made of them stay.
template <class Epilogue>
__device__ __forceinline__ void work(const Args<Epilogue>& g, Shared<Epilogue>& s) {
  const Block<Epilogue> block(g, s);
  trigger_dependents();
  if (threadIdx.x == kGroup) {
    for (int i = 0; i < s.kStages; ++i) mbarrier_init(&s.full[i], 1), mbarrier_init(&s.empty[i], 1);
    fence_barrier_init();
  }
  __syncwarp();
  // The others of the cluster are there, to be sent to.
  if (g.splits > 1)
    sync_cluster();
  else
    __syncthreads();
  if (threadIdx.x < kGroup) {
    block.consume();
  } else {
    if (threadIdx.x == kGroup) block.produce();
    __syncwarp();
    if (g.splits > 1) sync_cluster();
  }
}

// ---- epilogues ----

template <int kWide, Act kAct>
struct BiasActEpilogue {
  static constexpr int kColumns = kWide, kTables = 1;
  using Tables = float[kTables][kColumns];
  struct Prefetched {};

  const bf16* bias;  // may be null
  bf16* y;
  int rows, columns;

  __device__ __forceinline__ void fill(Tables& tables, int i, int column) const {
    tables[0][i] = bias ? to_float(bias[column]) : 0;
  }
  __device__ __forceinline__ Prefetched prefetch(int, int) const { return {}; }
  __device__ __forceinline__ void finish(const Eight (&sums)[kColumns / 32], const Prefetched&,
                                         const Tables& tables, int row, int column, int own) const {
    bf16* const to = y + int64_t{row} * columns + column + own;
#pragma unroll
    for (int part = 0; part < kColumns / 32; ++part) {
      const Eight b = load8(tables[0] + own + 32 * part);
      Eight v;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        v.v[i] = activate<kAct, bf16>(rounded<bf16>(sums[part].v[i] + b.v[i]));
      store_if(row < rows, to + 32 * part, pack<bf16>(v));
    }
  }
};

// The residual sum, and of each row what these columns of it know.
template <int kWide>
struct ResidualEpilogue {
  static constexpr int kColumns = kWide, kTables = 1;
  using Tables = float[kTables][kColumns];
  struct Prefetched {
    Raw8<bf16> skip[kColumns / 32];
  };

  const bf16 *bias, *skip;  // bias may be null
  bf16* sum;
  RowMoments* row_moments;  // (tiles of a row, rows)
  int rows, columns;

  __device__ __forceinline__ void fill(Tables& tables, int i, int column) const {
    tables[0][i] = bias ? to_float(bias[column]) : 0;
  }
  // Rows beyond the last one take its values, and are not stored.
  __device__ __forceinline__ Prefetched prefetch(int row, int column) const {
    Prefetched prefetched;
    const bf16* const from = skip + int64_t{min(row, rows - 1)} * columns + column;
#pragma unroll
    for (int part = 0; part < kColumns / 32; ++part)
      prefetched.skip[part] = load_raw(from + 32 * part);
    return prefetched;
  }
  __device__ __forceinline__ void finish(Eight (&v)[kColumns / 32], const Prefetched& prefetched,
                                         const Tables& tables, int row, int column, int own) const {
    bf16* const to = sum + int64_t{row} * columns + column + own;
    float total = 0, squares = 0;
#pragma unroll
    for (int part = 0; part < kColumns / 32; ++part) {
      const Eight b = load8(tables[0] + own + 32 * part);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[part].v[i] += b.v[i];
      const Raw8<bf16> raw = add(prefetched.skip[part], pack<bf16>(v[part]));
      store_if(row < rows, to + 32 * part, raw);
      v[part] = unpack(raw);
#pragma unroll
      for (int i = 0; i < 8; ++i) total += v[part].v[i];
    }
    const float mean = row_sum<4>(total) / kColumns;
#pragma unroll
    for (int part = 0; part < kColumns / 32; ++part)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float off = v[part].v[i] - mean;
        squares = fmaf(off, off, squares);
      }
    squares = row_sum<4>(squares);
    if (own == 0 && row < rows)
      row_moments[int64_t{column / kColumns} * rows + row] = {mean, squares};
  }
};

// As if the rows had been normed: rstd (sums - mean s) + shift, s being sums of the weights' rows.
template <int kWide, Act kAct>
struct FoldedNormEpilogue {
  static constexpr int kColumns = kWide, kTables = 2;
  using Tables = float[kTables][kColumns];
  struct Prefetched {
    float rstd, less;
  };

  const RowMoments* row_moments;
  const float *sums, *shift;  // of the weights' rows; what the bias has become
  bf16* y;
  int rows, columns, tiles;  // tiles: of a row of x
  float wide, eps;           // wide: columns of such a tile

  __device__ __forceinline__ void fill(Tables& tables, int i, int column) const {
    tables[0][i] = sums[column], tables[1][i] = shift[column];
  }
  // A quad's lanes have a quarter of the row's tiles each.
  __device__ __forceinline__ Prefetched prefetch(int row, int) const {
    constexpr int kEach = kMaxTiles / 4;
    const int lane = static_cast<int>(threadIdx.x) % 4;
    const float part = 1 / static_cast<float>(tiles);
    RowMoments own[kEach];
    float mean = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int tile = lane + 4 * i;
      if (tile < tiles) own[i] = row_moments[int64_t{tile} * rows + min(row, rows - 1)];
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (lane + 4 * i < tiles) mean = fmaf(part, own[i].mean, mean);
    mean = row_sum<4>(mean);
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (lane + 4 * i < tiles) {
        const float off = own[i].mean - mean;
        squares += fmaf(wide * off, off, own[i].squares);
      }
    squares = row_sum<4>(squares);
    const float rstd = rsqrtf(fmaf(squares, part / wide, eps));
    return {rstd, -mean * rstd};
  }
  __device__ __forceinline__ void finish(const Eight (&d)[kColumns / 32],
                                         const Prefetched& prefetched, const Tables& tables,
                                         int row, int column, int own) const {
    bf16* const to = y + int64_t{row} * columns + column + own;
#pragma unroll
    for (int part = 0; part < kColumns / 32; ++part) {
      const Eight s = load8(tables[0] + own + 32 * part), b = load8(tables[1] + own + 32 * part);
      Eight v;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        v.v[i] = activate<kAct, bf16>(
            fmaf(d[part].v[i], prefetched.rstd, fmaf(prefetched.less, s.v[i], b.v[i])));
      store_if(row < rows, to + 32 * part, pack<bf16>(v));
    }
  }
};

}  // namespace vitrum::cuda::small_m
