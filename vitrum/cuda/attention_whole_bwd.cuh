// What gradients of whole heads are made of; see attention_whole_bwd.cu.
#pragma once
#include "vitrum/cuda/attention_whole.cuh"
#include "vitrum/cuda/columns.cuh"

namespace vitrum::cuda {

constexpr int kWarps = kGroups * 4, kHeadThreads = (kGroups + 1) * kGroup;
constexpr int kStaging = 8 * kSwizzledRow;  // bytes of a warp

// What a row of scores needs to know, in shared memory: -lse log2 e, and delta, which is dy . y.
// Behind the last token such that weights become 0.
struct Terms {
  float *lse, *delta;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Those of `rows` queries, a multiple of 16, by one warpgroup.
__device__ __forceinline__ void put_terms(const AttentionArgs& a, int image, int head, int rows,
                                          const Terms& to) {
  constexpr int kAhead = 2;  // rows a thread reads before it uses any
  const int thread = threadIdx.x % kGroup;
  const int tokens = a.shape.tokens, stride = static_cast<int>(a.shape.y_stride());
  const int64_t first = int64_t{image} * tokens * stride + head * kHead + thread % 8 * 8;
  const float* lse = a.lse + (int64_t{image} * a.shape.heads + head) * tokens;
  for (int top = thread / 8; top < rows; top += kAhead * (kGroup / 8)) {
    uint4 y[kAhead] = {}, dy[kAhead] = {};
    float of_row[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int row = top + i * (kGroup / 8);
      of_row[i] = INFINITY;
      if (row >= tokens) continue;
      const int64_t at = first + row * stride;
      y[i] = *reinterpret_cast<const uint4*>(static_cast<const bf16*>(a.y) + at);
      dy[i] = *reinterpret_cast<const uint4*>(static_cast<const bf16*>(a.dy) + at);
      of_row[i] = lse[row];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int row = top + i * (kGroup / 8);
      const Eight x = unpack8(dy[i]), z = unpack8(y[i]);
      float sum = 0;
#pragma unroll
      for (int k = 0; k < 8; ++k) sum = fmaf(x.v[k], z.v[k], sum);
#pragma unroll
      for (int other = 4; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
      if (thread % 8 == 0 && row < rows) to.lse[row] = -kLog2E * of_row[i], to.delta[row] = sum;
    }
  }
}

// Calls step<N>(first) for chunks of 64, then of 48, that make up `rows`, at least 96.
template <class Step>
__device__ __forceinline__ void in_chunks(int rows, const Step& step) {
  const int last = rows - 48 * (-(rows / 16) & 3);
  int first = 0;
  for (; first < last; first += 64) step.template operator()<64>(first);
  for (; first < rows; first += 48) step.template operator()<48>(first);
}

struct HeadGradients {
  const TileArgs& tile;
  std::byte* staging;
  int thread = threadIdx.x % kGroup, lane = thread % kWarp;
  Tile sums_of_qk, sums_of_v;

  // Gradients of this warp's 16 queries by N keys from `first` on.
  template <int N, class Scored>
  __device__ __forceinline__ void query_step(float (&dq)[32], uint32_t q, uint32_t dy, uint32_t k,
                                             uint32_t v, int first, bool real,
                                             const float (&lse)[2], const float (&delta)[2],
                                             const Scored& scored) const {
    float s[N / 2], d[N / 2];
    begin_products();
    score_places(s, q, k);
    commit_products();
    score_places(d, dy, v);
    commit_products();
    wait_for_products<1>();
    settle(s);
    if (real) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i)
        s[i] = exp2_approx(fmaf(s[i], kScale * kLog2E, lse[i % 4 / 2]));
      if (first + N > tile.attention.shape.tokens)
#pragma unroll
        for (int i = N / 2 - 8; i < N / 2; ++i)
          if (first + i / 4 * 8 + 2 * (lane % 4) + i % 2 >= tile.attention.shape.tokens) s[i] = 0;
    }
    wait_for_products<0>();
    settle(d);
    scored();
    if (real) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) d[i] = s[i] * (d[i] - delta[i % 4 / 2]);
    }
    FragmentA ds[N / 16];
#pragma unroll
    for (int i = 0; i < N / 16; ++i) ds[i] = operand_of(d + 8 * i);
    begin_products();
#pragma unroll
    for (int i = 0; i < N / 16; ++i)
      multiply_rows(dq, ds[i], describe_place(k + 16 * i * kRowPlaces), first + i > 0);
    commit_products();
    wait_for_products<0>();
    settle(dq);
  }

  // Gradients of this warp's 16 keys by N queries from `first` on.
  template <int N, class Scored>
  __device__ __forceinline__ void key_step(float (&dk)[32], float (&dv)[32], uint32_t k, uint32_t v,
                                           uint32_t q, uint32_t dy, int first, bool real,
                                           const Terms& terms, const Scored& scored) const {
    float s[N / 2], d[N / 2];
    begin_products();
    score_places(s, k, q);
    commit_products();
    score_places(d, v, dy);
    commit_products();
    wait_for_products<1>();
    settle(s);
    const auto two = [&](const float* of, int j) {
      return *reinterpret_cast<const float2*>(of + first + 8 * j + lane % 4 * 2);
    };
    if (real) {
#pragma unroll
      for (int j = 0; j < N / 8; ++j) {
        const float2 lse = two(terms.lse, j);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; ++i)
          s[i] = exp2_approx(fmaf(s[i], kScale * kLog2E, i % 2 ? lse.y : lse.x));
      }
    }
    wait_for_products<0>();
    settle(d);
    scored();
    if (real) {
#pragma unroll
      for (int j = 0; j < N / 8; ++j) {
        const float2 delta = two(terms.delta, j);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; ++i) d[i] = s[i] * (d[i] - (i % 2 ? delta.y : delta.x));
      }
    }
    FragmentA p[N / 16], ds[N / 16];
