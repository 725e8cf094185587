// Forward; see attention/smem.cuh. All scores of a row are in a quad's registers: no online
// softmax. The last warp that has done with an image issues the TMA loads of the one that takes its
// stage.
#include "vitrum/cuda/attention/smem.cuh"
#include "vitrum/cuda/primitives/e4m3.cuh"

namespace vitrum::cuda {
namespace {

struct ForwardArgs {
  PersistentArgs tile;
  CUtensorMap qkv, y;
  uint8_t* rounded;  // e4m3, in place of y
  float inverse;     // of its scale
};

// N: keys of a product, a multiple of 8, and rows of q, k and v in shared memory.
template <int N>
struct Memory {
  static constexpr int kStages = N > 200 ? 2 : 3, kMatrix = N * kSwizzledRow;
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
// A quad's four lanes have four words each; lane i gets the i-th of all.
__device__ __forceinline__ void exchange_in_quad(uint32_t (&u)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? u[i] : u[i + 1], 1);
    u[i] = odd ? other : u[i], u[i + 1] = odd ? u[i + 1] : other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, high ? u[i] : u[i + 2], 2);
    u[i] = high ? other : u[i], u[i + 2] = high ? u[i + 2] : other;
  }
}
// A row of a head from the sums of a quad, 16 neighbours a lane.
__device__ __forceinline__ uint4 row_of_e4m3(const float (&o)[32], int half, float factor,
                                             float inverse) {
  const auto pair = [&](int group) {
    const float* v = o + 4 * group + 2 * half;
    return pair_of_e4m3(rounded<bf16>(v[0] * factor) * inverse,
                        rounded<bf16>(v[1] * factor) * inverse);
  };
  uint32_t u[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) u[i] = pair(2 * i) | pair(2 * i + 1) << 16;
  exchange_in_quad(u);
  return make_uint4(__byte_perm(u[0], u[1], 0x5410), __byte_perm(u[2], u[3], 0x5410),
                    __byte_perm(u[0], u[1], 0x7632), __byte_perm(u[2], u[3], 0x7632));
}

template <int N, bool kE4M3>
struct Forward {
  static constexpr int kStages = Memory<N>::kStages;
  const ForwardArgs& args;
  Memory<N>& memory;
  int head, part, group, tokens, tiles, count;
  int thread = threadIdx.x % kGroup, lane = thread % kWarp;

  __device__ __forceinline__ void copy(int turn, int stage) const {
    const int image = image_of(args.tile, part, turn), column = head * kHead;
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

  // after() is called while the scores are under way.
  template <class After>
  __device__ __forceinline__ void tile(const TileScheduler& turn, int image,
                                       const After& after) const {
    auto& from = memory.images[turn.stage];
    std::byte* const q = from.q + turn.tile * kTileBytes;
    const int row = turn.tile * kTile + thread / kWarp * 16;
    const bool real = row < tokens;
    float s[N / 2], o[32];
    wgmma_fence();
    issue_scores_at(s, uniform(descriptor_low(q)), uniform(descriptor_low(from.k)));
    wgmma_commit();
    after();
    wgmma_wait<0>();
    fence_accumulators(s);
    SoftmaxState of = {{0, 0}, {1, 1}};
    if (real) {
      if (tokens < N) mask_behind(s, tokens);
      softmax<N, false>(of, s, o);
    }
    issue_values<N>(o, s, uniform(descriptor_low(from.v)), false);
    float factor[2], *lse = args.tile.attention.lse;
    if (lse) lse += (int64_t{image} * args.tile.attention.shape.heads + head) * tokens;
    finish_softmax(factor, of, lse, row, tokens);
    wgmma_wait<0>();
    fence_accumulators(o);
    if constexpr (kE4M3) {
      if (real) put_e4m3(o, factor, image, row);
      return;
    }
    sync_warpgroup(group);  // the queries have been used
    if (!real) return;
    std::byte* const own = q + row % kTile * kSwizzledRow;
    put_rows(own, o, factor, N - row, memory.unused);
    if (lane == 0) tma_store_3d(args.y, own, head * kHead, row, image);
  }
  __device__ __forceinline__ void put_e4m3(const float (&o)[32], const float (&factor)[2],
                                           int image, int row) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 raw = row_of_e4m3(o, half, factor[half], args.inverse);
      const int at = row + lane / 4 + 8 * half;
      if (at >= tokens) continue;
      const int64_t place = (int64_t{image} * tokens + at) * args.tile.attention.shape.y_stride();
      *reinterpret_cast<uint4*>(args.rounded + place + head * kHead + lane % 4 * 16) = raw;
    }
  }
  __device__ void run() const {
    int last_turn = -1, last_stage = 0;
    for (TileScheduler turn(count, tiles, kStages, group); turn.going(); turn.advance()) {
      mbarrier_wait(&memory.full[turn.stage], turn.parity);
      tile(turn, image_of(args.tile, part, turn.image), [&] {
        if (lane == 0 && last_turn >= 0) release(last_turn, last_stage);
        __syncwarp();
      });
      last_turn = turn.image, last_stage = turn.stage;
    }
    if (lane == 0) tma_store_wait();
  }
};

