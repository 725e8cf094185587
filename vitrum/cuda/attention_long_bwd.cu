// Backward of 209 to 600 tokens; see attention_whole_bwd.cu. Two operands of a head lie in shared
// memory as a whole: queries and dy while tiles of keys are worked on, then keys and values. Chunk
// by chunk they make room for the next two, when the last tiles have gone past. A warpgroup has a
// place for its tile of the other two, and asks for its next one when the last scores are there.
#include "vitrum/cuda/attention_whole_bwd.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kMostRows = 608, kMostChunks = kMostRows / 48;
constexpr int kBox = 16;  // rows that are copied at a time

struct LongArgs {
  TileArgs tile;
  CUtensorMap qkv, dy;
  int rows;  // in shared memory: tokens and zeros, a multiple of 16
};

struct Memory {
  std::byte* base;
  int rows;

  __device__ __forceinline__ std::byte* whole(int i) const {
    return base + i * rows * kSwizzledRow;
  }
  __device__ __forceinline__ std::byte* tile(int group, int i) const {
    return whole(2) + (2 * group + i) * kTileBytes;
  }
  // Of an image, and of the next one.
  __device__ __forceinline__ Terms terms(int image) const {
    float* const at = reinterpret_cast<float*>(tile(kGroups, 0)) + image % 2 * 2 * kMostRows;
    return {at, at + kMostRows};
  }
  __device__ __forceinline__ std::byte* staging(int warp) const {
    return reinterpret_cast<std::byte*>(terms(0).lse + 4 * kMostRows) + warp * kStaging;
  }
  // full: a chunk of both has arrived, and the image's terms are there; empty: all warps have done
  // with it. Chunks are known by their first row, of which every 48 have one at most.
  __device__ __forceinline__ uint64_t* full(int first) const {
    return reinterpret_cast<uint64_t*>(staging(kWarps)) + first / 48;
  }
  __device__ __forceinline__ uint64_t* empty(int first) const { return full(first) + kMostChunks; }
  __device__ __forceinline__ uint64_t* full_tile(int group) const {
    return full(0) + 2 * kMostChunks + group;
  }

