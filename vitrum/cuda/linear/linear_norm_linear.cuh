// Epilogues for linear -> residual add -> LayerNorm -> linear without a pass for the norm (sm_90a,
// inference).
//
// The first GEMM adds bias and residual, writes the sum and for each row the moments of its 256
// columns. The second multiplies the sum itself: with the norm's scale g and shift h, norm(x) W^T +
// b = rstd (x W'^T - mean s) + b' where W' = W g, s are the row sums of W' and b' = b + W h. s is
// of W' as rounded, so that a large mean cancels. The sum is bf16 in memory whoever reads it; W' is
// rounded in place of the normed rows.
//
// A norm right before the first layer (EVA-02's inner one) is in its weights likewise; then mean
// and rstd of its rows are known.
//
// The primitives it is written in (activation.cuh, layer_norm.cuh, tma.cuh, wgmma.cuh) are included
// before it: tests without a card have a second set.
#pragma once
#include "vitrum/cuda/linear/outputs.cuh"
#include "vitrum/cuda/linear/row_moments.cuh"

namespace vitrum::cuda::norm_linear {

using namespace tile;

constexpr int kMaxTiles = 4, kMaxColumns = 4096;  // of the first product's rows; of the second

// The layer's result is added as it is.
struct Identity {
  __device__ __forceinline__ bool kept(int) const { return true; }
  __device__ __forceinline__ Raw8<bf16> operator()(const Raw8<bf16>& x, bool, int) const {
    return x;
  }
};

// A norm before a layer: of its rows; of the weights' rows, and what the bias has become.
struct NormBefore {
  const float *mean = nullptr, *rstd = nullptr;
  const float *sums = nullptr, *shift = nullptr;
};

// The sum, left in d as it is rounded for the second look that a variance takes. Change: what
// becomes of eight columns of the layer's result before.
template <class Change = Identity, bool kNormed = false>
struct ResidualEpilogue {
  static constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
  struct Table {
    float bias[kMaxTiles * kColumns], sums[kNormed ? kMaxTiles * kColumns : 1];
  };
  struct Prefetched {
    Raw8<bf16> skip[2][kParts];
    float rstd[2], less[2];
  };

  const bf16 *bias, *skip;  // bias may be null
  bf16* sum;
  RowMoments* row_moments;  // (tiles of a row, rows), or null
  int rows, columns;
  Change change = {};
  NormBefore norm = {};

  __device__ __forceinline__ void fill(Table& table, int thread, int threads) const {
    for (int i = thread; i < columns; i += threads)
      if constexpr (kNormed)
        table.bias[i] = norm.shift[i], table.sums[i] = norm.sums[i];
      else
        table.bias[i] = bias ? to_float(bias[i]) : 0;
  }
  // Rows beyond the last one take its values, and are not stored.
  __device__ __forceinline__ void prefetch(Prefetched& prefetched, int row, int column) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = min(row + 8 * half, rows - 1);
      const bf16* const from = skip + int64_t{at} * columns + column;
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        prefetched.skip[half][part] = load_raw(from + 32 * part);
      if constexpr (kNormed)
        prefetched.rstd[half] = norm.rstd[at],
        prefetched.less[half] = -norm.mean[at] * prefetched.rstd[half];
    }
  }
  __device__ __forceinline__ void finish(Accumulators& d, const Prefetched& prefetched,
                                         const Table& table, int row, int column) const {
    const int64_t to = int64_t{row} * columns + column;
    bf16* const to_sum[2] = {sum + to, sum + to + int64_t{8} * columns};
    const bool inside[2] = {row < rows, row + 8 < rows},
               kept[2] = {change.kept(row), change.kept(row + 8)};
    float total[2] = {0, 0}, squares[2] = {0, 0}, mean[2];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const Eight b = load8(table.bias + column + 32 * part);
      [[maybe_unused]] Eight s;
      if constexpr (kNormed) s = load8(table.sums + column + 32 * part);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Eight v;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float x = d[permuted_accumulator(part, half, i)];
          if constexpr (kNormed)
            v.v[i] = fmaf(x, prefetched.rstd[half], fmaf(prefetched.less[half], s.v[i], b.v[i]));
          else
            v.v[i] = x + b.v[i];
        }
        const Raw8<bf16> branch = change(pack<bf16>(v), kept[half], column + 32 * part),
                         raw = add(prefetched.skip[half][part], branch);
        store_if(inside[half], to_sum[half] + 32 * part, raw);
        v = unpack(raw);
