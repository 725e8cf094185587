// Attention by WGMMA (sm_90a) for heads of 64 values without dropout: sequences longer than
// attention/chunked.cuh takes, or too few heads to fill the card. One CTA a head or, where heads
// are few, a tile of 64 queries; a warpgroup has 64 queries (backward also 64 keys) at a time. Few
// heads of 113 to 224 tokens: two warpgroups split the keys and combine.
#include <algorithm>

#include "vitrum/cuda/attention/wgmma.cuh"
#include "vitrum/cuda/host/tensor_map.h"
#include "vitrum/cuda/primitives/activation.cuh"

namespace vitrum::cuda {
namespace {

// The 16 x 64 sums of this warp, times a factor for either half of its rows.
__device__ __forceinline__ void store_rows(bf16* to, int64_t stride, const float (&d)[32],
                                           float low, float high, int row, int tokens) {
  const int column = 2 * (threadIdx.x % 4);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + 8 * half >= tokens) continue;
    bf16* target = to + (row + 8 * half) * stride + column;
    const float factor = half ? high : low;
#pragma unroll
    for (int n = 0; n < 8; ++n)
      *reinterpret_cast<uint32_t*>(target + 8 * n) =
          pack2(d[4 * n + 2 * half] * factor, d[4 * n + 2 * half + 1] * factor);
  }
}

// ---- forward: all scores of 64 queries with N keys at once ----

template <int N>
struct OnlineSoftmax {
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};

  // Scores become weights (not yet divided by their sum); earlier output is rescaled.
  __device__ __forceinline__ void apply(float (&s)[N / 2], float (&o)[32], float scale, int first,
                                        int tokens, bool only) {
    const int t = threadIdx.x % 4;
    if (first + N > tokens)
#pragma unroll
      for (int i = 0; i < N / 2; ++i)
        if (first + i / 4 * 8 + 2 * t + i % 2 >= tokens) s[i] = -INFINITY;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float highest = top[half];
#pragma unroll
      for (int i = 0; i < N / 2; i += 4)
        highest = fmaxf(highest, fmaxf(s[i + 2 * half], s[i + 2 * half + 1]));
      highest = quad_max(highest);
      const float shift = highest * scale;
      float added = 0;
#pragma unroll
      for (int i = 0; i < N / 2; i += 4)
#pragma unroll
        for (int k = 2 * half; k < 2 * half + 2; ++k) {
          s[i + k] = exp2_approx(fmaf(s[i + k], scale, -shift));
          added += s[i + k];
        }
      if (!only) {
        const float correction = exp2_approx((top[half] - highest) * scale);
        sum[half] *= correction;
#pragma unroll
        for (int n = 0; n < 8; ++n)
          o[4 * n + 2 * half] *= correction, o[4 * n + 2 * half + 1] *= correction;
      }
      sum[half] += added, top[half] = highest;
    }
  }
};

// The head of this block.
struct BlockHead {
  const AttentionArgs& args;
  AttentionShape shape = args.shape;
  int64_t image = blockIdx.x / shape.heads;
  int head = blockIdx.x % shape.heads;
  const bf16* qkv = static_cast<const bf16*>(args.qkv) + image * shape.tokens * shape.qkv_stride() +
                    head * shape.size;

  // Queries, keys or values.
  __device__ __forceinline__ Rows part(int which) const {
    return {qkv + which * shape.y_stride(), shape.qkv_stride()};
  }
  // What a thread has of rows `row` and `row` + 8.
  __device__ __forceinline__ void write(float (&o)[32], const float (&top)[2],
                                        const float (&sum)[2], float scale, int row,
                                        int thread) const {
    if (args.out)
      store_rows(static_cast<bf16*>(args.out) + image * shape.tokens * shape.y_stride() +
                     head * shape.size,
                 shape.y_stride(), o, 1 / sum[0], 1 / sum[1], row, shape.tokens);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (args.lse && thread % 4 == 0 && row + 8 * half < shape.tokens)
        args.lse[int64_t{blockIdx.x} * shape.tokens + row + 8 * half] =
            top[half] * scale + logf(sum[half]);
  }
};

