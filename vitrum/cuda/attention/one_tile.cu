// Forward; see attention/one_tile.cuh.
#include "vitrum/cuda/attention/one_tile.cuh"

namespace vitrum::cuda {
namespace {

// q, k and v of an image, and of the next one on their way.
template <bool kExtraToken>
struct Forward : OneTile<kExtraToken> {
  using Base = OneTile<kExtraToken>;
  using Base::kKeys, Base::kMatrix, Base::kRows, Base::kSteps, Base::lane;
  static constexpr size_t kBytes = size_t{6} * kMatrix + (kExtraToken ? kRows * sizeof(bf16) : 0);
  std::byte *q, *k, *v;
  bf16* last_p;  // of the last query to every key

  __device__ __forceinline__ Forward(std::byte* memory, int buffer, int count)
      : Base{kExtraToken ? kLast + 1 : count} {
    memory += opaque(0);
    last_p = reinterpret_cast<bf16*>(memory + 6 * kMatrix);
    q = memory + 3 * buffer * kMatrix, k = q + kMatrix, v = k + kMatrix;
  }
  __device__ __forceinline__ void main_warps(bf16* out, float* lse, int stride) const {
    const int row = this->thread / kWarp * 16;
    float s[kKeys / 2], o[32];
    wgmma_fence();
    issue_scores(s, q, k);
    wgmma_commit();
    wgmma_wait<0>();
    fence_accumulators(s);
    this->fill_behind(s, -INFINITY);
    float top[2], sum[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = -INFINITY, sum[half] = 0;
#pragma unroll
      for (int i = 2 * half; i < kKeys / 2; i += 4)
        top[half] = fmaxf(top[half], fmaxf(s[i], s[i + 1]));
      top[half] = quad_max(top[half]) * kScale;
#pragma unroll
      for (int i = 2 * half; i < kKeys / 2; i += i % 2 ? 3 : 1)
        sum[half] += s[i] = exp2_approx(fmaf(s[i], kScale * kLog2E, -top[half] * kLog2E));
      sum[half] = quad_sum(sum[half]);
    }
    FragmentA parts[kSteps];
    Base::pack_all(parts, s);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
      wgmma_rs_bt(o, parts[i], make_descriptor(v + 16 * i * kSwizzledRow), i > 0);
    wgmma_commit();
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (const int at = row + lane / 4 + 8 * half; lse && lane % 4 == 0 && at < this->tokens)
        lse[at] = top[half] + logf(sum[half]);
    const float factor[2] = {1 / sum[0], 1 / sum[1]};
    wgmma_wait<0>();
    fence_accumulators(o);
#pragma unroll
    for (int i = 0; i < 32; ++i) o[i] *= factor[i % 4 / 2];
    sync_warpgroup(0);  // the queries have been used
    this->stage(q, o, row);
    if (out) this->store(out, stride, q, row);
  }
  __device__ __forceinline__ void last_token_warp(bf16* out, float* lse, int stride) const {
    const int g = lane / 4, t = lane % 4;
    Tile s[5], o[4];
#pragma unroll 1
    for (int step = 0; step < kScoreSteps; ++step) {
      const OneColumn of_q(q + kLast * kSwizzledRow + 32 * step, lane);
#pragma unroll
      for (int m = 0; m < 5; ++m) add_dots(s[m], k, m, step, of_q, lane);
    }
    const auto real = [&](int m, int i) { return t == 0 && (m < 4 || (g == 0 && i == 0)); };
    float top = -INFINITY, sum = 0;
#pragma unroll
    for (int m = 0; m < 5; ++m)
#pragma unroll
      for (int i = 0; i < 4; i += 2)
        if (real(m, i)) top = fmaxf(top, s[m].v[i]);
    top = warp_max(top) * kScale;
#pragma unroll
    for (int m = 0; m < 5; ++m)
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const float p = exp2_approx(fmaf(s[m].v[i], kScale * kLog2E, -top * kLog2E));
        if (!real(m, i)) continue;
        sum += p;
        last_p[16 * m + g + 4 * i] = __float2bfloat16_rn(p);
      }
    sum = warp_sum(sum);
    if (lse && lane == 0) lse[kLast] = top + logf(sum);
    __syncwarp();
#pragma unroll 1
    for (int step = 0; step < 5; ++step) {
      const OneColumn of_p(last_p + 16 * step, lane);
#pragma unroll
      for (int m = 0; m < 4; ++m) add_rows(o[m], v, 16 * step, m, of_p.low, of_p.high, lane);
    }
    if (t == 0)
#pragma unroll
      for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          this->put_last(q, 16 * m + g + 8 * half, o[m].v[2 * half] / sum);
    __syncwarp();
    if (out) this->store_last(out, stride, q);
  }
};

template <bool kExtraToken>
__device__ __forceinline__ void forward(const PersistentArgs& args) {
  using Work = Forward<kExtraToken>;
  std::byte* const memory = tile_memory();
  const AttentionShape shape = args.attention.shape;
  const int head = blockIdx.x % shape.heads, part = blockIdx.x / shape.heads,
            stride = static_cast<int>(shape.y_stride());
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarp, 0);
  if (kExtraToken) clear_memory(memory, Work::kBytes);
  const auto read = [&](int64_t image, int buffer) {
    const auto at = [&](int i) { return memory + (3 * buffer + i) * Work::kMatrix; };
    if (image < 0 || warp == 4) return;
    const int thread = opaque(threadIdx.x);
    const auto* q = static_cast<const bf16*>(args.attention.qkv) +
                    image * shape.tokens * shape.qkv_stride() + head * kHead;
#pragma unroll
    for (int i = 0; i < 3; ++i)
      Work::read(at(i), {q + i * shape.y_stride(), shape.qkv_stride()}, shape.tokens, thread);
  };
  const int64_t start = reversed_index(part, args.images);
  read(start, 0);
  int buffer = 0;
  for (int64_t image = start; image >= 0; image -= args.parts) {
    finish_fill();
    Work::template sync_all<kLoaded>();
    read(image - args.parts, 1 - buffer);
    const Work work(memory, buffer, shape.tokens);
    bf16* out = static_cast<bf16*>(args.attention.out);
    if (out) out += image * shape.tokens * shape.y_stride() + head * kHead;
    float* lse = args.attention.lse;
    if (lse) lse += (image * shape.heads + head) * shape.tokens;
    if (warp < 4)
      work.main_warps(out, lse, stride);
    else if (kExtraToken)
      work.last_token_warp(out, lse, stride);
    buffer = 1 - buffer;
  }
}

template <bool kExtraToken>
__global__ void __launch_bounds__(OneTile<kExtraToken>::kThreads, kTileBlocks<kExtraToken>)
    one_tile_forward([[maybe_unused]] PersistentArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  forward<kExtraToken>(args);
#endif
}

template <bool kExtraToken>
KernelPtr launch(CudaBackend& cuda, const AttentionArgs& args, int64_t images) {
  constexpr size_t kBytes = Forward<kExtraToken>::kBytes;
  allow_shared_memory(one_tile_forward<kExtraToken>, kBytes);
  const int64_t parts = persistent_parts(cuda, kTileBlocks<kExtraToken>, args.shape.heads, images);
  return launch_kernel(
      cuda, one_tile_forward<kExtraToken>, dim3(static_cast<unsigned>(parts * args.shape.heads)),
      dim3(OneTile<kExtraToken>::kThreads), kBytes, PersistentArgs{args, nullptr, images, parts});
}

}  // namespace

KernelPtr one_tile_attention(CudaBackend& cuda, const AttentionArgs& args, int64_t images) {
  return args.shape.tokens > kLast ? launch<true>(cuda, args, images)
                                   : launch<false>(cuda, args, images);
}

}  // namespace vitrum::cuda