#pragma unroll
        for (int i = 0; i < 8; ++i)
          d[permuted_accumulator(part, half, i)] = v.v[i], total[half] += v.v[i];
      }
    }
    if (!row_moments) return;
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
        row_moments[int64_t{column / kColumns} * rows + row + 8 * half] = {mean[half],
                                                                           squares[half]};
    }
  }
};

template <class Form>
struct FoldedNormEpilogue {
  static constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;
  struct Table {
    float sums[kMaxColumns], shift[kMaxColumns];
  };
  struct Prefetched {
    RowMoments moments[2][kMaxTiles];
    typename Form::Row rows[2];
  };

  const RowMoments* row_moments;
  const float *sums, *shift;  // of the weights' rows; what the bias has become
  bf16* y;
  int rows, columns, tiles;  // tiles: of a row of x
  float part, eps;           // part: of a row, a tile's
  Form form = {};

  __device__ __forceinline__ void fill(Table& table, int thread, int threads) const {
    for (int i = thread; i < columns; i += threads)
      table.sums[i] = sums[i], table.shift[i] = shift[i];
  }
  __device__ __forceinline__ void prefetch(Prefetched& prefetched, int row, int column) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int t = 0; t < kMaxTiles; ++t)
        if (t < tiles)
          prefetched.moments[half][t] =
              row_moments[int64_t{t} * rows + min(row + 8 * half, rows - 1)];
      prefetched.rows[half] = form.row(row + 8 * half, column);
    }
  }
  // As if the row had been looked at as a whole: what a product is multiplied by, and what the sum
  // of a column's weights is.
  __device__ __forceinline__ void combine(const RowMoments (&prefetched)[kMaxTiles], float& rstd,
                                          float& less) const {
    float mean = 0, squares = 0;
#pragma unroll
    for (int t = 0; t < kMaxTiles; ++t)
      if (t < tiles) mean = fmaf(part, prefetched[t].mean, mean);
#pragma unroll
    for (int t = 0; t < kMaxTiles; ++t)
      if (t < tiles) {
        const float off = prefetched[t].mean - mean;
        squares += fmaf(kColumns * off, off, prefetched[t].squares);
      }
    rstd = rsqrtf(fmaf(squares, part / kColumns, eps));
    less = -mean * rstd;
  }
  __device__ __forceinline__ void finish(const Accumulators& d, const Prefetched& prefetched,
                                         const Table& table, int row, int column) const {
    constexpr int kDivide = Form::kGates ? 2 : 1;
    const int64_t below = int64_t{8} * columns, first = int64_t{row} * columns;
    bf16* const to_y[2] = {y + first / kDivide, y + (first + below) / kDivide};
    const bool inside[2] = {row < rows, row + 8 < rows};
    float rstd[2], less[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) combine(prefetched.moments[half], rstd[half], less[half]);
#pragma unroll
    for (int pair = 0; pair < kParts / 2; ++pair) {
      Eight s[2], b[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int at = column_of<Form>(column, first_part<Form>(pair) + e * Form::kApart, columns);
        s[e] = load8(table.sums + at), b[e] = load8(table.shift + at);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Eight v[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int part = first_part<Form>(pair) + e * Form::kApart;
#pragma unroll
          for (int i = 0; i < 8; ++i)
            v[e].v[i] = fmaf(d[permuted_accumulator(part, half, i)], rstd[half],
                             fmaf(less[half], s[e].v[i], b[e].v[i]));
        }
        store_form(form, v, prefetched.rows[half], to_y[half], pair, column, columns, inside[half]);
      }
    }
  }
};

}  // namespace vitrum::cuda::norm_linear
