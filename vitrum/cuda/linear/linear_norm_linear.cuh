// A linear layer, the residual sum it ends in, the LayerNorm behind that and the linear layer that
// alone reads the norm, without a pass for the norm (sm_90, inference).
//
// The first product adds bias and residual, writes the sum and of each row what its 256 columns say
// about mean and variance. The second one multiplies the sum itself: with the norm's scale g and
// shift h, norm(x) W^T + b = rstd (x W'^T - mean s) + b' where W' = W g, s are the row sums of W'
// and b' = b + W h. Of W' as it is rounded, so that a mean that is large cancels all the same. The
// sum is bf16 in memory whoever reads it; W' is rounded in place of the normed rows.
//
// What this is written in (primitives/activation.cuh, norm/layer_norm.cuh, primitives/tma.cuh,
// primitives/wgmma.cuh) is included before it: there is a second set for tests without a card.
#pragma once
#include "vitrum/cuda/linear/tile.cuh"

namespace vitrum::cuda::through {

using namespace tile;

constexpr int kMostTiles = 4, kMostColumns = 4096;  // of the first product's rows; of the second

// What 256 columns know of a row: their mean and the sum of squared deviations from it.
struct alignas(8) Spread {
  float mean, squares;
};

// The layer's result is added as it is.
struct Unchanged {
  __device__ __forceinline__ bool kept(int) const { return true; }
  __device__ __forceinline__ Raw8<bf16> operator()(const Raw8<bf16>& x, bool, int) const {
    return x;
  }
};

// The sum, left in d as it is rounded for the second look that a variance takes. Change: what
// becomes of eight columns of the layer's result before.
template <class Change = Unchanged>
struct Summed {
  static constexpr int kRegisters = 240, kOthers = 24;
  struct Table {
    float bias[kMostTiles * kColumns];
  };
  using Held = Raw8<bf16>[2][kParts];

  const bf16 *bias, *skip;  // bias may be null
  bf16* sum;
  Spread* spreads;  // (tiles of a row, rows), or null
  int rows, columns;
  Change change = {};

  __device__ __forceinline__ void fill(Table& table, int thread, int threads) const {
    for (int i = thread; i < columns; i += threads) table.bias[i] = bias ? to_float(bias[i]) : 0;
  }
  // Rows beyond the last one take its values, and are not stored.
  __device__ __forceinline__ void hold(Held& held, int row, int column) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bf16* const from = skip + int64_t{min(row + 8 * half, rows - 1)} * columns + column;
#pragma unroll
      for (int part = 0; part < kParts; ++part) held[half][part] = load_raw(from + 32 * part);
    }
  }
  __device__ __forceinline__ void finish(Sums& d, const Held& held, const Table& table, int row,
                                         int column) const {
    const int64_t to = int64_t{row} * columns + column;
    bf16* const to_sum[2] = {sum + to, sum + to + int64_t{8} * columns};
    const bool inside[2] = {row < rows, row + 8 < rows},
               kept[2] = {change.kept(row), change.kept(row + 8)};
    float total[2] = {0, 0}, squares[2] = {0, 0}, mean[2];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const Eight b = load8(table.bias + column + 32 * part);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Eight v;
#pragma unroll
        for (int i = 0; i < 8; ++i) v.v[i] = d[shuffled_sum(part, half, i)] + b.v[i];
        const Raw8<bf16> branch = change(pack<bf16>(v), kept[half], column + 32 * part),
                         raw = add(held[half][part], branch);
        store_if(inside[half], to_sum[half] + 32 * part, raw);
        v = unpack(raw);
#pragma unroll
        for (int i = 0; i < 8; ++i) d[shuffled_sum(part, half, i)] = v.v[i], total[half] += v.v[i];
      }
    }
    if (!spreads) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) mean[half] = row_sum<4>(total[half]) / kColumns;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) {
      const int half = i / 2 % 2;
      const float off = d[i] - mean[half];
      squares[half] = fmaf(off, off, squares[half]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      squares[half] = row_sum<4>(squares[half]);
      if (threadIdx.x % 4 == 0 && inside[half])
        spreads[int64_t{column / kColumns} * rows + row + 8 * half] = {mean[half], squares[half]};
    }
  }
};

template <Act kAct>
struct Normed {
  static constexpr int kRegisters = 232, kOthers = 40;
  struct Table {
    float sums[kMostColumns], shift[kMostColumns];
  };
  using Held = Spread[2][kMostTiles];

  const Spread* spreads;
  const float *sums, *shift;  // of the weights' rows; what the bias has become
  bf16* y;
  int rows, columns, tiles;  // tiles: of a row of x
  float part, eps;           // part: of a row, a tile's

  __device__ __forceinline__ void fill(Table& table, int thread, int threads) const {
    for (int i = thread; i < columns; i += threads)
      table.sums[i] = sums[i], table.shift[i] = shift[i];
  }
  __device__ __forceinline__ void hold(Held& held, int row, int) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int t = 0; t < kMostTiles; ++t)
        if (t < tiles) held[half][t] = spreads[int64_t{t} * rows + min(row + 8 * half, rows - 1)];
  }
  // As if the row had been looked at as a whole: what a product is multiplied by, and what the sum
  // of a column's weights is.
  __device__ __forceinline__ void combine(const Spread (&held)[kMostTiles], float& rstd,
                                          float& less) const {
    float mean = 0, squares = 0;
#pragma unroll
    for (int t = 0; t < kMostTiles; ++t)
      if (t < tiles) mean = fmaf(part, held[t].mean, mean);
#pragma unroll
    for (int t = 0; t < kMostTiles; ++t)
      if (t < tiles) {
        const float off = held[t].mean - mean;
        squares += fmaf(kColumns * off, off, held[t].squares);
      }
    rstd = rsqrtf(fmaf(squares, part / kColumns, eps));
    less = -mean * rstd;
  }
  __device__ __forceinline__ void finish(const Sums& d, const Held& held, const Table& table,
                                         int row, int column) const {
    const int64_t to = int64_t{row} * columns + column;
    bf16* const to_y[2] = {y + to, y + to + int64_t{8} * columns};
    const bool inside[2] = {row < rows, row + 8 < rows};
    float rstd[2], less[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) combine(held[half], rstd[half], less[half]);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const Eight s = load8(table.sums + column + 32 * part),
                  b = load8(table.shift + column + 32 * part);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Eight v;
#pragma unroll
        for (int i = 0; i < 8; ++i)
          v.v[i] = activate<kAct, bf16>(
              fmaf(d[shuffled_sum(part, half, i)], rstd[half], fmaf(less[half], s.v[i], b.v[i])));
        store_if(inside[half], to_y[half] + 32 * part, pack<bf16>(v));
      }
    }
  }
};

}  // namespace vitrum::cuda::through
