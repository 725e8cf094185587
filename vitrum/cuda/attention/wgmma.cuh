// What attention by WGMMA (sm_90a) is made of: heads of 64 values, tiles of 64 rows.
#pragma once
#include "vitrum/cuda/attention/attention.cuh"
#include "vitrum/cuda/primitives/wgmma.cuh"

// For other cards the kernels are empty, and nothing uses what is here.
#pragma nv_diag_suppress 177

namespace vitrum::cuda {

constexpr int kHead = 64, kTile = 64,
              kGroup = 128;  // values, rows of a tile, threads of a warpgroup
constexpr int kTileBytes = kTile * kSwizzledRow;
constexpr int kScoreSteps = kHead / 16;

// Rows [first, first + count) of a head, copied by `threads` threads; zeros behind the last token.
__device__ __forceinline__ void fill(std::byte* to, Rows from, int first, int count, int tokens,
                                     int thread, int threads) {
  for (int i = thread; i < count * 8; i += threads) {
    const int row = i / 8, piece = i % 8;
    std::byte* target = swizzled(to, row, piece);
    if (first + row < tokens)
      cp_async_16(target, from.data + (first + row) * from.stride + piece * 8);
    else
      *reinterpret_cast<uint4*>(target) = make_uint4(0, 0, 0, 0);
  }
}
__device__ __forceinline__ void finish_fill() {
  cp_async_wait_all();
  fence_async_proxy();
}

// s (64, N) = a (64 rows) b (N rows)^T over the whole head.
template <int kCount>
__device__ __forceinline__ void issue_scores(float (&s)[kCount], const std::byte* a,
                                             const std::byte* b) {
#pragma unroll
  for (int step = 0; step < kScoreSteps; ++step)
    wgmma_ss(s, make_descriptor(a + 32 * step), make_descriptor(b + 32 * step), step > 0);
}

// Sums of 16 columns from 8 i on as the left operand of the next product.
__device__ __forceinline__ FragmentA operand_of(const float* s) {
  return {{pack2(s[0], s[1]), pack2(s[2], s[3]), pack2(s[4], s[5]), pack2(s[6], s[7])}};
}

template <int kCount>
__device__ __forceinline__ void clear(float (&d)[kCount]) {
#pragma unroll
  for (float& x : d) x = 0;
}

__device__ __forceinline__ std::byte* aligned_memory() {
  extern __shared__ std::byte memory[];
  const uint32_t address = shared_address(memory);
  return memory + ((1024 - address % 1024) % 1024);
}

}  // namespace vitrum::cuda
