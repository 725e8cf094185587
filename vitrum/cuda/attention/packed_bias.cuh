// A bias of attention as the sums of m64nNk16 and m16n8k16 lie in registers: scores begin with it,
// and a thread loads four of them at once. In units of q . k; keys behind the last token have
// minus infinity, so that they need no mask.
#pragma once
#include "vitrum/cuda/attention/attention.cuh"

namespace vitrum::cuda {

// Of one thread, as Tile has them: rows g and g + 8, columns 2 t and 2 t + 1.
struct alignas(16) FourScores {
  float v[4];
};

// (heads, tiles of 16 queries, tiles of 8 keys, lanes)
struct PackedBias {
  FourScores* data = nullptr;
  int row_tiles = 0, key_tiles = 0;

  __host__ __device__ int64_t count(int heads) const {
    return int64_t{heads} * row_tiles * key_tiles * kWarp;
  }
  // Those of a warp's rows and of keys from tile `key_tile` on.
  template <int kCount>
  __device__ __forceinline__ void load(float (&s)[kCount], int head, int row_tile,
                                       int key_tile) const {
    const FourScores* from =
        data + ((int64_t{head} * row_tiles + row_tile) * key_tiles + key_tile) * kWarp +
        threadIdx.x % kWarp;
#pragma unroll
    for (int n = 0; n < kCount / 4; ++n) {
      const FourScores four = from[n * kWarp];
#pragma unroll
      for (int i = 0; i < 4; ++i) s[4 * n + i] = four.v[i];
    }
  }
};

// The four scores number `at`; bias (heads, tokens, tokens).
__device__ __forceinline__ void pack_four(const PackedBias& to, const float* bias, int tokens,
                                          float unit, int64_t at) {
  const int lane = static_cast<int>(at % kWarp);
  const int64_t tile = at / kWarp;
  const int key = static_cast<int>(tile % to.key_tiles) * 8 + lane % 4 * 2,
            query = static_cast<int>(tile / to.key_tiles % to.row_tiles) * 16 + lane / 4;
  bias += tile / to.key_tiles / to.row_tiles * tokens * tokens;
  FourScores four;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = query + i / 2 * 8, column = key + i % 2;
    const bool inside = row < tokens && column < tokens;
    four.v[i] = inside            ? unit * bias[int64_t{row} * tokens + column]
                : column < tokens ? 0.0f
                                  : -INFINITY;
  }
  to.data[at] = four;
}

}  // namespace vitrum::cuda
