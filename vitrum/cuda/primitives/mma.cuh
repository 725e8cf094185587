// mma.sync m16n8k16 of bf16 with f32 accumulators, ldmatrix, stmatrix and cp.async. Fragment
// layouts are those of PTX: lane = 4 g + t holds rows g and g + 8.
#pragma once
#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {

struct FragmentA {  // 16 rows x 16 deep
  uint32_t r[4];
};
struct FragmentB {  // 16 deep x 8 columns, twice: two neighbouring tiles of columns
  uint32_t r[4];
};
struct Tile {  // 16 x 8 sums: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
  float v[4] = {0, 0, 0, 0};
};

__device__ __forceinline__ void mma_m16n8k16(Tile& c, const FragmentA& a, uint32_t b0,
                                             uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
}

// Two tiles of sums as the left operand of the next product, rounded to bf16: the layouts agree.
__device__ __forceinline__ FragmentA as_operand(const Tile& low, const Tile& high) {
  return {{pack2(low.v[0], low.v[1]), pack2(low.v[2], low.v[3]), pack2(high.v[0], high.v[1]),
           pack2(high.v[2], high.v[3])}};
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Four 8 x 8 matrices from shared memory; each lane gives the address of one of their 32 rows.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const bf16* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p)));
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p)));
}
// The way back (sm_90).
__device__ __forceinline__ void stmatrix_x4(void* p, const uint32_t (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(shared_address(p)),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}
__device__ __forceinline__ void stmatrix_x4_trans(void* p, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(
                   shared_address(p)),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
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

__device__ __forceinline__ void cp_async_16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(shared_address(to)), "l"(from));
}
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
template <int kGroups>  // committed last
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kGroups) : "memory");
}
__device__ __forceinline__ void cp_async_wait_all() {
  cp_async_commit();
  cp_async_wait<0>();
}

}  // namespace vitrum::cuda
