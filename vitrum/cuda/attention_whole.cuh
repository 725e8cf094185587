// Attention of heads that lie in shared memory as a whole (sm_90): 64 values, 81 to 208 tokens, as
// a ViT of 224-px images has. Three warpgroups take tiles of 64 queries (backward also of 64 keys)
// in turn, so that one has exponentials while another has products. A block stays with one head and
// goes through images; the copy engine brings the next ones meanwhile.
#pragma once
#include "vitrum/cuda/attention_tile.cuh"
#include "vitrum/cuda/tensor_map.h"
#include "vitrum/cuda/tma.cuh"

namespace vitrum::cuda {

constexpr int kGroups = 3, kMostWhole = 208;  // warpgroups; tokens

// Where a matrix lies, in units of 16 bytes and as the products want it: what changes of a
// description.
__device__ __forceinline__ uint32_t place_of(const std::byte* matrix) {
  return static_cast<uint32_t>(describe(matrix));
}
// The same number, which is that of all lanes: now the compiler knows.
__device__ __forceinline__ uint32_t uniform(uint32_t x) { return __shfl_sync(0xffffffffu, x, 0); }
__device__ __forceinline__ uint64_t describe_place(uint32_t place) {
  return uint64_t{1024 >> 4 | 1u << 30} << 32 | place;
}
constexpr int kRowPlaces = kSwizzledRow / 16;

// s (64, N) = the 64 rows at a by the N rows at b, over the whole head.
template <int kCount>
__device__ __forceinline__ void score_places(float (&s)[kCount], uint32_t a, uint32_t b) {
#pragma unroll
  for (int step = 0; step < kScoreSteps; ++step)
    multiply_shared(s, describe_place(a + 2 * step), describe_place(b + 2 * step), step > 0);
}

// A block's work: tiles of images in an order that warpgroups go through three steps at a time.
struct Turns {
  int count, tiles, stages;  // images of this block, tiles of one, images in shared memory
  int image, tile;           // of this turn: the how-manieth image
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ Turns(int count, int tiles, int stages, int start)
      : count(count), tiles(tiles), stages(stages), image(0), tile(start) {
    carry();
  }
  __device__ __forceinline__ void carry() {
    for (; tile >= tiles; tile -= tiles) {
      ++image;
      if (++stage == stages) stage = 0, parity ^= 1;
    }
  }
  __device__ __forceinline__ void advance() { tile += kGroups, carry(); }
  __device__ __forceinline__ bool going() const { return image < count; }
};

// The images of a block: `part`, `part` + parts, ... from the end.
__device__ __forceinline__ int images_of(const TileArgs& args, int part) {
  return static_cast<int>((args.images - part + args.parts - 1) / args.parts);
}
__device__ __forceinline__ int image_of(const TileArgs& args, int part, int turn) {
  return static_cast<int>(from_the_end(part + turn * args.parts, args.images));
}

// Rows of a head of `columns` columns in all, `box` at a time.
inline CUtensorMap rows_of_heads(const void* data, int64_t columns, int64_t tokens, int64_t images,
                                 int box) {
  const auto wide = static_cast<cuuint64_t>(columns), rows = static_cast<cuuint64_t>(tokens),
             bytes = wide * sizeof(bf16);
  return describe_tensor(data, {wide, rows, static_cast<cuuint64_t>(images)}, {bytes, bytes * rows},
                         {static_cast<cuuint32_t>(kHead), static_cast<cuuint32_t>(box), 1u});
}

inline bool fits_whole(const CudaBackend& cuda, const AttentionArgs& args, int64_t images) {
  return whole_enough(cuda, args.shape, images) && !args.drop.rng && !args.bias && !args.mask &&
         args.out && images < INT32_MAX && built() && encoder();
}

}  // namespace vitrum::cuda
