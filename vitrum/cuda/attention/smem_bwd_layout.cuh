// Shared memory of attention/smem_bwd.cuh, and how its warps share it.
#pragma once
#include "vitrum/cuda/attention/head_bwd.cuh"

namespace vitrum::cuda::smem {

constexpr int kBox = 16;  // rows that are copied at a time
constexpr int kRemainder =
    kGroups * kTile;  // keys and queries from here on are the fourth warpgroup's
constexpr int kMaxChunks = 7;

struct BackwardArgs {
  PersistentArgs tile;
  CUtensorMap qkv, dy, out, whole;  // whole: qkv, all rows of a head
  int rows;                         // in shared memory: tokens and zeros, a multiple of 16
};

// Matrices of a head's values, and of scores: these have rows of 64 keys or queries.
template <int kSize>
struct Memory {
  using Rows = SwizzledRows<kSize>;
  std::byte* base;
  int rows;

  // Of an image: queries, dy, values; keys of two; gradients of scores, keys down, in panels of 64
  // queries. These have room for the results of a warpgroup, twice 64 rows, when they have been
  // used.
  __device__ __forceinline__ std::byte* matrix(int i) const {
    return base + i * rows * Rows::kBytes;
  }
  __device__ __forceinline__ std::byte* q() const { return matrix(0); }
  __device__ __forceinline__ std::byte* dy() const { return matrix(1); }
  __device__ __forceinline__ std::byte* v() const { return matrix(2); }
  __device__ __forceinline__ std::byte* k(int stage) const { return matrix(3 + stage); }
  static constexpr int kMatrices = 5;
  static __host__ __device__ int panel_bytes(int rows) {
    return (rows > 2 * kTile ? rows : 2 * kTile) * kSwizzledRow;
  }
  __device__ __forceinline__ std::byte* panel(int i) const {
    return matrix(kMatrices) + i * panel_bytes(rows);
  }
  // For the rest: weights of its keys, or results; gradients of its queries' scores, queries down,
  // in panels of 64 keys.
  static constexpr int kStaged = kBox * kSwizzledRow, kRemainderParts = 3,
                       kTransposed = kGroups + 1;
  __device__ __forceinline__ std::byte* rest(int i) const { return panel(kGroups) + i * kStaged; }
  __device__ __forceinline__ std::byte* transposed(int key) const {
    return rest(kRemainderParts + key / kTile);
  }
  __device__ __forceinline__ LseDelta terms(int stage) const {
    float* const at =
        reinterpret_cast<float*>(rest(kRemainderParts + kTransposed)) + stage * 2 * kMaxTokens;
    return {at, at + kMaxTokens};
  }
  // A chunk of queries and dy, known by its first row: arrived, done with. Keys, with the terms:
  // likewise. Values: likewise. scored: the gradients of all scores are there.
  __device__ __forceinline__ uint64_t* barrier(int i) const {
    return reinterpret_cast<uint64_t*>(terms(2).lse) + i;
  }
  __device__ __forceinline__ uint64_t* full_chunk(int first) const { return barrier(first / 32); }
  __device__ __forceinline__ uint64_t* empty_chunk(int first) const {
    return barrier(kMaxChunks + first / 32);
  }
  __device__ __forceinline__ uint64_t* full(int stage) const {
    return barrier(2 * kMaxChunks + stage);
  }
  __device__ __forceinline__ uint64_t* empty(int stage) const { return full(2 + stage); }
  __device__ __forceinline__ uint64_t* full_v() const { return full(4); }
  __device__ __forceinline__ uint64_t* empty_v() const { return full(5); }
  __device__ __forceinline__ uint64_t* scored() const { return full(6); }
  static constexpr int kBarriers = 2 * kMaxChunks + 7;

  static size_t bytes(int rows) {
    return size_t{kMatrices} * rows * Rows::kBytes + size_t{kGroups} * panel_bytes(rows) +
           (kRemainderParts + kTransposed) * kStaged + 4 * kMaxTokens * sizeof(float) +
           kBarriers * sizeof(uint64_t);
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Calls step<N>(first) for chunks of 32, then of 16, that make up `rows`.
template <class Step>
__device__ __forceinline__ void in_steps(int rows, const Step& step) {
  const int last = rows - rows % 32;
  int first = 0;
  for (; first < last; first += 32) step.template operator()<32>(first);
  if (first < rows) step.template operator()<16>(first);
}

// 16 x 16 values into 16 rows of shared memory, transposed, from a piece of eight columns on.
template <int kColumns = 64>
__device__ __forceinline__ void put_transposed(std::byte* to, int piece, const FragmentA& values,
                                               int lane) {
  stmatrix_x4_trans(SwizzledRows<kColumns>::at(to, lane % 8 + lane / 16 * 8, piece + lane / 8 % 2),
                    values.r);
}

// What all warps of a block have in common: its head, and the images it goes through.
template <int kSize>
struct HeadWork {
  const BackwardArgs& args;
  const Memory<kSize>& memory;
  int head, part, count;
  int lane = threadIdx.x % kWarp;
  ColumnSums<kSize> sums = {};

  __device__ __forceinline__ float scale() const {
    return scale_of<kSize>(args.tile.attention.shape);
  }
  __device__ __forceinline__ int tokens() const { return args.tile.attention.shape.tokens; }
  __device__ __forceinline__ int image(int turn) const { return image_of(args.tile, part, turn); }
  __device__ __forceinline__ int column(int which) const {
    return which * static_cast<int>(args.tile.attention.shape.y_stride()) + head * kSize;
  }
  __device__ __forceinline__ void done_with(uint64_t* barrier) const {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(barrier);
  }
  // What was stored from shared memory has been read, too.
  __device__ __forceinline__ void stored_from(uint64_t* barrier) const {
    __syncwarp();
    if (lane == 0) tma_store_wait(), mbarrier_arrive(barrier);
  }
  // Before gradients of scores are written: those of the image before have been used.
  __device__ __forceinline__ void wait_for_room(int turn) const {
    if (turn > 0) mbarrier_wait(memory.empty((turn - 1) % 2), (turn - 1) / 2 % 2);
  }

  // 16 rows of dq, dk or dv, on their way from shared memory.
  __device__ __forceinline__ void send(int which, int row, int turn, std::byte* staging) {
    if (lane == 0) tma_store_3d(args.out, staging, column(which), row, image(turn));
    sums.add(which, staging, lane);
  }
};
#endif

}  // namespace vitrum::cuda::smem
