// What 193 to 208 tokens leave over beside three times 64: keys and queries that single warps have,
// as one or two times eight columns of products of their own. These are few, since such a product
// waits for those of the warpgroups, and a warp for each. See attention_whole_bwd.cuh.
#pragma once
#include "vitrum/cuda/attention_whole_parts.cuh"

namespace vitrum::cuda::whole {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Where a lane has its row of 16 rows and its piece of the first two; those of the i-th two are
// ^ 32 i. Rows as they are, and turned round.
__device__ __forceinline__ int row_place(int lane) {
  return lane % 16 * kSwizzledRow + ((lane / 16 ^ lane % 8) << 4);
}
__device__ __forceinline__ int column_place(int lane) {
  return (lane % 8 + lane / 16 * 8) * kSwizzledRow + ((lane / 8 % 2 ^ lane % 8) << 4);
}
struct Rows16 {
  FragmentA of[kScoreSteps];
  __device__ __forceinline__ void load(std::byte* base, int place) {
#pragma unroll
    for (int i = 0; i < kScoreSteps; ++i)
      load_four(of[i].r, reinterpret_cast<const bf16*>(base + (place ^ 32 * i)));
  }
  __device__ __forceinline__ void load_columns(std::byte* base, int place) {
#pragma unroll
    for (int i = 0; i < kScoreSteps; ++i)
      load_four_transposed(of[i].r, reinterpret_cast<const bf16*>(base + (place ^ 32 * i)));
  }
};
// Eight rows as right operand of scores: s (16, 8) = 16 rows by these.
struct Rows8 {
  uint32_t of[2][4];
  __device__ __forceinline__ void load(std::byte* rows, int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      load_four(of[i], reinterpret_cast<const bf16*>(swizzled(rows, lane % 8, 4 * i + lane / 8)));
  }
  __device__ __forceinline__ void score(Tile& s, const Rows16& a) const {
#pragma unroll
    for (int i = 0; i < kScoreSteps; ++i)
      multiply(s, a.of[i], of[i / 2][i % 2 * 2], of[i / 2][i % 2 * 2 + 1]);
  }
};

// dk of the keys, whose gradients of scores are left with the others'; or dv of the keys, then dq
// of the queries.
template <bool kOfKeys, int kParts>
struct Rest {
  HeadWork& work;
  int lane, across, down;
  Tile sum[kParts][4];  // 16 values by eight rows
  Rows8 k[kParts], v[kParts];

  __device__ __forceinline__ explicit Rest(HeadWork& w)
      : work(w), lane(w.lane), across(row_place(lane)), down(column_place(lane)) {}
  __device__ __forceinline__ void begin(int stage) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int at = (kRest + 8 * part) * kSwizzledRow;
      k[part].load(work.memory.k(stage) + at, lane);
      if (kOfKeys) v[part].load(work.memory.v() + at, lane);
#pragma unroll
      for (Tile& t : sum[part]) t = {};
    }
  }
  // By 16 queries from `first` on.
  __device__ __forceinline__ void step(int stage, int first) {
    const Memory& memory = work.memory;
    const Terms terms = memory.terms(stage);
    const int query = first + lane / 4, at = first * kSwizzledRow;
    const float lse[2] = {terms.lse[query], terms.lse[query + 8]},
                delta[2] = {terms.delta[query], terms.delta[query + 8]};
    Rows16 q, dy;
    Tile s[kParts], d[kParts];
    q.load(memory.q(), across + at);
    if (kOfKeys) dy.load(memory.dy(), across + at);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      k[part].score(s[part], q);
      if (kOfKeys) v[part].score(d[part], dy);
    }
    q.load_columns(kOfKeys ? memory.q() : memory.dy(), down + at);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      uint32_t two[2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = s[part].v[i];
        const int key = kRest + 8 * part + lane % 4 * 2 + i % 2;
        x = exp2_approx(fmaf(x, kScale * kLog2E, lse[i / 2]));
        if (kOfKeys) x *= d[part].v[i] - delta[i / 2];
        if (key >= work.tokens()) x = 0;
        if (i % 2) two[i / 2] = transposed(pack2(s[part].v[i - 1], x));
      }
      if (kOfKeys) put(two, kRest + 8 * part + lane / 4, first);
