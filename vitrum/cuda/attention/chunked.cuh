// Forward of 209 tokens and more, as a ViT of 384-px images has: attention/smem.cuh with K and V in
// chunks, of which shared memory holds three, and online softmax. Queries of a warpgroup are
// double-buffered. A head of three chunks is brought once, for all its tiles; one of more, for
// every three tiles anew: these are a round, one a warpgroup, and pass over its chunks together.
// With a bias also of fewer tokens: scores begin with it. Heads of 72 and 80 values are 64 columns
// and 16 more, matrices of their own; TMA fills what a head does not have with zeros.
#pragma once
#include "vitrum/cuda/attention/packed_bias.cuh"
#include "vitrum/cuda/attention/smem.cuh"

namespace vitrum::cuda::chunked {

constexpr int kSlots = 3;

// 64 columns of the heads, or the 16 behind them.
struct PartMaps {
  CUtensorMap chunks, q, y;
};
struct ChunkedArgs {
  PersistentArgs tile;
  PartMaps wide, rest;
  int chunks_a_head, rounds_a_head;
  PackedBias bias = {};
};

// N: keys of a chunk.
template <int N, int kColumns>
struct Part {
  struct Slot {  // see attention/smem_fwd.cuh about the order
    std::byte v[N * SwizzledRows<kColumns>::kBytes], k[N * SwizzledRows<kColumns>::kBytes];
  };
  Slot slots[kSlots];
  std::byte q[kGroups][2][kTile * SwizzledRows<kColumns>::kBytes];
};
template <int N>
struct Part<N, 0> {};

template <int N, int kSize>  // kSize: 64 or 80 values
struct Memory {
  Part<N, kHead> wide;
  Part<N, kSize - kHead> rest;
  uint64_t full[kSlots], full_q[kGroups][2];
  int done[kSlots];  // warps
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
template <int N, int kSize, bool kBiased>
struct Forward {
  static constexpr int kRest = kSize - kHead;
  static constexpr int kRowBytes = 2 * kSize;  // of all parts
  const ChunkedArgs& args;
  Memory<N, kSize>& memory;
  int head, part, group, tokens, tiles, count;  // tiles: also those beyond the last token
  int thread = threadIdx.x % kGroup, lane = thread % kWarp;
  Turns turns{group};

  // Chunks are numbered through the rounds of the images of the block.
  __device__ __forceinline__ void copy_chunk(int number) const {
    const int turn = number / args.chunks_a_head / args.rounds_a_head,
              row = number % args.chunks_a_head * N;
    if (turn >= count) return;
    const int image = image_of(args.tile, part, turn), slot = number % kSlots;
    uint64_t* const full = &memory.full[slot];
    mbarrier_arrive_expect_tx(full, 2 * N * kRowBytes);
    const auto copy = [&](const PartMaps& maps, auto& to, int column) {
      const int heads = args.tile.attention.shape.heads;
      tma_load_4d(maps.chunks, to.k, full, column, heads + head, row, image);
      tma_load_4d(maps.chunks, to.v, full, column, 2 * heads + head, row, image);
    };
    copy(args.wide, memory.wide.slots[slot], 0);
    if constexpr (kRest > 0) copy(args.rest, memory.rest.slots[slot], kHead);
  }
  // This warp has done with a chunk. The last one of the round asks for what takes its place.
  __device__ __forceinline__ void release(int number) const {
    int* const done = &memory.done[number % kSlots];
    if (fetch_add_shared(done) < 4 * tiles_a_round() - 1) return;
    *done = 0;
    copy_chunk(number + kSlots);
  }
  __device__ __forceinline__ int tiles_a_round() const {
    return args.rounds_a_head > 1 ? kGroups : tiles;
  }
  // Of this warp.
  template <class Columns>
  __device__ __forceinline__ std::byte* own_rows(Columns& of, int buffer) const {
    return of.q[group][buffer] + thread / kWarp * (sizeof of.q[0][0] / 4);
  }
  __device__ __forceinline__ void copy_queries(const TileScheduler& turn, int buffer) const {
    if (!turn.going()) return;
    uint64_t* const full = &memory.full_q[group][buffer];
    mbarrier_arrive_expect_tx(full, 16 * kRowBytes);
    const auto copy = [&](const PartMaps& maps, auto& to, int column) {
      tma_load_4d(maps.q, own_rows(to, buffer), full, column, head,
                  turn.tile * kTile + thread / kWarp * 16, image_of(args.tile, part, turn.image));
    };
    copy(args.wide, memory.wide, 0);
    if constexpr (kRest > 0) copy(args.rest, memory.rest, kHead);
  }

  // A warpgroup without a tile in a round: it waits for the chunks, too, or would lose count of
  // them, and nobody waits for it.
  template <class After>
  __device__ __forceinline__ void pass(int round, const After& after) const {
    for (int chunk = 0; chunk < args.chunks_a_head; ++chunk) {
      const int number = round * args.chunks_a_head + chunk, slot = number % kSlots;
      mbarrier_wait(&memory.full[slot], number / kSlots % 2);
      turns.wait(), turns.give();
      if (chunk == 0) after();
      if (lane == 0) release(number);
      __syncwarp();
    }
  }

