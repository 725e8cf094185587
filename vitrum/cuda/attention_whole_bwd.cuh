// Backward; see attention_whole.cuh. Scores are computed once: each of three warpgroups has 64 keys
// and goes through the queries, gathering dk and dv in registers. It leaves the gradients of its
// scores in shared memory, too, and when those of all keys are there each warpgroup gathers dq of
// 64 queries. 193 to 208 tokens leave 16 keys and 16 queries over; two warps of a fourth warpgroup
// have them, in products of their own. The others have the copies and what a row of scores needs to
// know. Queries and dy make room for those of the next image chunk by chunk.
//
// What this is written in (attention_whole.cuh and what is below) has a second set for tests
// without a card.
#pragma once
#include "vitrum/cuda/attention_whole_rest.cuh"

namespace vitrum::cuda::whole {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// The terms of `count` times 16 queries, `apart` times 16 from one to the next, by one warp: dy . y
// is on the diagonal of a product, for which it does not matter in which order a row's values are.
__device__ __forceinline__ void put_terms(const AttentionArgs& a, int image, int head, int first,
                                          int count, int apart, const Terms& to) {
  const int lane = threadIdx.x % kWarp, row = lane / 4, last = a.shape.tokens - 1;
  const auto stride = static_cast<int>(a.shape.y_stride());
  const int64_t at = int64_t{image} * a.shape.tokens * stride + head * kHead + lane % 4 * 8;
  const bf16* const y = static_cast<const bf16*>(a.y) + at;
  const bf16* const dy = static_cast<const bf16*>(a.dy) + at;
  const float* const lse = a.lse + (int64_t{image} * a.shape.heads + head) * a.shape.tokens;
#pragma unroll 2
  for (int i = 0; i < count; ++i) {
    const int query = 16 * (first + i * apart) + row,
              from[2] = {min(query, last) * stride, min(query + 8, last) * stride};
    uint4 left[2][2], right[2][2];  // of row and row + 8, two pieces
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      left[k % 2][k / 2] = *reinterpret_cast<const uint4*>(dy + from[k % 2] + k / 2 * 32);
      right[k % 2][k / 2] = *reinterpret_cast<const uint4*>(y + from[k % 2] + k / 2 * 32);
    }
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
        const int at_row = query + 8 * k;
        to.lse[at_row] = -kLog2E * (at_row <= last ? lse[at_row] : INFINITY);
        to.delta[at_row] = row % 2 ? products[k].v[2 * k + 1] : products[k].v[2 * k];
      }
    __syncwarp();
  }
}

// The warps that bring what others work on.
struct Producer {
  const HeadWork& work;

