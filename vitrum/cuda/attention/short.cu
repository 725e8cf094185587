// Attention over short sequences by mma.sync: windows of a Swin with their bias and mask, ViTs of
// 32-px images. For bf16, up to 80 tokens and heads of up to 64 values. A group of warps has one
// head of one image at a time, a warp 16 of its rows; all scores of a row are in registers, so that
// each is computed once, in either direction. Persistent: CTAs stay with one head and go through
// images, load a bias once and accumulate its gradient in registers.
#include <algorithm>
#include <cassert>

#include "vitrum/cuda/attention/attention.cuh"
#include "vitrum/cuda/primitives/column_sums.cuh"
#include "vitrum/cuda/primitives/fragments.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kRows = 16;  // of a warp

// Offsets of the scores in units of q . k; a block has images of one head.
struct ShortArgs {
  AttentionArgs attention;
  int* masked;      // by window of an image: whether its mask has anything but zeros
  float* partials;  // (parts * groups, H, T, T): sums of the bias' gradient, or null
  float* columns;   // (parts * groups, 3 C): column sums of dqkv, or null
  int64_t images, parts;
};

// kTiles x 16 tokens, heads of kSteps x 16 values.
template <int kTiles, int kSteps>
struct Short {
  static constexpr int kTokens = kRows * kTiles, kWidth = 16 * kSteps;
  static constexpr int kStride = kWidth + 8;         // ldmatrix then meets no bank twice
  static constexpr int kWeightStride = kTokens + 8;  // of weights, and of the bias
  static constexpr int kGroups = kTiles == 1 ? 8 : 1;
  static constexpr int kGroupThreads = kWarp * kTiles, kThreads = kGroups * kGroupThreads;
  static constexpr int kMatrix = kTokens * kStride, kWeights = kTokens * kWeightStride;
  static constexpr size_t kBias = size_t{kWeights} * sizeof(float);
  // Shared memory of a group: q, k, v or q, k, v, dy so many times, and backward the weights.
  static constexpr size_t bytes(bool backward, int buffers) {
    return ((backward ? 4 : 3) * static_cast<size_t>(buffers) * kMatrix +
            (backward ? kWeights : 0)) *
           sizeof(bf16);
  }
  // Blocks that a processor should have room for: as many as fit into its memory and, by what was
  // measured, its registers.
  static constexpr int blocks(bool backward, int buffers, bool biased) {
    const int most = kTiles == 1 ? 2 : backward ? (kTiles == 5 || biased ? 3 : 4) : 9 - kTiles;
    const auto fit =
        static_cast<int>(227 * 1024 / (kGroups * bytes(backward, buffers) + (biased ? kBias : 0)));
    return fit < 1 ? 1 : fit < most ? fit : most;
  }

  static __device__ void group_sync() {
    if (kTiles == 1)
      __syncwarp();
    else
      __syncthreads();
  }

  // The rows of a head into shared memory, zeros behind `tokens` and behind `size`.
  static __device__ void fill(bf16* to, Rows from, int tokens, int size) {
    constexpr int kVectors = kWidth / 8;
    for (int i = threadIdx.x % kGroupThreads; i < kTokens * kVectors; i += kGroupThreads) {
      const int row = i / kVectors, column = i % kVectors * 8;
      bf16* target = to + row * kStride + column;
      if (row < tokens && column < size)
        cp_async_16(target, from.data + row * from.stride + column);
      else
        *reinterpret_cast<uint4*>(target) = make_uint4(0, 0, 0, 0);
    }
  }

