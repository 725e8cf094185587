// Attention by mma.sync, for bf16 and heads of 8 to 192 values: one CTA a head of an image, K and V
// in shared memory (whole where they fit), 16 queries a warp, online softmax. A bias and a mask are
// read from global memory where scores are made. The backward pass recomputes scores twice, dq by
// queries and dk, dv by keys: two GEMMs more than the least, and no reduction between warps.
//
// The primitives it is written in have a second set for tests without a card.
#pragma once
#include "vitrum/cuda/attention/attention.cuh"
#include "vitrum/cuda/attention/choose.h"
#include "vitrum/cuda/primitives/activation.cuh"
#include "vitrum/cuda/primitives/fragments.cuh"

namespace vitrum::cuda::mma_sync {

constexpr int kRows = 16;     // of queries (or keys) that a warp takes at a time
constexpr int kMaxWarps = 8;  // a block
constexpr int kPad = 8;       // elements behind a row: ldmatrix then meets no bank twice
template <int kSteps>         // of 16 along the head
struct Head {
  static constexpr int kWidth = 16 * kSteps, kStride = kWidth + kPad;

  // Rows [first, first + count) into shared memory, zeros behind `tokens` and behind `size`.
  static __device__ void fill(bf16* to, Rows from, int first, int count, int tokens, int size) {
    constexpr int kVectors = kWidth / 8;
    for (int i = threadIdx.x; i < count * kVectors; i += blockDim.x) {
      const int row = i / kVectors, column = i % kVectors * 8;
      bf16* target = to + row * kStride + column;
      if (first + row < tokens && column < size)
        cp_async_16(target, from.data + (first + row) * from.stride + column);
      else
        *reinterpret_cast<uint4*>(target) = make_uint4(0, 0, 0, 0);
    }
  }

  // 16 rows from global memory as the left operand.
  static __device__ void load(FragmentA (&a)[kSteps], Rows from, int first, int tokens, int size) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first + g + i % 2 * 8, column = s * 16 + 2 * t + i / 2 * 8;
        const bool inside = row < tokens && column < size;
        a[s].r[i] = inside
                        ? *reinterpret_cast<const uint32_t*>(from.data + row * from.stride + column)
                        : 0u;
      }
  }

  // 16 rows of sums to global memory.
  static __device__ void store(bf16* to, int64_t stride, const Tile (&c)[2 * kSteps], float low,
                               float high, int first, int tokens, int size) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < 2 * kSteps; ++n) {
      const int column = n * 8 + 2 * t;
      if (column >= size) continue;
      if (first + g < tokens)
        *reinterpret_cast<uint32_t*>(to + (first + g) * stride + column) =
            pack2(c[n].v[0] * low, c[n].v[1] * low);
      if (first + g + 8 < tokens)
        *reinterpret_cast<uint32_t*>(to + (first + g + 8) * stride + column) =
            pack2(c[n].v[2] * high, c[n].v[3] * high);
    }
  }

  // (16 rows a) x (16 rows of m)^T, as two tiles.
  static __device__ void scores(Tile (&c)[2], const FragmentA (&a)[kSteps], const bf16* m,
                                int row) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const FragmentB b = load_rows_as_columns(m, kStride, row, 16 * s);
      mma_m16n8k16(c[0], a[s], b.r[0], b.r[1]);
      mma_m16n8k16(c[1], a[s], b.r[2], b.r[3]);
    }
  }
};

// The keep bits of rows [first, first + rows) of a head's attention weights, a byte for eight keys.
struct DropBits {
  uint8_t* bits;  // in shared memory; null: nothing is dropped
  int per_row;
  float scale;

  __device__ void draw(const DropSite& site, int64_t head, int tokens) const {
    if (!bits) return;
    for (int i = threadIdx.x; i < tokens * per_row; i += blockDim.x)
      bits[i] =
          static_cast<uint8_t>(keep_bits(site, static_cast<uint64_t>(head * tokens * per_row + i)));
  }
  __device__ float factor(int query, int key) const {
    if (!bits) return 1;
    return bits[query * per_row + key % per_row] >> (key / per_row) & 1 ? scale : 0;
  }
};

// What is added to the scores of a head, in units of q . k.
struct Offsets {
  const float *bias, *mask;  // (tokens, tokens) each; may be null
  int tokens;
  float unit;

