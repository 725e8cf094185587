// Backward; see attention_whole.cuh. Tiles of 64 keys gather dk and dv over the queries, tiles of
// 64 queries gather dq over the keys; both compute their weights again, so that no sum has two
// owners. A fourth warpgroup has the copies and what a row of scores needs to know.
#include "vitrum/cuda/attention_whole_bwd.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kStages = 2;

struct BackwardArgs {
  TileArgs tile;
  CUtensorMap qkv, dy;
  int rows;  // in shared memory: tokens and zeros, a multiple of 16
};

struct Memory {
  static constexpr int kTerms = kStages + 1;
  std::byte* base;
  int matrix;  // bytes
  enum Which { kQ, kDy, kK, kV, kAll };

  __device__ __forceinline__ std::byte* at(int stage, int which) const {
    return base + (stage * kAll + which) * matrix;
  }
  // Those of the next image are worked out before it has a place. The last tile of v may reach into
  // these and what follows.
  __device__ __forceinline__ Terms terms(int image) const {
    float* const at =
        reinterpret_cast<float*>(base + kStages * kAll * matrix) + image % kTerms * 2 * kMostWhole;
    return {at, at + kMostWhole};
  }
  __device__ __forceinline__ std::byte* staging(int warp) const {
    return reinterpret_cast<std::byte*>(terms(0).lse + kTerms * 2 * kMostWhole) + warp * kStaging;
  }
  // full: copies have arrived, terms are there; empty: all tiles are done.
  __device__ __forceinline__ uint64_t* full(int stage) const {
    return reinterpret_cast<uint64_t*>(staging(kWarps)) + stage;
  }
  __device__ __forceinline__ uint64_t* empty(int stage) const { return full(kStages + stage); }

