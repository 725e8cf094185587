#include "vitrum/cuda/attention/smem_fwd.cuh"
#include "vitrum/cuda/primitives/e4m3.cuh"

namespace vitrum::cuda {
namespace {

using namespace smem_fwd;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// A quad's four lanes have four words each; lane i gets the i-th of all.
__device__ __forceinline__ void exchange_in_quad(uint32_t (&u)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? u[i] : u[i + 1], 1);
    u[i] = odd ? other : u[i], u[i + 1] = odd ? u[i + 1] : other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, high ? u[i] : u[i + 2], 2);
    u[i] = high ? other : u[i], u[i + 2] = high ? u[i + 2] : other;
  }
}
// A row of a head from the sums of a quad, 16 neighbours a lane.
__device__ __forceinline__ uint4 row_of_e4m3(const float (&o)[32], int half, float factor,
                                             float inverse) {
  const auto pair = [&](int group) {
    const float* v = o + 4 * group + 2 * half;
    return pair_of_e4m3(rounded<bf16>(v[0] * factor) * inverse,
                        rounded<bf16>(v[1] * factor) * inverse);
  };
  uint32_t u[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) u[i] = pair(2 * i) | pair(2 * i + 1) << 16;
  exchange_in_quad(u);
  return make_uint4(__byte_perm(u[0], u[1], 0x5410), __byte_perm(u[2], u[3], 0x5410),
                    __byte_perm(u[0], u[1], 0x7632), __byte_perm(u[2], u[3], 0x7632));
}
struct E4M3 {
  static __device__ __forceinline__ uint4 row(const float (&o)[32], int half, float factor,
                                              float inverse) {
    return row_of_e4m3(o, half, factor, inverse);
  }
};
#endif

template <int N, int kSize>
__global__ void __launch_bounds__(kGroups* kGroup, 1)
    smem_forward([[maybe_unused]] const __grid_constant__ ForwardArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  forward<N, kSize>(args);
#endif
}
template <int N>
__global__ void __launch_bounds__(kGroups* kGroup, 1)
    smem_forward_e4m3([[maybe_unused]] const __grid_constant__ ForwardArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  forward<N, kHead, E4M3>(args);
#endif
}

template <int N, int kSize>
ForwardArgs forward_args(CudaBackend& cuda, const AttentionArgs& args, int64_t images) {
  const AttentionShape& shape = args.shape;
  return {.tile = {args, nullptr, images, persistent_parts(cuda, 1, shape.heads, images)},
          .qkv = rows_of_heads(args.qkv, shape.qkv_stride(), shape.tokens, images, N, kSize),
          .y = {},
          .rounded = nullptr,
          .inverse = 1};
}
template <int N, int kSize>
KernelPtr launch(CudaBackend& cuda, void (*kernel)(const ForwardArgs), const ForwardArgs& all) {
  constexpr size_t kBytes = sizeof(Memory<N, kSize>);
  allow_shared_memory(kernel, kBytes);
  return launch_kernel(cuda, kernel,
                       static_cast<unsigned>(all.tile.parts * all.tile.attention.shape.heads),
                       kGroups * kGroup, kBytes, all);
}

template <int N, int kSize>
KernelPtr lower(CudaBackend& cuda, const AttentionArgs& args, int64_t images) {
  const AttentionShape& shape = args.shape;
  ForwardArgs all = forward_args<N, kSize>(cuda, args, images);
  all.y = rows_of_heads(args.out, shape.y_stride(), shape.tokens, images, 16, kSize);
  return launch<N, kSize>(cuda, smem_forward<N, kSize>, all);
}
template <int N>
KernelPtr lower_e4m3(CudaBackend& cuda, const AttentionArgs& args, int64_t images, uint8_t* y,
                     float scale) {
  ForwardArgs all = forward_args<N, kHead>(cuda, args, images);
  all.rounded = y, all.inverse = 1 / scale;
  return launch<N, kHead>(cuda, smem_forward_e4m3<N>, all);
}

}  // namespace

KernelPtr smem_attention(CudaBackend& cuda, const AttentionArgs& args, int64_t images, int keys) {
  if (args.shape.size == 32)
    return keys == 208 ? lower<208, 32>(cuda, args, images) : lower<200, 32>(cuda, args, images);
  if (keys == 208) return lower<208, 64>(cuda, args, images);
  return keys == 200 ? lower<200, 64>(cuda, args, images) : lower<144, 64>(cuda, args, images);
}

KernelPtr smem_attention_e4m3(CudaBackend& cuda, const AttentionArgs& args, int64_t images,
                              int keys, uint8_t* y, float scale) {
  if (keys == 208) return lower_e4m3<208>(cuda, args, images, y, scale);
  return keys == 200 ? lower_e4m3<200>(cuda, args, images, y, scale)
                     : lower_e4m3<144>(cuda, args, images, y, scale);
}

}  // namespace vitrum::cuda
