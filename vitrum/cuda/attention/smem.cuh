// Attention of heads that lie in shared memory as a whole (sm_90a): 64 values, or 32, and 81 to 208
// tokens, as a ViT of 224-px images has, and a masked autoencoder's decoder. Three warpgroups take
// tiles of 64 queries in turn (backward: 64 keys each), so that exponentials of one overlap with
// WGMMA of another. Persistent: a CTA stays with one head and goes through images, which TMA
// prefetches.
#pragma once
#include "vitrum/cuda/attention/one_tile.cuh"
#include "vitrum/cuda/primitives/narrow_rows.cuh"
#include "vitrum/cuda/primitives/turns.cuh"

namespace vitrum::cuda {

constexpr int kGroups = 3, kMaxTokens = 208;  // warpgroups; tokens

// Where a matrix lies, in units of 16 bytes and as the products want it: what changes of a
// description.
__device__ __forceinline__ uint32_t descriptor_low(const std::byte* matrix) {
  return static_cast<uint32_t>(make_descriptor(matrix));
}
// The same number, which is that of all lanes: now the compiler knows.
__device__ __forceinline__ uint32_t uniform(uint32_t x) { return __shfl_sync(0xffffffffu, x, 0); }
// Rows of 16, 32 or 64 values in shared memory, swizzled over their width: the 16-byte piece c of
// row r is stored in place of piece c ^ (r bytes / 128). Matrices start at multiples of eight rows.
template <int kColumns>
struct SwizzledRows {
  static constexpr int kBytes = 2 * kColumns, kPieces = kColumns / 8;
  static constexpr uint32_t kSwizzle = kColumns == 64 ? 1 : kColumns == 32 ? 2 : 3;
  static constexpr int kDescriptorStep = kBytes / 16;  // from row to row

  static __device__ __forceinline__ std::byte* at(std::byte* matrix, int row, int piece) {
    return matrix + row * kBytes + ((piece ^ (row * kBytes / 128 & (kPieces - 1))) << 4);
  }
  static __device__ __forceinline__ uint64_t descriptor(uint32_t place) {
    return uint64_t{8 * kBytes >> 4 | kSwizzle << 30} << 32 | place;
  }
};
__device__ __forceinline__ uint64_t full_descriptor(uint32_t place) {
  return SwizzledRows<64>::descriptor(place);
}
constexpr int kRowDescriptorStep = SwizzledRows<64>::kDescriptorStep;

// What scores are multiplied by, of heads that products have as kSize values: 65 to 80 as 80.
template <int kSize>
__device__ __forceinline__ float scale_of([[maybe_unused]] const AttentionShape& shape) {
  if constexpr (kSize == 64)
    return kScale;
  else if constexpr (kSize == 32)
    return 0.17677669f;
  else
    return rsqrtf(static_cast<float>(shape.size));
}

// s (64, N) = or += the 64 rows at a by the N rows at b, over all kColumns.
template <int kColumns = kHead, int kCount>
__device__ __forceinline__ void issue_scores_at(float (&s)[kCount], uint32_t a, uint32_t b,
                                                bool add = false) {
  using Rows = SwizzledRows<kColumns>;
#pragma unroll
  for (int step = 0; step < kColumns / 16; ++step)
    wgmma_ss(s, Rows::descriptor(a + 2 * step), Rows::descriptor(b + 2 * step), add || step > 0);
}

// Of a thread's two rows of scores: the highest, times the scale, and the sum of their
// exponentials.
struct SoftmaxState {
  float top[2], sum[2];
};
template <int kCount>
__device__ __forceinline__ void scale_rows(float (&o)[kCount], int half, float factor) {
#pragma unroll
  for (int i = 2 * half; i < kCount; i += 4) o[i] *= factor, o[i + 1] *= factor;
}
// Scores of N keys to weights that are yet to be divided by their sum. Those of further keys give
// o, the sums of values so far, the same factor.
template <int N, bool kFurther, int... kCounts>
__device__ __forceinline__ void softmax(SoftmaxState& of, float (&s)[N / 2], float scale,
                                        float (&... o)[kCounts]) {
  float top[4], sum[4] = {};  // in each half of the rows of even and of odd columns
#pragma unroll
  for (int i = 0; i < N / 2; ++i) top[i % 4] = i < 4 ? s[i] : fmaxf(top[i % 4], s[i]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float before = of.top[half];
    of.top[half] = quad_max(fmaxf(top[2 * half], top[2 * half + 1])) * scale;
    if constexpr (kFurther) {
      of.top[half] = fmaxf(of.top[half], before);
      const float factor = exp2_approx((before - of.top[half]) * kLog2E);
      of.sum[half] *= factor;
      (scale_rows(o, half, factor), ...);
    }
  }
  const float shift[2] = {of.top[0] * -kLog2E, of.top[1] * -kLog2E};
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    sum[i % 4] += s[i] = exp2_approx(fmaf(s[i], scale * kLog2E, shift[i % 4 / 2]));
#pragma unroll
  for (int half = 0; half < 2; ++half)
    of.sum[half] = (kFurther ? of.sum[half] : 0) + sum[2 * half] + sum[2 * half + 1];
}
// Scores behind the last of `keys` count for nothing.
template <int kFirst, int kCount>
__device__ __forceinline__ void mask_from(float (&s)[kCount], int keys) {
#pragma unroll
  for (int i = kFirst; i < kCount; ++i)
    if (i / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2 >= keys) s[i] = -INFINITY;
}
template <int kCount>
__device__ __forceinline__ void mask_behind(float (&s)[kCount], int keys) {
  if (keys > 2 * kCount - 8)
    mask_from<kCount - 4>(s, keys);
  else
    mask_from<0>(s, keys);
}
// Weights of N keys as left operands. Products are 16 deep, N may be 8 more than that.
template <int N>
struct Weights {
  static constexpr int kSteps = (N + 15) / 16;
  FragmentA p[kSteps];