  __device__ __forceinline__ Offsets(const AttentionArgs& args, int64_t image, int head)
      : bias(args.bias),
        mask(args.mask),
        tokens(args.shape.tokens),
        unit(sqrtf(static_cast<float>(args.shape.size))) {
    const int64_t square = int64_t{tokens} * tokens;
    if (bias) bias += head * square;
    if (mask) mask += image % args.masks * square;
  }
  // To scores of `query` with keys `key` + 8 n and the next one, which lie in half `half` of tile
  // n. Behind the last query its own row serves: nobody reads those scores.
  template <int kTiles>
  __device__ __forceinline__ void add(Tile (&s)[kTiles], int half, int query, int key) const {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const float* from = which == 0 ? bias : mask;
      if (!from) continue;
      from += int64_t{min(query, tokens - 1)} * tokens + key;
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (key + 8 * n + i < tokens)
            s[n].v[2 * half + i] = fmaf(unit, from[8 * n + i], s[n].v[2 * half + i]);
    }
  }
  // The same of scores that lie transposed: of `key` with queries `query` + 8 n and the next one.
  template <int kTiles>
  __device__ __forceinline__ void add_transposed(Tile (&s)[kTiles], int half, int query,
                                                 int key) const {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const float* from = which == 0 ? bias : mask;
      if (!from) continue;
      from += int64_t{query} * tokens + min(key, tokens - 1);
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (query + 8 * n + i < tokens)
            s[n].v[2 * half + i] = fmaf(unit, from[(8 * n + i) * tokens], s[n].v[2 * half + i]);
    }
  }
};

// ---- forward ----

constexpr int kChunk = 64;  // keys between two corrections of the running maximum

template <int kSteps>
struct ForwardState {
  FragmentA q[kSteps];
  Tile o[2 * kSteps];
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
};

// Up to 64 keys from `first` of the head, which are rows from `row` of shared memory.
template <bool kBiased, int kSteps>
__device__ void forward_chunk(ForwardState<kSteps>& st, const AttentionShape& shape, const bf16* k,
                              const bf16* v, int row, int first, int keys, float scale,
                              const DropBits& drop, const Offsets* offsets, int query) {
  using H = Head<kSteps>;
  const int t = threadIdx.x % kWarp % 4;
  Tile s[kChunk / 8];
#pragma unroll
  for (int j = 0; j < kChunk / 16; ++j)
    if (16 * j < keys) {
      Tile pair[2];
      H::scores(pair, st.q, k, row + 16 * j);
      s[2 * j] = pair[0], s[2 * j + 1] = pair[1];
    } else {
      s[2 * j].v[0] = s[2 * j].v[1] = s[2 * j].v[2] = s[2 * j].v[3] = -INFINITY;
      s[2 * j + 1] = s[2 * j];
    }
  if constexpr (kBiased)
#pragma unroll
    for (int half = 0; half < 2; ++half) offsets->add(s, half, query + 8 * half, first + 2 * t);
  if (first + keys > shape.tokens)
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (first + 8 * n + 2 * t + i % 2 >= shape.tokens) s[n].v[i] = -INFINITY;

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = st.top[half];
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n)
      top = fmaxf(top, fmaxf(s[n].v[2 * half], s[n].v[2 * half + 1]));
    top = quad_max(top);
    const float correction = exp2_approx((st.top[half] - top) * scale), shift = top * scale;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        sum += s[n].v[2 * half + i] = exp2_approx(fmaf(s[n].v[2 * half + i], scale, -shift));
    st.sum[half] = st.sum[half] * correction + sum;
    st.top[half] = top;
#pragma unroll
    for (int n = 0; n < 2 * kSteps; ++n)
      st.o[n].v[2 * half] *= correction, st.o[n].v[2 * half + 1] *= correction;
  }
  if (drop.bits)
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first + 8 * n + 2 * t + i % 2, row_query = query + i / 2 * 8;
        if (key < shape.tokens && row_query < shape.tokens)
          s[n].v[i] *= drop.factor(row_query, key);
      }
#pragma unroll
  for (int j = 0; j < kChunk / 16; ++j)
    if (16 * j < keys)
      add_product(st.o, as_operand(s[2 * j], s[2 * j + 1]), v, H::kStride, row + 16 * j);
}