  static size_t bytes(int rows) {
    return size_t{2} * rows * kSwizzledRow + size_t{2} * kGroups * kTileBytes +
           4 * kMostRows * sizeof(float) + size_t{kWarps} * kStaging +
           (2 * kMostChunks + kGroups) * sizeof(uint64_t);
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// As sync_warpgroup, beside its barriers.
__device__ __forceinline__ void sync_further(int group) {
  asm volatile("bar.sync %0, 128;\n" ::"r"(4 + group) : "memory");
}

// A tile's place in the order of things: first all of an image that are of keys, then of queries.
struct Task {
  int turn, tile;
  bool of_keys;
  __device__ __forceinline__ Task(const Turns& at, int tiles)
      : turn(at.image),
        tile(at.tile < tiles ? at.tile : at.tile - tiles),
        of_keys(at.tile < tiles) {}
  __device__ __forceinline__ uint32_t parity() const { return of_keys ? 0 : 1; }
};

struct Work {
  const LongArgs& args;
  const Memory& memory;
  int head, part, count, tiles;

  // Rows of the i-th of two operands: queries and dy, or keys and values.
  __device__ __forceinline__ void copy(std::byte* to, uint64_t* full, bool keys, int i, int row,
                                       int image) const {
    const int apart = static_cast<int>(args.tile.attention.shape.y_stride()), at = head * kHead;
    if (!keys && i == 1)
      load_box(args.dy, to, full, at, row, image);
    else
      load_box(args.qkv, to, full, at + (keys ? 1 + i : 0) * apart, row, image);
  }

  // ---- the warpgroup that brings what lies whole ----
  __device__ void produce() const {
    const int thread = threadIdx.x % kGroup;
    for (int turn = 0; turn < count; ++turn) {
      const int image = image_of(args.tile, part, turn);
      put_terms(args.tile.attention, image, head, args.rows, memory.terms(turn));
      sync_warpgroup(1);
      if (thread == 0)
        for (uint32_t pass = 0; pass < 2; ++pass)
          in_chunks(args.rows, [&]<int N>(int first) {
            uint64_t* const full = memory.full(first);
            wait_barrier(memory.empty(first), pass ^ 1);
            expect_bytes(full, 2 * N * kSwizzledRow);
            for (int row = first; row < first + N; row += kBox)
              for (int i = 0; i < 2; ++i)
                copy(memory.whole(i) + row * kSwizzledRow, full, pass == 1, i, row, image);
          });
      sync_warpgroup(1);  // all of the image before is done
    }
  }

  // ---- the others ----
  // This warp's rows of a tile.
  __device__ __forceinline__ void copy_tile(const Turns& at, int group) const {
    if (!at.going()) return;
    const Task task(at, tiles);
    const int row = static_cast<int>(threadIdx.x) % kGroup / kWarp * 16;
    uint64_t* const full = memory.full_tile(group);
    expect_bytes(full, 2 * kBox * kSwizzledRow);
    for (int i = 0; i < 2; ++i)
      copy(memory.tile(group, i) + row * kSwizzledRow, full, task.of_keys, i,
           task.tile * kTile + row, image_of(args.tile, part, task.turn));
  }
  struct Source {
    const Work& work;
    const Turns& next;
    int group;
    uint32_t parity;
    bool last;  // tile of this pass, for this warpgroup

    __device__ __forceinline__ uint32_t own(int i) const {
      return uniform(place_of(work.memory.tile(group, i)));
    }
    __device__ __forceinline__ uint32_t other(int i, int first) const {
      return uniform(place_of(work.memory.whole(i)) + first * kRowPlaces);
    }
    __device__ __forceinline__ void wait(int first) const {
      wait_barrier(work.memory.full(first), parity);
    }
    __device__ __forceinline__ void scored(bool done) const {
      if (!done) return;
      sync_further(group);
      if (threadIdx.x % kWarp == 0) work.copy_tile(next, group);
      __syncwarp();
    }
    __device__ __forceinline__ void release(int first) const {
      if (last && threadIdx.x % kWarp == 0) arrive(work.memory.empty(first));
      __syncwarp();
    }
  };
  __device__ void consume(HeadGradients& gradients, int group) const {
    const AttentionShape& shape = args.tile.attention.shape;
    const int row = static_cast<int>(threadIdx.x) % kGroup / kWarp * 16;
    Turns at(count, 2 * tiles, 1, group);
    if (threadIdx.x % kWarp == 0) copy_tile(at, group);
    for (uint32_t parity = 0; at.going(); parity ^= 1) {
      Turns next = at;
      next.advance();
      const Task task(at, tiles);
      bf16* to = static_cast<bf16*>(args.tile.attention.out) +
                 int64_t{image_of(args.tile, part, task.turn)} * shape.tokens * shape.qkv_stride() +
                 head * kHead;
      const Source from{*this, next, group, task.parity(), task.tile + kGroups >= tiles};
      wait_barrier(memory.full_tile(group), parity);
      const int first = task.tile * kTile + row;
      const Terms terms = memory.terms(task.turn);
      if (task.of_keys)
        gradients.key_tile(from, first, args.rows, terms, to);
      else
        gradients.query_tile(from, first, args.rows, terms, to);
      __syncwarp();
      at = next;
    }
  }
};

__device__ void backward(const LongArgs& args) {
  const Memory memory{tile_memory(), args.rows};
  const AttentionShape& shape = args.tile.attention.shape;
  const int part = static_cast<int>(blockIdx.x / shape.heads);
  const Work work{args,
                  memory,
                  static_cast<int>(blockIdx.x % shape.heads),
                  part,
                  images_of(args.tile, part),
                  (shape.tokens + kTile - 1) / kTile};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kMostChunks; ++i)
      init_barrier(memory.full(0) + i, 1), init_barrier(memory.empty(0) + i, kWarps);
    for (int group = 0; group < kGroups; ++group) init_barrier(memory.full_tile(group), 4);
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
    long_backward([[maybe_unused]] const __grid_constant__ LongArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  backward(args);
#endif
}

}  // namespace

KernelPtr long_attention_bwd(CudaBackend& cuda, const AttentionArgs& args, int64_t images) {
  const AttentionShape& shape = args.shape;
  if (!long_enough(cuda, shape, images) || !whole_heads(cuda, args, images)) return nullptr;
  const int rows = static_cast<int>(divide_up(shape.tokens, 16) * 16);
  const size_t bytes = Memory::bytes(rows);
  allow_shared_memory(long_backward, bytes);
  const TileArgs tile = head_parts(cuda, args, images);
  const LongArgs all{.tile = tile,
                     .qkv = rows_of_heads(args.qkv, shape.qkv_stride(), shape.tokens, images, kBox),
                     .dy = rows_of_heads(args.dy, shape.y_stride(), shape.tokens, images, kBox),
                     .rows = rows};
  return make_kernel([=, stream = cuda.stream()] {
    long_backward<<<head_blocks(tile), kHeadThreads, bytes, stream>>>(all);
    finish_head_sums(tile, stream);
  });
}

}  // namespace vitrum::cuda