  static size_t bytes(int rows) {
    return size_t{kStages} * kAll * rows * kSwizzledRow +
           size_t{kTerms} * 2 * kMostWhole * sizeof(float) + size_t{kWarps} * kStaging +
           2 * kStages * sizeof(uint64_t);
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
struct Work {
  const BackwardArgs& args;
  const Memory& memory;
  int head, part;

  // ---- the warpgroup that brings images ----
  __device__ __forceinline__ void copy(int image, int stage) const {
    uint64_t* const full = memory.full(stage);
    const int apart = static_cast<int>(args.tile.attention.shape.y_stride());
    expect_bytes(full, Memory::kAll * memory.matrix);
    load_box(args.qkv, memory.at(stage, Memory::kQ), full, head * kHead, 0, image);
    load_box(args.qkv, memory.at(stage, Memory::kK), full, apart + head * kHead, 0, image);
    load_box(args.qkv, memory.at(stage, Memory::kV), full, 2 * apart + head * kHead, 0, image);
    load_box(args.dy, memory.at(stage, Memory::kDy), full, head * kHead, 0, image);
  }
  __device__ void produce() const {
    const int count = images_of(args.tile, part), thread = threadIdx.x % kGroup;
    Ring<kStages> ring;
    for (int turn = 0; turn < count; ++turn, ring.advance()) {
      const int image = image_of(args.tile, part, turn);
      put_terms(args.tile.attention, image, head, args.rows, memory.terms(turn));
      if (thread < kWarp) wait_barrier(memory.empty(ring.at), ring.parity ^ 1);
      sync_warpgroup(1);
      if (thread == 0) copy(image, ring.at);
    }
  }

  // ---- the others ----
  struct Source {
    uint32_t of_tile[2], whole[2];
    __device__ __forceinline__ uint32_t own(int i) const { return of_tile[i]; }
    __device__ __forceinline__ uint32_t other(int i, int first) const {
      return uniform(whole[i] + first * kRowPlaces);
    }
    __device__ __forceinline__ void wait(int) const {}
    __device__ __forceinline__ void scored(bool) const {}
    __device__ __forceinline__ void release(int) const {}
  };
  __device__ __forceinline__ Source source(int stage, int first_operand, int tile) const {
    const auto at = [&](int which, int t) {
      return uniform(place_of(memory.at(stage, which) + t * kTileBytes));
    };
    const int other = Memory::kK - first_operand;  // k and v where q and dy are, and the reverse
    return {{at(first_operand, tile), at(first_operand + 1, tile)},
            {at(other, 0), at(other + 1, 0)}};
  }
  __device__ void consume(HeadGradients& gradients, int group) const {
    const AttentionShape& shape = args.tile.attention.shape;
    const int tiles = (shape.tokens + kTile - 1) / kTile,
              row = static_cast<int>(threadIdx.x) % kGroup / kWarp * 16;
    for (Turns turn(images_of(args.tile, part), 2 * tiles, kStages, group); turn.going();
         turn.advance()) {
      const int64_t image = image_of(args.tile, part, turn.image);
      bf16* to = static_cast<bf16*>(args.tile.attention.out) +
                 image * shape.tokens * shape.qkv_stride() + head * kHead;
      const Terms terms = memory.terms(turn.image);
      wait_barrier(memory.full(turn.stage), turn.parity);
      if (const int tile = turn.tile; tile < tiles)
        gradients.key_tile(source(turn.stage, Memory::kK, tile), tile * kTile + row, args.rows,
                           terms, to);
      else
        gradients.query_tile(source(turn.stage, Memory::kQ, tile - tiles),
                             (tile - tiles) * kTile + row, args.rows, terms, to);
      __syncwarp();
      if (threadIdx.x % kWarp == 0) arrive(memory.empty(turn.stage));
    }
  }
};

__device__ void backward(const BackwardArgs& args) {
  const Memory memory{tile_memory(), args.rows * kSwizzledRow};
  const AttentionShape& shape = args.tile.attention.shape;
  const Work work{args, memory, static_cast<int>(blockIdx.x % shape.heads),
                  static_cast<int>(blockIdx.x / shape.heads)};
  if (threadIdx.x == 0) {
    const int tiles = (shape.tokens + kTile - 1) / kTile;
    for (int stage = 0; stage < kStages; ++stage)
      init_barrier(memory.full(stage), 1), init_barrier(memory.empty(stage), 2 * tiles * 4);
    publish_barriers();
  }
  __syncthreads();
  const int group = static_cast<int>(uniform(threadIdx.x / kGroup));
  if (group == kGroups) {
    give_registers<32>();
    work.produce();
  } else {
    take_registers<160>();
    HeadGradients gradients{args.tile, memory.staging(threadIdx.x / kWarp)};
    work.consume(gradients, group);
    if (args.tile.columns) write_sums(gradients, memory.base, work.head, work.part);
  }
}
#endif

__global__ void __launch_bounds__(kHeadThreads, 1)
    whole_backward([[maybe_unused]] const __grid_constant__ BackwardArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  backward(args);
#endif
}

}  // namespace

KernelPtr whole_attention_bwd(CudaBackend& cuda, const AttentionArgs& args, int64_t images) {
  if (!fits_whole(cuda, args, images)) return nullptr;
  const AttentionShape& shape = args.shape;
  const int rows = static_cast<int>(divide_up(shape.tokens, 16) * 16);
  const size_t bytes = Memory::bytes(rows);
  allow_shared_memory(whole_backward, bytes);
  const TileArgs tile = head_parts(cuda, args, images);
  const BackwardArgs all{
      .tile = tile,
      .qkv = rows_of_heads(args.qkv, shape.qkv_stride(), shape.tokens, images, rows),
      .dy = rows_of_heads(args.dy, shape.y_stride(), shape.tokens, images, rows),
      .rows = rows};
  return make_kernel([=, stream = cuda.stream()] {
    whole_backward<<<head_blocks(tile), kHeadThreads, bytes, stream>>>(all);
    finish_head_sums(tile, stream);
  });
}

}  // namespace vitrum::cuda