  __device__ void run(int warp) const {
    // Where there is no rest, its warps help with the terms; who copies has the fewest.
    const bool rest = work.args.rows > kRest, copies = warp == kCopies;
    const int all = work.args.rows / 16, share = all / (rest ? 3 : 5),
              first = copies ? 0 : share + (rest ? 0 : (warp + 1) % 4),
              apart = copies || rest ? 1 : 3, last = copies ? share : all;
    for (int turn = 0; turn < work.count; ++turn) {
      if (copies && work.lane == 0) copy(turn);
      __syncwarp();
      // Terms are an image ahead.
      for (int next = turn > 0 ? turn + 1 : 0; next < min(turn + 2, work.count); ++next) {
        const int stage = next % 2;
        wait_barrier(work.memory.empty(stage), next / 2 % 2 ^ 1);
        put_terms(work.args.tile.attention, work.image(next), work.head, first,
                  (last - first + apart - 1) / apart, apart, work.memory.terms(stage));
        work.done_with(work.memory.full(stage));
      }
    }
  }
  __device__ __forceinline__ void copy_rows(const CUtensorMap& from, std::byte* to, uint64_t* full,
                                            int at, int first, int rows, int turn) const {
    for (int row = first; row < first + rows; row += kBox)
      load_box(from, to + row * kSwizzledRow, full, at, row, work.image(turn));
  }
  // Keys have a place since the terms of the same image had one.
  __device__ void copy(int turn) const {
    const int bytes = work.args.rows * kSwizzledRow;
    const uint32_t before = turn % 2 ^ 1;
    uint64_t* const with_keys = work.memory.full(turn % 2);
    expect_bytes(with_keys, bytes);
    load_box(work.args.whole, work.memory.k(turn % 2), with_keys, work.column(1), 0,
             work.image(turn));
    in_steps(work.args.rows, [&]<int N>(int first) {
      uint64_t* const full = work.memory.full_chunk(first);
      wait_barrier(work.memory.empty_chunk(first), before);
      expect_bytes(full, 2 * N * kSwizzledRow);
      copy_rows(work.args.qkv, work.memory.q(), full, work.column(0), first, N, turn);
      copy_rows(work.args.dy, work.memory.dy(), full, work.column(0), first, N, turn);
    });
    wait_barrier(work.memory.empty_v(), before);
    expect_bytes(work.memory.full_v(), bytes);
    load_box(work.args.whole, work.memory.v(), work.memory.full_v(), work.column(2), 0,
             work.image(turn));
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
                                           int first, const WarpRows& own,
                                           const Terms& terms) const {
    float s[N / 2], d[N / 2];
    const uint32_t q = uniform(place_of(work.memory.q()) + first * kRowPlaces),
                   dy = q + work.args.rows * kRowPlaces;
    begin_products();
    score_places(s, k, q);
    commit_products();
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
    if (own.real) put_gradients<N>(ds, own.row, first);
    wait_for_products<0>();
    settle(dk), settle(dv);
  }
  // Of the scores of 16 keys from `row` on and N queries.
  template <int N>
  __device__ __forceinline__ void put_gradients(const FragmentA (&ds)[N / 16], int row,
                                                int first) const {
    const int key = row + lane % 16;
    if (N == 16 && first == kRest) return store_four(work.memory.narrow(key, lane / 16), ds[0].r);
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
      wait_barrier(work.memory.full_v(), flip);
      work.wait_for_room(turn);
      in_steps(work.args.rows, [&]<int N>(int first) {
        wait_barrier(work.memory.full_chunk(first), flip);
        key_step<N>(dk, dv, k, v, first, own, work.memory.terms(stage));
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
  const int groups = min((shape.tokens + kTile - 1) / kTile, kGroups), rest = args.rows > kRest;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kMostChunks; ++i)
      init_barrier(memory.barrier(i), 1),
          init_barrier(memory.barrier(kMostChunks + i), 4 * groups + 2 * rest);
    for (int stage = 0; stage < 2; ++stage)
      init_barrier(memory.full(stage), 1 + (rest ? 2 : 4)),
          init_barrier(memory.empty(stage), 4 * groups + 2 * rest);
    init_barrier(memory.full_v(), 1), init_barrier(memory.empty_v(), 4 * groups + rest);
    init_barrier(memory.scored(), 4 * groups + rest);
    publish_barriers();
  }
  __syncthreads();
  HeadWork work{args, memory, static_cast<int>(blockIdx.x % shape.heads), part,
                static_cast<int>(uniform(images_of(args.tile, part)))};
  const int warp = static_cast<int>(uniform(threadIdx.x / kWarp)), group = warp / 4;
  if (group == kGroups) {
    give_registers<104>();
    if (warp == kRestOfValues && rest)
      gather_rest<false>(work);
    else if (warp == kRestOfKeys && rest)
      gather_rest<true>(work);
    else
      Producer{work}.run(warp);
  } else {
    take_registers<136>();
    if (group < groups) Keys{work}.run(warp);
  }
  if (warp < kCopies && args.tile.columns)
    work.sums.write<kCopies>(args.tile, memory.base, work.head, work.part);
}
#endif

}  // namespace vitrum::cuda::whole
