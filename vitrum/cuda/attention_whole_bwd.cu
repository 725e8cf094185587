// Backward; see attention_whole.cuh. Tiles of 64 keys gather dk and dv over the queries, tiles of
// 64 queries gather dq over the keys; both compute their weights again, so that no sum has two
// owners. A fourth warpgroup has the copies and what a row of scores needs to know.
#include "vitrum/cuda/attention_whole.cuh"
#include "vitrum/cuda/columns.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kStages = 2, kWarps = kGroups * 4, kThreads = (kGroups + 1) * kGroup;
constexpr int kStagingRows = 8, kStaging = kStagingRows * kSwizzledRow;

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
  __device__ __forceinline__ uint32_t place(int stage, int which, int tile = 0) const {
    return uniform(place_of(at(stage, which) + tile * kTileBytes));
  }
  // -lse log2 e of every query, then delta, which is dy . y. Those of the next image are worked out
  // before it has a place. The last tile of v may reach into these and what follows.
  __device__ __forceinline__ float* terms(int image) const {
    return reinterpret_cast<float*>(base + kStages * kAll * matrix) +
           image % kTerms * 2 * kMostWhole;
  }
  __device__ __forceinline__ std::byte* staging(int warp) const {
    return reinterpret_cast<std::byte*>(terms(0) + kTerms * 2 * kMostWhole) + warp * kStaging;
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
// ---- the warpgroup that brings images ----

struct Producer {
  static constexpr int kAhead = 2;  // rows a thread reads before it uses any
  const BackwardArgs& args;
  const Memory& memory;
  int head, part, thread = threadIdx.x % kGroup;

  __device__ __forceinline__ void put_terms(int image, float* to) const {
    const AttentionArgs& a = args.tile.attention;
    const int tokens = a.shape.tokens, stride = static_cast<int>(a.shape.y_stride());
    const int64_t first = int64_t{image} * tokens * stride + head * kHead + thread % 8 * 8;
    const float* lse = a.lse + (int64_t{image} * a.shape.heads + head) * tokens;
    for (int top = thread / 8; top < args.rows; top += kAhead * (kGroup / 8)) {
      uint4 y[kAhead] = {}, dy[kAhead] = {};
      float of_row[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int row = top + i * (kGroup / 8);
        of_row[i] = INFINITY;
        if (row >= tokens) continue;
        const int64_t at = first + row * stride;
        y[i] = *reinterpret_cast<const uint4*>(static_cast<const bf16*>(a.y) + at);
        dy[i] = *reinterpret_cast<const uint4*>(static_cast<const bf16*>(a.dy) + at);
        of_row[i] = lse[row];
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int row = top + i * (kGroup / 8);
        const Eight x = unpack8(dy[i]), z = unpack8(y[i]);
        float sum = 0;
#pragma unroll
        for (int k = 0; k < 8; ++k) sum = fmaf(x.v[k], z.v[k], sum);
#pragma unroll
        for (int other = 4; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
        if (thread % 8 == 0 && row < args.rows)
          to[row] = -kLog2E * of_row[i], to[kMostWhole + row] = sum;
      }
    }
  }
  __device__ __forceinline__ void copy(int image, int stage) const {
    uint64_t* const full = memory.full(stage);
    const int apart = static_cast<int>(args.tile.attention.shape.y_stride());
    expect_bytes(full, Memory::kAll * memory.matrix);
    load_box(args.qkv, memory.at(stage, Memory::kQ), full, head * kHead, 0, image);
    load_box(args.qkv, memory.at(stage, Memory::kK), full, apart + head * kHead, 0, image);
    load_box(args.qkv, memory.at(stage, Memory::kV), full, 2 * apart + head * kHead, 0, image);
    load_box(args.dy, memory.at(stage, Memory::kDy), full, head * kHead, 0, image);
  }
  __device__ void run() const {
    const int count = images_of(args.tile, part);
    Ring<kStages> ring;
    for (int turn = 0; turn < count; ++turn, ring.advance()) {
      const int image = image_of(args.tile, part, turn);
      put_terms(image, memory.terms(turn));
      if (thread < kWarp) wait_barrier(memory.empty(ring.at), ring.parity ^ 1);
      sync_warpgroup(1);
      if (thread == 0) copy(image, ring.at);
    }
  }
};

// ---- the warpgroups ----

// Calls step<N>(first) for chunks of 64, then of 48, that make up `rows`, at least 96.
template <class Step>
__device__ __forceinline__ void in_chunks(int rows, const Step& step) {
  const int last = rows - 48 * (-(rows / 16) & 3);
  int first = 0;
  for (; first < last; first += 64) step.template operator()<64>(first);
  for (; first < rows; first += 48) step.template operator()<48>(first);
}

struct Consumer {
  const BackwardArgs& args;
  const Memory& memory;
  int head, part, group, thread = threadIdx.x % kGroup, lane = thread % kWarp;
  Tile sums_of_qk, sums_of_v;

  // Gradients of this warp's 16 queries by N keys from `first` on.
  template <int N>
  __device__ __forceinline__ void query_step(float (&dq)[32], uint32_t q, uint32_t dy, uint32_t k,
                                             uint32_t v, int first, bool real,
                                             const float (&lse)[2], const float (&delta)[2]) const {
    float s[N / 2], d[N / 2];
    begin_products();
    score_places(s, q, k);
    commit_products();
    score_places(d, dy, v);
    commit_products();
    wait_for_products<1>();
    settle(s);
    if (real) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i)
        s[i] = exp2_approx(fmaf(s[i], kScale * kLog2E, lse[i % 4 / 2]));
      if (first + N > args.tile.attention.shape.tokens)
#pragma unroll
        for (int i = N / 2 - 8; i < N / 2; ++i)
          if (first + i / 4 * 8 + 2 * (lane % 4) + i % 2 >= args.tile.attention.shape.tokens)
            s[i] = 0;
    }
    wait_for_products<0>();
    settle(d);
    if (real) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) d[i] = s[i] * (d[i] - delta[i % 4 / 2]);
    }
    FragmentA ds[N / 16];