template <int N>
__device__ void forward(const AttentionArgs& args) {
  const AttentionShape shape = args.shape;
  const int chunks = (shape.tokens + N - 1) / N, tiles = (shape.tokens + kTile - 1) / kTile;
  const int groups = blockDim.x / kGroup, group = threadIdx.x / kGroup,
            thread = threadIdx.x % kGroup;
  std::byte* k = aligned_memory();
  std::byte* v = k + chunks * N * kSwizzledRow;
  std::byte* q = v + chunks * N * kSwizzledRow + group * kTileBytes;
  const BlockHead own{args};
  const int start = blockIdx.y * groups + group, stride = gridDim.y * groups;
  trigger_dependents();
  wait_on_previous_grid();
  fill(k, own.part(1), 0, chunks * N, shape.tokens, threadIdx.x, blockDim.x);
  fill(v, own.part(2), 0, chunks * N, shape.tokens, threadIdx.x, blockDim.x);
  if (start < tiles) fill(q, own.part(0), start * kTile, kTile, shape.tokens, thread, kGroup);
  finish_fill();
  __syncthreads();

  const float scale = rsqrtf(static_cast<float>(kHead));
  const int g = thread % kWarp / 4, warp_row = thread / kWarp * 16 + g;
  for (int tile = start; tile < tiles; tile += stride) {
    OnlineSoftmax<N> softmax;
    float o[32];
    clear(o);
    const int row = tile * kTile + warp_row;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      float s[N / 2];
      wgmma_fence();
      issue_scores(s, q, k + chunk * N * kSwizzledRow);
      wgmma_commit();
      wgmma_wait<0>();
      fence_accumulators(s);
      if (chunk + 1 == chunks && tile + stride < tiles) {  // the next queries travel meanwhile
        sync_warpgroup(group);
        fill(q, own.part(0), (tile + stride) * kTile, kTile, shape.tokens, thread, kGroup);
      }
      softmax.apply(s, o, scale * kLog2E, chunk * N, shape.tokens, chunks == 1);
      FragmentA p[N / 16];
#pragma unroll
      for (int i = 0; i < N / 16; ++i) p[i] = operand_of(s + 8 * i);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < N / 16; ++i)
        wgmma_rs_bt(o, p[i], make_descriptor(v + (chunk * N + 16 * i) * kSwizzledRow));
      wgmma_commit();
      wgmma_wait<0>();
      fence_accumulators(o);
    }
    const float sum[2] = {quad_sum(softmax.sum[0]), quad_sum(softmax.sum[1])};
    own.write(o, softmax.top, sum, scale, row, thread);
    if (tile + stride < tiles) {
      finish_fill();
      sync_warpgroup(group);
    }
  }
}

