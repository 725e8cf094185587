// Backward of 209 to 600 tokens. Tiles of 64 keys accumulate dk and dv over the queries, tiles of
// 64 queries accumulate dq over the keys; both recompute their weights, so that no sum has two
// owners. A producer warpgroup issues TMA loads and computes lse and delta. Two operands of a head
// lie in shared memory as a whole: queries and dy for tiles of keys, then keys and values; chunk by
// chunk they are replaced when the last tiles have gone past. A consumer warpgroup has one stage
// for its tile of the other two, and loads its next one when the last scores are there.
//
// The primitives it is written in (head_bwd.cuh and below) have a second set for tests without a
// card.
#pragma once
#include "vitrum/cuda/attention/head_bwd.cuh"

namespace vitrum::cuda::chunked_bwd {

constexpr int kMaxRows = 608, kMaxChunks = kMaxRows / 48;
constexpr int kBox = 16;                    // rows that are copied at a time
constexpr int kStaging = 8 * kSwizzledRow;  // bytes of a warp

struct ChunkedArgs {
  PersistentArgs tile;
  CUtensorMap qkv, dy;
  int rows;  // in shared memory: tokens and zeros, a multiple of 16
};

struct Memory {
  std::byte* base;
  int rows;

  __device__ __forceinline__ std::byte* whole(int i) const {
    return base + i * rows * kSwizzledRow;
  }
  __device__ __forceinline__ std::byte* tile(int group, int i) const {
    return whole(2) + (2 * group + i) * kTileBytes;
  }
  // Of an image, and of the next one.
  __device__ __forceinline__ LseDelta terms(int image) const {
    float* const at = reinterpret_cast<float*>(tile(kGroups, 0)) + image % 2 * 2 * kMaxRows;
    return {at, at + kMaxRows};
  }
  __device__ __forceinline__ std::byte* staging(int warp) const {
    return reinterpret_cast<std::byte*>(terms(0).lse + 4 * kMaxRows) + warp * kStaging;
  }
  // full: a chunk of both has arrived, and the image's terms are there; empty: all warps have done
  // with it. Chunks are known by their first row, of which every 48 have one at most.
  __device__ __forceinline__ uint64_t* full(int first) const {
    return reinterpret_cast<uint64_t*>(staging(kWarps)) + first / 48;
  }
  __device__ __forceinline__ uint64_t* empty(int first) const { return full(first) + kMaxChunks; }
  __device__ __forceinline__ uint64_t* full_tile(int group) const {
    return full(0) + 2 * kMaxChunks + group;
  }