#pragma unroll
    for (int i = 0; i < N / 16; ++i) ds[i] = operand_of(d + 8 * i);
    begin_products();
#pragma unroll
    for (int i = 0; i < N / 16; ++i)
      multiply_rows(dq, ds[i], describe_place(k + 16 * i * kRowPlaces), first + i > 0);
    commit_products();
    wait_for_products<0>();
    settle(dq);
  }

  // Gradients of this warp's 16 keys by N queries from `first` on.
  template <int N>
  __device__ __forceinline__ void key_step(float (&dk)[32], float (&dv)[32], uint32_t k, uint32_t v,
                                           uint32_t q, uint32_t dy, int first, bool real,
                                           const float* terms) const {
    float s[N / 2], d[N / 2];
    begin_products();
    score_places(s, k, q);
    commit_products();
    score_places(d, v, dy);
    commit_products();
    wait_for_products<1>();
    settle(s);
    const auto of = [&](int which, int j) {
      return *reinterpret_cast<const float2*>(terms + which * kMostWhole + 8 * j + lane % 4 * 2);
    };
    if (real) {
#pragma unroll
      for (int j = 0; j < N / 8; ++j) {
        const float2 lse = of(0, j);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; ++i)
          s[i] = exp2_approx(fmaf(s[i], kScale * kLog2E, i % 2 ? lse.y : lse.x));
      }
    }
    wait_for_products<0>();
    settle(d);
    if (real) {
#pragma unroll
      for (int j = 0; j < N / 8; ++j) {
        const float2 delta = of(1, j);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; ++i) d[i] = s[i] * (d[i] - (i % 2 ? delta.y : delta.x));
      }
    }
    FragmentA p[N / 16], ds[N / 16];
#pragma unroll
    for (int i = 0; i < N / 16; ++i) p[i] = operand_of(s + 8 * i), ds[i] = operand_of(d + 8 * i);
    begin_products();
