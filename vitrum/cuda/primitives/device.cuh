// What the kernels are made of: loads and stores of eight elements, sums over a warp, dropout.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "vitrum/core/dtype.h"
#include "vitrum/core/philox.h"
#include "vitrum/core/tensor.h"
#include "vitrum/cuda/host/backend.h"

namespace vitrum::cuda {

using bf16 = __nv_bfloat16;

constexpr int kWarp = 32;

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline unsigned blocks_for(int64_t work, int64_t per_block) {
  return static_cast<unsigned>(divide_up(work, per_block));
}

// ---- one element ----
__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(uint8_t x) { return static_cast<float>(x); }
template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}
// The value a tensor of T would hold: fused kernels round where the plain graph has a tensor.
template <class T>
__device__ __forceinline__ float rounded(float x) {
  return to_float(from_float<T>(x));
}

// ---- eight neighbours at once; the address is aligned to 16 bytes ----
struct Eight {
  float v[8];
};

__device__ __forceinline__ Eight load8(const float* p) {
  const float4 a = reinterpret_cast<const float4*>(p)[0], b = reinterpret_cast<const float4*>(p)[1];
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
__device__ __forceinline__ Eight unpack8(uint4 raw) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  Eight out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out.v[2 * i] = __uint_as_float(words[i] << 16);
    out.v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
  return out;
}
__device__ __forceinline__ Eight load8(const bf16* p) {
  return unpack8(*reinterpret_cast<const uint4*>(p));
}
__device__ __forceinline__ void store8(float* p, const Eight& x) {
  reinterpret_cast<float4*>(p)[0] = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
  reinterpret_cast<float4*>(p)[1] = make_float4(x.v[4], x.v[5], x.v[6], x.v[7]);
}
__device__ __forceinline__ uint32_t pack2(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ void store8(bf16* p, const Eight& x) {
  *reinterpret_cast<uint4*>(p) = make_uint4(pack2(x.v[0], x.v[1]), pack2(x.v[2], x.v[3]),
                                            pack2(x.v[4], x.v[5]), pack2(x.v[6], x.v[7]));
}

// Eight elements as they lie in memory: what a thread holds while it waits, or to read them again.
template <class T>
struct Raw8 {
  uint4 part[sizeof(T) / 2];
};
template <class T>
__device__ __forceinline__ Raw8<T> load_raw(const T* p) {
  Raw8<T> raw;
#pragma unroll
  for (size_t i = 0; i < sizeof(T) / 2; ++i) raw.part[i] = reinterpret_cast<const uint4*>(p)[i];
  return raw;
}
template <class T>
__device__ __forceinline__ void store_raw(T* p, const Raw8<T>& raw) {
#pragma unroll
  for (size_t i = 0; i < sizeof(T) / 2; ++i) reinterpret_cast<uint4*>(p)[i] = raw.part[i];
}
// A store without a branch around it.
__device__ __forceinline__ void store_if(bool wanted, bf16* to, const Raw8<bf16>& raw) {
  const uint4 v = raw.part[0];
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
      "@p st.global.v4.b32 [%0], {%1, %2, %3, %4};\n}\n" ::"l"(to),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(static_cast<int>(wanted)));
}
__device__ __forceinline__ Eight unpack(const Raw8<bf16>& raw) { return unpack8(raw.part[0]); }
__device__ __forceinline__ Eight unpack(const Raw8<float>& raw) {
  const uint4 a = raw.part[0], b = raw.part[1];
  return {{__uint_as_float(a.x), __uint_as_float(a.y), __uint_as_float(a.z), __uint_as_float(a.w),
           __uint_as_float(b.x), __uint_as_float(b.y), __uint_as_float(b.z), __uint_as_float(b.w)}};
}
template <class T>
__device__ __forceinline__ Raw8<T> pack(const Eight& x);
template <>
__device__ __forceinline__ Raw8<bf16> pack<bf16>(const Eight& x) {
  return {{make_uint4(pack2(x.v[0], x.v[1]), pack2(x.v[2], x.v[3]), pack2(x.v[4], x.v[5]),
                      pack2(x.v[6], x.v[7]))}};
}
template <>
__device__ __forceinline__ Raw8<float> pack<float>(const Eight& x) {
  const auto bits = [&](int i) { return __float_as_uint(x.v[i]); };
  return {{make_uint4(bits(0), bits(1), bits(2), bits(3)),
           make_uint4(bits(4), bits(5), bits(6), bits(7))}};
}

