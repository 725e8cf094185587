// Attention of heads that fill one WGMMA tile (sm_90a): up to 64 tokens of 64 values, or 65 as a
// ViT of 32-px images has with its class token. Four main warps, a warpgroup, have 16 rows each of
// every WGMMA; N may be 72, so that only the row of the 65th token is left, which a last-token warp
// has by mma.sync with one useful column. Persistent: CTAs stay with one head and go through
// images, double-buffered.
#pragma once
#include <algorithm>

#include "vitrum/cuda/attention/wgmma.cuh"
#include "vitrum/cuda/host/tensor_map.h"
#include "vitrum/cuda/primitives/activation.cuh"

namespace vitrum::cuda {

constexpr int kLast = 64;               // the 65th token
constexpr uint32_t kOnes = 0x3f803f80;  // two of bf16
constexpr float kScale = 0.125f;        // 1 / sqrt(kHead)

struct PersistentArgs {
  AttentionArgs attention;
  float* columns;  // (parts, 3 C): column sums of dqkv, or null
  int64_t images, parts;
};

// What shared memory has after a barrier: an image's operands; products of the last token's rows
// with others; weights and their gradients; room, the operands having been used; results. Number 1
// is sync_warpgroup's.
enum Barrier { kLoaded = 2, kDotted, kWeighted, kUsed, kStaged };

// The same number, but the compiler does not know. It would keep every address that does not change
// from image to image, and have no registers for what does.
__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// ---- products with the last token's row: of eight columns one is of use ----

// A right operand with 16 values in one column, zeros elsewhere.
struct OneColumn {
  uint32_t low, high;
  __device__ __forceinline__ OneColumn(const void* values, int lane, int column = 0) {
    const auto* b = static_cast<const uint32_t*>(values) + lane % 4;
    low = lane / 4 == column ? b[0] : 0, high = lane / 4 == column ? b[4] : 0;
  }
};
// c += rows 16 m to 16 m + 15 of `matrix`, values 16 step to 16 step + 15, times b.
__device__ __forceinline__ void add_dots(Tile& c, std::byte* matrix, int m, int step, OneColumn b,
                                         int lane) {
  FragmentA a;
  ldmatrix_x4(a.r, reinterpret_cast<const bf16*>(
                       swizzled(matrix, 16 * m + lane % 16, 2 * step + lane / 16)));
  mma_m16n8k16(c, a, b.low, b.high);
}
// c += values 16 m to 16 m + 15 (down) of 16 rows of `matrix` from `row` on, times the rows' b.
__device__ __forceinline__ void add_rows(Tile& c, std::byte* matrix, int row, int m, uint32_t low,
                                         uint32_t high, int lane) {
  FragmentA a;
  ldmatrix_x4_trans(a.r, reinterpret_cast<const bf16*>(swizzled(
                             matrix, row + lane % 8 + lane / 16 * 8, 2 * m + lane / 8 % 2)));
  mma_m16n8k16(c, a, low, high);
}

// What both directions have in common: the work of one thread on one image.
template <bool kExtraToken>
struct OneTile {
  static constexpr int kRows = kExtraToken ? 80 : 64;  // in shared memory: products are 16 deep
  static constexpr int kKeys = kExtraToken ? 72 : 64, kSteps = kRows / 16;
  static constexpr int kMatrix = kRows * kSwizzledRow;
  static constexpr int kThreads = kGroup + (kExtraToken ? kWarp : 0);
  int tokens, thread = opaque(threadIdx.x), lane = thread % kWarp;

  // All warps wait for each other; or the last-token warp for the main warps, which go on.
  template <Barrier kName>
  static __device__ __forceinline__ void sync_all() {
    asm volatile("bar.sync %0, %1;\n" ::"n"(static_cast<int>(kName)), "n"(kThreads) : "memory");
  }
  template <Barrier kName>
  static __device__ __forceinline__ void release_last_token_warp() {
    if (kExtraToken)
      asm volatile("bar.arrive %0, %1;\n" ::"n"(static_cast<int>(kName)), "n"(kThreads) : "memory");
  }