#pragma unroll
    for (int i = 0; i < N / 16; ++i) p[i] = operand_of(s + 8 * i), ds[i] = operand_of(d + 8 * i);
    begin_products();
#pragma unroll
    for (int i = 0; i < N / 16; ++i) {
      const int at = 16 * i * kRowPlaces;
      multiply_rows(dv, p[i], describe_place(dy + at), first + i > 0);
      multiply_rows(dk, ds[i], describe_place(q + at), first + i > 0);
    }
    commit_products();
    wait_for_products<0>();  // no registers for scores beside these operands
    settle(dk), settle(dv);
  }

  // 16 rows of sums, times a factor, to global memory by way of shared memory, eight at a time; and
  // into the columns' sums, where value 16 m + g, and + 8, is in column 2 m + odd of `sums`.
  __device__ __forceinline__ void store(bf16* to, float (&d)[32], float factor, int row, Tile& sums,
                                        int odd) const {
    const int tokens = tile.attention.shape.tokens,
              stride = static_cast<int>(tile.attention.shape.qkv_stride());
    FragmentA columns[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool real = row + 8 * half + lane / 4 < tokens;
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t four[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float* two = d + 16 * i + 4 * n + 2 * half;
          four[n] = real ? pack2(two[0] * factor, two[1] * factor) : 0;
        }
        store_four(swizzled(staging, lane % 8, 4 * i + lane / 8), four);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t four[4];
        load_four_transposed(
            four, reinterpret_cast<const bf16*>(swizzled(staging, lane % 8, 4 * i + lane / 8)));
#pragma unroll
        for (int n = 0; n < 4; ++n) columns[2 * i + n / 2].r[2 * half + n % 2] = four[n];
        const int at = row + 8 * half + 4 * i + lane / 8;
        if (at < tokens)
          *reinterpret_cast<uint4*>(to + at * stride + lane % 8 * 8) =
              *reinterpret_cast<const uint4*>(swizzled(staging, 4 * i + lane / 8, lane % 8));
      }
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const uint32_t ones = lane / 4 == 2 * m + odd ? kOnes : 0;
      multiply(sums, columns[m], ones, ones);
    }
  }

  // Where a tile finds its operands. A source has
  // - own(i): where this tile of the i-th operand of the scores is,
  // - other(i, first): where rows from `first` on of what it is multiplied with are,
  // - wait(first): until those rows are there,
  // - scored(last), called by all warps when scores have been computed,
  // - release(first), called by each warp when it has done with those rows.
  template <class Source>
  __device__ __forceinline__ void key_tile(const Source& from, int row, int rows,
                                           const Terms& terms, bf16* to) {
    float dk[32], dv[32];
    const bool real = row < tile.attention.shape.tokens;
    const uint32_t k = from.own(0), v = from.own(1);
    in_chunks(rows, [&]<int N>(int first) {
      from.wait(first);
      key_step<N>(dk, dv, k, v, from.other(0, first), from.other(1, first), first, real, terms,
                  [&] { from.scored(first + N == rows); });
      from.release(first);
    });
    if (!real) return;
    const int64_t apart = tile.attention.shape.y_stride();
    store(to + apart, dk, kScale, row, sums_of_qk, 1);
    store(to + 2 * apart, dv, 1, row, sums_of_v, 0);
  }
  template <class Source>
  __device__ __forceinline__ void query_tile(const Source& from, int row, int rows,
                                             const Terms& terms, bf16* to) {
    float dq[32], lse[2] = {}, delta[2] = {};
    const bool real = row < tile.attention.shape.tokens;
    const uint32_t q = from.own(0), dy = from.own(1);
    if (real)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = row + lane / 4 + 8 * half;
        lse[half] = terms.lse[at], delta[half] = terms.delta[at];
      }
    in_chunks(rows, [&]<int N>(int first) {
      from.wait(first);
      query_step<N>(dq, q, dy, from.other(0, first), from.other(1, first), first, real, lse, delta,
                    [&] { from.scored(first + N == rows); });
      from.release(first);
    });
    if (real) store(to, dq, kScale, row, sums_of_qk, 0);
  }
};