#pragma unroll
    for (int i = 0; i < N / 16; ++i) {
      const int at = 16 * i * kRowPlaces;
      multiply_rows(dv, p[i], describe_place(dy + at), first + i > 0);
      multiply_rows(dk, ds[i], describe_place(q + at), first + i > 0);
    }
    commit_products();
    wait_for_products<0>();  // no registers for scores beside these operands
    settle(dk), settle(dv);
  }

  // 16 rows of sums, times a factor, to global memory by way of shared memory, eight at a time; and
  // into the columns' sums, where value 16 m + g, and + 8, is in column 2 m + odd of `sums`.
  __device__ __forceinline__ void store(bf16* to, float (&d)[32], float factor, int row, Tile& sums,
                                        int odd) const {
    const int tokens = args.tile.attention.shape.tokens,
              stride = static_cast<int>(args.tile.attention.shape.qkv_stride());
    std::byte* const staging = memory.staging(threadIdx.x / kWarp);
    FragmentA columns[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool real = row + 8 * half + lane / 4 < tokens;
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t four[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float* two = d + 16 * i + 4 * n + 2 * half;
          four[n] = real ? pack2(two[0] * factor, two[1] * factor) : 0;
        }
        store_four(swizzled(staging, lane % 8, 4 * i + lane / 8), four);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t four[4];
        load_four_transposed(
            four, reinterpret_cast<const bf16*>(swizzled(staging, lane % 8, 4 * i + lane / 8)));
#pragma unroll
        for (int n = 0; n < 4; ++n) columns[2 * i + n / 2].r[2 * half + n % 2] = four[n];
        const int at = row + 8 * half + 4 * i + lane / 8;
        if (at < tokens)
          *reinterpret_cast<uint4*>(to + at * stride + lane % 8 * 8) =
              *reinterpret_cast<const uint4*>(swizzled(staging, 4 * i + lane / 8, lane % 8));
      }
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const uint32_t ones = lane / 4 == 2 * m + odd ? kOnes : 0;
      multiply(sums, columns[m], ones, ones);
    }
  }

  __device__ __forceinline__ void key_tile(int stage, int tile, const float* terms, bf16* to) {
    float dk[32], dv[32];
    const int row = tile * kTile + thread / kWarp * 16;
    const bool real = row < args.tile.attention.shape.tokens;
    const uint32_t q = memory.place(stage, Memory::kQ), dy = memory.place(stage, Memory::kDy),
                   k = memory.place(stage, Memory::kK, tile),
                   v = memory.place(stage, Memory::kV, tile);
    in_chunks(args.rows, [&]<int N>(int first) {
      const uint32_t at = first * kRowPlaces;
      key_step<N>(dk, dv, k, v, uniform(q + at), uniform(dy + at), first, real, terms + first);
    });
    if (!real) return;
    const int64_t apart = args.tile.attention.shape.y_stride();
    store(to + apart, dk, kScale, row, sums_of_qk, 1);
    store(to + 2 * apart, dv, 1, row, sums_of_v, 0);
  }
  __device__ __forceinline__ void query_tile(int stage, int tile, const float* terms, bf16* to) {
    float dq[32];
    const int row = tile * kTile + thread / kWarp * 16;
    const bool real = row < args.tile.attention.shape.tokens;
    const uint32_t q = memory.place(stage, Memory::kQ, tile),
                   dy = memory.place(stage, Memory::kDy, tile), k = memory.place(stage, Memory::kK),
                   v = memory.place(stage, Memory::kV);
    float lse[2] = {}, delta[2] = {};
    if (real)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = row + lane / 4 + 8 * half;
        lse[half] = terms[at], delta[half] = terms[kMostWhole + at];
      }
    in_chunks(args.rows, [&]<int N>(int first) {
      const uint32_t at = first * kRowPlaces;
      query_step<N>(dq, q, dy, uniform(k + at), uniform(v + at), first, real, lse, delta);
    });
    if (real) store(to, dq, kScale, row, sums_of_qk, 0);
  }

  __device__ void run() {
    const AttentionShape& shape = args.tile.attention.shape;
    const int tiles = (shape.tokens + kTile - 1) / kTile;
    Turns turn(images_of(args.tile, part), 2 * tiles, kStages, group);
    for (; turn.going(); turn.advance()) {
      const int64_t image = image_of(args.tile, part, turn.image);
      bf16* to = static_cast<bf16*>(args.tile.attention.out) +
                 image * shape.tokens * shape.qkv_stride() + head * kHead;
      wait_barrier(memory.full(turn.stage), turn.parity);
      const float* terms = memory.terms(turn.image);
      if (turn.tile < tiles)
        key_tile(turn.stage, turn.tile, terms, to);
      else
        query_tile(turn.stage, turn.tile - tiles, terms, to);
      __syncwarp();
      if (lane == 0) arrive(memory.empty(turn.stage));
    }
  }
};

