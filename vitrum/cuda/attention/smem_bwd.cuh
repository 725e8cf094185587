// Backward; see attention/smem.cuh. Scores are computed once: each of three consumer warpgroups has
// 64 keys, goes through the queries and accumulates dk and dv in registers. It leaves ds in shared
// memory; when that of all keys is there, each warpgroup computes dq of 64 queries. A fourth,
// producer warpgroup issues TMA loads, computes lse and delta, and has the remainder of 193 to 208
// tokens; what it reads from global memory itself it prefetches. Stages of queries and dy are
// released chunk by chunk.
//
// The primitives it is written in (smem.cuh and below) have a second set for tests without a card.
#pragma once
#include "vitrum/cuda/attention/smem_bwd_remainder.cuh"

namespace vitrum::cuda::smem {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// The terms of 16 queries, by one warp, which asks for what it needs some time before: dy . y is on
// the diagonal of a product, for which it does not matter in which order a row's values are.
template <int kSize>
struct LseDeltaPrefetch {
  static constexpr int kPieces = kSize / 32;
  uint4 left[2][kPieces], right[2][kPieces];  // of row and row + 8
  float lse[2];

  __device__ __forceinline__ void ask(const AttentionArgs& a, int image, int head, int first) {
    const int lane = threadIdx.x % kWarp;
    const auto stride = static_cast<int>(a.shape.y_stride());
    const int64_t at = int64_t{image} * a.shape.tokens * stride + head * kSize + lane % 4 * 8;
    const bf16* const y = static_cast<const bf16*>(a.y) + at;
    const bf16* const dy = static_cast<const bf16*>(a.dy) + at;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = min(first + lane / 4 + 8 * i, a.shape.tokens - 1), from = token * stride;
#pragma unroll
      for (int k = 0; k < kPieces; ++k) {
        left[i][k] = *reinterpret_cast<const uint4*>(dy + from + k * 32);
        right[i][k] = *reinterpret_cast<const uint4*>(y + from + k * 32);
      }
      lse[i] = a.lse[(int64_t{image} * a.shape.heads + head) * a.shape.tokens + token];
    }
  }
  __device__ __forceinline__ void put(const LseDelta& to, int first, int tokens) const {
    const int lane = threadIdx.x % kWarp, row = lane / 4;
    Tile products[2];
#pragma unroll
    for (int k = 0; k < 2 * kPieces; ++k) {
      const uint4 &low = left[0][k / 2], &high = left[1][k / 2], &of = right[k % 2][k / 2];
      mma_m16n8k16(products[k % 2], {{low.x, high.x, low.y, high.y}}, of.x, of.y);
      mma_m16n8k16(products[k % 2], {{low.z, high.z, low.w, high.w}}, of.z, of.w);
    }
    if (lane % 4 == row / 2)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int query = first + row + 8 * k;
        to.lse[query] = -kLog2E * (query < tokens ? lse[k] : INFINITY);
        to.delta[query] = row % 2 ? products[k].v[2 * k + 1] : products[k].v[2 * k];
      }
    __syncwarp();
  }
};

// The producer warpgroup; it has the remainder, too. Its last warp issues the TMA loads.
template <int kSize>
struct ProducerWarpgroup {
  using Rows = SwizzledRows<kSize>;
  using Terms = LseDeltaPrefetch<kSize>;
  HeadWork<kSize>& work;
  int warp;
  bool copies = warp == 3;
  int chunk = 0;  // the next to be copied

