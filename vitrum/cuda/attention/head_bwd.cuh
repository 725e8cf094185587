// What the backward kernels of attention/smem_bwd.cuh and attention/chunked_bwd.cuh share.
#pragma once
#include "vitrum/cuda/attention/smem.cuh"
#include "vitrum/cuda/primitives/column_sums.cuh"

namespace vitrum::cuda {

constexpr int kWarps = kGroups * 4, kHeadThreads = (kGroups + 1) * kGroup;

// What a row of scores needs to know, in shared memory: -lse log2 e, and delta, which is dy . y.
// Behind the last token such that weights become 0.
struct LseDelta {
  float *lse, *delta;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Sums of a warp's rows of dq, dk and dv, over all images: value 16 m + g, and + 8, is in column
// 2 m of the first, 2 m + 1 of the first, or 2 m of the second.
template <int kSize = kHead>
struct ColumnSums {
  Tile qk, v;

  __device__ __forceinline__ void add(int which, const FragmentA& values, int m, int lane) {
    const uint32_t ones = lane / 4 == 2 * m + which % 2 ? kOnes : 0;
    mma_m16n8k16(which == 2 ? v : qk, values, ones, ones);
  }
  // Of 16 rows in shared memory.
  __device__ __forceinline__ void add(int which, std::byte* rows, int lane) {
#pragma unroll
    for (int m = 0; m < kSize / 16; ++m) {
      FragmentA values;
      ldmatrix_x4_trans(values.r, reinterpret_cast<const bf16*>(SwizzledRows<kSize>::at(
                                      rows, lane % 8 + lane / 16 * 8, 2 * m + lane / 8 % 2)));
      add(which, values, m, lane);
    }
  }
  // Those of a block, over its first kCount warps in turn, by way of shared memory that no one
  // needs any more.
  template <int kCount>
  __device__ __forceinline__ void write(const PersistentArgs& tile, std::byte* memory, int head,
                                        int part) const {
    const float sums[6] = {qk.v[0], qk.v[2], qk.v[1], qk.v[3], v.v[0], v.v[2]};
    auto* const of_warps = reinterpret_cast<float*>(memory);  // (kCount, 3, kSize)
    const int i = threadIdx.x, lane = i % kWarp, column = lane % 4 * 16 + lane / 4;
    sync_threads<kCount * kWarp>();
#pragma unroll
    for (int k = 0; k < 6; ++k)
      if (column < kSize) of_warps[(i / kWarp * 3 + k / 2) * kSize + column + k % 2 * 8] = sums[k];
    sync_threads<kCount * kWarp>();
    if (i >= 3 * kSize) return;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kCount; ++w) sum += of_warps[w * 3 * kSize + i];
    const AttentionShape& shape = tile.attention.shape;
    tile.columns[part * shape.qkv_stride() + i / kSize * shape.y_stride() + head * kSize +
                 i % kSize] = sum;
  }
};

#endif

// ---- lowering ----

inline PersistentArgs head_parts(CudaBackend& cuda, const AttentionArgs& args, int64_t images) {
  const int64_t parts = persistent_parts(cuda, 1, args.shape.heads, images);
  float* columns =
      args.column_sums ? cuda.scratch_of<float>(parts * args.shape.qkv_stride()) : nullptr;
  return {args, columns, images, parts};
}
inline unsigned head_blocks(const PersistentArgs& args) {
  return static_cast<unsigned>(args.parts * args.attention.shape.heads);
}
inline void finish_head_sums(const PersistentArgs& args, cudaStream_t stream) {
  if (args.columns)
    launch_finish(args.columns, args.parts, args.attention.shape.qkv_stride(),
                  AddToColumns{args.attention.column_sums}, stream);
}

}  // namespace vitrum::cuda