#pragma unroll
      for (int m = 0; m < 4; ++m) multiply(sum[part][m], q.of[m], two[0], two[1]);
    }
  }
  // Gradients of the scores of eight keys and 16 queries.
  __device__ __forceinline__ void put(const uint32_t (&two)[2], int key, int first) const {
    const Memory& memory = work.memory;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      std::byte* const to = first < kRest
                                ? swizzled(memory.panel(first / kTile), key, first % kTile / 8 + i)
                                : memory.narrow(key, i);
      reinterpret_cast<uint32_t*>(to)[lane % 4] = two[i];
    }
  }
  // Of what the rest's queries have with all keys.
  __device__ __forceinline__ void gather_dq(int stage) {
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (Tile& t : sum[part]) t = {};
    const Memory& memory = work.memory;
    for (int key = 0; key < work.args.rows; key += 16) {
      Rows16 keys;
      uint32_t b[4];
      keys.load_columns(memory.k(stage), down + key * kSwizzledRow);
      load_four_transposed(
          b, reinterpret_cast<const bf16*>(memory.narrow(key + lane % 16, lane / 16)));
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int m = 0; m < 4; ++m)
          multiply(sum[part][m], keys.of[m], b[2 * part], b[2 * part + 1]);
    }
  }
  __device__ __forceinline__ void store(int which, int turn) {
    std::byte* const staging = work.memory.rest(which == 1);
    const float factor = which == 2 ? 1 : kScale;
#pragma unroll
    for (int i = 0; i < 2 * kParts; ++i) {
      uint32_t four[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float* two = sum[i / 2][i % 2 * 2 + n / 2].v + n % 2 * 2;
        four[n] = pack2(two[0] * factor, two[1] * factor);
      }
      store_four_transposed(swizzled(staging, i / 2 * 8 + lane % 8, i % 2 * 4 + lane / 8), four);
    }
    publish_shared();
    __syncwarp();
    work.send(which, kRest, turn, staging);
  }
  // Where the rest is eight columns, those behind it have no gradients.
  __device__ __forceinline__ void clear_behind(int staged) const {
    const Memory& memory = work.memory;
    const uint4 zeros = make_uint4(0, 0, 0, 0);
    for (int i = lane; i < kTile; i += kWarp) {
      *reinterpret_cast<uint4*>(swizzled(memory.rest(staged), 8 + i / 8, i % 8)) = zeros;
      if (staged == 1)
        for (int panel = 0; panel < kGroups; ++panel)
          *reinterpret_cast<uint4*>(swizzled(memory.panel(panel), kRest + 8 + i / 8, i % 8)) =
              zeros;
    }
    if (staged == 1 && lane < 16)
      *reinterpret_cast<uint4*>(memory.narrow(kRest + 8 + lane / 2, lane % 2)) = zeros;
  }
  __device__ __forceinline__ void run() {
    const Memory& memory = work.memory;
    if (kParts == 1) clear_behind(kOfKeys);
    for (int turn = 0; turn < work.count; ++turn) {
      const int stage = turn % 2;
      const uint32_t flip = turn % 2;
      wait_barrier(memory.full(stage), turn / 2 % 2);
      if (kOfKeys) wait_barrier(memory.full_v(), flip), work.wait_for_room(turn);
      begin(stage);
      in_steps(work.args.rows, [&]<int N>(int first) {
        wait_barrier(memory.full_chunk(first), flip);
#pragma unroll
        for (int at = 0; at < N; at += 16) step(stage, first + at);
        work.done_with(memory.empty_chunk(first));
      });
      if (kOfKeys) {
        work.done_with(memory.empty_v());
        publish_shared();
        work.done_with(memory.scored());
        store(1, turn);
      } else {
        store(2, turn);
        wait_barrier(memory.scored(), flip);
        gather_dq(stage);
        __syncwarp();
        if (lane == 0) wait_for_boxes();
        __syncwarp();
        store(0, turn);
      }
      work.stored_from(memory.empty(stage));
    }
  }
};
template <bool kOfKeys>
__device__ void gather_rest(HeadWork& work) {
  if (work.tokens() > kRest + 8)
    Rest<kOfKeys, 2>(work).run();
  else
    Rest<kOfKeys, 1>(work).run();
}
#endif

}  // namespace vitrum::cuda::whole