// The same where heads are few: two warpgroups have the same 64 queries with N keys each, and the
// first adds up what they know: a thread's part of the output, two highest scores and two sums.
constexpr int kHalf = wgmma_limits::kHalf, kKnown = 36;
template <int N>
__device__ void forward_halves(const AttentionArgs& args) {
  const AttentionShape shape = args.shape;
  const int group = threadIdx.x / kGroup, thread = threadIdx.x % kGroup;
  std::byte* const k = aligned_memory();
  std::byte* const v = k + 2 * N * kSwizzledRow;
  std::byte* const q = v + 2 * N * kSwizzledRow;
  auto* const others = reinterpret_cast<float*>(q + kTileBytes) + thread;
  const int first = group * N;
  const BlockHead own{args};
  trigger_dependents();
  wait_on_previous_grid();
  fill(k + first * kSwizzledRow, own.part(1), first, N, shape.tokens, thread, kGroup);
  fill(q, own.part(0), blockIdx.y * kTile, kTile, shape.tokens, threadIdx.x, 2 * kGroup);
  fill(v + first * kSwizzledRow, own.part(2), first, N, shape.tokens, thread, kGroup);
  finish_fill();
  __syncthreads();

  const float scale = rsqrtf(static_cast<float>(kHead)), scale_log2 = scale * kLog2E;
  OnlineSoftmax<N> softmax;
  float s[N / 2], o[32];
  clear(o);
  wgmma_fence();
  issue_scores(s, q, k + first * kSwizzledRow);
  wgmma_commit();
  wgmma_wait<0>();
  fence_accumulators(s);
  softmax.apply(s, o, scale_log2, first, shape.tokens, /*only=*/true);
  FragmentA p[N / 16];
#pragma unroll
  for (int i = 0; i < N / 16; ++i) p[i] = operand_of(s + 8 * i);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < N / 16; ++i)
    wgmma_rs_bt(o, p[i], make_descriptor(v + (first + 16 * i) * kSwizzledRow));
  wgmma_commit();
  wgmma_wait<0>();
  fence_accumulators(o);
  if (group > 0) {
#pragma unroll
    for (int i = 0; i < 32; ++i) others[i * kGroup] = o[i];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      others[(32 + half) * kGroup] = softmax.top[half];
      others[(34 + half) * kGroup] = softmax.sum[half];
    }
  }
  __syncthreads();
  if (group > 0) return;
  const int row = blockIdx.y * kTile + thread / kWarp * 16 + thread % kWarp / 4;
  float sum[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float own = softmax.top[half], other = others[(32 + half) * kGroup],
                top = fmaxf(own, other);
    const float here = exp2_approx((own - top) * scale_log2),
                there = exp2_approx((other - top) * scale_log2);
    sum[half] = quad_sum(fmaf(softmax.sum[half], here, others[(34 + half) * kGroup] * there));
    softmax.top[half] = top;
#pragma unroll
    for (int i = 2 * half; i < 32; i += 4)
#pragma unroll
      for (int j = i; j < i + 2; ++j) o[j] = fmaf(o[j], here, others[j * kGroup] * there);
  }
  own.write(o, softmax.top, sum, scale, row, thread);
}

// ---- backward: 64 (at the end 16) columns at a time; see attention/mma_sync.cu for the two passes
// ----

// Calls step<N>(first) for chunks of 64 that cover `rows`, then of 16. A ViT's sequence is one
// token more than a multiple of 64, and a step costs much the same for fewer columns: there the
// last step takes 80.
template <class Step>
__device__ __forceinline__ void in_chunks(int rows, const Step& step) {
  int first = 0;
  for (; first + 64 <= rows && rows - first != 80; first += 64) step.template operator()<64>(first);
  if (rows - first == 80) step.template operator()<80>(first), first += 80;
  for (; first < rows; first += 16) step.template operator()<16>(first);
}

// Gradients of 64 queries by N keys from `first` on, whose rows begin at `k` and `v`.
template <int N>
__device__ __forceinline__ void query_step(float (&dq)[32], const std::byte* q, const std::byte* dy,
                                           const std::byte* k, const std::byte* v, int first,
                                           int tokens, float scale, const float (&lse)[2],
                                           const float (&delta)[2]) {
  float s[N / 2], d[N / 2];
  wgmma_fence();
  issue_scores(s, q, k);
  issue_scores(d, dy, v);
  wgmma_commit();
  wgmma_wait<0>();
  fence_accumulators(s), fence_accumulators(d), fence_accumulators(dq);
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const int half = i % 4 / 2;
    float p = exp2_approx(fmaf(s[i], scale, -lse[half]));
    if (first + N > tokens && first + i / 4 * 8 + 2 * t + i % 2 >= tokens) p = 0;
    d[i] = p * (d[i] - delta[half]);
  }
  FragmentA ds[N / 16];
#pragma unroll
  for (int i = 0; i < N / 16; ++i) ds[i] = operand_of(d + 8 * i);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < N / 16; ++i)
    wgmma_rs_bt(dq, ds[i], make_descriptor(k + 16 * i * kSwizzledRow));
  wgmma_commit();  // under way while the next scores are computed
}

