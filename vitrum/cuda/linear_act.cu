// Products with what is done to their results in one pass (sm_90): a linear layer with bias and
// GELU, and backward the gradient behind such a layer with the slope of GELU and its column sums.
// The result is activated before it leaves the processor, instead of being written, read and
// written again.
//
// A block works on tiles of 128 rows and 256 columns. One thread starts the copies of x and of the
// weights, 64 columns deep each; two warpgroups multiply 64 rows each, add the bias and leave the
// rounded result in shared memory, where three more warps find it: they do the rest while the next
// tile is multiplied. Two blocks, a cluster, work on neighbouring rows with the same weights: each
// asks for one half of them and both get both, since the card's cache cannot deliver everything
// twice. The weights' rows arrive in an order that gives a thread eight neighbouring columns of
// every 32, to be left in pieces of 16 bytes.
#include "vitrum/cuda/activate.cuh"
#include "vitrum/cuda/columns.cuh"
#include "vitrum/cuda/linear_act.h"
#include "vitrum/cuda/tensor_map.h"
#include "vitrum/cuda/tma.cuh"
#include "vitrum/cuda/wgmma.cuh"

// For other cards the kernels are empty, and nothing uses what is here.
#pragma nv_diag_suppress 177

namespace vitrum::cuda {
namespace {

// The last group: a warp that copies, others that activate.
constexpr int kGroup = 128, kGroups = 2, kThreads = (kGroups + 1) * kGroup, kFinishers = 3;
constexpr int kTileRows = 64 * kGroups, kTileColumns = 256, kDepth = 64, kStages = 3;
constexpr int kCluster = 2, kShare = kTileColumns / kCluster;  // of the weights, a block's
constexpr int kBytesX = kTileRows * kSwizzledRow, kBytesW = kTileColumns * kSwizzledRow;

// Neighbouring rows begin 16 banks apart: eight threads write 16 bytes of two rows at a time.
constexpr int kStagedRow = kTileColumns * sizeof(bf16) + 64;

struct Shared {
  std::byte x[kStages][kBytesX], w[kStages][kBytesW];
  std::byte staged[kTileRows][kStagedRow];  // what the activation sees
  uint64_t full[kStages], empty[kStages];
  uint64_t left[kGroups], taken[kGroups];   // a warpgroup's rows
  float sums[2][kFinishers][kTileColumns];  // of columns, of two tiles in turn
};
static_assert(sizeof(Shared) <= 232448);

struct Args {
  CUtensorMap x, w;
  const bf16* bias;  // may be null
  bf16 *pre, *y;     // pre: what GELU sees; forward a result, which may be null
  float* partials;   // backward: column sums, of every kTileRows rows; may be null
  int rows, columns;
  int steps, tiles;  // of depth; of a cluster
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
struct Tile {
  int row, column;
};
// A cluster's tile of this turn. Neighbouring clusters share rows: the weights stay in the cache.
__device__ __forceinline__ bool take_tile(const Args& g, int turn, Tile& tile) {
  const int clusters = static_cast<int>(gridDim.x) / kCluster, wide = g.columns / kTileColumns;
  const int i = static_cast<int>(blockIdx.x) / kCluster + turn * clusters;
  tile.row = (i / wide * kCluster + cluster_rank()) * kTileRows;
  tile.column = i % wide * kTileColumns;
  return i < g.tiles;
}

__device__ void produce(const Args& g, Shared& s) {
  constexpr uint16_t kBoth = (1 << kCluster) - 1;
  Ring<kStages> ring;
  const int own = cluster_rank() * kShare;
  Tile tile;
  for (int turn = 0; take_tile(g, turn, tile); ++turn)
    for (int step = 0; step < g.steps; ++step, ring.advance()) {
      uint64_t* const full = &s.full[ring.at];
      wait_barrier(&s.empty[ring.at], ring.parity ^ 1);
      expect_bytes(full, kBytesX + kBytesW);
      load_tile(g.x, s.x[ring.at], full, step * kDepth, tile.row);
      load_groups(g.w, s.w[ring.at] + own * kSwizzledRow, full, step * kDepth,
                  (tile.column + own) / 32, kBoth);
    }
}

// A thread's part of a tile: columns own to own + 7 of every 32, in two rows eight apart.
struct Consumer {
  static constexpr int kParts = kTileColumns / 32;
  using Sums = float[kTileColumns / 2];
  using Bias = Raw8<bf16>[kParts];
  const Args& g;
  Shared& s;
  int group, thread;
  int own = thread % 4 * 8;
  Ring<kStages> ring = {};