// The column sums of a block's images, over its warps in turn.
__device__ __forceinline__ void sync_groups() {
  asm volatile("bar.sync 1, %0;\n" ::"n"(kGroups * kGroup) : "memory");
}
__device__ __forceinline__ void put_sums(float* of_warps, const Consumer& from) {
  const float sums[6] = {from.sums_of_qk.v[0], from.sums_of_qk.v[2], from.sums_of_qk.v[1],
                         from.sums_of_qk.v[3], from.sums_of_v.v[0],  from.sums_of_v.v[2]};
  const int warp = threadIdx.x / kWarp, column = from.lane % 4 * 16 + from.lane / 4;
#pragma unroll
  for (int i = 0; i < 6; ++i) of_warps[(warp * 3 + i / 2) * kHead + column + i % 2 * 8] = sums[i];
}
__device__ __forceinline__ void write_sums(const BackwardArgs& args, const float* of_warps,
                                           int head, int part) {
  const AttentionShape& shape = args.tile.attention.shape;
  float* to = args.tile.columns + part * shape.qkv_stride() + head * kHead;
  const int i = threadIdx.x;
  if (i >= 3 * kHead) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += of_warps[w * 3 * kHead + i];
  to[i / kHead * shape.y_stride() + i % kHead] = sum;
}

__device__ void backward(const BackwardArgs& args) {
  const Memory memory{tile_memory(), args.rows * kSwizzledRow};
  const AttentionShape& shape = args.tile.attention.shape;
  const int head = blockIdx.x % shape.heads, part = blockIdx.x / shape.heads;
  if (threadIdx.x == 0) {
    const int tiles = (shape.tokens + kTile - 1) / kTile;
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(memory.full(stage), 1);
      init_barrier(memory.empty(stage), 2 * tiles * 4);
    }
    publish_barriers();
  }
  __syncthreads();
  const int group = static_cast<int>(uniform(threadIdx.x / kGroup));
  if (group == kGroups) {
    give_registers<32>();
    Producer{args, memory, head, part}.run();
  } else {
    take_registers<160>();
    Consumer consumer{args, memory, head, part, group};
    consumer.run();
    if (!args.tile.columns) return;
    auto* const of_warps = reinterpret_cast<float*>(memory.base);
    sync_groups();
    put_sums(of_warps, consumer);
    sync_groups();
    write_sums(args, of_warps, head, part);
  }
}
#endif

__global__ void __launch_bounds__(kThreads, 1)
    whole_backward([[maybe_unused]] const __grid_constant__ BackwardArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  backward(args);
#endif
}

}  // namespace

KernelPtr whole_attention_bwd(CudaBackend& cuda, const AttentionArgs& args, int64_t images) {
  const AttentionShape& shape = args.shape;
  const int rows = static_cast<int>(divide_up(shape.tokens, 16) * 16);
  const size_t bytes = Memory::bytes(rows);
  if (!fits_whole(cuda, args, images)) return nullptr;
  allow_shared_memory(whole_backward, bytes);
  const int64_t parts = tile_parts(cuda, 1, shape.heads, images), width = shape.qkv_stride();
  float* columns = args.column_sums ? cuda.scratch_of<float>(parts * width) : nullptr;
  const BackwardArgs all{.tile = {args, columns, images, parts},
                         .qkv = rows_of_heads(args.qkv, width, shape.tokens, images, rows),
                         .dy = rows_of_heads(args.dy, shape.y_stride(), shape.tokens, images, rows),
                         .rows = rows};
  return make_kernel([=, stream = cuda.stream()] {
    whole_backward<<<static_cast<unsigned>(parts * shape.heads), kThreads, bytes, stream>>>(all);
    if (columns) launch_finish(columns, parts, width, AddToColumns{args.column_sums}, stream);
  });
}

}  // namespace vitrum::cuda