  // A warp's 16 rows of sums to global memory, by way of shared memory for the sake of whole
  // 16-byte stores; `rows` are its own rows there.
  static __device__ void store(bf16* to, int64_t stride, bf16* rows, const Tile (&c)[2 * kSteps],
                               float low, float high, int first, int tokens, int size) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 2 * kSteps; ++n) {
      auto* at = reinterpret_cast<uint32_t*>(rows + g * kStride + n * 8 + 2 * t);
      at[0] = pack2(c[n].v[0] * low, c[n].v[1] * low);
      at[4 * kStride] = pack2(c[n].v[2] * high, c[n].v[3] * high);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int piece = i * kWarp + lane, row = piece / (2 * kSteps),
                column = piece % (2 * kSteps) * 8;
      if (first + row < tokens && column < size)
        *reinterpret_cast<uint4*>(to + (first + row) * stride + column) =
            *reinterpret_cast<const uint4*>(rows + row * kStride + column);
    }
  }

  // Adds the column sums of a warp's 16 rows in shared memory to what its lanes keep of them: a
  // product with ones gives every lane group all of them, each keeps some. See column_of.
  static constexpr int kSums = kSteps / 2;
  static __device__ void add_columns(float (&sums)[kSums], const bf16* rows) {
    constexpr uint32_t kOnes = 0x3f803f80;
    Tile c[2 * kSteps];
    add_product(c, FragmentA{{kOnes, kOnes, kOnes, kOnes}}, rows, kStride, 0);
    const int group = threadIdx.x % kWarp / 4;
#pragma unroll
    for (int at = 0; at < 4 * kSteps; ++at)
      if (at / kSums == group) sums[at % kSums] += c[at / 2].v[at % 2];
  }
  static __device__ int column_of(int i) {
    const int lane = threadIdx.x % kWarp, at = lane / 4 * kSums + i;
    return 8 * (at / 2) + 2 * (lane % 4) + at % 2;
  }

  // The bias of a head in units of q . k; -inf behind the last key, so that its weight is 0.
  static __device__ void fill_bias(float* to, const float* bias, int tokens, float unit) {
    for (int i = threadIdx.x; i < kTokens * kTokens; i += kThreads) {
      const int q = i / kTokens, k = i % kTokens;
      to[q * kWeightStride + k] = k >= tokens  ? -INFINITY
                                  : q < tokens ? unit * bias[q * tokens + k]
                                               : 0;
    }
  }

  // Scores of the warp's rows with everything that is added to them.
  static __device__ void add_offsets(Tile (&s)[2 * kTiles], const float* bias, const float* mask,
                                     int row, int tokens, float unit) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < 2 * kTiles; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = row + g + 8 * half, key = 8 * n + 2 * t;
        if (bias) {
          const float2 b = *reinterpret_cast<const float2*>(bias + query * kWeightStride + key);
          s[n].v[2 * half] += b.x, s[n].v[2 * half + 1] += b.y;
        } else {
          if (key >= tokens) s[n].v[2 * half] = -INFINITY;
          if (key + 1 >= tokens) s[n].v[2 * half + 1] = -INFINITY;
        }
        if (mask && query < tokens) {
          if (key < tokens) s[n].v[2 * half] += unit * mask[query * tokens + key];
          if (key + 1 < tokens) s[n].v[2 * half + 1] += unit * mask[query * tokens + key + 1];
        }
      }
  }

  // A warp's 16 rows of weights as bf16.
  static __device__ void put(bf16* to, const Tile (&c)[2 * kTiles], int row) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < 2 * kTiles; ++n) {
      auto* at = reinterpret_cast<uint32_t*>(to + (row + g) * kWeightStride + 8 * n + 2 * t);
      at[0] = pack2(c[n].v[0], c[n].v[1]);
      at[4 * kWeightStride] = pack2(c[n].v[2], c[n].v[3]);
    }
  }

  // c += 16 rows of `left` times all rows of `right`^T, for one step of 16 values.
  static __device__ void add_scores(Tile (&c)[2 * kTiles], const bf16* left, const bf16* right,
                                    int row, int step) {
    const FragmentA a = load_left(left, kStride, row, 16 * step);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const FragmentB b = load_rows_as_columns(right, kStride, 16 * j, 16 * step);
      mma_m16n8k16(c[2 * j], a, b.r[0], b.r[1]);
      mma_m16n8k16(c[2 * j + 1], a, b.r[2], b.r[3]);
    }
  }
};