  template <bool kHasRemainder>
  __device__ __forceinline__ void run() {
    Remainder<kSize> left(work, warp);
    if (copies) copy_keys(0), copy_chunks(0, true), copy_values(0);
    put_terms(0);
    for (int turn = 0; turn < work.count; ++turn) {
      const int next = turn + 1;
      const bool more = next < work.count;
      chunk = 0;
      if (more) {
        mbarrier_wait(work.memory.empty(next % 2), next / 2 % 2 ^ 1);
        if (copies) copy_keys(next);
      }
      if (kHasRemainder)
        gather_keys(left, turn);
      else if (more)
        put_terms(next);
      if (more && copies) copy_chunks(next, true), copy_values(next);
      if (kHasRemainder) left.gather_queries(turn);
    }
  }
  // Of the rest, while the terms of the next image are on their way, and chunks for it as soon as
  // there is room.
  __device__ __forceinline__ void gather_keys(Remainder<kSize>& left, int turn) {
    const int next = turn + 1;
    const bool more = next < work.count;
    const auto step = [&]<int N>(int i) {
      const int query = 16 * (4 * i + warp);
      Terms terms;
      ask(terms, min(next, work.count - 1), query);
      left.template step<N>(turn, i * kTile);
      if (more) put(terms, next, query);
      if (more && copies) copy_chunks(next, false);
    };
    left.begin(turn);
#pragma unroll 1
    for (int i = 0; i < kGroups; ++i) step.template operator()<kTile>(i);
    step.template operator()<kMaxTokens - kRemainder>(kGroups);
    if (more) work.done_with(work.memory.full(next % 2));
    left.finish_keys(turn);
  }
  // All of an image: of every third 16 queries a warp's, and who copies has only the rest's.
  __device__ __forceinline__ void put_terms(int turn) const {
    constexpr int kApart = 16 * 3;
#pragma unroll 1
    for (int query = copies ? kRemainder : 16 * warp; query < work.args.rows; query += 2 * kApart) {
      Terms one, other;
      ask(one, turn, query), ask(other, turn, query + kApart);
      put(one, turn, query), put(other, turn, query + kApart);
    }
    work.done_with(work.memory.full(turn % 2));
  }
  __device__ __forceinline__ void ask(Terms& terms, int turn, int query) const {
    terms.ask(work.args.tile.attention, work.image(turn), work.head, query);
  }
  __device__ __forceinline__ void put(const Terms& terms, int turn, int query) const {
    if (query < work.args.rows) terms.put(work.memory.terms(turn % 2), query, work.tokens());
  }
  __device__ __forceinline__ void copy_matrix(int which, std::byte* to, uint64_t* full,
                                              int turn) const {
    if (work.lane != 0) return;
    mbarrier_arrive_expect_tx(full, work.args.rows * Rows::kBytes);
    tma_load_3d(work.args.whole, to, full, work.column(which), 0, work.image(turn));
  }
  __device__ void copy_keys(int turn) const {
    copy_matrix(1, work.memory.k(turn % 2), work.memory.full(turn % 2), turn);
  }
  __device__ void copy_values(int turn) const {
    mbarrier_wait(work.memory.empty_v(), turn % 2 ^ 1);
    copy_matrix(2, work.memory.v(), work.memory.full_v(), turn);
  }
  // Queries and dy that have a place now, or all.
  __device__ void copy_chunks(int turn, bool all) {
    for (; chunk < work.args.rows; chunk += 32) {
      uint64_t* const full = work.memory.full_chunk(chunk);
      uint64_t* const empty = work.memory.empty_chunk(chunk);
      if (!all && !uniform(mbarrier_test(empty, turn % 2 ^ 1))) return;
      mbarrier_wait(empty, turn % 2 ^ 1);
      if (work.lane != 0) continue;
      const int end = min(chunk + 32, work.args.rows);
      mbarrier_arrive_expect_tx(full, 2 * (end - chunk) * Rows::kBytes);
      for (int row = chunk; row < end; row += kBox)
        copy_rows(work.args.qkv, work.memory.q(), full, row, turn),
            copy_rows(work.args.dy, work.memory.dy(), full, row, turn);
    }
  }
  __device__ __forceinline__ void copy_rows(const CUtensorMap& from, std::byte* to, uint64_t* full,
                                            int row, int turn) const {
    tma_load_3d(from, to + row * Rows::kBytes, full, work.column(0), row, work.image(turn));
  }
};

// A warpgroup: 64 keys, then 64 queries.
template <int kSize>
struct ConsumerWarpgroup {
  using Rows = SwizzledRows<kSize>;
  static constexpr int kRowStep = Rows::kDescriptorStep;
  static constexpr int kStaged = 16 * Rows::kBytes;  // bytes of a warp's results
  using Sums = float[kSize / 2];
  HeadWork<kSize>& work;
  int lane = work.lane;

