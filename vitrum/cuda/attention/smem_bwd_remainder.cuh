// What 193 to 208 tokens leave over beside three times 64: up to 16 keys and 16 queries, taken for
// 16 of each. A warpgroup has them as columns of its products, whose 64 rows are queries for the
// scores of these keys, and values for the results. See attention/smem_bwd.cuh.
#pragma once
#include "vitrum/cuda/attention/smem_bwd_layout.cuh"

namespace vitrum::cuda::whole {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
struct Rest {
  HeadWork& work;
  int warp;  // of the warpgroup
  int lane;
  float dk[8], dv[8];

  __device__ __forceinline__ Rest(HeadWork& all, int of_group)
      : work(all), warp(of_group), lane(all.lane) {}
  __device__ __forceinline__ void begin(int turn) const {
    wait_barrier(work.memory.full(turn % 2), turn / 2 % 2);
    wait_barrier(work.memory.full_v(), turn % 2);
    work.wait_for_room(turn);
  }
  // The keys' scores by N queries from `first` on, and what comes of them; their gradients are left
  // with those of the other keys.
  template <int N>
  __device__ __forceinline__ void step(int turn, int first) {
    const Memory& memory = work.memory;
    const int stage = turn % 2;
    const uint32_t q = uniform(place_of(memory.q()) + first * kRowPlaces),
                   dy = q + kMostWhole * kRowPlaces,
                   k = uniform(place_of(memory.k(stage)) + kRest * kRowPlaces),
                   v = uniform(place_of(memory.v()) + kRest * kRowPlaces);
    const Terms terms = memory.terms(stage);
    float s[8], d[8], lse[2], delta[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = first + (N < kTile ? 0 : warp * 16) + lane / 4 + 8 * i;
      lse[i] = terms.lse[query], delta[i] = terms.delta[query];
    }
#pragma unroll
    for (int i = 0; i < N; i += 32) wait_barrier(memory.full_chunk(first + i), turn % 2);
    begin_products();
    score_places(s, q, k);
    score_places(d, dy, v);
    commit_products();
    wait_for_products<0>();
    settle(s), settle(d);
    // Weights in one place and the next in the other: a warp may be a step ahead.
    std::byte* const weights = memory.rest(first / kTile % 2);
    std::byte* const gradients =
        first < kRest ? memory.panel(first / kTile) + kRest * kSwizzledRow : memory.rest(2);
    if (warp * 16 < N) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int key = kRest + i / 4 * 8 + lane % 4 * 2 + i % 2;
        s[i] = exp2_approx(fmaf(s[i], kScale * kLog2E, lse[i % 4 / 2]));
        if (key >= work.tokens()) s[i] = 0;
        d[i] = s[i] * (d[i] - delta[i % 4 / 2]);
      }
      put(s, 1, weights), put(d, 1, gradients);
      if (N < kTile)
        store_four(swizzled(memory.turned(kRest), lane % 16, lane / 16), operand_of(d).r);
    }
    publish_shared();
    sync_further(kGroups);
    const uint32_t by_weights = uniform(place_of(weights)),
                   by_gradients = uniform(place_of(gradients));
    begin_products();
#pragma unroll
    for (int i = 0; i < N / 16; ++i) {
      const int row = 16 * i * kRowPlaces;
      multiply_turned(dv, describe_place(dy + row), describe_place(by_weights + 2 * i),
                      first + i > 0);
      multiply_turned(dk, describe_place(q + row), describe_place(by_gradients + 2 * i),
                      first + i > 0);
    }
    commit_products();
    wait_for_products<0>();
    settle(dk), settle(dv);
#pragma unroll
    for (int i = 0; i < N; i += 32) work.done_with(memory.empty_chunk(first + i));
  }
  // dk and dv of the keys.
  __device__ __forceinline__ void finish_keys(int turn) {
    const Memory& memory = work.memory;
    work.done_with(memory.empty_v());
    work.done_with(memory.scored());
    sync_further(kGroups);  // all have done with what the results replace
    put(dv, 1, memory.rest(0)), put(dk, kScale, memory.rest(1));
    publish_shared();
    sync_further(kGroups);
    if (warp == 0) work.send(2, kRest, turn, memory.rest(0));
    if (warp == 1) work.send(1, kRest, turn, memory.rest(1));
  }
  // dq of the queries.
  __device__ __forceinline__ void gather_queries(int turn) {
    const Memory& memory = work.memory;
    const uint32_t keys = uniform(place_of(memory.k(turn % 2))),
                   gradients = uniform(place_of(memory.turned(0)));
    float dq[8];
    wait_barrier(memory.scored(), turn % 2);
    begin_products();
#pragma unroll
    for (int key = 0; key < kMostWhole; key += 16)
      multiply_turned(
          dq, describe_place(keys + key * kRowPlaces),
          describe_place(gradients + key / kTile * (Memory::kStaged / 16) + key % kTile / 8),
          key > 0);
    commit_products();
    wait_for_products<0>();
    settle(dq);
    put(dq, kScale, memory.rest(2));
    publish_shared();
    sync_further(kGroups);
    if (warp == 0) work.send(0, kRest, turn, memory.rest(2));
    work.stored_from(memory.empty(turn % 2));
  }
  // 64 rows and 16 columns of sums, turned round.
  __device__ __forceinline__ void put(float (&d)[8], float factor, std::byte* to) const {
#pragma unroll
    for (float& x : d) x *= factor;
    put_turned(to, 2 * warp, operand_of(d), lane);
  }
};
#endif

}  // namespace vitrum::cuda::whole
