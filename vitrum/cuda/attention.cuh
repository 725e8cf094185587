// What the attention kernels share: where a head's rows lie, and which weights are dropped.
#pragma once
#include "vitrum/cuda/device.cuh"

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
};

// Heads that fill 16-byte loads and registers go to the tensor cores; anything else, and f32, here.
void launch_plain_attention(const AttentionArgs& args, int64_t images, DType dtype,
                            cudaStream_t stream);
void launch_plain_attention_bwd(const AttentionArgs& args, int64_t images, DType dtype,
                                cudaStream_t stream);

}  // namespace vitrum::cuda