// What a group of warps works on: its head, its images, its memory.
template <class S>
struct Place {
  int head, part, group, warp;
  const float* bias;  // in shared memory
  bf16* memory;

  __device__ Place(const ShortArgs& args, std::byte* shared, size_t bytes_of_group)
      : head(static_cast<int>(blockIdx.x) % args.attention.shape.heads),
        part(static_cast<int>(blockIdx.x) / args.attention.shape.heads),
        group(static_cast<int>(threadIdx.x) / S::kGroupThreads),
        warp(static_cast<int>(threadIdx.x) % S::kGroupThreads / kWarp),
        bias(args.attention.bias ? reinterpret_cast<const float*>(shared) : nullptr),
        memory(reinterpret_cast<bf16*>(shared + (bias ? S::kBias : 0) +
                                       static_cast<size_t>(group) * bytes_of_group)) {
    const AttentionShape& shape = args.attention.shape;
    if (!bias) return;
    S::fill_bias(reinterpret_cast<float*>(shared),
                 args.attention.bias + int64_t{head} * shape.tokens * shape.tokens, shape.tokens,
                 sqrtf(static_cast<float>(shape.size)));
    __syncthreads();
  }
  // The mask of an image, null where it has only zeros.
  static __device__ const float* mask(const ShortArgs& args, int64_t image) {
    const AttentionArgs& a = args.attention;
    if (!a.mask) return nullptr;
    const int64_t window = image % a.masks;
    if (!args.masked[window]) return nullptr;
    return a.mask + window * a.shape.tokens * a.shape.tokens;
  }
};

// read(image, buffer) starts copies of what an image needs, use(image, buffer) works with it. With
// two buffers the next image is on its way meanwhile.
template <class S, int kBuffers, class Read, class Use>
__device__ __forceinline__ void for_images(const Place<S>& at, const ShortArgs& args,
                                           const Read& read, const Use& use) {
  // With a bias neighbours, else from the end on with all blocks side by side.
  const int64_t all = args.parts * S::kGroups, place = int64_t{at.part} * S::kGroups + at.group;
  const int64_t chunk = (args.images + args.parts - 1) / args.parts;
  const bool biased = args.attention.bias;
  const int64_t step = biased ? S::kGroups : -all;
  int64_t image = biased ? at.part * chunk + at.group : reversed_index(place, args.images);
  const int64_t end = biased ? min(at.part * chunk + chunk, args.images) : -1;
  const auto left = [&](int64_t i) { return biased ? i < end : i > end; };
  int buffer = 0;
  if (kBuffers == 2 && left(image)) read(image, 0);
  if (kBuffers == 2) cp_async_commit();
  for (; left(image); image += step) {
    if (kBuffers == 1) read(image, 0);
    if (kBuffers == 2 && left(image + step)) read(image + step, 1 - buffer);
    cp_async_commit();
    cp_async_wait<kBuffers - 1>();
    S::group_sync();
    use(image, buffer);
    S::group_sync();
    if (kBuffers == 2) buffer = 1 - buffer;
  }
}