template <int N, bool kE4M3>
__device__ void forward(const ForwardArgs& args) {
  auto& memory = *reinterpret_cast<Memory<N>*>(tile_memory());
  const AttentionShape& shape = args.tile.attention.shape;
  const int head = blockIdx.x % shape.heads, part = blockIdx.x / shape.heads;
  const Forward<N, kE4M3> work{args,
                               memory,
                               head,
                               part,
                               static_cast<int>(uniform(threadIdx.x / kGroup)),
                               shape.tokens,
                               (shape.tokens + kTile - 1) / kTile,
                               images_of(args.tile, part)};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Memory<N>::kStages; ++stage)
      mbarrier_init(&memory.full[stage], 1), memory.done[stage] = 0;
    fence_barrier_init();
    for (int stage = 0; stage < min(Memory<N>::kStages, work.count); ++stage)
      work.copy(stage, stage);
  }
  __syncthreads();
  work.run();
}
#endif

template <int N, bool kE4M3>
__global__ void __launch_bounds__(kGroups* kGroup, 1)
    smem_forward([[maybe_unused]] const __grid_constant__ ForwardArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  forward<N, kE4M3>(args);
#endif
}

template <int N, bool kE4M3 = false>
KernelPtr launch(CudaBackend& cuda, const AttentionArgs& args, int64_t images,
                 uint8_t* rounded = nullptr, float scale = 1) {
  const AttentionShape& shape = args.shape;
  constexpr auto kKernel = smem_forward<N, kE4M3>;
  allow_shared_memory(kKernel, sizeof(Memory<N>));
  const int64_t parts = persistent_parts(cuda, 1, shape.heads, images);
  ForwardArgs all{.tile = {args, nullptr, images, parts},
                  .qkv = rows_of_heads(args.qkv, shape.qkv_stride(), shape.tokens, images, N),
                  .y = {},
                  .rounded = rounded,
                  .inverse = 1 / scale};
  if (!kE4M3) all.y = rows_of_heads(args.out, shape.y_stride(), shape.tokens, images, 16);
  return launch_kernel(cuda, kKernel, static_cast<unsigned>(parts * shape.heads), kGroups * kGroup,
                       sizeof(Memory<N>), all);
}

}  // namespace

KernelPtr smem_attention(CudaBackend& cuda, const AttentionArgs& args, int64_t images, int keys) {
  if (keys == 208) return launch<208>(cuda, args, images);
  return keys == 200 ? launch<200>(cuda, args, images) : launch<144>(cuda, args, images);
}

KernelPtr smem_attention_e4m3(CudaBackend& cuda, const AttentionArgs& args, int64_t images,
                              int keys, uint8_t* y, float scale) {
  if (keys == 208) return launch<208, true>(cuda, args, images, y, scale);
  return keys == 200 ? launch<200, true>(cuda, args, images, y, scale)
                     : launch<144, true>(cuda, args, images, y, scale);
}

}  // namespace vitrum::cuda
