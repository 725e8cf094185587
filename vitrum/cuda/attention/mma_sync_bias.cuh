// The gradient of attention's bias by mma.sync, beside the backward pass of attention/mma_sync.cuh:
// dbias (H, T, T) is the sum of the scores' gradients over all images. A CTA has a tile of 64
// queries x 64 keys of one head, goes through its part of the images in order and keeps the sums in
// registers; a second kernel adds the parts up in order. No atomics: the same bits every time.
//
// The primitives it is written in have a second set for tests without a card.
#pragma once
#include "vitrum/cuda/attention/mma_sync.cuh"

namespace vitrum::cuda::mma_sync {

constexpr int kBiasTile = 64, kBiasThreads = kBiasTile / kRows * kWarp;

struct BiasArgs {
  AttentionArgs attention;
  float* sums;  // (parts, H, T, T)
  int64_t images, parts;

  __host__ __device__ int tiles() const {  // along either side
    return (attention.shape.tokens + kBiasTile - 1) / kBiasTile;
  }
};

// Keys and values of a tile, then keep bits of its queries.
template <int kSteps>
size_t bias_bytes(const AttentionShape& shape, bool drops) {
  const size_t bits = drops ? static_cast<size_t>(kBiasTile * draws_per_row(shape.tokens)) : 0;
  return size_t{2} * kBiasTile * Head<kSteps>::kStride * sizeof(bf16) + bits;
}

// The products of two fragments' rows g and g + 8.
template <int kSteps>
__device__ __forceinline__ void row_dots(float (&dots)[2], const FragmentA (&a)[kSteps],
                                         const FragmentA (&b)[kSteps]) {
  const auto low = [](uint32_t x) { return __uint_as_float(x << 16); };
  const auto high = [](uint32_t x) { return __uint_as_float(x & 0xffff0000u); };
  dots[0] = dots[1] = 0;
#pragma unroll
  for (int s = 0; s < kSteps; ++s)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t x = a[s].r[i], y = b[s].r[i];
      dots[i % 2] = fmaf(high(x), high(y), fmaf(low(x), low(y), dots[i % 2]));
    }
  dots[0] = quad_sum(dots[0]), dots[1] = quad_sum(dots[1]);
}

// A CTA's tile, and the part of it that a warp has: 16 queries with all of the keys.
template <int kSteps>
struct BiasTile {
  using H = Head<kSteps>;
  const BiasArgs& g;
  AttentionShape shape = g.attention.shape;
  int head, query, key;  // the tile's first
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  int row = query + static_cast<int>(threadIdx.x) / kWarp * kRows + lane / 4;  // and row + 8
  Tile sums[kBiasTile / 8] = {};

  // The keep bits of the tile's queries.
  __device__ void draw(const DropBits& drop, int64_t image) const {
    if (!drop.bits) return;
    const int64_t first =
        ((image * shape.heads + head) * shape.tokens + query) * int64_t{drop.per_row};
    for (int i = static_cast<int>(threadIdx.x); i < kBiasTile * drop.per_row; i += kBiasThreads)
      drop.bits[i] =
          static_cast<uint8_t>(keep_bits(g.attention.drop, static_cast<uint64_t>(first + i)));
  }

  __device__ void add_image(int64_t image, bf16* k, bf16* v, const DropBits& drop) {
    const BackwardViews at = backward_views(g.attention, image, head);
    const int tokens = shape.tokens, size = shape.size, first = row - lane / 4;
    __syncthreads();  // the image before has been used
    H::fill(k, at.k, key, kBiasTile, tokens, size);
    H::fill(v, at.v, key, kBiasTile, tokens, size);
    draw(drop, image);
    FragmentA q[kSteps], dy[kSteps], y[kSteps];
    H::load(q, at.q, first, tokens, size);
    H::load(dy, at.dy, first, tokens, size);
    H::load(y, at.y, first, tokens, size);
    float lse[2], delta[2];
    row_dots(delta, dy, y);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      lse[half] =
          row + 8 * half < tokens
              ? g.attention.lse[(image * shape.heads + head) * tokens + row + 8 * half] * kLog2E
              : INFINITY;
    cp_async_wait_all();
    __syncthreads();
    const Offsets offsets(g.attention, image, head);
    const float scale = rsqrtf(static_cast<float>(size)) * kLog2E;
#pragma unroll
    for (int j = 0; j < kBiasTile / 16; ++j) {
      Tile s[2], d[2];
      H::scores(s, q, k, 16 * j);
      H::scores(d, dy, v, 16 * j);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        offsets.add(s, half, row + 8 * half, key + 16 * j + lane % 4 * 2);
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int to = key + 16 * j + 8 * n + lane % 4 * 2 + i % 2, half = i / 2,
                    from = row + 8 * half;
          if (to >= tokens || from >= tokens) continue;
          const float p = exp2_approx(fmaf(s[n].v[i], scale, -lse[half]));
          const float factor = drop.factor(from - query, to);
          sums[2 * j + n].v[i] += p * (factor * d[n].v[i] - delta[half]);
        }
    }
  }

  __device__ void write(int64_t part) const {
    const int tokens = shape.tokens;
    float* const to = g.sums + (part * shape.heads + head) * tokens * tokens;
#pragma unroll
    for (int n = 0; n < kBiasTile / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int from = row + i / 2 * 8, column = key + 8 * n + lane % 4 * 2 + i % 2;
        if (from < tokens && column < tokens) to[int64_t{from} * tokens + column] = sums[n].v[i];
      }
  }
};

template <int kSteps>
__device__ __forceinline__ void bias_gradient(const BiasArgs& g, std::byte* memory) {
  const int tiles = g.tiles(), heads = g.attention.shape.heads;
  const int place = static_cast<int>(blockIdx.x) % (tiles * tiles);
  const int of_part = static_cast<int>(blockIdx.x) / (tiles * tiles);
  const int64_t part = of_part / heads, each = (g.images + g.parts - 1) / g.parts,
                last = part * each + each < g.images ? part * each + each : g.images;
  auto* k = reinterpret_cast<bf16*>(memory);
  bf16* v = k + kBiasTile * Head<kSteps>::kStride;
  const DropBits drop{
      g.attention.drop.rng ? reinterpret_cast<uint8_t*>(v + kBiasTile * Head<kSteps>::kStride)
                           : nullptr,
      static_cast<int>(draws_per_row(g.attention.shape.tokens)), g.attention.drop.scale};
  BiasTile<kSteps> tile{.g = g,
                        .head = of_part % heads,
                        .query = place / tiles * kBiasTile,
                        .key = place % tiles * kBiasTile};
  for (int64_t image = part * each; image < last; ++image) tile.add_image(image, k, v, drop);
  tile.write(part);
}

}  // namespace vitrum::cuda::mma_sync