template <class S, int kTiles, int kSteps, int kBuffers>
__global__ void __launch_bounds__(S::kThreads, S::blocks(false, kBuffers, false))
    short_forward(ShortArgs args) {
  extern __shared__ __align__(16) std::byte shared[];
  const Place<S> at(args, shared, S::bytes(false, kBuffers));
  const AttentionShape shape = args.attention.shape;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4, row = at.warp * kRows;
  const float unit = sqrtf(static_cast<float>(shape.size)), scale = 1 / unit;
  const auto read = [&](int64_t image, int buffer) {
    const auto* qkv = static_cast<const bf16*>(args.attention.qkv) +
                      image * shape.tokens * shape.qkv_stride() + at.head * shape.size;
    for (int i = 0; i < 3; ++i)
      S::fill(at.memory + (3 * buffer + i) * S::kMatrix,
              {qkv + i * shape.y_stride(), shape.qkv_stride()}, shape.tokens, shape.size);
  };
  for_images<S, kBuffers>(at, args, read, [&](int64_t image, int buffer) {
    bf16 *q = at.memory + 3 * buffer * S::kMatrix, *k = q + S::kMatrix, *v = k + S::kMatrix;
    Tile s[2 * kTiles];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) S::add_scores(s, q, k, row, step);
    S::add_offsets(s, at.bias, at.mask(args, image), row, shape.tokens, unit);
    float sum[2], top[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = -INFINITY, sum[half] = 0;
#pragma unroll
      for (int n = 0; n < 2 * kTiles; ++n)
        top[half] = fmaxf(top[half], fmaxf(s[n].v[2 * half], s[n].v[2 * half + 1]));
      top[half] = quad_max(top[half]) * scale;
#pragma unroll
      for (int n = 0; n < 2 * kTiles; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i)
          sum[half] += s[n].v[i] = exp2f((s[n].v[i] * scale - top[half]) * kLog2E);
      sum[half] = quad_sum(sum[half]);
    }
    Tile o[2 * kSteps];
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
      add_product(o, as_operand(s[2 * j], s[2 * j + 1]), v, S::kStride, 16 * j);
    // No other warp reads this warp's queries.
    if (args.attention.out)
      S::store(static_cast<bf16*>(args.attention.out) + image * shape.tokens * shape.y_stride() +
                   at.head * shape.size,
               shape.y_stride(), q + row * S::kStride, o, 1 / sum[0], 1 / sum[1], row, shape.tokens,
               shape.size);
    for (int half = 0; half < 2; ++half)
      if (args.attention.lse && t == 0 && row + g + 8 * half < shape.tokens)
        args.attention.lse[(image * shape.heads + at.head) * shape.tokens + row + g + 8 * half] =
            top[half] + logf(sum[half]);
  });
}

// The column sums of a group's images, over its warps in turn.
template <class S, int kTiles>
__device__ __forceinline__ void write_columns(const ShortArgs& args, const Place<S>& at,
                                              const float (&columns)[3][S::kSums]) {
  auto* of_warps = reinterpret_cast<float*>(at.memory);  // (kTiles, 3, kWidth)
#pragma unroll
  for (int which = 0; which < 3; ++which)
#pragma unroll
    for (int i = 0; i < S::kSums; ++i)
      of_warps[(at.warp * 3 + which) * S::kWidth + S::column_of(i)] = columns[which][i];
  S::group_sync();
  const AttentionShape& shape = args.attention.shape;
  float* to = args.columns + (int64_t{at.part} * S::kGroups + at.group) * shape.qkv_stride() +
              at.head * shape.size;
  for (int i = threadIdx.x % S::kGroupThreads; i < 3 * S::kWidth; i += S::kGroupThreads) {
    const int which = i / S::kWidth, column = i % S::kWidth;
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kTiles; ++warp) sum += of_warps[warp * 3 * S::kWidth + i];
    if (column < shape.size) to[which * shape.y_stride() + column] = sum;
  }
}

// The sums of a group's images for the bias' gradient; one tile: there is no bias.
template <class S, int kCount>
__device__ __forceinline__ void write_bias(const ShortArgs& args, const Place<S>& at,
                                           const AttentionShape& shape, const Tile (&sums)[kCount],
                                           int first, int t) {
  float* to = args.partials + ((int64_t{at.part} * S::kGroups + at.group) * shape.heads + at.head) *
                                  shape.tokens * shape.tokens;
#pragma unroll
  for (int n = 0; n < (kCount > 1 ? kCount : 0); ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = first + i / 2 * 8, key = 8 * n + 2 * t + i % 2;
      if (query < shape.tokens && key < shape.tokens) to[query * shape.tokens + key] = sums[n].v[i];
    }
}