template <int kSteps, bool kBiased>
__device__ __forceinline__ void forward(const AttentionArgs& args, const MmaSyncPlan& layout,
                                        std::byte* memory) {
  using H = Head<kSteps>;
  const AttentionShape shape = args.shape;
  const int image = blockIdx.x / shape.heads, head = blockIdx.x % shape.heads;
  auto* k = reinterpret_cast<bf16*>(memory);
  bf16* v = k + layout.rows * H::kStride;
  const DropBits drop{
      args.drop.rng ? reinterpret_cast<uint8_t*>(v + layout.rows * H::kStride) : nullptr,
      static_cast<int>(draws_per_row(shape.tokens)), args.drop.scale};
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
  drop.draw(args.drop, blockIdx.x, shape.tokens);
  if (drop.bits) __syncthreads();

  const Offsets offsets(args, image, head);
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int warps = blockDim.x / kWarp, tiles = layout.tokens16 / kRows;
  const float scale = rsqrtf(static_cast<float>(shape.size));
  // Every warp of the block makes the same number of rounds, for the sake of shared loads.
  for (int round = blockIdx.y * warps; round < tiles; round += gridDim.y * warps) {
    const int tile = round + threadIdx.x / kWarp, query = tile * kRows + g;
    ForwardState<kSteps> st;
    if (tile < tiles) H::load(st.q, part(0), tile * kRows, shape.tokens, shape.size);
    for (int base = 0; base < layout.tokens16; base += layout.rows) {
      if (!resident) {
        __syncthreads();
        fill(base);
      }
      const int end = min(layout.tokens16, base + layout.rows);
      if (tile < tiles)
        for (int first = base; first < end; first += kChunk)
          forward_chunk<kBiased>(st, shape, k, v, first - base, first, min(kChunk, end - first),
                                 scale * kLog2E, drop, &offsets, query);
    }
    if (tile >= tiles) continue;
    const float sum[2] = {quad_sum(st.sum[0]), quad_sum(st.sum[1])};
    auto* y = static_cast<bf16*>(args.out) + image * int64_t{shape.tokens} * shape.y_stride() +
              head * shape.size;
    if (args.out)
      H::store(y, shape.y_stride(), st.o, 1 / sum[0], 1 / sum[1], tile * kRows, shape.tokens,
               shape.size);
    for (int half = 0; half < 2; ++half)
      if (args.lse && t == 0 && query + 8 * half < shape.tokens)
        args.lse[int64_t{blockIdx.x} * shape.tokens + query + 8 * half] =
            st.top[half] * scale + logf(sum[half]);
  }
}

// ---- backward ----

// dq of 16 queries: for every 16 keys the weights, their gradient, and its product with the keys.
template <int kSteps>
struct QueryTile {
  using H = Head<kSteps>;
  FragmentA q[kSteps], dy[kSteps];
  Tile dq[2 * kSteps];
  float lse[2], delta[2];

  template <bool kBiased>
  __device__ void step(const AttentionShape& shape, const bf16* k, const bf16* v, int row,
                       int first, float scale, const DropBits& drop, const Offsets& offsets,
                       int query) {
    const int t = threadIdx.x % 4;
    Tile s[2], d[2];
    H::scores(s, q, k, row);
    H::scores(d, dy, v, row);
    if constexpr (kBiased)
#pragma unroll
      for (int half = 0; half < 2; ++half) offsets.add(s, half, query + 8 * half, first + 2 * t);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first + 8 * n + 2 * t + i % 2, half = i / 2;
        const bool inside = key < shape.tokens;
        const float p = inside ? exp2_approx(fmaf(s[n].v[i], scale, -lse[half])) : 0;
        float factor = 1;
        if (drop.bits && inside && query + 8 * half < shape.tokens)
          factor = drop.factor(query + 8 * half, key);
        s[n].v[i] = p * (factor * d[n].v[i] - delta[half]);
      }
    add_product(dq, as_operand(s[0], s[1]), k, H::kStride, row);
  }
};

// dk and dv of 16 keys, likewise over queries, with everything transposed.
template <int kSteps>
struct KeyTile {
  using H = Head<kSteps>;
  FragmentA k[kSteps], v[kSteps];
  Tile dk[2 * kSteps], dv[2 * kSteps];

  template <bool kBiased>
  __device__ void step(const AttentionShape& shape, const bf16* q, const bf16* dy, int row,
                       int first, float scale, const float* lse, const float* delta,
                       const DropBits& drop, const Offsets& offsets, int key) {
    const int t = threadIdx.x % 4;
    Tile s[2], d[2];
    H::scores(s, k, q, row);
    H::scores(d, v, dy, row);
    if constexpr (kBiased)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        offsets.add_transposed(s, half, first + 2 * t, key + 8 * half);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = first + 8 * n + 2 * t + i % 2;
        const float p = exp2_approx(fmaf(s[n].v[i], scale, -lse[query]));
        float factor = 1;
        if (drop.bits && query < shape.tokens && key + i / 2 * 8 < shape.tokens)
          factor = drop.factor(query, key + i / 2 * 8);
        s[n].v[i] = p * factor;
        d[n].v[i] = p * (factor * d[n].v[i] - delta[query]);
      }
    add_product(dv, as_operand(s[0], s[1]), dy, H::kStride, row);
    add_product(dk, as_operand(d[0], d[1]), q, H::kStride, row);
  }
};

