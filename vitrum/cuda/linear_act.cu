// A linear layer with bias and GELU in one pass (sm_90): what the product leaves in registers is
// activated there, instead of being written, read and written again.
//
// A block works on tiles of 128 rows and 256 columns. One thread starts the copies of x and of the
// weights, 64 columns deep each; two warpgroups multiply 64 rows each. Two blocks, a cluster, work
// on neighbouring rows with the same weights: each asks for one half of them and both get both,
// since the card's cache cannot deliver everything twice. The weights' rows arrive in an order that
// gives a thread eight neighbouring columns of every 32, to be written in pieces of 16 bytes.
#include "vitrum/cuda/activate.cuh"
#include "vitrum/cuda/linear_act.h"
#include "vitrum/cuda/tensor_map.h"
#include "vitrum/cuda/tma.cuh"
#include "vitrum/cuda/wgmma.cuh"

// For other cards the kernels are empty, and nothing uses what is here.
#pragma nv_diag_suppress 177

namespace vitrum::cuda {
namespace {

constexpr int kGroup = 128, kGroups = 2, kThreads = (kGroups + 1) * kGroup;  // one group copies
constexpr int kTileRows = 64 * kGroups, kTileColumns = 256, kDepth = 64, kStages = 4;
constexpr int kCluster = 2, kShare = kTileColumns / kCluster;  // of the weights, a block's
constexpr int kBytesX = kTileRows * kSwizzledRow, kBytesW = kTileColumns * kSwizzledRow;

struct Shared {
  std::byte x[kStages][kBytesX], w[kStages][kBytesW];
  uint64_t full[kStages], empty[kStages];
};

struct Args {
  CUtensorMap x, w;
  const bf16* bias;  // may be null
  bf16 *pre, *y;     // pre: what GELU sees; may be null
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

// A thread's part of a tile: columns own to own + 7 of every 32, in rows `row` and `row` + 8.
struct Consumer {
  static constexpr int kParts = kTileColumns / 32;
  using Sums = float[kTileColumns / 2];
  using Bias = Raw8<bf16>[kParts];
  const Args& g;
  Shared& s;
  int group, thread;
  int own = thread % 4 * 8;
  Ring<kStages> ring = {};

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

  __device__ __forceinline__ void finish(const Sums& d, const Bias& bias, int row, int column) {
    const int64_t to = int64_t{row} * g.columns + column, below = int64_t{8} * g.columns;
    bf16 *const y[2] = {g.y + to, g.y + to + below}, *const pre[2] = {g.pre + to,
                                                                      g.pre + to + below};
    const bool inside[2] = {row < g.rows, row + 8 < g.rows};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const Eight b = unpack(bias[part]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Eight v;
#pragma unroll
        for (int i = 0; i < 8; ++i) v.v[i] = d[shuffled_sum(part, half, i)] + b.v[i];
        const Raw8<bf16> raw = pack<bf16>(v);
        store_if(inside[half] && g.pre, pre[half] + 32 * part, raw);
        v = unpack(raw);
#pragma unroll
        for (int i = 0; i < 8; ++i) v.v[i] = activate<Act::kGelu, bf16>(v.v[i]);
        store_if(inside[half], y[half] + 32 * part, pack<bf16>(v));
      }
    }
  }

  __device__ void run() {
    const int in_tile = group * 64 + thread / kWarp * 16 + thread % kWarp / 4;
    Sums d;
    Bias bias;
    Tile tile;
    for (int turn = 0; take_tile(g, turn, tile); ++turn) {
      read_bias(bias, tile.column + own);
      multiply(d);
      finish(d, bias, tile.row + in_tile, tile.column + own);
    }
  }
};
#endif

__global__ void __launch_bounds__(kThreads, 1)
    linear_act_kernel([[maybe_unused]] const __grid_constant__ Args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::byte memory[];
  auto& s = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i)
      init_barrier(&s.full[i], 1), init_barrier(&s.empty[i], kGroups * kCluster);
    publish_barriers();
  }
  __syncwarp();
  sync_cluster();
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  if (group < kGroups) {
    take_registers<232>();
    Consumer{g, s, group, static_cast<int>(threadIdx.x) % kGroup}.run();
  } else {
    give_registers<40>();
    if (threadIdx.x == kGroups * kGroup) produce(g, s);
  }
  // The other block may still write here.
  __syncwarp();
  sync_cluster();
#endif
}

int64_t tiles_in(const TensorView& x, const TensorView& w) {
  return divide_up(x.shape.rows(), kTileRows * kCluster) * (w.shape[0] / kTileColumns);
}

// Whether few processors are idle in the last round.
bool fills(const CudaBackend& cuda, int64_t tiles) {
  constexpr int64_t kFewestRounds = 4;
  const int64_t clusters = cuda.processors() / kCluster, rounds = divide_up(tiles, clusters);
  return rounds >= kFewestRounds && 10 * tiles >= 9 * rounds * clusters;
}

}  // namespace

bool for_own_product(const CudaBackend& cuda, const Linear& op, const Operands& io) {
  const TensorView &x = io.in[0], &w = io.in[1], &y = io.out[0], pre = operand(io.out, 1);
  if (!has_copy_engine(cuda) || op.drop != 0 || !y) return false;
  if (x.dtype != DType::kBF16 || w.dtype != DType::kBF16 || y.dtype != DType::kBF16) return false;
  return x.shape.rows() < INT32_MAX / 2 &&
         common_alignment({x, w, y, pre, operand(io.in, 2)}) == 16;
}

bool has_linear_act(const CudaBackend& cuda, const Linear& op, const Operands& io) {
  constexpr int64_t kLeastDepth = 384;  // with less, memory is what takes the time
  const TensorView &x = io.in[0], &w = io.in[1];
  return op.act == Act::kGelu && w.shape[0] % kTileColumns == 0 && w.shape[1] >= kLeastDepth &&
         fills(cuda, tiles_in(x, w)) && for_own_product(cuda, op, io);
}

KernelPtr lower_linear_act(CudaBackend& cuda, const Operands& io) {
  const TensorView &x = io.in[0], &w = io.in[1];
  const Args args{.x = tiles_of(x, kDepth, kTileRows),
                  .w = shuffled_rows(w, kDepth, kShare),
                  .bias = static_cast<const bf16*>(operand(io.in, 2).data),
                  .pre = static_cast<bf16*>(operand(io.out, 1).data),
                  .y = static_cast<bf16*>(io.out[0].data),
                  .rows = static_cast<int>(x.shape.rows()),
                  .columns = static_cast<int>(w.shape[0]),
                  .steps = static_cast<int>(divide_up(w.shape[1], kDepth)),
                  .tiles = static_cast<int>(tiles_in(x, w))};
  allow_shared_memory(linear_act_kernel, sizeof(Shared));
  const int clusters = std::min(args.tiles, cuda.processors() / kCluster);
  return make_kernel([=, stream = cuda.stream()] {
    cudaLaunchAttribute pairs{.id = cudaLaunchAttributeClusterDimension};
    pairs.val.clusterDim = {kCluster, 1, 1};
    const cudaLaunchConfig_t config{.gridDim = static_cast<unsigned>(clusters * kCluster),
                                    .blockDim = kThreads,
                                    .dynamicSmemBytes = sizeof(Shared),
                                    .stream = stream,
                                    .attrs = &pairs,
                                    .numAttrs = 1};
    check(cudaLaunchKernelEx(&config, linear_act_kernel, args), "launching a kernel");
  });
}

}  // namespace vitrum::cuda