  // This warp's part of it: from `row` on; whether any is a token, whether not all are.
  struct WarpRows {
    int row;
    bool real, partial;
  };
  template <int N>
  __device__ __forceinline__ void key_step(Sums& dk, Sums& dv, uint32_t k, uint32_t v, int first,
                                           const WarpRows& own, int turn) const {
    const LseDelta terms = work.memory.terms(turn % 2);
    float s[N / 2], d[N / 2];
    const uint32_t q = uniform(descriptor_low(work.memory.q()) + first * kRowStep),
                   dy = q + work.args.rows * kRowStep;
    wgmma_fence();
    issue_scores_at<kSize>(s, k, q);
    wgmma_commit();
    if (first == 0) mbarrier_wait(work.memory.full_v(), turn % 2);
    issue_scores_at<kSize>(d, v, dy);
    wgmma_commit();
    // Products have the first say in shared memory: what is read from there is asked for early.
    float2 lse[N / 8], delta[N / 8];
    const auto read = [&](float2(&to)[N / 8], const float* of) {
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
        to[j] = *reinterpret_cast<const float2*>(of + first + 8 * j + lane % 4 * 2);
    };
    read(lse, terms.lse);
    wgmma_wait<1>();
    fence_accumulators(s);
    read(delta, terms.delta);
    FragmentA p[N / 16], ds[N / 16];
#pragma unroll
    for (int i = 0; i < N / 2; ++i)
      s[i] = exp2_approx(fmaf(s[i], work.scale() * kLog2E, i % 2 ? lse[i / 4].y : lse[i / 4].x));
    if (own.partial)
#pragma unroll
      for (int i = 0; i < N / 2; ++i)
        if (own.row + lane / 4 + i % 4 / 2 * 8 >= work.tokens()) s[i] = 0;
#pragma unroll
    for (int i = 0; i < N / 16; ++i) p[i] = operand_of(s + 8 * i);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < N / 16; ++i)
      wgmma_rs_bt(dv, p[i], Rows::descriptor(dy + 16 * i * kRowStep), first + i > 0);
    wgmma_commit();
    wgmma_wait<1>();
    fence_accumulators(d);
#pragma unroll
    for (int i = 0; i < N / 2; ++i)
      d[i] = s[i] * (d[i] - (i % 2 ? delta[i / 4].y : delta[i / 4].x));
#pragma unroll
    for (int i = 0; i < N / 16; ++i) ds[i] = operand_of(d + 8 * i);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < N / 16; ++i)
      wgmma_rs_bt(dk, ds[i], Rows::descriptor(q + 16 * i * kRowStep), first + i > 0);
    wgmma_commit();
    if (first == 0) work.wait_for_room(turn);
    if (own.real) put_gradients<N>(ds, own.row, first);
    wgmma_wait<0>();
    fence_accumulators(dk), fence_accumulators(dv);
  }
  // Of the scores of 16 keys from `row` on and N queries.
  template <int N>
  __device__ __forceinline__ void put_gradients(const FragmentA (&ds)[N / 16], int row,
                                                int first) const {
    const int key = row + lane % 16;
    if (N == 16 && first == kRemainder)
      return put_transposed(work.memory.transposed(row), row % kTile / 8, ds[0], lane);
    std::byte* const panel = work.memory.panel(first / kTile);
#pragma unroll
    for (int i = 0; i < N / 16; ++i)
      stmatrix_x4(swizzled(panel, key, first % kTile / 8 + 2 * i + lane / 16), ds[i].r);
  }
  __device__ void run(int warp) {
    const int group = warp / 4, row = warp * 16;
    const bool real = row<work.tokens(), partial = row + 16> work.tokens();
    const WarpRows own{row, real, partial};
    const uint32_t v = uniform(descriptor_low(work.memory.v() + group * kTile * Rows::kBytes)),
                   panel = uniform(descriptor_low(work.memory.panel(group)));
    for (int turn = 0; turn < work.count; ++turn) {
      const int stage = turn % 2;
      const uint32_t parity = turn / 2 % 2, flip = turn % 2;
      const uint32_t keys = uniform(descriptor_low(work.memory.k(stage))),
                     k = uniform(keys + group * kTile * kRowStep);
      Sums dk, dv, dq;
      mbarrier_wait(work.memory.full(stage), parity);
      in_steps(work.args.rows, [&]<int N>(int first) {
        mbarrier_wait(work.memory.full_chunk(first), flip);
        key_step<N>(dk, dv, k, v, first, own, turn);
        work.done_with(work.memory.empty_chunk(first));
      });
      fence_async_proxy();
      work.done_with(work.memory.scored());
      sync_warpgroup_2(group);  // all have done with its values
      std::byte* const staging = work.memory.v() + own.row * Rows::kBytes;
      if (own.real) store(2, dv, own.row, turn, staging);
      mbarrier_wait(work.memory.scored(), flip);
      wgmma_fence();
      wgmma_ss_at_bt(dq, full_descriptor(panel), Rows::descriptor(keys), false);
      for (int row = 16; row < work.args.rows; row += 16)
        wgmma_ss_at_bt(dq, full_descriptor(panel + row * kRowDescriptorStep),
                       Rows::descriptor(keys + row * kRowStep), true);
      wgmma_commit();
      work.stored_from(work.memory.empty_v());
      wgmma_wait<0>();
      fence_accumulators(dq);
      sync_warpgroup_2(group);
      if (own.real) {
        std::byte* const free = work.memory.panel(group) + warp % 4 * kStaged;
        store(0, dq, own.row, turn, free);
        store(1, dk, own.row, turn, free + 4 * kStaged);
      }
      work.stored_from(work.memory.empty(stage));
    }
  }
  // 16 rows of dq, dk or dv, by way of shared memory.
  __device__ __forceinline__ void store(int which, Sums& d, int row, int turn, std::byte* staging) {
    const float factor = which == 2 ? 1 : work.scale();
    put_rows(staging, d, {factor, factor});
    work.send(which, row, turn, staging);
  }
};