  __device__ __forceinline__ explicit Weights(const float (&s)[N / 2]) {
#pragma unroll
    for (int i = 0; i < N / 16; ++i) p[i] = operand_of(s + 8 * i);
    if constexpr (N % 16 != 0)
      p[kSteps - 1] = {
          {pack2(s[N / 2 - 4], s[N / 2 - 3]), pack2(s[N / 2 - 2], s[N / 2 - 1]), 0, 0}};
  }
  // o (64, kColumns) = or += weights by the rows at v.
  template <int kCount>
  __device__ __forceinline__ void multiply(float (&o)[kCount], uint32_t v, bool add) const {
    using Rows = SwizzledRows<2 * kCount>;
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
      wgmma_rs_bt(o, p[i], Rows::descriptor(v + 16 * i * Rows::kDescriptorStep), add || i > 0);
  }
};
// The factors that end the softmax; log-sum-exps of the head, from `row` on, on their way.
__device__ __forceinline__ void finish_softmax(float (&factor)[2], const SoftmaxState& of,
                                               float* lse, int row, int tokens) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(of.sum[half]);
    const int at = row + lane / 4 + 8 * half;
    factor[half] = 1 / sum;
    if (lse && lane % 4 == 0 && at < tokens) lse[at] = of.top[half] + logf(sum);
  }
}

// 16 rows of results into shared memory, for TMA; those behind `places` to a spare 16
// bytes.
template <int kCount>
__device__ __forceinline__ void put_rows(std::byte* to, float (&o)[kCount],
                                         const float (&factor)[2], int places = 16,
                                         std::byte* spare = nullptr) {
  using Rows = SwizzledRows<2 * kCount>;
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kCount; ++i) o[i] *= factor[i % 4 / 2];
#pragma unroll
  for (int j = 0; j < kCount / 8; ++j)
    stmatrix_x4(lane % 16 < places ? Rows::at(to, lane % 16, 2 * j + lane / 16) : spare,
                operand_of(o + 8 * j).r);
  fence_async_proxy();
  __syncwarp();
}

// A CTA's work: tiles of images in an order that warpgroups go through three steps at a time.
struct TileScheduler {
  int count, tiles, stages;  // images of this block, tiles of one, images in shared memory
  int image, tile;           // of this turn: its ordinal in this CTA
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ TileScheduler(int count, int tiles, int stages, int start)
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

// Scores are made by one warpgroup after the other. Products of all at once would end at the same
// time, and so would all their exponentials begin; now these overlap with products.
struct Turns {
  int group;

  // By all, before the first turn and behind the last.
  __device__ __forceinline__ void begin() const {
    if (group == kGroups - 1) give_turn(0);
  }
  __device__ __forceinline__ void end() const {
    if (group == 0) wait_for_turn(0);
  }
  __device__ __forceinline__ void wait() const { wait_for_turn(group); }
  __device__ __forceinline__ void give() const { give_turn(group == kGroups - 1 ? 0 : group + 1); }
  // Of warpgroups that go through `tiles` tiles and have had `own`: one each is still to come where
  // others have one more.
  __device__ __forceinline__ void pass(int own, int tiles, int steps) const {
    if (own * kGroups >= tiles) return;
    for (int i = 0; i < steps; ++i) wait(), give();
  }
};

// The images of a block: `part`, `part` + parts, ... from the end.
__device__ __forceinline__ int images_of(const PersistentArgs& args, int part) {
  return static_cast<int>((args.images - part + args.parts - 1) / args.parts);
}
__device__ __forceinline__ int image_of(const PersistentArgs& args, int part, int turn) {
  return static_cast<int>(reversed_index(part + turn * args.parts, args.images));
}

// Rows of heads of 32 or 64 values, of `columns` columns in all, `box` at a time.
inline CUtensorMap rows_of_heads(const void* data, int64_t columns, int64_t tokens, int64_t images,
                                 int box, int size = kHead) {
  const auto wide = static_cast<cuuint64_t>(columns), rows = static_cast<cuuint64_t>(tokens),
             bytes = wide * sizeof(bf16);
  return make_rows_map(data, {wide, rows, static_cast<cuuint64_t>(images)}, {bytes, bytes * rows},
                       {static_cast<cuuint32_t>(size), static_cast<cuuint32_t>(box), 1u});
}
// `columns` columns of heads of any size, which are a dimension of their own: zeros behind them.
inline CUtensorMap parts_of_heads(const void* data, int64_t size, int64_t heads, int64_t tokens,
                                  int64_t images, int columns, int box) {
  const auto wide = static_cast<cuuint64_t>(size), count = static_cast<cuuint64_t>(heads),
             rows = static_cast<cuuint64_t>(tokens), bytes = wide * sizeof(bf16);
  return make_rows_map(data, {wide, count, rows, static_cast<cuuint64_t>(images)},
                       {bytes, bytes * count, bytes * count * rows},
                       {static_cast<cuuint32_t>(columns), 1u, static_cast<cuuint32_t>(box), 1u});
}

}  // namespace vitrum::cuda
