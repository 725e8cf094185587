// Linear layers of few rows (sm_90), an image's or two: what they cost is waiting, for the kernel
// before, for the weights and for the blocks that have come last.
//
// A block has one tile of 64 rows and 96 or 128 columns. One thread starts the copies of x and of
// the weights, 64 columns deep each, and asks for the weights before the kernel that makes x has
// ended; one warpgroup multiplies. Where there are fewer tiles than processors, the depth of one is
// cut into slices, each a block's of one cluster: every block sends its sums to the blocks that
// finish their rows, which add them up in the order of the slices.
//
// What becomes of the sums is an Ending's. A LayerNorm between two layers is folded into them as in
// linear/linear_norm_linear.cuh: Summed leaves what its columns know of a row's mean and variance,
// and Normed multiplies the sum itself by weights that the norm's scale is in.
//
// What this is written in (primitives/activation.cuh, norm/layer_norm.cuh, primitives/tma.cuh,
// primitives/wgmma.cuh) is included before it: there is a second set for tests without a card.
#pragma once
#include <cstddef>
#include <cstdint>

#include "vitrum/cuda/linear/mainloop.cuh"

namespace vitrum::cuda::few {

constexpr int kGroup = 128, kThreads = kGroup + kWarp;  // one warp copies
constexpr int kRows = 64, kDepth = 64;
constexpr int kMostTiles = 16;  // of a row that a norm is of
constexpr int kSlots = 8;       // of a tile, eight rows each: a row for every four lanes of a warp
constexpr int kMostSlices = 4;
constexpr int kBytes = 220'000;  // of shared memory, about

// What so many columns know of a row: their mean and the sum of squared deviations from it.
struct alignas(8) Spread {
  float mean, squares;
};

// What an Ending has:
//   kTables: how many values of a column it keeps in shared memory; fill(tables, i, column)
//   Held: what it asks for before the products; hold(row, column)
//   finish(sums, held, tables, row, column, own): a lane has eight columns of every 32 of a tile,
//     from `column` + `own` on, and a quad's lanes a whole row of it
template <class Ending>
struct Args {
  CUtensorMap x, w;
  int steps, slices;  // of depth; of a tile
  int high;           // tiles of rows
  Ending ending;
};

template <class Ending>
struct Shared {
  static constexpr int kColumns = Ending::kColumns;
  static constexpr int kBytesX = kRows * kSwizzledRow, kBytesW = kColumns * kSwizzledRow;
  static constexpr int kExchange = (kSlots + 1) * (kRows / kSlots) * kColumns;  // in three slices
  // As many as there is room for: copies under way are all that hides how far memory is.
  static constexpr int kStages = (kBytes - kExchange * 4) / (kBytesX + kBytesW);

  std::byte x[kStages][kBytesX], w[kStages][kBytesW];
  // Of slices, slots, parts and halves of eight columns: four columns of each lane.
  float exchange[kExchange];
  float tables[Ending::kTables][kColumns];
  uint64_t full[kStages], empty[kStages];
};

template <class Ending>
struct Block {
  static constexpr int kColumns = Ending::kColumns, kParts = kColumns / 32,
                       kStages = Shared<Ending>::kStages;
  using Sums = float[kColumns / 2];
  using Eights = Eight[kParts];

  const Args<Ending>& g;
  Shared<Ending>& s;
  int slice;
  int row, column;  // the tile's first
  int first, last;  // steps
  int slots;        // that a slice's block finishes

  __device__ __forceinline__ Block(const Args<Ending>& args, Shared<Ending>& shared)
      : g(args), s(shared) {
    const int tile = static_cast<int>(blockIdx.x) / g.slices;
    slice = static_cast<int>(blockIdx.x) % g.slices;
    // Blocks with the same weights begin together.
    row = tile % g.high * kRows, column = tile / g.high * kColumns;
    first = g.steps * slice / g.slices, last = g.steps * (slice + 1) / g.slices;
    slots = (kSlots + g.slices - 1) / g.slices;
  }