template <class S, int kTiles, int kSteps, int kBuffers, bool kBiased>
__global__ void __launch_bounds__(S::kThreads, S::blocks(true, kBuffers, kBiased))
    short_backward(ShortArgs args) {
  extern __shared__ __align__(16) std::byte shared[];
  const Place<S> at(args, shared, S::bytes(true, kBuffers));
  const AttentionShape shape = args.attention.shape;
  bf16* weights = at.memory + 4 * kBuffers * S::kMatrix;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4, row = at.warp * kRows;
  const float unit = sqrtf(static_cast<float>(shape.size)), scale = 1 / unit;
  Tile sums[kBiased ? 2 * kTiles : 1];
  float columns[3][S::kSums] = {};
  const auto read = [&](int64_t image, int buffer) {
    const BackwardViews views = backward_views(args.attention, image, at.head);
    bf16* to = at.memory + 4 * buffer * S::kMatrix;
    S::fill(to, views.q, shape.tokens, shape.size);
    S::fill(to + S::kMatrix, views.k, shape.tokens, shape.size);
    S::fill(to + 2 * S::kMatrix, views.v, shape.tokens, shape.size);
    S::fill(to + 3 * S::kMatrix, views.dy, shape.tokens, shape.size);
  };
  for_images<S, kBuffers>(at, args, read, [&](int64_t image, int buffer) {
    const BackwardViews views = backward_views(args.attention, image, at.head);
    bf16 *q = at.memory + 4 * buffer * S::kMatrix, *k = q + S::kMatrix, *v = k + S::kMatrix,
         *dy = v + S::kMatrix;
    float lse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = row + g + 8 * half;
      lse[half] = query < shape.tokens
                      ? args.attention.lse[(image * shape.heads + at.head) * shape.tokens + query]
                      : INFINITY;
    }

    Tile p[2 * kTiles], d[2 * kTiles];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      S::add_scores(p, q, k, row, step);
      S::add_scores(d, dy, v, row, step);
    }
    S::add_offsets(p, at.bias, at.mask(args, image), row, shape.tokens, unit);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float delta = 0;  // sum of weights and their gradients: dy . y, without reading y
#pragma unroll
      for (int n = 0; n < 2 * kTiles; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          p[n].v[i] = exp2f((p[n].v[i] * scale - lse[half]) * kLog2E);
          delta = fmaf(p[n].v[i], d[n].v[i], delta);
        }
      delta = quad_sum(delta);
#pragma unroll
      for (int n = 0; n < 2 * kTiles; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) d[n].v[i] = p[n].v[i] * (d[n].v[i] - delta);
    }
    Tile dq[2 * kSteps];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      if (kBiased)
#pragma unroll
        for (int n = 2 * j; n < 2 * j + 2; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[n].v[i] += d[n].v[i];
      add_product(dq, as_operand(d[2 * j], d[2 * j + 1]), k, S::kStride, 16 * j);
    }
    if (!args.attention.out) return;
    // Weights, then their gradients, pass through shared memory to the warps of their keys.
    S::put(weights, p, row);
    S::group_sync();
    Tile dk[2 * kSteps], dv[2 * kSteps];
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      add_product(dv, load_left_transposed(weights, S::kWeightStride, 16 * i, row), dy, S::kStride,
                  16 * i);
    // Keys and values have been used: their rows serve as a way out.
    bf16 *own_k = k + row * S::kStride, *own_v = v + row * S::kStride;
    const int64_t stride = shape.qkv_stride();
    S::store(views.dqkv, stride, own_k, dq, scale, scale, row, shape.tokens, shape.size);
    if (args.columns) S::add_columns(columns[0], own_k);
    S::store(views.dqkv + 2 * shape.y_stride(), stride, own_v, dv, 1, 1, row, shape.tokens,
             shape.size);
    if (args.columns) S::add_columns(columns[2], own_v);
    S::group_sync();
    S::put(weights, d, row);
    S::group_sync();
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      add_product(dk, load_left_transposed(weights, S::kWeightStride, 16 * i, row), q, S::kStride,
                  16 * i);
    S::store(views.dqkv + shape.y_stride(), stride, own_k, dk, scale, scale, row, shape.tokens,
             shape.size);
    if (args.columns) S::add_columns(columns[1], own_k);
  });
  if (args.columns) write_columns<S, kTiles>(args, at, columns);
  if (!kBiased) return;
  trigger_dependents();
  write_bias(args, at, shape, sums, row + g, t);
}