  static size_t bytes(int rows) {
    return size_t{2} * rows * kSwizzledRow + size_t{2} * kGroups * kTileBytes +
           4 * kMaxRows * sizeof(float) + size_t{kWarps} * kStaging +
           (2 * kMaxChunks + kGroups) * sizeof(uint64_t);
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// The terms of `rows` queries, a multiple of 16, by one warpgroup.
__device__ __forceinline__ void put_terms(const AttentionArgs& a, int image, int head, int rows,
                                          const LseDelta& to) {
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
  const PersistentArgs& tile;
  std::byte* staging;
  int thread = threadIdx.x % kGroup, lane = thread % kWarp;
  ColumnSums<> sums = {};

  // Gradients of this warp's 16 queries by N keys from `first` on.
  template <int N, class Scored>
  __device__ __forceinline__ void query_step(float (&dq)[32], uint32_t q, uint32_t dy, uint32_t k,
                                             uint32_t v, int first, bool real,
                                             const float (&lse)[2], const float (&delta)[2],
                                             const Scored& scored) const {
    float s[N / 2], d[N / 2];
    wgmma_fence();
    issue_scores_at(s, q, k);
    wgmma_commit();
    issue_scores_at(d, dy, v);
    wgmma_commit();
    wgmma_wait<1>();
    fence_accumulators(s);
    if (real) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i)
        s[i] = exp2_approx(fmaf(s[i], kScale * kLog2E, lse[i % 4 / 2]));
      if (first + N > tile.attention.shape.tokens)
#pragma unroll
        for (int i = N / 2 - 8; i < N / 2; ++i)
          if (first + i / 4 * 8 + 2 * (lane % 4) + i % 2 >= tile.attention.shape.tokens) s[i] = 0;
    }
    wgmma_wait<0>();
    fence_accumulators(d);
    scored();
    if (real) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) d[i] = s[i] * (d[i] - delta[i % 4 / 2]);
    }
    FragmentA ds[N / 16];
#pragma unroll
    for (int i = 0; i < N / 16; ++i) ds[i] = operand_of(d + 8 * i);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < N / 16; ++i)
      wgmma_rs_bt(dq, ds[i], full_descriptor(k + 16 * i * kRowDescriptorStep), first + i > 0);
    wgmma_commit();
    wgmma_wait<0>();
    fence_accumulators(dq);
  }

  // Gradients of this warp's 16 keys by N queries from `first` on.
  template <int N, class Scored>
  __device__ __forceinline__ void key_step(float (&dk)[32], float (&dv)[32], uint32_t k, uint32_t v,
                                           uint32_t q, uint32_t dy, int first, bool real,
                                           const LseDelta& terms, const Scored& scored) const {
    float s[N / 2], d[N / 2];
    wgmma_fence();
    issue_scores_at(s, k, q);
    wgmma_commit();
    issue_scores_at(d, v, dy);
    wgmma_commit();
    wgmma_wait<1>();
    fence_accumulators(s);
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
    wgmma_wait<0>();
    fence_accumulators(d);
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
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < N / 16; ++i) {
      const int at = 16 * i * kRowDescriptorStep;
      wgmma_rs_bt(dv, p[i], full_descriptor(dy + at), first + i > 0);
      wgmma_rs_bt(dk, ds[i], full_descriptor(q + at), first + i > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();  // no registers for scores beside these operands
    fence_accumulators(dk), fence_accumulators(dv);
  }

  // 16 rows of sums, times a factor, to global memory by way of shared memory, eight at a time.
  __device__ __forceinline__ void store(bf16* to, float (&d)[32], float factor, int row,
                                        int which) {
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
        stmatrix_x4(swizzled(staging, lane % 8, 4 * i + lane / 8), four);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t four[4];
        ldmatrix_x4_trans(
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
    for (int m = 0; m < 4; ++m) sums.add(which, columns[m], m, lane);
  }

  // Where a tile finds its operands. A source has
  // - own(i): where this tile of the i-th operand of the scores is,
  // - other(i, first): where rows from `first` on of what it is multiplied with are,
  // - wait(first): until those rows are there,
  // - scored(last), called by all warps when scores have been computed,
  // - release(first), called by each warp when it has done with those rows.
  template <class Source>
  __device__ __forceinline__ void key_tile(const Source& from, int row, int rows,
                                           const LseDelta& terms, bf16* to) {
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
    store(to + apart, dk, kScale, row, 1);
    store(to + 2 * apart, dv, 1, row, 2);
  }
  template <class Source>
  __device__ __forceinline__ void query_tile(const Source& from, int row, int rows,
                                             const LseDelta& terms, bf16* to) {
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
    if (real) store(to, dq, kScale, row, 0);
  }
};
// A tile's place in the order of things: first all of an image that are of keys, then of queries.
struct Task {
  int turn, tile;
  bool of_keys;
  __device__ __forceinline__ Task(const TileScheduler& at, int tiles)
      : turn(at.image),
        tile(at.tile < tiles ? at.tile : at.tile - tiles),
        of_keys(at.tile < tiles) {}
  __device__ __forceinline__ uint32_t parity() const { return of_keys ? 0 : 1; }
};

struct Work {
  const ChunkedArgs& args;
  const Memory& memory;
  int head, part, count, tiles;

  // Rows of the i-th of two operands: queries and dy, or keys and values.
  __device__ __forceinline__ void copy(std::byte* to, uint64_t* full, bool keys, int i, int row,
                                       int image) const {
    const int apart = static_cast<int>(args.tile.attention.shape.y_stride()), at = head * kHead;
    if (!keys && i == 1)
      tma_load_3d(args.dy, to, full, at, row, image);
    else
      tma_load_3d(args.qkv, to, full, at + (keys ? 1 + i : 0) * apart, row, image);
  }

  // ---- producer ----
  __device__ void produce() const {
    const int thread = threadIdx.x % kGroup;
    for (int turn = 0; turn < count; ++turn) {
      const int image = image_of(args.tile, part, turn);
      put_terms(args.tile.attention, image, head, args.rows, memory.terms(turn));
      sync_warpgroup(1);
      if (thread == 0)
        for (uint32_t pass = 0; pass < 2; ++pass)
          in_chunks(args.rows, [&]<int N>(int first) {
            uint64_t* const full = memory.full(first);
            mbarrier_wait(memory.empty(first), pass ^ 1);
            mbarrier_arrive_expect_tx(full, 2 * N * kSwizzledRow);
            for (int row = first; row < first + N; row += kBox)
              for (int i = 0; i < 2; ++i)
                copy(memory.whole(i) + row * kSwizzledRow, full, pass == 1, i, row, image);
          });
      sync_warpgroup(1);  // all of the image before is done
    }
  }

  // ---- consumers ----
  // This warp's rows of a tile.
  __device__ __forceinline__ void copy_tile(const TileScheduler& at, int group) const {
    if (!at.going()) return;
    const Task task(at, tiles);
    const int row = static_cast<int>(threadIdx.x) % kGroup / kWarp * 16;
    uint64_t* const full = memory.full_tile(group);
    mbarrier_arrive_expect_tx(full, 2 * kBox * kSwizzledRow);
    for (int i = 0; i < 2; ++i)
      copy(memory.tile(group, i) + row * kSwizzledRow, full, task.of_keys, i,
           task.tile * kTile + row, image_of(args.tile, part, task.turn));
  }
  struct Source {
    const Work& work;
    const TileScheduler& next;
    int group;
    uint32_t parity;
    bool last;  // tile of this pass, for this warpgroup

    __device__ __forceinline__ uint32_t own(int i) const {
      return uniform(descriptor_low(work.memory.tile(group, i)));
    }
    __device__ __forceinline__ uint32_t other(int i, int first) const {
      return uniform(descriptor_low(work.memory.whole(i)) + first * kRowDescriptorStep);
    }
    __device__ __forceinline__ void wait(int first) const {
      mbarrier_wait(work.memory.full(first), parity);
    }
    __device__ __forceinline__ void scored(bool done) const {
      if (!done) return;
      sync_warpgroup_2(group);
      if (threadIdx.x % kWarp == 0) work.copy_tile(next, group);
      __syncwarp();
    }
    __device__ __forceinline__ void release(int first) const {
      if (last && threadIdx.x % kWarp == 0) mbarrier_arrive(work.memory.empty(first));
      __syncwarp();
    }
  };
  __device__ void consume(HeadGradients& gradients, int group) const {
    const AttentionShape& shape = args.tile.attention.shape;
    const int row = static_cast<int>(threadIdx.x) % kGroup / kWarp * 16;
    TileScheduler at(count, 2 * tiles, 1, group);
    if (threadIdx.x % kWarp == 0) copy_tile(at, group);
    for (uint32_t parity = 0; at.going(); parity ^= 1) {
      TileScheduler next = at;
      next.advance();
      const Task task(at, tiles);
      bf16* to = static_cast<bf16*>(args.tile.attention.out) +
                 int64_t{image_of(args.tile, part, task.turn)} * shape.tokens * shape.qkv_stride() +
                 head * kHead;
      const Source from{*this, next, group, task.parity(), task.tile + kGroups >= tiles};
      mbarrier_wait(memory.full_tile(group), parity);
      const int first = task.tile * kTile + row;
      const LseDelta terms = memory.terms(task.turn);
      if (task.of_keys)
        gradients.key_tile(from, first, args.rows, terms, to);
      else
        gradients.query_tile(from, first, args.rows, terms, to);
      __syncwarp();
      at = next;
    }
  }
};

__device__ void backward(const ChunkedArgs& args) {
  const Memory memory{tile_memory(), args.rows};
  const AttentionShape& shape = args.tile.attention.shape;
  const int part = static_cast<int>(blockIdx.x / shape.heads);
  const Work work{args,
                  memory,
                  static_cast<int>(blockIdx.x % shape.heads),
                  part,
                  images_of(args.tile, part),
                  (shape.tokens + kTile - 1) / kTile};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kMaxChunks; ++i)
      mbarrier_init(memory.full(0) + i, 1), mbarrier_init(memory.empty(0) + i, kWarps);
    for (int group = 0; group < kGroups; ++group) mbarrier_init(memory.full_tile(group), 4);
    fence_barrier_init();
  }
  __syncthreads();
  const int group = static_cast<int>(uniform(threadIdx.x / kGroup));
  if (group == kGroups) {
    reg_dealloc<32>();
    work.produce();
  } else {
    reg_alloc<160>();
    HeadGradients gradients{args.tile, memory.staging(threadIdx.x / kWarp)};
    work.consume(gradients, group);
    if (args.tile.columns)
      gradients.sums.write<kWarps>(args.tile, memory.base, work.head, work.part);
  }
}
#endif

}  // namespace vitrum::cuda::chunked_bwd