  static __device__ constexpr int at(int part, int half, int i) {
    return 16 * part + 4 * (i / 2) + 2 * half + i % 2;
  }

  // Both blocks write into the stage of both.
  __device__ __forceinline__ void release(int stage) {
    if (thread < kCluster) arrive_at(&s.empty[stage], thread);
  }

  __device__ __forceinline__ void multiply(Sums& d) {
    int before = 0;
    for (int step = 0; step < g.steps; ++step) {
      wait_barrier(&s.full[ring.at], ring.parity);
      begin_products();
#pragma unroll
      for (int i = 0; i < kDepth / 16; ++i)
        multiply_shared(d, describe(s.x[ring.at] + group * 64 * kSwizzledRow + 32 * i),
                        describe(s.w[ring.at] + 32 * i), step > 0 || i > 0);
      commit_products();
      wait_for_products<1>();
      if (step > 0) release(before);
      before = ring.at;
      ring.advance();
    }
    wait_for_products<0>();
    settle(d);
    release(before);
  }

  // Asked for before the products: a load behind the stores of the last tile would wait for them.
  __device__ __forceinline__ void read_bias(Bias& bias, int column) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      bias[part] = g.bias ? load_raw(g.bias + column + 32 * part) : Raw8<bf16>{};
  }

  __device__ __forceinline__ void leave(const Sums& d, const Bias& bias) {
    std::byte* const to = s.staged[group * 64 + thread / kWarp * 16 + thread % kWarp / 4];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const Eight b = unpack(bias[part]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Eight v;
#pragma unroll
        for (int i = 0; i < 8; ++i) v.v[i] = d[at(part, half, i)] + b.v[i];
        store8(reinterpret_cast<bf16*>(to + 8 * half * kStagedRow) + own + 32 * part, v);
      }
    }
  }

  __device__ void run() {
    Sums d;
    Bias bias;
    Tile tile;
    for (int turn = 0; take_tile(g, turn, tile); ++turn) {
      read_bias(bias, tile.column + own);
      multiply(d);
      wait_barrier(&s.taken[group], turn % 2 ^ 1);
      leave(d, bias);
      __syncwarp();
      if (thread % kWarp == 0) arrive(&s.left[group]);
    }
  }
};

// A warp's share of what the warpgroups leave, a row at a time: 16 bytes a thread.
template <bool kBack>
struct Finisher {
  static constexpr int kAtOnce = 4, kBatches = kTileRows / kAtOnce;
  using Batch = Raw8<bf16>[kAtOnce];
  const Args& g;
  Shared& s;
  int finisher, lane;
  Batch saved = {};  // backward: of the next batch
  Eight sums = {};