// Gradients of 64 keys by N queries from `first` on.
template <int N>
__device__ __forceinline__ void key_step(float (&dk)[32], float (&dv)[32], const std::byte* k,
                                         const std::byte* v, const std::byte* q,
                                         const std::byte* dy, float scale, const float* lse,
                                         const float* delta) {
  float s[N / 2], d[N / 2];
  wgmma_fence();
  issue_scores(s, k, q);
  issue_scores(d, v, dy);
  wgmma_commit();
  wgmma_wait<0>();
  fence_accumulators(s), fence_accumulators(d), fence_accumulators(dk), fence_accumulators(dv);
  const int t = threadIdx.x % 4;
  FragmentA p[N / 16], ds[N / 16];
#pragma unroll
  for (int j = 0; j < N / 8; ++j) {
    const float2 l = *reinterpret_cast<const float2*>(lse + 8 * j + 2 * t),
                 e = *reinterpret_cast<const float2*>(delta + 8 * j + 2 * t);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* own = s + 4 * j + 2 * half;
      float* grad = d + 4 * j + 2 * half;
      own[0] = exp2_approx(fmaf(own[0], scale, -l.x));
      own[1] = exp2_approx(fmaf(own[1], scale, -l.y));
      p[j / 2].r[j % 2 * 2 + half] = pack2(own[0], own[1]);
      ds[j / 2].r[j % 2 * 2 + half] = pack2(own[0] * (grad[0] - e.x), own[1] * (grad[1] - e.y));
    }
  }
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < N / 16; ++i) {
    wgmma_rs_bt(dv, p[i], make_descriptor(dy + 16 * i * kSwizzledRow));
    wgmma_rs_bt(dk, ds[i], make_descriptor(q + 16 * i * kSwizzledRow));
  }
  wgmma_commit();
  wgmma_wait<0>();
  fence_accumulators(dk), fence_accumulators(dv);
}

// Two operands of a head lie in shared memory as a whole, of the others a tile for each warpgroup.
struct BackwardMemory {
  std::byte* whole[2];  // keys and values, then queries and dy
  std::byte* tiles;
  float *lse, *delta;

  __device__ BackwardMemory(int rows, int tile_count, int groups)
      : whole{aligned_memory(), aligned_memory() + rows * kSwizzledRow},
        tiles(whole[1] + rows * kSwizzledRow),
        lse(reinterpret_cast<float*>(tiles + 2 * groups * kTileBytes)),
        delta(lse + tile_count * kTile) {}
};

__device__ void backward(const AttentionArgs& args) {
  const AttentionShape shape = args.shape;
  const int rows = (shape.tokens + 15) / 16 * 16, tiles = (shape.tokens + kTile - 1) / kTile;
  const int groups = blockDim.x / kGroup, group = threadIdx.x / kGroup,
            thread = threadIdx.x % kGroup;
  const BackwardMemory memory(rows, tiles, groups);
  const BackwardViews at =
      backward_views(args, blockIdx.x / shape.heads, static_cast<int>(blockIdx.x % shape.heads));
  const int start = blockIdx.y * groups + group, stride = gridDim.y * groups;
  const float scale = rsqrtf(static_cast<float>(kHead)), scale_log2 = scale * kLog2E;
  const int warp_row = thread / kWarp * 16 + thread % kWarp / 4;
  const auto fill_whole = [&](Rows a, Rows b) {
    fill(memory.whole[0], a, 0, rows, shape.tokens, threadIdx.x, blockDim.x);
    fill(memory.whole[1], b, 0, rows, shape.tokens, threadIdx.x, blockDim.x);
  };
  std::byte* const own[2] = {memory.tiles + 2 * group * kTileBytes,
                             memory.tiles + (2 * group + 1) * kTileBytes};
  const auto fill_tile = [&](Rows a, Rows b, int tile) {
    if (tile >= tiles) return;
    fill(own[0], a, tile * kTile, kTile, shape.tokens, thread, kGroup);
    fill(own[1], b, tile * kTile, kTile, shape.tokens, thread, kGroup);
  };
  const auto tile_ready = [&] {
    finish_fill();
    sync_warpgroup(group);
  };
  const auto whole_at = [&](int i, int first) { return memory.whole[i] + first * kSwizzledRow; };

  fill_whole(at.k, at.v);
  fill_tile(at.q, at.dy, start);
  row_terms<8>(at, shape, args.lse + int64_t{blockIdx.x} * shape.tokens, tiles * kTile, memory.lse,
               memory.delta);
  finish_fill();
  __syncthreads();
  for (int tile = start; tile < tiles; tile += stride) {
    float dq[32];
    clear(dq);
    const int row = tile * kTile + warp_row;
    const float lse[2] = {memory.lse[row], memory.lse[row + 8]},
                delta[2] = {memory.delta[row], memory.delta[row + 8]};
    in_chunks(rows, [&]<int N>(int first) {
      query_step<N>(dq, own[0], own[1], whole_at(0, first), whole_at(1, first), first, shape.tokens,
                    scale_log2, lse, delta);
    });
    wgmma_wait<0>();
    fence_accumulators(dq);
    sync_warpgroup(group);
    fill_tile(at.q, at.dy, tile + stride);
    store_rows(at.dqkv, shape.qkv_stride(), dq, scale, scale, row, shape.tokens);
    tile_ready();
  }

  __syncthreads();
  fill_whole(at.q, at.dy);
  fill_tile(at.k, at.v, start);
  finish_fill();
  __syncthreads();
  for (int tile = start; tile < tiles; tile += stride) {
    float dk[32], dv[32];
    clear(dk), clear(dv);
    const int row = tile * kTile + warp_row;
    in_chunks(rows, [&]<int N>(int first) {
      key_step<N>(dk, dv, own[0], own[1], whole_at(0, first), whole_at(1, first), scale_log2,
                  memory.lse + first, memory.delta + first);
    });
    sync_warpgroup(group);
    fill_tile(at.k, at.v, tile + stride);
    store_rows(at.dqkv + shape.y_stride(), shape.qkv_stride(), dk, scale, scale, row, shape.tokens);
    store_rows(at.dqkv + 2 * shape.y_stride(), shape.qkv_stride(), dv, 1, 1, row, shape.tokens);
    tile_ready();
  }
}