  // after() is called behind the first scores.
  template <class After>
  __device__ __forceinline__ void tile(const TileScheduler& turn, int buffer,
                                       const After& after) const {
    const int row = turn.tile * kTile + thread / kWarp * 16,
              image = image_of(args.tile, part, turn.image),
              round = turn.image * args.rounds_a_head + turn.tile / tiles_a_round();
    const bool real = row < tokens;
    if (turn.tile * kTile >= tokens) return pass(round, after);
    const auto place = [](const std::byte* matrix) { return uniform(descriptor_low(matrix)); };
    const uint32_t q = place(memory.wide.q[group][buffer]);
    const float scale = scale_of<kSize>(args.tile.attention.shape);
    float o[kHead / 2];
    [[maybe_unused]] float o_rest[kRest > 0 ? kRest / 2 : 1];
    SoftmaxState of = {{0, 0}, {1, 1}};
    for (int chunk = 0; chunk < args.chunks_a_head; ++chunk) {
      const int number = round * args.chunks_a_head + chunk, slot = number % kSlots;
      float s[N / 2];
      if constexpr (kBiased) args.bias.load(s, head, row / 16, chunk * N / 8);
      mbarrier_wait(&memory.full[slot], number / kSlots % 2);
      turns.wait();
      wgmma_fence();
      issue_scores_at(s, q, place(memory.wide.slots[slot].k), kBiased);
      if constexpr (kRest > 0)
        issue_scores_at<kRest>(s, place(memory.rest.q[group][buffer]),
                               place(memory.rest.slots[slot].k), true);
      wgmma_commit();
      wgmma_wait<0>();
      fence_accumulators(s);
      turns.give();
      if (chunk == 0) after();
      if (real) {
        if (!kBiased && (chunk + 1) * N > tokens) mask_behind(s, tokens - chunk * N);
        if (chunk == 0)
          softmax<N, false>(of, s, scale);
        else if constexpr (kRest > 0)
          softmax<N, true>(of, s, scale, o, o_rest);
        else
          softmax<N, true>(of, s, scale, o);
      }
      const Weights<N> weights(s);
      wgmma_fence();
      weights.multiply(o, place(memory.wide.slots[slot].v), chunk > 0);
      if constexpr (kRest > 0)
        weights.multiply(o_rest, place(memory.rest.slots[slot].v), chunk > 0);
      wgmma_commit();
      wgmma_wait<0>();
      fence_accumulators(o);
      if constexpr (kRest > 0) fence_accumulators(o_rest);
      if (lane == 0) release(number);
      __syncwarp();
    }
    float factor[2], *lse = args.tile.attention.lse;
    if (lse) lse += (int64_t{image} * args.tile.attention.shape.heads + head) * tokens;
    finish_softmax(factor, of, lse, row, tokens);
    sync_warpgroup(group);  // the queries have been used
    if (!real) return;
    const auto store = [&](const PartMaps& maps, auto& by, auto& sums, int column) {
      put_rows(own_rows(by, buffer), sums, factor);
      if (lane == 0) tma_store_4d(maps.y, own_rows(by, buffer), column, head, row, image);
    };
    store(args.wide, memory.wide, o, 0);
    if constexpr (kRest > 0) store(args.rest, memory.rest, o_rest, kHead);
  }

  __device__ void run() const {
    TileScheduler turn(count, tiles, 1, group);
    if (lane == 0) copy_queries(turn, 0);
    turns.begin();
    int i = 0;
    for (; turn.going(); ++i) {
      TileScheduler next = turn;
      next.advance();
      mbarrier_wait(&memory.full_q[group][i % 2], i / 2 % 2);
      tile(turn, i % 2, [&] {
        if (lane == 0) tma_store_wait(), copy_queries(next, (i + 1) % 2);
        __syncwarp();
      });
      turn = next;
    }
    turns.pass(i, count * tiles, args.chunks_a_head);
    turns.end();
    if (lane == 0) tma_store_wait();
  }
};

template <int N, int kSize, bool kBiased>
__device__ void forward(const ChunkedArgs& args) {
  auto& memory = *reinterpret_cast<Memory<N, kSize>*>(tile_memory());
  const AttentionShape& shape = args.tile.attention.shape;
  const int part = blockIdx.x / shape.heads, tiles = (shape.tokens + kTile - 1) / kTile;
  const Forward<N, kSize, kBiased> work{
      args,
      memory,
      static_cast<int>(blockIdx.x % shape.heads),
      part,
      static_cast<int>(uniform(threadIdx.x / kGroup)),
      shape.tokens,
      args.rounds_a_head > 1 ? args.rounds_a_head * kGroups : tiles,
      images_of(args.tile, part)};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kSlots; ++i) mbarrier_init(&memory.full[i], 1), memory.done[i] = 0;
    for (auto& of_group : memory.full_q)
      for (uint64_t& barrier : of_group) mbarrier_init(&barrier, 4);
    fence_barrier_init();
    for (int i = 0; i < kSlots; ++i) work.copy_chunk(i);
  }
  __syncthreads();
  work.run();
}
#endif

// ---- lowering ----

// Maps of all parts; heads of 64 values have one.
inline void set_maps(ChunkedArgs& args, const AttentionShape& shape, const void* qkv, const void* y,
                     int64_t images, int keys) {
  const auto part = [&](int columns) {
    const auto rows = [&](const void* data, int heads, int box) {
      return parts_of_heads(data, shape.size, heads, shape.tokens, images, columns, box);
    };
    return PartMaps{rows(qkv, 3 * shape.heads, keys), rows(qkv, 3 * shape.heads, 16),
                    rows(y, shape.heads, 16)};
  };
  args.wide = part(kHead);
  if (shape.size > kHead) args.rest = part(16);
}

}  // namespace vitrum::cuda::chunked
