// Forward of 209 to 600 tokens, as a ViT of 384-px images has: attention/smem.cuh with keys and
// values in chunks, of which shared memory has three. A warpgroup has a place for its queries, and
// another where the next ones arrive.
#pragma once
#include "vitrum/cuda/attention/smem.cuh"

namespace vitrum::cuda::longer {

constexpr int kSlots = 3;
// Keys of a chunk: as few as possible beyond the last token, a head's chunks in the slots.
inline int keys_of_chunk(int tokens) {
  const auto padded = [&](int n) { return (tokens + n - 1) / n * n; };
  return tokens > kSlots * 144 || padded(200) <= padded(144) ? 200 : 144;
}

struct LongArgs {
  TileArgs tile;
  CUtensorMap chunks, q, y;
  int chunks_a_head;  // at most kSlots: a head's chunks are brought once, for all its tiles
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
template <int N>
struct Forward {
  const LongArgs& args;
  Memory<N>& memory;
  int head, part, group, tokens, tiles, count;
  int thread = threadIdx.x % kGroup, lane = thread % kWarp;

  // Chunks are numbered through the images of the block.
  __device__ __forceinline__ void copy_chunk(int number) const {
    const int turn = number / args.chunks_a_head, row = number % args.chunks_a_head * N;
    if (turn >= count) return;
    const int image = image_of(args.tile, part, turn);
    const int apart = static_cast<int>(args.tile.attention.shape.y_stride());
    auto& to = memory.slots[number % kSlots];
    uint64_t* const full = &memory.full[number % kSlots];
    expect_bytes(full, sizeof to);
    load_box(args.chunks, to.k, full, apart + head * kHead, row, image);
    load_box(args.chunks, to.v, full, 2 * apart + head * kHead, row, image);
  }
  // This warp has done with a chunk. The last one asks for what takes its place.
  __device__ __forceinline__ void release(int number) const {
    int* const done = &memory.done[number % kSlots];
    if (count_up(done) < 4 * tiles - 1) return;
    *done = 0;
    copy_chunk(number + kSlots);
  }
  __device__ __forceinline__ std::byte* own_rows(int buffer) const {
    return memory.q[group][buffer] + thread / kWarp * 16 * kSwizzledRow;
  }
  // This warp's queries.
  __device__ __forceinline__ void copy_queries(const Turns& turn, int buffer) const {
    if (!turn.going()) return;
    uint64_t* const full = &memory.full_q[group][buffer];
    expect_bytes(full, 16 * kSwizzledRow);
    load_box(args.q, own_rows(buffer), full, head * kHead, turn.tile * kTile + thread / kWarp * 16,
             image_of(args.tile, part, turn.image));
  }

  // after() is called while the first scores are under way.
  template <class After>
  __device__ __forceinline__ void tile(const Turns& turn, int buffer, const After& after) const {
    const int row = turn.tile * kTile + thread / kWarp * 16,
              image = image_of(args.tile, part, turn.image);
    const bool real = row < tokens;
    const uint32_t q = uniform(place_of(memory.q[group][buffer]));
    float o[32];
    RowSums of = {{0, 0}, {1, 1}};
    for (int chunk = 0; chunk < args.chunks_a_head; ++chunk) {
      const int number = turn.image * args.chunks_a_head + chunk, slot = number % kSlots;
      wait_barrier(&memory.full[slot], number / kSlots % 2);
      float s[N / 2];
      begin_products();
      score_places(s, q, uniform(place_of(memory.slots[slot].k)));
      commit_products();
      if (chunk == 0) after();
      wait_for_products<0>();
      settle(s);
      if (real) {
        if ((chunk + 1) * N > tokens) hide_behind(s, tokens - chunk * N);
        if (chunk == 0)
          softmax<N, false>(of, s, o);
        else
          softmax<N, true>(of, s, o);
      }
      weigh_values<N>(o, s, uniform(place_of(memory.slots[slot].v)), chunk > 0);
      wait_for_products<0>();
      settle(o);
      if (lane == 0) release(number);
      __syncwarp();
    }
    float factor[2], *lse = args.tile.attention.lse;
    if (lse) lse += (int64_t{image} * args.tile.attention.shape.heads + head) * tokens;
    finish_softmax(factor, of, lse, row, tokens);
    sync_warpgroup(group);  // the queries have been used
    if (!real) return;
    put_rows(own_rows(buffer), o, factor);
    if (lane == 0) store_box(args.y, own_rows(buffer), head * kHead, row, image);
  }

  __device__ void run() const {
    Turns turn(count, tiles, 1, group);
    if (lane == 0) copy_queries(turn, 0);
    for (int i = 0; turn.going(); ++i) {
      Turns next = turn;
      next.advance();
      wait_barrier(&memory.full_q[group][i % 2], i / 2 % 2);
      tile(turn, i % 2, [&] {
        if (lane == 0) wait_for_boxes(), copy_queries(next, (i + 1) % 2);
        __syncwarp();
      });
      turn = next;
    }
    if (lane == 0) wait_for_boxes();
  }
};

template <int N>
__device__ void forward(const LongArgs& args) {
  auto& memory = *reinterpret_cast<Memory<N>*>(tile_memory());
  const AttentionShape& shape = args.tile.attention.shape;
  const int part = blockIdx.x / shape.heads;
  const Forward<N> work{args,
                        memory,
                        static_cast<int>(blockIdx.x % shape.heads),
                        part,
                        static_cast<int>(uniform(threadIdx.x / kGroup)),
                        shape.tokens,
                        (shape.tokens + kTile - 1) / kTile,
                        images_of(args.tile, part)};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kSlots; ++i) init_barrier(&memory.full[i], 1), memory.done[i] = 0;
    for (auto& of_group : memory.full_q)
      for (uint64_t& barrier : of_group) init_barrier(&barrier, 4);
    publish_barriers();
    for (int i = 0; i < kSlots; ++i) work.copy_chunk(i);
  }
  __syncthreads();
  work.run();
}
#endif

}  // namespace vitrum::cuda::longer