  // A head's rows into shared memory, by the main warps: a thread has one piece of every 16th row.
  static __device__ __forceinline__ void read(std::byte* to, Rows from, int count, int thread) {
    const int row = thread / 8, piece = thread % 8, stride = static_cast<int>(from.stride);
    std::byte* target = swizzled(to, row, piece);
    const bf16* at = from.data + (row * stride + 8 * piece);
#pragma unroll
    for (int i = 0; i < 4; ++i, at += 16 * stride)
      if (kExtraToken || row + 16 * i < count)
        cp_async_16(target + 16 * i * kSwizzledRow, at);
      else
        *reinterpret_cast<uint4*>(target + 16 * i * kSwizzledRow) = make_uint4(0, 0, 0, 0);
    if (kExtraToken && thread < 8) cp_async_16(target + kLast * kSwizzledRow, at);
  }
  __device__ __forceinline__ std::byte* part_of(std::byte* matrix, int row, int column) const {
    return swizzled(matrix, row + lane % 16, column / 8 + lane / 16);
  }
  static __device__ __forceinline__ void pack_all(FragmentA (&to)[kSteps],
                                                  const float (&s)[kKeys / 2]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = operand_of(s + 8 * i);
    if (kExtraToken)
      to[kSteps - 1] = {{pack2(s[kKeys / 2 - 4], s[kKeys / 2 - 3]),
                         pack2(s[kKeys / 2 - 2], s[kKeys / 2 - 1]), 0, 0}};
  }
  // For keys behind the last token.
  __device__ __forceinline__ void fill_behind(float (&s)[kKeys / 2], float value) const {
    if (kExtraToken || tokens < kLast)
#pragma unroll
      for (int i = kExtraToken ? 32 : 0; i < kKeys / 2; ++i)
        if (i / 4 * 8 + lane % 4 * 2 + i % 2 >= tokens) s[i] = value;
  }
  // 16 rows of sums to global memory by way of shared memory, for the sake of whole 16-byte stores.
  __device__ __forceinline__ void stage(std::byte* to, const float (&d)[32], int row) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) stmatrix_x4(part_of(to, row, 16 * j), operand_of(d + 8 * j).r);
  }
  __device__ __forceinline__ void store(bf16* to, int stride, std::byte* from, int row) const {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = row + lane / 8 + 4 * i, piece = lane % 8;
      if (kExtraToken || at < tokens)
        *reinterpret_cast<uint4*>(to + ((row + lane / 8) * stride + 8 * piece) + 4 * i * stride) =
            *reinterpret_cast<const uint4*>(swizzled(from, at, piece));
    }
  }
  // The last token's row likewise.
  static __device__ __forceinline__ void put_last(std::byte* to, int i, float value) {
    reinterpret_cast<bf16*>(to + kLast * kSwizzledRow)[i] = __float2bfloat16_rn(value);
  }
  __device__ __forceinline__ void store_last(bf16* to, int stride, const std::byte* from) const {
    if (lane < 8)
      *reinterpret_cast<uint4*>(to + kLast * stride + lane * 8) =
          *reinterpret_cast<const uint4*>(from + kLast * kSwizzledRow + lane * 16);
  }
};

__device__ __forceinline__ std::byte* tile_memory() {
  extern __shared__ __align__(1024) std::byte tiles[];
  return tiles;
}
// Rows behind the last of 65 tokens are and stay zeros.
__device__ __forceinline__ void clear_memory(std::byte* memory, size_t bytes) {
  for (unsigned i = threadIdx.x; i < bytes / 16; i += blockDim.x)
    reinterpret_cast<uint4*>(memory)[i] = make_uint4(0, 0, 0, 0);
  __syncthreads();
}

// ---- lowering ----

template <bool kExtraToken>
constexpr int kTileBlocks = kExtraToken ? 3 : 4;  // a processor has room for

inline int64_t persistent_parts(const CudaBackend& cuda, int blocks, int heads, int64_t images) {
  return std::clamp<int64_t>(int64_t{cuda.processors()} * blocks / heads, 1, images);
}

}  // namespace vitrum::cuda
