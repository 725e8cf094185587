// Layers of e4m3: what is done to the sums of a product before they leave the registers, for many
// rows (linear/tile.cuh) and for few (linear/small_m.cuh).
//
// Two numbers of e4m3 lie in memory as one of bf16 does, so TMA copies rows as half as many bf16,
// into the same places of shared memory; only the products differ. Sums are times the scale of x
// and of their column's weights, plus the bias, and rounded wherever the plain graph has a tensor.
//
// The primitives it is written in (activation.cuh, e4m3.cuh, layer_norm.cuh, ..) are included
// before it: tests without a card have a second set.
#pragma once
#include "vitrum/cuda/linear/small_m.cuh"
#include "vitrum/cuda/linear/tile.cuh"

namespace vitrum::cuda::e4m3 {

// An End finishes eight neighbouring columns of a row; Before is what it loads ahead.

struct ToRows {
  struct Before {};
  bf16* y;
  int columns;  // of a row of y

  __device__ __forceinline__ Before prefetch(int, int) const { return {}; }
  __device__ __forceinline__ void operator()(const Eight& v, const Before&, bool inside, int row,
                                             int column) const {
    store_if(inside, y + int64_t{row} * columns + column, pack<bf16>(v));
  }
};

// The activation, rounded for the layer behind. GELU is computed in f16, which is finer than e4m3
// by far: its results are those of the plain graph, or now and then the number beside.
template <Act kAct>
struct ActToE4M3 {
  struct Before {};
  uint8_t* y;
  int columns;
  float inverse;  // of y's scale

  __device__ __forceinline__ Before prefetch(int, int) const { return {}; }
  __device__ __forceinline__ void operator()(const Eight& sums, const Before&, bool inside, int row,
                                             int column) const {
    uint8_t* const to = y + int64_t{row} * columns + column;
    if constexpr (kAct == Act::kGelu) return store_if(inside, to, gelu_to_e4m3(sums, inverse));
    Eight v = unpack(pack<bf16>(sums));
#pragma unroll
    for (int i = 0; i < 8; ++i) v.v[i] = activate<kAct, bf16>(v.v[i]);
    v = unpack(pack<bf16>(v));
    store_if(inside, to, pack_e4m3(v, inverse));
  }
};

// The residual sum; the layer's result may be scaled by channel before.
struct ToSum {
  using Before = Raw8<bf16>;
  const bf16* skip;
  bf16* sum;
  const float* gamma;  // may be null
  int rows, columns;

  // Rows beyond the last one take its values, and are not stored.
  __device__ __forceinline__ Before prefetch(int row, int column) const {
    return load_raw(skip + int64_t{min(row, rows - 1)} * columns + column);
  }
  __device__ __forceinline__ void operator()(const Eight& sums, const Before& before, bool inside,
                                             int row, int column) const {
    Raw8<bf16> branch = pack<bf16>(sums);
    if (gamma) {
      Eight v = unpack(branch);
      const Eight by = load8(gamma + column);
#pragma unroll
      for (int i = 0; i < 8; ++i) v.v[i] = __fmul_rn(v.v[i], by.v[i]);
      branch = pack<bf16>(v);
    }
    store_if(inside, sum + int64_t{row} * columns + column, add(before, branch));
  }
};

__device__ __forceinline__ Eight scaled(const Eight& scale, const Eight& bias, const Eight& sums) {
  Eight v;
#pragma unroll
  for (int i = 0; i < 8; ++i) v.v[i] = fmaf(sums.v[i], scale.v[i], bias.v[i]);
  return v;
}

// Of columns from `first` on, `columns` of them.
struct Scales {
  const float *scale, *bias;  // bias may be null
  int rows, first, columns;
};

constexpr int kMaxColumns = 4096;  // that a tile's tables hold

template <class End>
struct TileEpilogue {
  static constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
  struct Table {
    float scale[kMaxColumns], bias[kMaxColumns];
  };
  using Prefetched = typename End::Before[tile::kParts][2];

  Scales of;
  End end;

  __device__ __forceinline__ static void multiply(tile::Accumulators& d, uint64_t x, uint64_t w,
                                                  bool add) {
    wgmma_ss_e4m3(d, x, w, add);
  }
  __device__ void fill(Table& table, int thread, int threads) const {
    for (int i = thread; i < of.columns; i += threads)
      table.scale[i] = of.scale[of.first + i], table.bias[i] = of.bias ? of.bias[of.first + i] : 0;
  }
  // Parts of the last tile that have no columns look at the first one's.
  __device__ __forceinline__ void prefetch(Prefetched& prefetched, int row, int column) const {
#pragma unroll
    for (int part = 0; part < tile::kParts; ++part)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        prefetched[part][half] = end.prefetch(
            row + 8 * half,
            of.first + (column + 32 * part < of.columns ? column + 32 * part : column));
  }
  __device__ __forceinline__ void finish(const tile::Accumulators& d, const Prefetched& prefetched,
                                         const Table& table, int row, int column) const {
#pragma unroll
    for (int part = 0; part < tile::kParts; ++part) {
      const int at = column + 32 * part;
      if (at >= of.columns) return;
      const Eight scale = load8(table.scale + at), bias = load8(table.bias + at);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Eight sums;
#pragma unroll
        for (int i = 0; i < 8; ++i) sums.v[i] = d[permuted_accumulator(part, half, i)];
        end(scaled(scale, bias, sums), prefetched[part][half], row + 8 * half < of.rows,
            row + 8 * half, of.first + at);
      }
    }
  }
};

template <class End>
struct FewEpilogue {
  static constexpr int kColumns = 128, kTables = 2, kParts = kColumns / 32;
  using Tables = float[kTables][kColumns];
  struct Prefetched {
    typename End::Before before[kParts];
  };

  Scales of;
  End end;

  __device__ __forceinline__ static void multiply(float (&d)[kColumns / 2], uint64_t x, uint64_t w,
                                                  bool add) {
    wgmma_ss_e4m3(d, x, w, add);
  }
  __device__ __forceinline__ void fill(Tables& tables, int i, int column) const {
    tables[0][i] = of.scale[column], tables[1][i] = of.bias ? of.bias[column] : 0;
  }
  __device__ __forceinline__ Prefetched prefetch(int row, int column) const {
    Prefetched prefetched;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      prefetched.before[part] = end.prefetch(row, column + 32 * part);
    return prefetched;
  }
  __device__ __forceinline__ void finish(const Eight (&sums)[kParts], const Prefetched& prefetched,
                                         const Tables& tables, int row, int column, int own) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int at = own + 32 * part;
      end(scaled(load8(tables[0] + at), load8(tables[1] + at), sums[part]), prefetched.before[part],
          row < of.rows, row, column + at);
    }
  }
};

}  // namespace vitrum::cuda::e4m3
