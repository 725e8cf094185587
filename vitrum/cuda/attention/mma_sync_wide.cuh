// Forward of attention/mma_sync.cuh with 32 queries a warp: what is read of K and V from shared
// memory, whose bandwidth bounds products of 16 queries, goes into two products each. Without
// dropout, and where there are many heads.
//
// The primitives it is written in have a second set for tests without a card.
#pragma once
#include "vitrum/cuda/attention/mma_sync.cuh"

namespace vitrum::cuda::mma_sync {

constexpr int kWideRows = 2 * kRows, kWideWarps = 4;

template <int kSteps>
struct WideState {
  FragmentA q[2][kSteps];
  Tile o[2][2 * kSteps];
  float top[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}}, sum[2][2] = {};
};

// Scores s of 16 queries to weights yet to be divided by their sum; o so far gets the same scale.
template <int kTiles>
__device__ __forceinline__ void soften(Tile (&s)[kChunk / 8], Tile (&o)[kTiles], float (&top)[2],
                                       float (&sum)[2], float scale) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float highest = top[half];
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n)
      highest = fmaxf(highest, fmaxf(s[n].v[2 * half], s[n].v[2 * half + 1]));
    highest = quad_max(highest);
    const float correction = exp2_approx((top[half] - highest) * scale), shift = highest * scale;
    float all = 0;
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        all += s[n].v[2 * half + i] = exp2_approx(fmaf(s[n].v[2 * half + i], scale, -shift));
    sum[half] = fmaf(sum[half], correction, all), top[half] = highest;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
      o[n].v[2 * half] *= correction, o[n].v[2 * half + 1] *= correction;
  }
}

// Up to 64 keys from `first` of the head, which are rows from `row` of shared memory.
template <bool kBiased, int kSteps>
__device__ __forceinline__ void wide_chunk(WideState<kSteps>& st, const AttentionShape& shape,
                                           const bf16* k, const bf16* v, int row, int first,
                                           int keys, float scale, const Offsets& offsets,
                                           int query) {
  using H = Head<kSteps>;
  const int t = threadIdx.x % kWarp % 4;
  Tile s[2][kChunk / 8];
#pragma unroll
  for (int j = 0; j < kChunk / 16; ++j) {
    if (16 * j >= keys) continue;  // all of it is behind the last token
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const FragmentB b = load_rows_as_columns(k, H::kStride, row + 16 * j, 16 * step);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        mma_m16n8k16(s[tile][2 * j], st.q[tile][step], b.r[0], b.r[1]);
        mma_m16n8k16(s[tile][2 * j + 1], st.q[tile][step], b.r[2], b.r[3]);
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    if constexpr (kBiased)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        offsets.add(s[tile], half, query + kRows * tile + 8 * half, first + 2 * t);
    if (first + kChunk > shape.tokens)
#pragma unroll
      for (int n = 0; n < kChunk / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (first + 8 * n + 2 * t + i % 2 >= shape.tokens) s[tile][n].v[i] = -INFINITY;
    soften(s[tile], st.o[tile], st.top[tile], st.sum[tile], scale);
  }
#pragma unroll
  for (int j = 0; j < kChunk / 16; ++j) {
    if (16 * j >= keys) continue;
    const FragmentA p[2] = {as_operand(s[0][2 * j], s[0][2 * j + 1]),
                            as_operand(s[1][2 * j], s[1][2 * j + 1])};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const FragmentB b = load_rows(v, H::kStride, row + 16 * j, 16 * step);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        mma_m16n8k16(st.o[tile][2 * step], p[tile], b.r[0], b.r[1]);
        mma_m16n8k16(st.o[tile][2 * step + 1], p[tile], b.r[2], b.r[3]);
      }
    }
  }
}

template <int kSteps, bool kBiased>
__device__ __forceinline__ void wide_forward(const AttentionArgs& args, const MmaSyncPlan& layout,
                                             std::byte* memory) {
  using H = Head<kSteps>;
  const AttentionShape shape = args.shape;
  const int image = blockIdx.x / shape.heads, head = blockIdx.x % shape.heads;
  auto* k = reinterpret_cast<bf16*>(memory);
  bf16* v = k + layout.rows * H::kStride;
  const auto* qkv = static_cast<const bf16*>(args.qkv) +
                    image * int64_t{shape.tokens} * shape.qkv_stride() + head * shape.size;
  const auto part = [&](int which) {
    return Rows{qkv + which * shape.y_stride(), shape.qkv_stride()};
  };
  const auto fill = [&](int first) {
    const int count = min(layout.rows, layout.tokens16 - first);
    H::fill(k, part(1), first, count, shape.tokens, shape.size);
    H::fill(v, part(2), first, count, shape.tokens, shape.size);
    cp_async_wait_all();
    __syncthreads();
  };
  const bool resident = layout.rows == layout.tokens16;
  if (resident) fill(0);
  const Offsets offsets(args, image, head);
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int warps = blockDim.x / kWarp, tiles = (layout.tokens16 + kWideRows - 1) / kWideRows;
  const float scale = rsqrtf(static_cast<float>(shape.size));
  // Every warp of the block makes the same number of rounds, for the sake of shared loads.
  for (int round = 0; round < tiles; round += warps) {
    const int tile = round + threadIdx.x / kWarp, query = tile * kWideRows + g;
    WideState<kSteps> st;
    if (tile < tiles)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        H::load(st.q[i], part(0), tile * kWideRows + i * kRows, shape.tokens, shape.size);
    for (int base = 0; base < layout.tokens16; base += layout.rows) {
      if (!resident) {
        __syncthreads();
        fill(base);
      }
      const int end = min(layout.tokens16, base + layout.rows);
      if (tile < tiles)
        for (int first = base; first < end; first += kChunk)
          wide_chunk<kBiased>(st, shape, k, v, first - base, first, min(kChunk, end - first),
                              scale * kLog2E, offsets, query);
    }
    if (tile >= tiles) continue;
    auto* y = static_cast<bf16*>(args.out) + image * int64_t{shape.tokens} * shape.y_stride() +
              head * shape.size;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum[2] = {quad_sum(st.sum[i][0]), quad_sum(st.sum[i][1])};
      if (args.out)
        H::store(y, shape.y_stride(), st.o[i], 1 / sum[0], 1 / sum[1], tile * kWideRows + i * kRows,
                 shape.tokens, shape.size);
      for (int half = 0; half < 2; ++half)
        if (const int row = query + i * kRows + 8 * half; args.lse && t == 0 && row < shape.tokens)
          args.lse[int64_t{blockIdx.x} * shape.tokens + row] =
              st.top[i][half] * scale + logf(sum[half]);
    }
  }
}

}  // namespace vitrum::cuda::mma_sync
