// Backward; see attention/smem.cuh. Scores are computed once: each of three warpgroups has 64 keys
// and goes through the queries, gathering dk and dv in registers. It leaves the gradients of its
// scores in shared memory, too, and when those of all keys are there each warpgroup gathers dq of
// 64 queries. A fourth warpgroup has the copies, what a row of scores needs to know, and the keys
// and queries that 193 to 208 tokens leave over; what it reads from memory itself it asks for long
// before. Queries and dy make room for those of the next image chunk by chunk.
//
// What this is written in (attention/smem.cuh and what is below) has a second set for tests
// without a card.
#pragma once
#include "vitrum/cuda/attention/smem_bwd_remainder.cuh"

namespace vitrum::cuda::whole {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// The terms of 16 queries, by one warp, which asks for what it needs some time before: dy . y is on
// the diagonal of a product, for which it does not matter in which order a row's values are.
struct TermsAhead {
  uint4 left[2][2], right[2][2];  // of row and row + 8, two pieces
  float lse[2];

  __device__ __forceinline__ void ask(const AttentionArgs& a, int image, int head, int first) {
    const int lane = threadIdx.x % kWarp;
    const auto stride = static_cast<int>(a.shape.y_stride());
    const int64_t at = int64_t{image} * a.shape.tokens * stride + head * kHead + lane % 4 * 8;
    const bf16* const y = static_cast<const bf16*>(a.y) + at;
    const bf16* const dy = static_cast<const bf16*>(a.dy) + at;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = min(first + lane / 4 + 8 * i, a.shape.tokens - 1), from = token * stride;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        left[i][k] = *reinterpret_cast<const uint4*>(dy + from + k * 32);
        right[i][k] = *reinterpret_cast<const uint4*>(y + from + k * 32);
      }
      lse[i] = a.lse[(int64_t{image} * a.shape.heads + head) * a.shape.tokens + token];
    }
  }
  __device__ __forceinline__ void put(const Terms& to, int first, int tokens) const {
    const int lane = threadIdx.x % kWarp, row = lane / 4;
    Tile products[2];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint4 &low = left[0][k / 2], &high = left[1][k / 2], &of = right[k % 2][k / 2];
      multiply(products[k % 2], {{low.x, high.x, low.y, high.y}}, of.x, of.y);
      multiply(products[k % 2], {{low.z, high.z, low.w, high.w}}, of.z, of.w);
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

// The fourth warpgroup: it brings what the others work on, and has the rest. Its last warp copies.
struct Helpers {
  HeadWork& work;
  int warp;
  bool copies = warp == 3;
  int chunk = 0;  // the next to be copied

  template <bool kHasRest>
  __device__ __forceinline__ void run() {
    Rest left(work, warp);
    if (copies) copy_keys(0), copy_chunks(0, true), copy_values(0);
    put_terms(0);
    for (int turn = 0; turn < work.count; ++turn) {
      const int next = turn + 1;
      const bool more = next < work.count;
      chunk = 0;
      if (more) {
        wait_barrier(work.memory.empty(next % 2), next / 2 % 2 ^ 1);
        if (copies) copy_keys(next);
      }
      if (kHasRest)
        gather_keys(left, turn);
      else if (more)
        put_terms(next);
      if (more && copies) copy_chunks(next, true), copy_values(next);
      if (kHasRest) left.gather_queries(turn);
    }
  }
  // Of the rest, while the terms of the next image are on their way, and chunks for it as soon as
  // there is room.
  __device__ __forceinline__ void gather_keys(Rest& left, int turn) {
    const int next = turn + 1;
    const bool more = next < work.count;
    const auto step = [&]<int N>(int i) {
      const int query = 16 * (4 * i + warp);
      TermsAhead terms;
      ask(terms, min(next, work.count - 1), query);
      left.step<N>(turn, i * kTile);
      if (more) put(terms, next, query);
      if (more && copies) copy_chunks(next, false);
    };
    left.begin(turn);
#pragma unroll 1
    for (int i = 0; i < kGroups; ++i) step.template operator()<kTile>(i);
    step.template operator()<kMostWhole - kRest>(kGroups);
    if (more) work.done_with(work.memory.full(next % 2));
    left.finish_keys(turn);
  }
  // All of an image: of every third 16 queries a warp's, and who copies has only the rest's.
  __device__ __forceinline__ void put_terms(int turn) const {
    constexpr int kApart = 16 * 3;
#pragma unroll 1
    for (int query = copies ? kRest : 16 * warp; query < work.args.rows; query += 2 * kApart) {
      TermsAhead one, other;
      ask(one, turn, query), ask(other, turn, query + kApart);
      put(one, turn, query), put(other, turn, query + kApart);
    }
    work.done_with(work.memory.full(turn % 2));
  }
  __device__ __forceinline__ void ask(TermsAhead& terms, int turn, int query) const {
    terms.ask(work.args.tile.attention, work.image(turn), work.head, query);
  }
  __device__ __forceinline__ void put(const TermsAhead& terms, int turn, int query) const {
    if (query < work.args.rows) terms.put(work.memory.terms(turn % 2), query, work.tokens());
  }
  __device__ __forceinline__ void copy_matrix(int which, std::byte* to, uint64_t* full,
                                              int turn) const {
    if (work.lane != 0) return;
    expect_bytes(full, work.args.rows * kSwizzledRow);
    load_box(work.args.whole, to, full, work.column(which), 0, work.image(turn));
  }
  __device__ void copy_keys(int turn) const {
    copy_matrix(1, work.memory.k(turn % 2), work.memory.full(turn % 2), turn);
  }
  __device__ void copy_values(int turn) const {
    wait_barrier(work.memory.empty_v(), turn % 2 ^ 1);
    copy_matrix(2, work.memory.v(), work.memory.full_v(), turn);
  }
  // Queries and dy that have a place now, or all.
  __device__ void copy_chunks(int turn, bool all) {
    for (; chunk < work.args.rows; chunk += 32) {
      uint64_t* const full = work.memory.full_chunk(chunk);
      uint64_t* const empty = work.memory.empty_chunk(chunk);
      if (!all && !uniform(has_passed(empty, turn % 2 ^ 1))) return;
      wait_barrier(empty, turn % 2 ^ 1);
      if (work.lane != 0) continue;
      const int end = min(chunk + 32, work.args.rows);
      expect_bytes(full, 2 * (end - chunk) * kSwizzledRow);
      for (int row = chunk; row < end; row += kBox)
        copy_rows(work.args.qkv, work.memory.q(), full, row, turn),
            copy_rows(work.args.dy, work.memory.dy(), full, row, turn);
    }
  }
  __device__ __forceinline__ void copy_rows(const CUtensorMap& from, std::byte* to, uint64_t* full,
                                            int row, int turn) const {
    load_box(from, to + row * kSwizzledRow, full, work.column(0), row, work.image(turn));
  }
};

// A warpgroup: 64 keys, then 64 queries.
struct Keys {
  HeadWork& work;
  int lane = work.lane;

  // This warp's part of it: from `row` on; whether any is a token, whether not all are.
  struct WarpRows {
    int row;
    bool real, partial;
  };
  template <int N>
  __device__ __forceinline__ void key_step(float (&dk)[32], float (&dv)[32], uint32_t k, uint32_t v,
                                           int first, const WarpRows& own, int turn) const {
    const Terms terms = work.memory.terms(turn % 2);
    float s[N / 2], d[N / 2];
    const uint32_t q = uniform(place_of(work.memory.q()) + first * kRowPlaces),
                   dy = q + work.args.rows * kRowPlaces;
    begin_products();
    score_places(s, k, q);
    commit_products();
    if (first == 0) wait_barrier(work.memory.full_v(), turn % 2);
    score_places(d, v, dy);
    commit_products();
    // Products have the first say in shared memory: what is read from there is asked for early.
    float2 lse[N / 8], delta[N / 8];
    const auto read = [&](float2(&to)[N / 8], const float* of) {
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
        to[j] = *reinterpret_cast<const float2*>(of + first + 8 * j + lane % 4 * 2);
    };
    read(lse, terms.lse);
    wait_for_products<1>();
    settle(s);
    read(delta, terms.delta);
    FragmentA p[N / 16], ds[N / 16];
#pragma unroll
    for (int i = 0; i < N / 2; ++i)
      s[i] = exp2_approx(fmaf(s[i], kScale * kLog2E, i % 2 ? lse[i / 4].y : lse[i / 4].x));
    if (own.partial)
#pragma unroll
      for (int i = 0; i < N / 2; ++i)
        if (own.row + lane / 4 + i % 4 / 2 * 8 >= work.tokens()) s[i] = 0;
#pragma unroll
    for (int i = 0; i < N / 16; ++i) p[i] = operand_of(s + 8 * i);
    begin_products();
#pragma unroll
    for (int i = 0; i < N / 16; ++i)
      multiply_rows(dv, p[i], describe_place(dy + 16 * i * kRowPlaces), first + i > 0);
    commit_products();
    wait_for_products<1>();
    settle(d);
#pragma unroll
    for (int i = 0; i < N / 2; ++i)
      d[i] = s[i] * (d[i] - (i % 2 ? delta[i / 4].y : delta[i / 4].x));
#pragma unroll
    for (int i = 0; i < N / 16; ++i) ds[i] = operand_of(d + 8 * i);
    begin_products();
#pragma unroll
    for (int i = 0; i < N / 16; ++i)
      multiply_rows(dk, ds[i], describe_place(q + 16 * i * kRowPlaces), first + i > 0);
    commit_products();
    if (first == 0) work.wait_for_room(turn);
    if (own.real) put_gradients<N>(ds, own.row, first);
    wait_for_products<0>();
    settle(dk), settle(dv);
  }
  // Of the scores of 16 keys from `row` on and N queries.
  template <int N>
  __device__ __forceinline__ void put_gradients(const FragmentA (&ds)[N / 16], int row,
                                                int first) const {
    const int key = row + lane % 16;
    if (N == 16 && first == kRest)
      return put_turned(work.memory.turned(row), row % kTile / 8, ds[0], lane);
    std::byte* const panel = work.memory.panel(first / kTile);
#pragma unroll
    for (int i = 0; i < N / 16; ++i)
      store_four(swizzled(panel, key, first % kTile / 8 + 2 * i + lane / 16), ds[i].r);
  }
  __device__ void run(int warp) {
    const int group = warp / 4, row = warp * 16;
    const bool real = row<work.tokens(), partial = row + 16> work.tokens();
    const WarpRows own{row, real, partial};
    const uint32_t v = uniform(place_of(work.memory.v() + group * kTileBytes)),
                   panel = uniform(place_of(work.memory.panel(group)));
    for (int turn = 0; turn < work.count; ++turn) {
      const int stage = turn % 2;
      const uint32_t parity = turn / 2 % 2, flip = turn % 2;
      const uint32_t keys = uniform(place_of(work.memory.k(stage))),
                     k = uniform(keys + group * kTile * kRowPlaces);
      float dk[32], dv[32], dq[32];
      wait_barrier(work.memory.full(stage), parity);
      in_steps(work.args.rows, [&]<int N>(int first) {
        wait_barrier(work.memory.full_chunk(first), flip);
        key_step<N>(dk, dv, k, v, first, own, turn);
        work.done_with(work.memory.empty_chunk(first));
      });
      publish_shared();
      work.done_with(work.memory.scored());
      sync_further(group);  // all have done with its values
      std::byte* const staging = work.memory.v() + own.row * kSwizzledRow;
      if (own.real) store(2, dv, own.row, turn, staging);
      wait_barrier(work.memory.scored(), flip);
      begin_products();
      multiply_transposed(dq, describe_place(panel), describe_place(keys), false);
      for (int row = 16; row < work.args.rows; row += 16)
        multiply_transposed(dq, describe_place(panel + row * kRowPlaces),
                            describe_place(keys + row * kRowPlaces), true);
      commit_products();
      work.stored_from(work.memory.empty_v());
      wait_for_products<0>();
      settle(dq);
      sync_further(group);
      if (own.real) {
        std::byte* const free = work.memory.panel(group) + warp % 4 * Memory::kStaged;
        store(0, dq, own.row, turn, free);
        store(1, dk, own.row, turn, free + kTileBytes);
      }
      work.stored_from(work.memory.empty(stage));
    }
  }
  // 16 rows of dq, dk or dv, by way of shared memory.
  __device__ __forceinline__ void store(int which, float (&d)[32], int row, int turn,
                                        std::byte* staging) {
    const float factor = which == 2 ? 1 : kScale;
    put_rows(staging, d, {factor, factor});
    work.send(which, row, turn, staging);
  }
};

__device__ void backward(const BackwardArgs& args) {
  const Memory memory{tile_memory(), args.rows};
  const AttentionShape& shape = args.tile.attention.shape;
  const int part = static_cast<int>(blockIdx.x / shape.heads);
  const int groups = min((shape.tokens + kTile - 1) / kTile, kGroups);
  const int users = 4 * (args.rows > kRest ? kGroups + 1 : groups);  // warps
  if (threadIdx.x == 0) {
    for (int i = 0; i < kMostChunks; ++i)
      init_barrier(memory.barrier(i), 1), init_barrier(memory.barrier(kMostChunks + i), users);
    for (int stage = 0; stage < 2; ++stage)
      init_barrier(memory.full(stage), 1 + 4), init_barrier(memory.empty(stage), users);
    init_barrier(memory.full_v(), 1), init_barrier(memory.empty_v(), users);
    init_barrier(memory.scored(), users);
    publish_barriers();
  }
  __syncthreads();
  HeadWork work{args, memory, static_cast<int>(blockIdx.x % shape.heads), part,
                static_cast<int>(uniform(images_of(args.tile, part)))};
  const int warp = static_cast<int>(uniform(threadIdx.x / kWarp)), group = warp / 4;
  if (group == kGroups) {
    give_registers<104>();
    Helpers helpers{work, warp % 4};
    if (args.rows > kRest)
      helpers.run<true>();
    else
      helpers.run<false>();
  } else {
    take_registers<136>();
    if (group < groups) Keys{work}.run(warp);
  }
  if (args.tile.columns)
    work.sums.write<kHeadThreads / kWarp>(args.tile, memory.base, work.head, work.part);
}
#endif

}  // namespace vitrum::cuda::whole