__global__ void find_masked(const float* mask, int64_t size, int* masked) {
  bool any = false;
  for (int64_t i = threadIdx.x; i < size; i += blockDim.x) any |= mask[blockIdx.x * size + i] != 0;
  any = __syncthreads_or(any);
  if (threadIdx.x == 0) masked[blockIdx.x] = any;
}

template <int kTiles, int kSteps>
KernelPtr launch(CudaBackend& cuda, const AttentionArgs& attention, int64_t images, bool backward) {
  using S = Short<kTiles, kSteps>;
  const AttentionShape& shape = attention.shape;
  const bool biased = attention.bias != nullptr, sums = attention.dbias != nullptr;
  // Reading ahead pays where it does not cost a block its place.
  constexpr int kForward = kTiles == 1 ? 1 : 2, kBackward = kTiles == 1 || kSteps > 2 ? 1 : 2;
  const int buffers = backward ? kBackward : kForward;
  void (*kernel)(ShortArgs) = short_forward<S, kTiles, kSteps, kForward>;
  if (backward)
    kernel = sums ? short_backward<S, kTiles, kSteps, kBackward, true>
                  : short_backward<S, kTiles, kSteps, kBackward, false>;
  const size_t bytes = (biased ? S::kBias : 0) + S::kGroups * S::bytes(backward, buffers);
  assert(bytes <= kShortBytes);
  allow_shared_memory(kernel, bytes);
  // Blocks go through images where there is something to keep or to read ahead.
  const int64_t most = divide_up(images, S::kGroups);
  const int64_t room = int64_t{cuda.processors()} * S::blocks(backward, buffers, biased);
  const int64_t parts = biased || buffers > 1 ? std::min(most, divide_up(room, shape.heads)) : most;
  ShortArgs args{attention, nullptr, nullptr, nullptr, images, parts};
  const int64_t square = int64_t{shape.tokens} * shape.tokens;
  Buffer flags = cuda.allocate(static_cast<size_t>(attention.masks) * sizeof(int));
  args.masked = reinterpret_cast<int*>(flags.data());
  // One block of scratch: both sums are there at once.
  const int64_t squares = sums ? parts * S::kGroups * shape.heads * square : 0;
  const int64_t columns = attention.column_sums ? parts * S::kGroups * shape.qkv_stride() : 0;
  auto* scratch = cuda.scratch_of<float>(squares + columns);
  if (sums) args.partials = scratch;
  if (columns) args.columns = scratch + squares;
  return make_kernel([=, flags = std::move(flags), stream = cuda.stream()] {
    if (attention.mask)
      find_masked<<<static_cast<unsigned>(attention.masks), 128, 0, stream>>>(attention.mask,
                                                                              square, args.masked);
    kernel<<<static_cast<unsigned>(parts * shape.heads), S::kThreads, bytes, stream>>>(args);
    if (sums)
      launch_finish(args.partials, parts * S::kGroups, shape.heads * square,
                    SetElements{attention.dbias}, stream);
    if (columns)
      launch_finish(args.columns, parts * S::kGroups, shape.qkv_stride(),
                    AddToColumns{attention.column_sums}, stream);
  });
}

template <int kSteps>
KernelPtr launch(CudaBackend& cuda, const AttentionArgs& args, int64_t images, bool backward) {
  if (args.shape.tokens <= 16) return launch<1, kSteps>(cuda, args, images, backward);
  if (args.shape.tokens <= 64) return launch<4, kSteps>(cuda, args, images, backward);
  return launch<5, kSteps>(cuda, args, images, backward);
}

}  // namespace

KernelPtr short_attention(CudaBackend& cuda, const AttentionArgs& args, int64_t images,
                          bool backward) {
  return args.shape.size <= 32 ? launch<2>(cuda, args, images, backward)
                               : launch<4>(cuda, args, images, backward);
}

}  // namespace vitrum::cuda