  __device__ __forceinline__ int64_t place(int row, int column) const {
    return int64_t{row} * g.columns + column + 8 * lane;
  }
  __device__ __forceinline__ void read_saved(const Tile& tile, int batch) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = min(tile.row + kAtOnce * batch + i, g.rows - 1);
      saved[i] = load_raw(g.pre + place(row, tile.column));
    }
  }
  // Asks for what the next tile will need: its rows are far apart, and far away.
  __device__ __forceinline__ void prefetch(const Tile& tile) {
    constexpr int kLine = 64, kLines = kTileColumns / kLine;  // elements; of a row
    for (int i = finisher * kWarp + lane; i < kTileRows * kLines; i += kFinishers * kWarp) {
      const int row = min(tile.row + i / kLines, g.rows - 1);
      const bf16* from = g.pre + int64_t{row} * g.columns + tile.column + i % kLines * kLine;
      asm volatile("prefetch.global.L2 [%0];\n" ::"l"(from));
    }
  }

  __device__ __forceinline__ void activate_row(const Raw8<bf16>& raw, int64_t at, bool inside) {
    store_if(inside && g.pre, g.pre + at, raw);
    Eight v = unpack(raw);
#pragma unroll
    for (int k = 0; k < 8; ++k) v.v[k] = activate<Act::kGelu, bf16>(v.v[k]);
    store_if(inside, g.y + at, pack<bf16>(v));
  }
  // As Gradient in columns.cu.
  __device__ __forceinline__ void slope_row(const Raw8<bf16>& raw, const Raw8<bf16>& seen,
                                            int64_t at, bool inside) {
    Eight v = unpack(raw);
    const Eight x = unpack(seen);
#pragma unroll
    for (int k = 0; k < 8; ++k)
      v.v[k] = __fmul_rn(v.v[k], activation_slope<Act::kGelu, bf16>(x.v[k]));
    const Raw8<bf16> d = pack<bf16>(v);
    store_if(inside, g.y + at, d);
    v = unpack(d);
#pragma unroll
    for (int k = 0; k < 8; ++k)
      if (inside) sums.v[k] = __fadd_rn(sums.v[k], v.v[k]);
  }
  __device__ __forceinline__ void finish(const Tile& tile, int batch) {
    const int first = kAtOnce * batch;
    Batch raw, seen;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      raw[i] = load_raw(reinterpret_cast<const bf16*>(s.staged[first + i]) + 8 * lane);
      seen[i] = saved[i];
    }
    if (kBack && batch + kFinishers < kBatches) read_saved(tile, batch + kFinishers);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = tile.row + first + i;
      if constexpr (kBack)
        slope_row(raw[i], seen[i], place(row, tile.column), row < g.rows);
      else
        activate_row(raw[i], place(row, tile.column), row < g.rows);
    }
  }

  // The finishers' sums of a tile, added up. They meet once a tile, so each has read the sums of
  // the tile before by the time anybody writes there again.
  __device__ __forceinline__ void add_up(const Tile& tile, int turn) {
    auto& of = s.sums[turn % 2];
    store8(of[finisher] + 8 * lane, sums);
    asm volatile("bar.sync 1, %0;\n" ::"n"(kFinishers * kWarp) : "memory");
    float* const to = g.partials + int64_t{tile.row / kTileRows} * g.columns + tile.column;
    for (int i = finisher * kWarp + lane; i < kTileColumns; i += kFinishers * kWarp)
      to[i] = of[0][i] + of[1][i] + of[2][i];
    sums = {};
  }

  __device__ void run() {
    Tile tile, next;
    for (int turn = 0; take_tile(g, turn, tile); ++turn) {
      if (kBack && take_tile(g, turn + 1, next)) prefetch(next);
      if (kBack) read_saved(tile, finisher);
      int batch = finisher;
      for (int group = 0; group < kGroups; ++group) {
        wait_barrier(&s.left[group], turn % 2);
        for (; batch < (group + 1) * kBatches / kGroups; batch += kFinishers) finish(tile, batch);
        __syncwarp();
        if (lane == 0) arrive(&s.taken[group]);
      }
      if (kBack && g.partials) add_up(tile, turn);
    }
  }
};
#endif

template <bool kBack>
__global__ void __launch_bounds__(kThreads, 1)
    linear_act_kernel([[maybe_unused]] const __grid_constant__ Args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::byte memory[];
  auto& s = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i)
      init_barrier(&s.full[i], 1), init_barrier(&s.empty[i], kGroups * kCluster);
    for (int i = 0; i < kGroups; ++i)
      init_barrier(&s.left[i], kGroup / kWarp), init_barrier(&s.taken[i], kFinishers);
    publish_barriers();
  }
  __syncwarp();
  sync_cluster();
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  if (group < kGroups) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 208;\n");
    Consumer{g, s, group, static_cast<int>(threadIdx.x) % kGroup}.run();
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 88;\n");
    const int warp = static_cast<int>(threadIdx.x) % kGroup / kWarp, lane = threadIdx.x % kWarp;
    if (warp < kFinishers)
      Finisher<kBack>{g, s, warp, lane}.run();
    else if (lane == 0)
      produce(g, s);
  }
  // The other block may still write here.
  __syncwarp();
  sync_cluster();
#endif
}

int64_t tiles_in(int64_t rows, int64_t columns) {
  return divide_up(rows, kTileRows * kCluster) * (columns / kTileColumns);
}

// Whether few processors are idle in the last round.
bool fills(const CudaBackend& cuda, int64_t tiles) {
  constexpr int64_t kFewestRounds = 4;
  const int64_t clusters = cuda.processors() / kCluster, rounds = divide_up(tiles, clusters);
  return rounds >= kFewestRounds && 10 * tiles >= 9 * rounds * clusters;
}

