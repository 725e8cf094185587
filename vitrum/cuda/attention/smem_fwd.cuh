// Forward; see attention/smem.cuh. All scores of a row are in a quad's registers: no online
// softmax. The last warp that has done with an image issues the TMA loads of the one that takes its
// stage.
//
// The primitives it is written in have a second set for tests without a card.
#pragma once
#include <type_traits>

#include "vitrum/cuda/attention/smem.cuh"

namespace vitrum::cuda::smem_fwd {

struct ForwardArgs {
  PersistentArgs tile;
  CUtensorMap qkv, y;
  uint8_t* rounded;  // e4m3, in place of y
  float inverse;     // of its scale
};

// N: keys of a product, a multiple of 8, and rows of q, k and v in shared memory.
template <int N, int kSize>
struct Memory {
  static constexpr int kMatrix = N * SwizzledRows<kSize>::kBytes,
                       kStages = kMatrix > 200 * kSwizzledRow ? 2 : 3;
  // Products of weights and values are 16 deep: after v come rows that are finite as k is, and meet
  // weights of 0. The last tile of q may reach into v.
  struct Image {
    std::byte q[kMatrix], v[kMatrix], k[kMatrix];
  };
  Image images[kStages];
  std::byte unused[16];  // for rows of the last tile that have no place
  uint64_t full[kStages];
  int done[kStages];  // warps
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
template <int N, int kSize, class Bytes>
struct Forward {
  using Rows = SwizzledRows<kSize>;
  static constexpr int kStages = Memory<N, kSize>::kStages;
  static constexpr bool kRounds = !std::is_void_v<Bytes>;
  const ForwardArgs& args;
  Memory<N, kSize>& memory;
  int head, part, group, tokens, tiles, count;
  int thread = threadIdx.x % kGroup, lane = thread % kWarp;
  Turns turns{group};

  __device__ __forceinline__ void copy(int turn, int stage) const {
    const int image = image_of(args.tile, part, turn), column = head * kSize;
    const int apart = static_cast<int>(args.tile.attention.shape.y_stride());
    auto& to = memory.images[stage];
    uint64_t* const full = &memory.full[stage];
    mbarrier_arrive_expect_tx(full, sizeof to);
    tma_load_3d(args.qkv, to.q, full, column, 0, image);
    tma_load_3d(args.qkv, to.k, full, column + apart, 0, image);
    tma_load_3d(args.qkv, to.v, full, column + 2 * apart, 0, image);
  }
  // This warp has done with its part of a tile, whose result has left shared memory.
  __device__ __forceinline__ void release(int turn, int stage) const {
    tma_store_wait();
    if (fetch_add_shared(&memory.done[stage]) < 4 * tiles - 1) return;
    memory.done[stage] = 0;
    if (turn + kStages < count) copy(turn + kStages, stage);
  }

  // after() is called behind the scores.
  template <class After>
  __device__ __forceinline__ void tile(const TileScheduler& turn, int image,
                                       const After& after) const {
    auto& from = memory.images[turn.stage];
    std::byte* const q = from.q + turn.tile * kTile * Rows::kBytes;
    const int row = turn.tile * kTile + thread / kWarp * 16;
    const bool real = row < tokens;
    float s[N / 2], o[kSize / 2];
    turns.wait();
    wgmma_fence();
    issue_scores_at<kSize>(s, uniform(descriptor_low(q)), uniform(descriptor_low(from.k)));
    wgmma_commit();
    wgmma_wait<0>();
    fence_accumulators(s);
    turns.give();
    after();
    SoftmaxState of = {{0, 0}, {1, 1}};
    if (real) {
      if (tokens < N) mask_behind(s, tokens);
      softmax<N, false>(of, s, scale_of<kSize>(args.tile.attention.shape));
    }
    const Weights<N> weights(s);
    wgmma_fence();
    weights.multiply(o, uniform(descriptor_low(from.v)), false);
    wgmma_commit();
    float factor[2], *lse = args.tile.attention.lse;
    if (lse) lse += (int64_t{image} * args.tile.attention.shape.heads + head) * tokens;
    finish_softmax(factor, of, lse, row, tokens);
    wgmma_wait<0>();
    fence_accumulators(o);
    if constexpr (kRounds) {
      if (real) put_bytes(o, factor, image, row);
      return;
    }
    sync_warpgroup(group);  // the queries have been used
    if (!real) return;
    std::byte* const own = q + row % kTile * Rows::kBytes;
    put_rows(own, o, factor, N - row, memory.unused);
    if (lane == 0) tma_store_3d(args.y, own, head * kSize, row, image);
  }
  __device__ __forceinline__ void put_bytes(const float (&o)[32], const float (&factor)[2],
                                            int image, int row) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 raw = Bytes::row(o, half, factor[half], args.inverse);
      const int at = row + lane / 4 + 8 * half;
      if (at >= tokens) continue;
      const int64_t place = (int64_t{image} * tokens + at) * args.tile.attention.shape.y_stride();
      *reinterpret_cast<uint4*>(args.rounded + place + head * kSize + lane % 4 * 16) = raw;
    }
  }
  __device__ void run() const {
    int last_turn = -1, last_stage = 0, i = 0;
    turns.begin();
    for (TileScheduler turn(count, tiles, kStages, group); turn.going(); turn.advance(), ++i) {
      mbarrier_wait(&memory.full[turn.stage], turn.parity);
      tile(turn, image_of(args.tile, part, turn.image), [&] {
        if (lane == 0 && last_turn >= 0) release(last_turn, last_stage);
        __syncwarp();
      });
      last_turn = turn.image, last_stage = turn.stage;
    }
    turns.pass(i, count * tiles, 1);
    turns.end();
    if (lane == 0) tma_store_wait();
  }
};

// Bytes::row() makes a row of a thread's sums where results are rounded to bytes.
template <int N, int kSize, class Bytes = void>
__device__ void forward(const ForwardArgs& args) {
  auto& memory = *reinterpret_cast<Memory<N, kSize>*>(tile_memory());
  const AttentionShape& shape = args.tile.attention.shape;
  const int head = blockIdx.x % shape.heads, part = blockIdx.x / shape.heads;
  const Forward<N, kSize, Bytes> work{args,
                                      memory,
                                      head,
                                      part,
                                      static_cast<int>(uniform(threadIdx.x / kGroup)),
                                      shape.tokens,
                                      (shape.tokens + kTile - 1) / kTile,
                                      images_of(args.tile, part)};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Memory<N, kSize>::kStages; ++stage)
      mbarrier_init(&memory.full[stage], 1), memory.done[stage] = 0;
    fence_barrier_init();
    for (int stage = 0; stage < min(Memory<N, kSize>::kStages, work.count); ++stage)
      work.copy(stage, stage);
  }
  __syncthreads();
  work.run();
}
#endif

}  // namespace vitrum::cuda::smem_fwd