// The column sums of a block's images, over its warps in turn, by way of shared memory that no one
// needs any more.
__device__ __forceinline__ void write_sums(const HeadGradients& from, std::byte* memory, int head,
                                           int part) {
  const float sums[6] = {from.sums_of_qk.v[0], from.sums_of_qk.v[2], from.sums_of_qk.v[1],
                         from.sums_of_qk.v[3], from.sums_of_v.v[0],  from.sums_of_v.v[2]};
  auto* const of_warps = reinterpret_cast<float*>(memory);  // (kWarps, 3, kHead)
  const int i = threadIdx.x, warp = i / kWarp, column = from.lane % 4 * 16 + from.lane / 4;
  sync_threads<kGroups * kGroup>();
#pragma unroll
  for (int k = 0; k < 6; ++k) of_warps[(warp * 3 + k / 2) * kHead + column + k % 2 * 8] = sums[k];
  sync_threads<kGroups * kGroup>();
  if (i >= 3 * kHead) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += of_warps[w * 3 * kHead + i];
  const AttentionShape& shape = from.tile.attention.shape;
  from.tile.columns[part * shape.qkv_stride() + i / kHead * shape.y_stride() + head * kHead +
                    i % kHead] = sum;
}
#endif

// ---- lowering ----

inline TileArgs head_parts(CudaBackend& cuda, const AttentionArgs& args, int64_t images) {
  const int64_t parts = tile_parts(cuda, 1, args.shape.heads, images);
  float* columns =
      args.column_sums ? cuda.scratch_of<float>(parts * args.shape.qkv_stride()) : nullptr;
  return {args, columns, images, parts};
}
inline unsigned head_blocks(const TileArgs& args) {
  return static_cast<unsigned>(args.parts * args.attention.shape.heads);
}
inline void finish_head_sums(const TileArgs& args, cudaStream_t stream) {
  if (args.columns)
    launch_finish(args.columns, args.parts, args.attention.shape.qkv_stride(),
                  AddToColumns{args.attention.column_sums}, stream);
}

}  // namespace vitrum::cuda