// ---- lowering ----

template <int N>
__global__ void __launch_bounds__(3 * kGroup) forward_kernel([[maybe_unused]] AttentionArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  forward<N>(args);
#endif
}

__global__ void __launch_bounds__(2 * kGroup) halves_kernel([[maybe_unused]] AttentionArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  forward_halves<kHalf>(args);
#endif
}

// Two warpgroups a processor with the registers they want were as fast as three without.
__global__ void __launch_bounds__(2 * kGroup) backward_kernel([[maybe_unused]] AttentionArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  backward(args);
#endif
}

template <int N>
KernelPtr forward_with(CudaBackend& cuda, const AttentionArgs& args, int64_t heads,
                       const WgmmaPlan& plan) {
  allow_shared_memory(forward_kernel<N>, plan.bytes);
  return make_kernel([=, stream = cuda.stream()] {
    launch_pdl(forward_kernel<N>, dim3(static_cast<unsigned>(heads), plan.blocks_a_head),
               dim3(static_cast<unsigned>(plan.groups * kGroup)), plan.bytes, stream, args);
  });
}

KernelPtr forward_in_halves(CudaBackend& cuda, const AttentionArgs& args, int64_t heads) {
  constexpr size_t kBytes = 4 * kHalf * kSwizzledRow + kTileBytes +
                            kKnown * kGroup * sizeof(float) + wgmma_limits::kSlack;
  allow_shared_memory(halves_kernel, kBytes);
  const dim3 grid(static_cast<unsigned>(heads), blocks_for(args.shape.tokens, kTile));
  return make_kernel([=, stream = cuda.stream()] {
    launch_pdl(halves_kernel, grid, dim3(2 * kGroup), kBytes, stream, args);
  });
}

}  // namespace

KernelPtr wgmma_attention(CudaBackend& cuda, const AttentionArgs& args, int64_t images,
                          const WgmmaPlan& plan) {
  const int64_t heads = images * args.shape.heads;
  if (plan.splits_keys) return forward_in_halves(cuda, args, heads);
  return plan.keys == 208 ? forward_with<208>(cuda, args, heads, plan)
                          : forward_with<144>(cuda, args, heads, plan);
}

KernelPtr wgmma_attention_bwd(CudaBackend& cuda, const AttentionArgs& args, int64_t images,
                              const WgmmaPlan& plan) {
  allow_shared_memory(backward_kernel, plan.bytes);
  const dim3 grid(static_cast<unsigned>(images * args.shape.heads), plan.blocks_a_head);
  return launch_kernel(cuda, backward_kernel, grid,
                       dim3(static_cast<unsigned>(plan.groups * kGroup)), plan.bytes, args);
}

}  // namespace vitrum::cuda
