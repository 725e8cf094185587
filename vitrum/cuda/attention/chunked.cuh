// Forward of 209 tokens and more, as a ViT of 384-px images has: attention/smem.cuh with K and V in
// chunks, of which shared memory holds three, and online softmax. Queries of a warpgroup are
// double-buffered. A head of three chunks is brought once, for all its tiles; one of more, for
// every three tiles anew: these are a round, one a warpgroup, and pass over its chunks together.
// With a bias also of fewer tokens: scores begin with it.
#pragma once
#include "vitrum/cuda/attention/packed_bias.cuh"
#include "vitrum/cuda/attention/smem.cuh"

namespace vitrum::cuda::chunked {

constexpr int kSlots = 3;

struct ChunkedArgs {
  PersistentArgs tile;
  CUtensorMap chunks, q, y;
  int chunks_a_head, rounds_a_head;
  PackedBias bias = {};
};

template <int N>  // keys of a chunk
struct Memory {
  struct Slot {  // see attention/smem.cu about the order
    std::byte v[N * kSwizzledRow], k[N * kSwizzledRow];
  };
  Slot slots[kSlots];
  std::byte q[kGroups][2][kTileBytes];
  uint64_t full[kSlots], full_q[kGroups][2];
  int done[kSlots];  // warps
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
template <int N, bool kBiased>
struct Forward {
  const ChunkedArgs& args;
  Memory<N>& memory;
  int head, part, group, tokens, tiles, count;  // tiles: also those beyond the last token
  int thread = threadIdx.x % kGroup, lane = thread % kWarp;

  // Chunks are numbered through the rounds of the images of the block.
  __device__ __forceinline__ void copy_chunk(int number) const {
    const int turn = number / args.chunks_a_head / args.rounds_a_head,
              row = number % args.chunks_a_head * N;
    if (turn >= count) return;
    const int image = image_of(args.tile, part, turn);
    const int apart = static_cast<int>(args.tile.attention.shape.y_stride());
    auto& to = memory.slots[number % kSlots];
    uint64_t* const full = &memory.full[number % kSlots];
    mbarrier_arrive_expect_tx(full, sizeof to);
    tma_load_3d(args.chunks, to.k, full, apart + head * kHead, row, image);
    tma_load_3d(args.chunks, to.v, full, 2 * apart + head * kHead, row, image);
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
  __device__ __forceinline__ std::byte* own_rows(int buffer) const {
    return memory.q[group][buffer] + thread / kWarp * 16 * kSwizzledRow;
  }
  // This warp's queries.
  __device__ __forceinline__ void copy_queries(const TileScheduler& turn, int buffer) const {
    if (!turn.going()) return;
    uint64_t* const full = &memory.full_q[group][buffer];
    mbarrier_arrive_expect_tx(full, 16 * kSwizzledRow);
    tma_load_3d(args.q, own_rows(buffer), full, head * kHead,
                turn.tile * kTile + thread / kWarp * 16, image_of(args.tile, part, turn.image));
  }

  // A warpgroup without a tile in a round: it waits for the chunks, too, or would lose count of
  // them, and nobody waits for it.
  template <class After>
  __device__ __forceinline__ void pass(int round, const After& after) const {
    for (int chunk = 0; chunk < args.chunks_a_head; ++chunk) {
      const int number = round * args.chunks_a_head + chunk, slot = number % kSlots;
      mbarrier_wait(&memory.full[slot], number / kSlots % 2);
      if (chunk == 0) after();
      if (lane == 0) release(number);
      __syncwarp();
    }
  }

  // after() is called while the first scores are under way.
  template <class After>
  __device__ __forceinline__ void tile(const TileScheduler& turn, int buffer,
                                       const After& after) const {
    const int row = turn.tile * kTile + thread / kWarp * 16,
              image = image_of(args.tile, part, turn.image),
              round = turn.image * args.rounds_a_head + turn.tile / tiles_a_round();
    const bool real = row < tokens;
    if (turn.tile * kTile >= tokens) return pass(round, after);
    const uint32_t q = uniform(descriptor_low(memory.q[group][buffer]));
    float o[32];
    SoftmaxState of = {{0, 0}, {1, 1}};
    for (int chunk = 0; chunk < args.chunks_a_head; ++chunk) {
      const int number = round * args.chunks_a_head + chunk, slot = number % kSlots;
      float s[N / 2];
      if constexpr (kBiased) args.bias.load(s, head, row / 16, chunk * N / 8);
      mbarrier_wait(&memory.full[slot], number / kSlots % 2);
      wgmma_fence();
      issue_scores_at(s, q, uniform(descriptor_low(memory.slots[slot].k)), kBiased);
      wgmma_commit();
      if (chunk == 0) after();
      wgmma_wait<0>();
      fence_accumulators(s);
      if (real) {
        if (!kBiased && (chunk + 1) * N > tokens) mask_behind(s, tokens - chunk * N);
        if (chunk == 0)
          softmax<N, false>(of, s, o);
        else
          softmax<N, true>(of, s, o);
      }
      issue_values<N>(o, s, uniform(descriptor_low(memory.slots[slot].v)), chunk > 0);
      wgmma_wait<0>();
      fence_accumulators(o);
      if (lane == 0) release(number);
      __syncwarp();
    }
    float factor[2], *lse = args.tile.attention.lse;
    if (lse) lse += (int64_t{image} * args.tile.attention.shape.heads + head) * tokens;
    finish_softmax(factor, of, lse, row, tokens);
    sync_warpgroup(group);  // the queries have been used
    if (!real) return;
    put_rows(own_rows(buffer), o, factor);
    if (lane == 0) tma_store_3d(args.y, own_rows(buffer), head * kHead, row, image);
  }

  __device__ void run() const {
    TileScheduler turn(count, tiles, 1, group);
    if (lane == 0) copy_queries(turn, 0);
    for (int i = 0; turn.going(); ++i) {
      TileScheduler next = turn;
      next.advance();
      mbarrier_wait(&memory.full_q[group][i % 2], i / 2 % 2);
      tile(turn, i % 2, [&] {
        if (lane == 0) tma_store_wait(), copy_queries(next, (i + 1) % 2);
        __syncwarp();
      });
      turn = next;
    }
    if (lane == 0) tma_store_wait();
  }
};

template <int N, bool kBiased = false>
__device__ void forward(const ChunkedArgs& args) {
  auto& memory = *reinterpret_cast<Memory<N>*>(tile_memory());
  const AttentionShape& shape = args.tile.attention.shape;
  const int part = blockIdx.x / shape.heads, tiles = (shape.tokens + kTile - 1) / kTile;
  const Forward<N, kBiased> work{args,
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

}  // namespace vitrum::cuda::chunked