  __device__ __forceinline__ void load_weights(int stage, int step) const {
    expect_bytes(&s.full[stage], s.kBytesX + s.kBytesW);
    load_groups(g.w, s.w[stage], &s.full[stage], step * kDepth, column / 32);
  }
  __device__ __forceinline__ void load_rows(int stage, int step) const {
    load_tile(g.x, s.x[stage], &s.full[stage], step * kDepth, row);
  }
  __device__ void produce() const {
    const int at_once = min(last - first, kStages);
    for (int i = 0; i < at_once; ++i) load_weights(i, first + i);
    wait_for_previous();
    for (int i = 0; i < at_once; ++i) load_rows(i, first + i);
    Ring<kStages> ring;
    for (int step = first + at_once; step < last; ++step, ring.advance()) {
      wait_barrier(&s.empty[ring.at], ring.parity);
      load_weights(ring.at, step), load_rows(ring.at, step);
    }
  }

  __device__ __forceinline__ void multiply(Sums& d) const {
    Ring<kStages> ring;
    multiply_steps(
        d, ring, s.full, last - first,
        [&](int stage, int i, bool add) {
          multiply_shared(d, describe(s.x[stage] + 32 * i), describe(s.w[stage] + 32 * i), add);
        },
        [&](int stage) {
          if (threadIdx.x == 0) arrive(&s.empty[stage]);
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
      float* const at = exchanged(slice, slot % slots, part);
      store4_at(at, to, v[part].v), store4_at(at + 4 * kWarp, to, v[part].v + 4);
    }
  }
  __device__ __forceinline__ void receive(Eights& v, int slot) const {
    for (int from = 0; from < g.slices; ++from)
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float more = exchanged(from, slot, part)[i / 4 * 4 * kWarp + i % 4];
          v[part].v[i] = from > 0 ? v[part].v[i] + more : more;
        }
  }
  __device__ __forceinline__ static void pick(Eights& v, const Sums& d, int half) {
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int i = 0; i < 8; ++i) v[part].v[i] = d[shuffled_sum(part, half, i)];
  }

  __device__ void consume() const {
    const int warp = static_cast<int>(threadIdx.x) / kWarp,
              lane_row = static_cast<int>(threadIdx.x) % kWarp / 4,
              own = static_cast<int>(threadIdx.x) % 4 * 8;
    for (int i = static_cast<int>(threadIdx.x); i < kColumns; i += kGroup)
      g.ending.fill(s.tables, i, column + i);
    sync_threads<kGroup>();
    const bool whole = g.slices == 1;
    // In slices a warp finishes one of the slots that are this block's, or none.
    const int slot = whole ? 2 * warp : slice * slots + warp, to = row + 8 * slot + lane_row;
    const bool finishes = whole || (warp < slots && slot < kSlots);
    wait_for_previous();
    typename Ending::Held held[2] = {};
    if (finishes) held[0] = g.ending.hold(to, column + own);
    if (whole) held[1] = g.ending.hold(to + 8, column + own);
    Sums d;
    multiply(d);
    Eights v;
    if (whole) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        pick(v, d, half);
        g.ending.finish(v, held[half], s.tables, to + 8 * half, column, own);
      }
      return;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) pick(v, d, half), send(v, half);
    sync_cluster();
    if (!finishes) return;
    receive(v, warp);
    g.ending.finish(v, held[0], s.tables, to, column, own);
  }
};

// A block of the kernel. Nothing that another kernel of the program writes is touched before
// wait_for_previous(): weights, biases and what is made of them stay.
template <class Ending>
__device__ __forceinline__ void work(const Args<Ending>& g, Shared<Ending>& s) {
  const Block<Ending> block(g, s);
  let_next_begin();
  if (threadIdx.x == kGroup) {
    for (int i = 0; i < s.kStages; ++i) init_barrier(&s.full[i], 1), init_barrier(&s.empty[i], 1);
    publish_barriers();
  }
  __syncwarp();
  // The others of the cluster are there, to be sent to.
  if (g.slices > 1)
    sync_cluster();
  else
    __syncthreads();
  if (threadIdx.x < kGroup) {
    block.consume();
  } else {
    if (threadIdx.x == kGroup) block.produce();
    __syncwarp();
    if (g.slices > 1) sync_cluster();
  }
}