bool suits(const CudaBackend& cuda, int64_t rows, int64_t columns, int64_t depth) {
  constexpr int64_t kLeastDepth = 384;  // with less, memory is what takes the time
  return has_copy_engine(cuda) && columns % kTileColumns == 0 && depth >= kLeastDepth &&
         depth % 8 == 0 && rows < INT32_MAX / 2 && fills(cuda, tiles_in(rows, columns));
}

template <bool kBack>
void launch(const Args& args, int processors, cudaStream_t stream) {
  cudaLaunchAttribute pairs{.id = cudaLaunchAttributeClusterDimension};
  pairs.val.clusterDim = {kCluster, 1, 1};
  const int clusters = std::min(args.tiles, processors / kCluster);
  const cudaLaunchConfig_t config{.gridDim = static_cast<unsigned>(clusters * kCluster),
                                  .blockDim = kThreads,
                                  .dynamicSmemBytes = sizeof(Shared),
                                  .stream = stream,
                                  .attrs = &pairs,
                                  .numAttrs = 1};
  check(cudaLaunchKernelEx(&config, linear_act_kernel<kBack>, args), "launching a kernel");
}

int64_t blocks_of_rows(int64_t rows) { return divide_up(rows, kTileRows * kCluster) * kCluster; }

}  // namespace

bool has_linear_act(const CudaBackend& cuda, const Linear& op, const Operands& io) {
  const TensorView &x = io.in[0], &w = io.in[1], &y = io.out[0], pre = operand(io.out, 1);
  if (op.act != Act::kGelu || op.drop != 0 || !y) return false;
  if (x.dtype != DType::kBF16 || w.dtype != DType::kBF16 || y.dtype != DType::kBF16) return false;
  return suits(cuda, x.shape.rows(), w.shape[0], w.shape[1]) &&
         common_alignment({x, w, y, pre, operand(io.in, 2)}) == 16;
}

KernelPtr lower_linear_act(CudaBackend& cuda, const Operands& io) {
  const TensorView &x = io.in[0], &w = io.in[1];
  const Args args{.x = tiles_of(x, kDepth, kTileRows),
                  .w = shuffled_rows(w, kDepth, kShare),
                  .bias = static_cast<const bf16*>(operand(io.in, 2).data),
                  .pre = static_cast<bf16*>(operand(io.out, 1).data),
                  .y = static_cast<bf16*>(io.out[0].data),
                  .partials = nullptr,
                  .rows = static_cast<int>(x.shape.rows()),
                  .columns = static_cast<int>(w.shape[0]),
                  .steps = static_cast<int>(divide_up(w.shape[1], kDepth)),
                  .tiles = static_cast<int>(tiles_in(x.shape.rows(), w.shape[0]))};
  allow_shared_memory(linear_act_kernel<false>, sizeof(Shared));
  return make_kernel([args, processors = cuda.processors(), stream = cuda.stream()] {
    launch<false>(args, processors, stream);
  });
}

bool has_deep_gradient(const CudaBackend& cuda, const TensorView& dy, const TensorView& w) {
  return suits(cuda, dy.shape.rows(), w.shape[1], w.shape[0]);
}

int64_t deep_partials(const TensorView& w, int64_t rows) {
  return blocks_of_rows(rows) * w.shape[1];
}

KernelPtr lower_deep_gradient(CudaBackend& cuda, const GradientThrough& work) {
  const int64_t rows = work.dy.shape.rows(), depth = work.w.shape[0], columns = work.w.shape[1];
  const Args args{.x = tiles_of(work.dy, kDepth, kTileRows),
                  .w = shuffled_rows(work.turned, kDepth, kShare),
                  .bias = nullptr,
                  .pre = static_cast<bf16*>(work.pre.data),
                  .y = static_cast<bf16*>(work.d.data),
                  .partials = work.dbias ? work.partials : nullptr,
                  .rows = static_cast<int>(rows),
                  .columns = static_cast<int>(columns),
                  .steps = static_cast<int>(divide_up(depth, kDepth)),
                  .tiles = static_cast<int>(tiles_in(rows, columns))};
  allow_shared_memory(linear_act_kernel<true>, sizeof(Shared));
  return make_kernel([=, processors = cuda.processors(), stream = cuda.stream()] {
    launch<true>(args, processors, stream);
    if (args.partials)
      launch_finish(args.partials, blocks_of_rows(rows), columns, AddToColumns{work.dbias}, stream);
  });
}

}  // namespace vitrum::cuda