// An array whose type is known at run time only, for the paths that need not be fast: odd widths,
// odd addresses, operands of different types.
struct Mixed {
  void* data = nullptr;
  DType dtype = DType::kF32;

  __device__ __forceinline__ float load(int64_t i) const {
    if (dtype == DType::kBF16) return to_float(static_cast<const bf16*>(data)[i]);
    if (dtype == DType::kU8) return to_float(static_cast<const uint8_t*>(data)[i]);
    return static_cast<const float*>(data)[i];
  }
  __device__ __forceinline__ void store(int64_t i, float x) const {
    if (dtype == DType::kBF16)
      static_cast<bf16*>(data)[i] = from_float<bf16>(x);
    else
      static_cast<float*>(data)[i] = x;
  }
  __device__ __forceinline__ float round(float x) const {
    return dtype == DType::kBF16 ? rounded<bf16>(x) : x;
  }
};
inline Mixed mixed(const TensorView& view) { return {view.data, view.dtype}; }

// Eight elements a thread wherever count and addresses allow it, else one.
inline bool aligned16(const TensorView& view) {
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
}

// The largest power of two up to 16 that divides every address and every row's bytes.
inline size_t common_alignment(std::initializer_list<TensorView> views) {
  size_t alignment = 16;
  for (const TensorView& view : views) {
    if (!view) continue;
    const size_t row = static_cast<size_t>(view.shape[-1]) * size_of(view.dtype);
    while (reinterpret_cast<uintptr_t>(view.data) % alignment != 0 || row % alignment != 0)
      alignment /= 2;
  }
  return alignment;
}

// Blocks begin in the order of their index. The product before a pass has left its last rows in the
// card's cache: a pass begins with those, and leaves the first ones for the product behind it.
__device__ __forceinline__ int64_t reversed_index(int64_t i, int64_t count) {
  return count - 1 - i;
}

// ---- sums, in an order that shape alone decides ----
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int i = kWarp / 2; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int i = kWarp / 2; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
  return x;
}

// Over a block of kThreads, in a fixed tree; every thread has it. Calls in a row need a
// __syncthreads() between them.
template <int kThreads>
__device__ double block_sum(double x) {
  __shared__ double sums[kThreads];
  sums[threadIdx.x] = x;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  __syncthreads();
  return sums[0];
}

// ---- dropout: the same draws as on every backend (core/philox.h) ----
struct DropSite {
  const RandomState* rng = nullptr;  // null: nothing is dropped
  uint32_t site = 0, threshold = 65536;
  float scale = 1;
};
inline DropSite drop_site(const TensorView& rng, float drop, uint32_t site) {
  if (drop == 0) return {};
  return {static_cast<const RandomState*>(rng.data), site, keep_threshold(drop), keep_scale(drop)};
}
// The factor of element `i` of an element-wise op.
__device__ __forceinline__ float drop_factor(const DropSite& d, int64_t i) {
  if (!d.rng) return 1;
  const uint16_t draw = draw16(*d.rng, d.site, draws_per_row(kDrawRow), i / kDrawRow, i % kDrawRow);
  return draw < d.threshold ? d.scale : 0;
}
// Which halves of counter `counter` are kept, one bit each: one Philox block decides eight
// elements.
__device__ __forceinline__ uint32_t keep_bits(const DropSite& d, uint64_t counter) {
  const PhiloxBlock block = draw_block(*d.rng, d.site, counter);
  uint32_t bits = 0;
#pragma unroll
  for (int half = 0; half < 8; ++half) {
    const uint32_t draw = (block[half / 2] >> (16 * (half % 2))) & 0xffffu;
    bits |= (draw < d.threshold ? 1u : 0u) << half;
  }
  return bits;
}
// Bit k: element `first + k` of an element-wise op is kept, for a thread that owns eight elements.
// `first` is a multiple of 8; all 32 lanes take part and own neighbouring eights, the first lane a
// multiple of 256. Sixteen lanes share a row of 128 draws, each drawing one of its sixteen
// counters.
__device__ __forceinline__ uint32_t keep8(const DropSite& d, int64_t first) {
  const int lane = static_cast<int>(first / 8 % 16);
  const uint32_t mine = keep_bits(d, static_cast<uint64_t>(first / kDrawRow * 16 + lane));
  uint32_t bits = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const uint32_t theirs = __shfl_sync(0xffffffffu, mine, 8 * (lane % 2) + k, 16);
    bits |= ((theirs >> (lane / 2)) & 1u) << k;
  }
  return bits;
}

