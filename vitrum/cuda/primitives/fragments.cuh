// Fragments of mma.sync from matrices in shared memory, and products of them. Written in mma.cuh,
// which has a second set for tests without a card.
#pragma once
#include "vitrum/cuda/primitives/mma.cuh"

namespace vitrum::cuda {

struct FragmentB {  // 16 deep x 8 columns, twice: two neighbouring tiles of columns
  uint32_t r[4];
};

// Two tiles of sums as the left operand of the next product, rounded to bf16: the layouts agree.
__device__ __forceinline__ FragmentA as_operand(const Tile& low, const Tile& high) {
  return {{pack2(low.v[0], low.v[1]), pack2(low.v[2], low.v[3]), pack2(high.v[0], high.v[1]),
           pack2(high.v[2], high.v[3])}};
}

// Where a lane's row begins in a 16 x 16 part of a matrix: first the two upper or the two left
// quarters.
__device__ __forceinline__ const bf16* down_first(const bf16* m, int stride, int row, int column) {
  const int lane = threadIdx.x % kWarp;
  return m + (row + lane % 16) * stride + column + lane / 16 * 8;
}
__device__ __forceinline__ const bf16* across_first(const bf16* m, int stride, int row,
                                                    int column) {
  const int lane = threadIdx.x % kWarp;
  return m + (row + lane % 8 + lane / 16 * 8) * stride + column + lane / 8 % 2 * 8;
}

// Rows [row, row + 16) and columns [column, column + 16) of a matrix in shared memory as A:
// a(m, k) = m[row + m][column + k].
__device__ __forceinline__ FragmentA load_left(const bf16* m, int stride, int row, int column) {
  FragmentA a;
  ldmatrix_x4(a.r, down_first(m, stride, row, column));
  return a;
}
// The same transposed: a(m, k) = m[row + k][column + m].
__device__ __forceinline__ FragmentA load_left_transposed(const bf16* m, int stride, int row,
                                                          int column) {
  FragmentA a;
  ldmatrix_x4_trans(a.r, across_first(m, stride, row, column));
  return a;
}
// As B of (rows)^T: b(k, n) = m[row + n][column + k].
__device__ __forceinline__ FragmentB load_rows_as_columns(const bf16* m, int stride, int row,
                                                          int column) {
  FragmentB b;
  ldmatrix_x4(b.r, across_first(m, stride, row, column));
  return b;
}
// The same rows as B itself: b(k, n) = m[row + k][column + n].
__device__ __forceinline__ FragmentB load_rows(const bf16* m, int stride, int row, int column) {
  FragmentB b;
  ldmatrix_x4_trans(b.r, down_first(m, stride, row, column));
  return b;
}

// c += (16 x 16 a) x (16 rows of m); a row has 8 values a tile.
template <int kTiles>
__device__ __forceinline__ void add_product(Tile (&c)[kTiles], const FragmentA& a, const bf16* m,
                                            int stride, int row) {
#pragma unroll
  for (int s = 0; s < kTiles / 2; ++s) {
    const FragmentB b = load_rows(m, stride, row, 16 * s);
    mma_m16n8k16(c[2 * s], a, b.r[0], b.r[1]);
    mma_m16n8k16(c[2 * s + 1], a, b.r[2], b.r[3]);
  }
}

}  // namespace vitrum::cuda
