// The remainder of 193 to 208 tokens beside three tiles of 64: up to 16 keys and 16 queries,
// computed as 16 of each. The producer warpgroup has them as N of its WGMMAs, whose M is queries
// for the scores of these keys, and values for the results; of heads of 32 half of the values are
// not there, and what the products have in their places is left. See attention/smem_bwd.cuh.
#pragma once
#include "vitrum/cuda/attention/smem_bwd_layout.cuh"

namespace vitrum::cuda::smem {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
template <int kSize>
struct Remainder {
  using Rows = SwizzledRows<kSize>;
  static constexpr int kRowStep = Rows::kDescriptorStep;
  HeadWork<kSize>& work;
  int warp;  // of the warpgroup
  int lane;
  float dk[8], dv[8];

  __device__ __forceinline__ Remainder(HeadWork<kSize>& all, int of_group)
      : work(all), warp(of_group), lane(all.lane) {}
  __device__ __forceinline__ void begin(int turn) const {
    mbarrier_wait(work.memory.full(turn % 2), turn / 2 % 2);
    mbarrier_wait(work.memory.full_v(), turn % 2);
    work.wait_for_room(turn);
  }
  // The keys' scores by N queries from `first` on, and what comes of them; their gradients are left
  // with those of the other keys.
  template <int N>
  __device__ __forceinline__ void step(int turn, int first) {
    const Memory<kSize>& memory = work.memory;
    const int stage = turn % 2;
    const uint32_t q = uniform(descriptor_low(memory.q()) + first * kRowStep),
                   dy = q + kMaxTokens * kRowStep,
                   k = uniform(descriptor_low(memory.k(stage)) + kRemainder * kRowStep),
                   v = uniform(descriptor_low(memory.v()) + kRemainder * kRowStep);
    const LseDelta terms = memory.terms(stage);
    float s[8], d[8], lse[2], delta[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = first + (N < kTile ? 0 : warp * 16) + lane / 4 + 8 * i;
      lse[i] = terms.lse[query], delta[i] = terms.delta[query];
    }
#pragma unroll
    for (int i = 0; i < N; i += 32) mbarrier_wait(memory.full_chunk(first + i), turn % 2);
    wgmma_fence();
    issue_scores_at<kSize>(s, q, k);
    issue_scores_at<kSize>(d, dy, v);
    wgmma_commit();
    wgmma_wait<0>();
    fence_accumulators(s), fence_accumulators(d);
    // Weights in one place and the next in the other: a warp may be a step ahead.
    std::byte* const weights = memory.rest(first / kTile % 2);
    std::byte* const gradients = first < kRemainder
                                     ? memory.panel(first / kTile) + kRemainder * kSwizzledRow
                                     : memory.rest(2);
    if (warp * 16 < N) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int key = kRemainder + i / 4 * 8 + lane % 4 * 2 + i % 2;
        s[i] = exp2_approx(fmaf(s[i], work.scale() * kLog2E, lse[i % 4 / 2]));
        if (key >= work.tokens()) s[i] = 0;
        d[i] = s[i] * (d[i] - delta[i % 4 / 2]);
      }
      put<64>(s, 1, weights), put<64>(d, 1, gradients);
      if (N < kTile)
        stmatrix_x4(swizzled(memory.transposed(kRemainder), lane % 16, lane / 16), operand_of(d).r);
    }
    fence_async_proxy();
    sync_warpgroup_2(kGroups);
    const uint32_t by_weights = uniform(descriptor_low(weights)),
                   by_gradients = uniform(descriptor_low(gradients));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < N / 16; ++i) {
      const int row = 16 * i * kRowStep;
      wgmma_ss_at(dv, Rows::descriptor(dy + row), full_descriptor(by_weights + 2 * i),
                  first + i > 0);
      wgmma_ss_at(dk, Rows::descriptor(q + row), full_descriptor(by_gradients + 2 * i),
                  first + i > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    fence_accumulators(dk), fence_accumulators(dv);
#pragma unroll
    for (int i = 0; i < N; i += 32) work.done_with(memory.empty_chunk(first + i));
  }
  // dk and dv of the keys.
  __device__ __forceinline__ void finish_keys(int turn) {
    const Memory<kSize>& memory = work.memory;
    work.done_with(memory.empty_v());
    work.done_with(memory.scored());
    sync_warpgroup_2(kGroups);  // all have done with what the results replace
    put<kSize>(dv, 1, memory.rest(0)), put<kSize>(dk, work.scale(), memory.rest(1));
    fence_async_proxy();
    sync_warpgroup_2(kGroups);
    if (warp == 0) work.send(2, kRemainder, turn, memory.rest(0));
    if (warp == 1) work.send(1, kRemainder, turn, memory.rest(1));
  }
  // dq of the queries.
  __device__ __forceinline__ void gather_queries(int turn) {
    const Memory<kSize>& memory = work.memory;
    const uint32_t keys = uniform(descriptor_low(memory.k(turn % 2))),
                   gradients = uniform(descriptor_low(memory.transposed(0)));
    float dq[8];
    mbarrier_wait(memory.scored(), turn % 2);
    wgmma_fence();
#pragma unroll
    for (int key = 0; key < kMaxTokens; key += 16)
      wgmma_ss_at(dq, Rows::descriptor(keys + key * kRowStep),
                  full_descriptor(gradients + key / kTile * (Memory<kSize>::kStaged / 16) +
                                  key % kTile / 8),
                  key > 0);
    wgmma_commit();
    wgmma_wait<0>();
    fence_accumulators(dq);
    put<kSize>(dq, work.scale(), memory.rest(2));
    fence_async_proxy();
    sync_warpgroup_2(kGroups);
    if (warp == 0) work.send(0, kRemainder, turn, memory.rest(2));
    work.stored_from(memory.empty(turn % 2));
  }
  // kColumns rows and 16 columns of accumulators, transposed.
  template <int kColumns>
  __device__ __forceinline__ void put(float (&d)[8], float factor, std::byte* to) const {
#pragma unroll
    for (float& x : d) x *= factor;
    if (16 * warp < kColumns) put_transposed<kColumns>(to, 2 * warp, operand_of(d), lane);
  }
};
#endif

}  // namespace vitrum::cuda::smem