// ---- endings ----

template <int kWide, Act kAct>
struct Plain {
  static constexpr int kColumns = kWide, kTables = 1;
  using Tables = float[kTables][kColumns];
  struct Held {};

  const bf16* bias;  // may be null
  bf16* y;
  int rows, columns;

  __device__ __forceinline__ void fill(Tables& tables, int i, int column) const {
    tables[0][i] = bias ? to_float(bias[column]) : 0;
  }
  __device__ __forceinline__ Held hold(int, int) const { return {}; }
  __device__ __forceinline__ void finish(const Eight (&sums)[kColumns / 32], const Held&,
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
struct Summed {
  static constexpr int kColumns = kWide, kTables = 1;
  using Tables = float[kTables][kColumns];
  struct Held {
    Raw8<bf16> skip[kColumns / 32];
  };

  const bf16 *bias, *skip;  // bias may be null
  bf16* sum;
  Spread* spreads;  // (tiles of a row, rows)
  int rows, columns;

  __device__ __forceinline__ void fill(Tables& tables, int i, int column) const {
    tables[0][i] = bias ? to_float(bias[column]) : 0;
  }
  // Rows beyond the last one take its values, and are not stored.
  __device__ __forceinline__ Held hold(int row, int column) const {
    Held held;
    const bf16* const from = skip + int64_t{min(row, rows - 1)} * columns + column;
#pragma unroll
    for (int part = 0; part < kColumns / 32; ++part) held.skip[part] = load_raw(from + 32 * part);
    return held;
  }
  __device__ __forceinline__ void finish(Eight (&v)[kColumns / 32], const Held& held,
                                         const Tables& tables, int row, int column, int own) const {
    bf16* const to = sum + int64_t{row} * columns + column + own;
    float total = 0, squares = 0;
#pragma unroll
    for (int part = 0; part < kColumns / 32; ++part) {
      const Eight b = load8(tables[0] + own + 32 * part);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[part].v[i] += b.v[i];
      const Raw8<bf16> raw = add(held.skip[part], pack<bf16>(v[part]));
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
    if (own == 0 && row < rows) spreads[int64_t{column / kColumns} * rows + row] = {mean, squares};
  }
};

// As if the rows had been normed: rstd (sums - mean s) + shift, s being sums of the weights' rows.
template <int kWide, Act kAct>
struct Normed {
  static constexpr int kColumns = kWide, kTables = 2;
  using Tables = float[kTables][kColumns];
  struct Held {
    float rstd, less;
  };

  const Spread* spreads;
  const float *sums, *shift;  // of the weights' rows; what the bias has become
  bf16* y;
  int rows, columns, tiles;  // tiles: of a row of x
  float wide, eps;           // wide: columns of such a tile

  __device__ __forceinline__ void fill(Tables& tables, int i, int column) const {
    tables[0][i] = sums[column], tables[1][i] = shift[column];
  }
  // A quad's lanes have a quarter of the row's tiles each.
  __device__ __forceinline__ Held hold(int row, int) const {
    constexpr int kEach = kMostTiles / 4;
    const int lane = static_cast<int>(threadIdx.x) % 4;
    const float part = 1 / static_cast<float>(tiles);
    Spread own[kEach];
    float mean = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int tile = lane + 4 * i;
      if (tile < tiles) own[i] = spreads[int64_t{tile} * rows + min(row, rows - 1)];
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
  __device__ __forceinline__ void finish(const Eight (&d)[kColumns / 32], const Held& held,
                                         const Tables& tables, int row, int column, int own) const {
    bf16* const to = y + int64_t{row} * columns + column + own;
#pragma unroll
    for (int part = 0; part < kColumns / 32; ++part) {
      const Eight s = load8(tables[0] + own + 32 * part), b = load8(tables[1] + own + 32 * part);
      Eight v;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        v.v[i] =
            activate<kAct, bf16>(fmaf(d[part].v[i], held.rstd, fmaf(held.less, s.v[i], b.v[i])));
      store_if(row < rows, to + 32 * part, pack<bf16>(v));
    }
  }
};

}  // namespace vitrum::cuda::few