template <int kSteps, bool kBiased>
__device__ __forceinline__ void backward(const AttentionArgs& args, const MmaSyncPlan& layout,
                                         std::byte* memory) {
  using H = Head<kSteps>;
  const AttentionShape shape = args.shape;
  const int image = blockIdx.x / shape.heads, head = blockIdx.x % shape.heads;
  auto* left = reinterpret_cast<bf16*>(memory);
  bf16* right = left + layout.rows * H::kStride;
  auto* lse = reinterpret_cast<float*>(right + layout.rows * H::kStride);
  float* delta = lse + layout.tokens16;
  const DropBits drop{args.drop.rng ? reinterpret_cast<uint8_t*>(delta + layout.tokens16) : nullptr,
                      static_cast<int>(draws_per_row(shape.tokens)), args.drop.scale};
  const BackwardViews at = backward_views(args, image, head);
  const auto fill = [&](Rows a, Rows b, int first) {
    const int count = min(layout.rows, layout.tokens16 - first);
    __syncthreads();
    H::fill(left, a, first, count, shape.tokens, shape.size);
    H::fill(right, b, first, count, shape.tokens, shape.size);
    cp_async_wait_all();
    __syncthreads();
  };
  constexpr int kLanes = kSteps <= 1   ? 2
                         : kSteps <= 2 ? 4
                         : kSteps <= 4 ? 8
                         : kSteps <= 8 ? 16
                                       : 32;
  row_terms<kLanes>(at, shape, args.lse + int64_t{blockIdx.x} * shape.tokens, layout.tokens16, lse,
                    delta);
  drop.draw(args.drop, blockIdx.x, shape.tokens);

  const Offsets offsets(args, image, head);
  const int g = threadIdx.x % kWarp / 4;
  const int warps = blockDim.x / kWarp, tiles = layout.tokens16 / kRows;
  const float scale = rsqrtf(static_cast<float>(shape.size)), scale_log2 = scale * kLog2E;
  const bool resident = layout.rows == layout.tokens16;
  const int start = blockIdx.y * warps, stride = gridDim.y * warps;

  if (resident) fill(at.k, at.v, 0);
  for (int round = start; round < tiles; round += stride) {
    const int tile = round + threadIdx.x / kWarp, query = tile * kRows + g;
    QueryTile<kSteps> own;
    if (tile < tiles) {
      H::load(own.q, at.q, tile * kRows, shape.tokens, shape.size);
      H::load(own.dy, at.dy, tile * kRows, shape.tokens, shape.size);
      if (!resident) __syncwarp();
    }
    for (int base = 0; base < layout.tokens16; base += layout.rows) {
      if (!resident) fill(at.k, at.v, base);
      if (tile >= tiles) continue;
      own.lse[0] = lse[query], own.lse[1] = lse[query + 8];
      own.delta[0] = delta[query], own.delta[1] = delta[query + 8];
      const int end = min(layout.tokens16, base + layout.rows);
      for (int first = base; first < end; first += 16)
        own.template step<kBiased>(shape, left, right, first - base, first, scale_log2, drop,
                                   offsets, query);
    }
    if (tile < tiles)
      H::store(at.dqkv, shape.qkv_stride(), own.dq, scale, scale, tile * kRows, shape.tokens,
               shape.size);
  }

  if (resident) fill(at.q, at.dy, 0);
  for (int round = start; round < tiles; round += stride) {
    const int tile = round + threadIdx.x / kWarp, key = tile * kRows + g;
    KeyTile<kSteps> own;
    if (tile < tiles) {
      H::load(own.k, at.k, tile * kRows, shape.tokens, shape.size);
      H::load(own.v, at.v, tile * kRows, shape.tokens, shape.size);
    }
    for (int base = 0; base < layout.tokens16; base += layout.rows) {
      if (!resident) fill(at.q, at.dy, base);
      if (tile >= tiles) continue;
      const int end = min(layout.tokens16, base + layout.rows);
      for (int first = base; first < end; first += 16)
        own.template step<kBiased>(shape, left, right, first - base, first, scale_log2, lse, delta,
                                   drop, offsets, key);
    }
    if (tile >= tiles) continue;
    H::store(at.dqkv + shape.y_stride(), shape.qkv_stride(), own.dk, scale, scale, tile * kRows,
             shape.tokens, shape.size);
    H::store(at.dqkv + 2 * shape.y_stride(), shape.qkv_stride(), own.dv, 1, 1, tile * kRows,
             shape.tokens, shape.size);
  }
}

}  // namespace vitrum::cuda::mma_sync
