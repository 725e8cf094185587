// What the attention kernels share: where a head's rows lie, softmax reductions, and their entry
// points.
#pragma once
#include "vitrum/cuda/attention/choose.h"
#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {

struct AttentionShape {
  int tokens, heads, size;  // size of a head
  __host__ __device__ int64_t qkv_stride() const { return int64_t{3} * heads * size; }
  __host__ __device__ int64_t y_stride() const { return int64_t{heads} * size; }
};

struct AttentionArgs {
  AttentionShape shape;
  const void *qkv, *y, *dy;  // y and dy: backward only
  void* out;                 // y, or dqkv
  float* lse;                // written forward (may be null), read backward
  DropSite drop;
  // Added to the scores (may be null): (H, T, T) and (masks, T, T); the gradient of the first.
  const float *bias = nullptr, *mask = nullptr;
  int masks = 1;
  float* dbias = nullptr;
  float* column_sums =
      nullptr;  // (3 C), += those of dqkv; kernels whose CTAs have all rows of a head only
};

constexpr float kLog2E = 1.4426950408889634f;

// A (tokens, size) slice of a head in global memory: `stride` elements from row to row.
struct Rows {
  const bf16* data;
  int64_t stride;
};

// A head's operands in the backward pass.
struct BackwardViews {
  Rows q, k, v, y, dy;
  bf16* dqkv;  // of q; those of k and v lie y_stride() further each
};

__device__ __forceinline__ BackwardViews backward_views(const AttentionArgs& args, int64_t image,
                                                        int head) {
  const AttentionShape& shape = args.shape;
  const int64_t qkv_at = image * shape.tokens * shape.qkv_stride() + head * shape.size;
  const int64_t y_at = image * shape.tokens * shape.y_stride() + head * shape.size;
  const auto part = [&](int which) {
    return Rows{static_cast<const bf16*>(args.qkv) + qkv_at + which * shape.y_stride(),
                shape.qkv_stride()};
  };
  return {part(0),
          part(1),
          part(2),
          {static_cast<const bf16*>(args.y) + y_at, shape.y_stride()},
          {static_cast<const bf16*>(args.dy) + y_at, shape.y_stride()},
          static_cast<bf16*>(args.out) + qkv_at};
}

// delta_t = dy_t . y_t and lse_t of a head in shared memory, for `count` rows; behind the last
// token such that weights become 0. kLanes threads share a row.
template <int kLanes>
__device__ void row_terms(const BackwardViews& at, const AttentionShape& shape, const float* lse,
                          int count, float* lse_log2, float* delta) {
  constexpr int kInFlight = 4;  // rows a thread reads before it uses any
  const int lane = threadIdx.x % kLanes, column = lane * 8, step = blockDim.x / kLanes;
  for (int base = threadIdx.x / kLanes; base < count; base += kInFlight * step) {
    uint4 a[kInFlight] = {}, b[kInFlight] = {};
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int row = base + i * step;
      if (row >= shape.tokens || column >= shape.size) continue;
      a[i] = *reinterpret_cast<const uint4*>(at.dy.data + row * at.dy.stride + column);
      b[i] = *reinterpret_cast<const uint4*>(at.y.data + row * at.y.stride + column);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const Eight x = unpack8(a[i]), y = unpack8(b[i]);
      float sum = 0;
#pragma unroll
      for (int k = 0; k < 8; ++k) sum = fmaf(x.v[k], y.v[k], sum);
#pragma unroll
      for (int other = kLanes / 2; other > 0; other /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, other);
      const int row = base + i * step;
      if (lane != 0 || row >= count) continue;
      delta[row] = sum;
      lse_log2[row] = row < shape.tokens ? lse[row] * kLog2E : INFINITY;
    }
  }
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// One a kernel of attention/choose.h, which must take the task.
KernelPtr one_tile_attention(CudaBackend& cuda, const AttentionArgs& args, int64_t images);
KernelPtr one_tile_attention_bwd(CudaBackend& cuda, const AttentionArgs& args, int64_t images);
KernelPtr short_attention(CudaBackend& cuda, const AttentionArgs& args, int64_t images,
                          bool backward);
// keys: of a product, as chosen.
KernelPtr smem_attention(CudaBackend& cuda, const AttentionArgs& args, int64_t images, int keys);
// The result is e4m3 of this scale.
KernelPtr smem_attention_e4m3(CudaBackend& cuda, const AttentionArgs& args, int64_t images,
                              int keys, uint8_t* y, float scale);
KernelPtr smem_attention_bwd(CudaBackend& cuda, const AttentionArgs& args, int64_t images);
KernelPtr chunked_attention(CudaBackend& cuda, const AttentionArgs& args, int64_t images, int keys);
KernelPtr chunked_attention_bwd(CudaBackend& cuda, const AttentionArgs& args, int64_t images);
KernelPtr wgmma_attention(CudaBackend& cuda, const AttentionArgs& args, int64_t images,
                          const WgmmaPlan& plan);
KernelPtr wgmma_attention_bwd(CudaBackend& cuda, const AttentionArgs& args, int64_t images,
                              const WgmmaPlan& plan);
KernelPtr mma_sync_attention(CudaBackend& cuda, const AttentionArgs& args, int64_t images,
                             bool backward, const MmaSyncPlan& plan);
KernelPtr mma_sync_wide_attention(CudaBackend& cuda, const AttentionArgs& args, int64_t images,
                                  const MmaSyncPlan& plan);
void launch_plain_attention(const AttentionArgs& args, int64_t images, DType dtype,
                            cudaStream_t stream);
// partials: bias_partials() floats where dbias is wanted.
void launch_plain_attention_bwd(const AttentionArgs& args, int64_t images, DType dtype,
                                float* partials, cudaStream_t stream);
int64_t bias_partials(const AttentionShape& shape, int64_t images);

}  // namespace vitrum::cuda