// The same for a thread by itself, at eight times the draws: its eight elements lie in one half
// each of eight neighbouring counters.
__device__ __forceinline__ uint32_t keep8_alone(const DropSite& d, int64_t first) {
  const int place = static_cast<int>(first % kDrawRow);
  const auto counter = static_cast<uint64_t>(first / kDrawRow * 16 + place % 16);
  uint32_t bits = 0;
#pragma unroll 1
  for (int k = 0; k < 8; ++k) bits |= ((keep_bits(d, counter + k) >> (place / 16)) & 1u) << k;
  return bits;
}
// A dropped element is +0 whatever its sign was.
__device__ __forceinline__ void drop8(Eight& x, uint32_t keep, float scale) {
#pragma unroll
  for (int k = 0; k < 8; ++k) x.v[k] = keep >> k & 1u ? __fmul_rn(x.v[k], scale) : 0.0f;
}

// Calls body(T{}) with T the element type of a dtype.
template <class Body>
auto with_type(DType dtype, const Body& body) {
  return dtype == DType::kBF16 ? body(bf16{}) : body(float{});
}

// A table that kernels read, in memory of the card.
template <class T>
Buffer to_card(CudaBackend& cuda, const std::vector<T>& values) {
  const size_t bytes = values.size() * sizeof(T);
  Buffer table = cuda.allocate(bytes);
  cuda.upload({table.data(), {static_cast<int64_t>(bytes)}, DType::kU8}, values.data());
  return table;
}

// Lets a kernel have `bytes` of dynamic shared memory, and as many blocks a processor as that
// allows: left alone, the driver may keep the memory for the cache.
template <class Kernel>
void allow_shared_memory(Kernel* kernel, size_t bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "asking for shared memory");
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "asking for shared memory");
}

// ---- programmatic dependent launch (sm_90): a kernel that begins while the one before it ends
// ----

// In the later one: until everything the earlier one wrote is there. Before it touches any memory.
__device__ __forceinline__ void wait_on_previous_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
// In the earlier one: once every block has come to this point, the later one may take its places.
__device__ __forceinline__ void trigger_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}
bool supports_pdl();  // whether the card that is in use has it

template <class... Params, class... Args>
void launch_pdl(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared,
                cudaStream_t stream, const Args&... args) {
  cudaLaunchAttribute early{.id = cudaLaunchAttributeProgrammaticStreamSerialization};
  early.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config{.gridDim = grid,
                                  .blockDim = block,
                                  .dynamicSmemBytes = shared,
                                  .stream = stream,
                                  .attrs = &early,
                                  .numAttrs = supports_pdl() ? 1u : 0u};
  check(cudaLaunchKernelEx(&config, kernel, Params(args)...), "launching a kernel");
}

// The launch is recorded or run when the kernel is launched; mistakes show there.
template <class... Params, class... Args>
KernelPtr launch_kernel(CudaBackend& cuda, void (*kernel)(Params...), dim3 grid, dim3 block,
                        size_t shared, Args... args) {
  return make_kernel(
      [=, stream = cuda.stream()] { kernel<<<grid, block, shared, stream>>>(args...); });
}
// `cluster` blocks at a time together; pdl: see wait_on_previous_grid().
template <class Args>
void launch_cluster(void (*kernel)(Args), int blocks, int cluster, int threads, size_t shared,
                    cudaStream_t stream, bool early, const Args& args) {
  cudaLaunchAttribute how[2] = {{.id = cudaLaunchAttributeClusterDimension},
                                {.id = cudaLaunchAttributeProgrammaticStreamSerialization}};
  how[0].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  how[1].val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config{.gridDim = static_cast<unsigned>(blocks),
                                  .blockDim = static_cast<unsigned>(threads),
                                  .dynamicSmemBytes = shared,
                                  .stream = stream,
                                  .attrs = how,
                                  .numAttrs = early ? 2u : 1u};
  check(cudaLaunchKernelEx(&config, kernel, args), "launching a kernel");
}
// As many clusters as the card holds at most.
template <class Args>
KernelPtr launch_clusters(CudaBackend& cuda, void (*kernel)(Args), int clusters, int cluster,
                          int threads, size_t shared, const Args& args) {
  allow_shared_memory(kernel, shared);
  const int blocks = std::min(clusters, cuda.processors() / cluster) * cluster;
  return make_kernel([=, stream = cuda.stream()] {
    launch_cluster(kernel, blocks, cluster, threads, shared, stream, /*early=*/false, args);
  });
}

}  // namespace vitrum::cuda