template <int kSize>
__device__ void backward(const BackwardArgs& args) {
  const Memory<kSize> memory{tile_memory(), args.rows};
  const AttentionShape& shape = args.tile.attention.shape;
  const int part = static_cast<int>(blockIdx.x / shape.heads);
  const int groups = min((shape.tokens + kTile - 1) / kTile, kGroups);
  const int users = 4 * (args.rows > kRemainder ? kGroups + 1 : groups);  // warps
  if (threadIdx.x == 0) {
    for (int i = 0; i < kMaxChunks; ++i)
      mbarrier_init(memory.barrier(i), 1), mbarrier_init(memory.barrier(kMaxChunks + i), users);
    for (int stage = 0; stage < 2; ++stage)
      mbarrier_init(memory.full(stage), 1 + 4), mbarrier_init(memory.empty(stage), users);
    mbarrier_init(memory.full_v(), 1), mbarrier_init(memory.empty_v(), users);
    mbarrier_init(memory.scored(), users);
    fence_barrier_init();
  }
  __syncthreads();
  HeadWork<kSize> work{args, memory, static_cast<int>(blockIdx.x % shape.heads), part,
                       static_cast<int>(uniform(images_of(args.tile, part)))};
  const int warp = static_cast<int>(uniform(threadIdx.x / kWarp)), group = warp / 4;
  if (group == kGroups) {
    reg_dealloc<104>();
    ProducerWarpgroup<kSize> producer{work, warp % 4};
    if (args.rows > kRemainder)
      producer.template run<true>();
    else
      producer.template run<false>();
  } else {
    reg_alloc<136>();
    if (group < groups) ConsumerWarpgroup<kSize>{work}.run(warp);
  }
  if (args.tile.columns)
    work.sums.template write<kHeadThreads / kWarp>(args.tile, memory.base, work.head, work.part);
}
#endif

}  // namespace vitrum::cuda::smem
