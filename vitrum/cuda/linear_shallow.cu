// A linear layer of little depth with bias and GELU, in one pass (sm_90). Such a layer is bound by
// memory: its weights stay where they are needed, and nothing is written that is read again.
//
// A block has some columns of the result for good: their weights, at most 256 deep, are in shared
// memory. One thread starts the copies of x, 64 rows at a time; two warpgroups take them in turn,
// so that one multiplies while the other activates. The weights' rows arrive in an order that gives
// a thread eight neighbouring columns of every 32, to be written in pieces of 16 bytes.
#include "vitrum/cuda/activate.cuh"
#include "vitrum/cuda/linear_act.h"
#include "vitrum/cuda/linear_norm.h"
#include "vitrum/cuda/tensor_map.h"
#include "vitrum/cuda/tma.cuh"
#include "vitrum/cuda/wgmma.cuh"

// For other cards the kernels are empty, and nothing uses what is here.
#pragma nv_diag_suppress 177

namespace vitrum::cuda {
namespace {

constexpr int kGroup = 128, kGroups = 2, kThreads = (kGroups + 1) * kGroup;  // one group copies
constexpr int kTileRows = 64, kDepth = 64, kMostSteps = 4, kStages = 3;

template <int N>
struct Shared {
  static constexpr int kBytesX = kTileRows * kSwizzledRow, kBytesW = N * kSwizzledRow;  // a step's
  std::byte w[kMostSteps][kBytesW], x[kStages][kMostSteps][kBytesX];
  uint64_t weights, full[kStages], empty[kStages];
};

struct Args {
  CUtensorMap x, w;
  const bf16* bias;  // may be null
  bf16 *pre, *y;     // pre: what GELU sees; may be null
  int rows, columns;
  int steps, tiles;  // of depth; of rows
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Blocks side by side have the same rows: the cache delivers them but once.
template <int N>
struct Place {
  int wide, column, at, apart;
  explicit __device__ Place(const Args& g)
      : wide(g.columns / N),
        column(static_cast<int>(blockIdx.x) % wide * N),
        at(static_cast<int>(blockIdx.x) / wide),
        apart(static_cast<int>(gridDim.x) / wide) {}
  __device__ __forceinline__ int tile(int turn) const { return at + turn * apart; }
};

template <int N>
__device__ void produce(const Args& g, Shared<N>& s) {
  const Place<N> place(g);
  expect_bytes(&s.weights, g.steps * Shared<N>::kBytesW);
  for (int step = 0; step < g.steps; ++step)
    load_groups(g.w, s.w[step], &s.weights, step * kDepth, place.column / 32);
  Ring<kStages> ring;
  for (int turn = 0; place.tile(turn) < g.tiles; ++turn, ring.advance()) {
    wait_barrier(&s.empty[ring.at], ring.parity ^ 1);
    expect_bytes(&s.full[ring.at], g.steps * Shared<N>::kBytesX);
    for (int step = 0; step < g.steps; ++step)
      load_tile(g.x, s.x[ring.at][step], &s.full[ring.at], step * kDepth,
                place.tile(turn) * kTileRows);
  }
}

// A thread's part of a tile: columns own to own + 7 of every 32, in rows `row` and `row` + 8.
template <int N>
struct Consumer {
  static constexpr int kParts = N / 32;
  using Sums = float[N / 2];
  const Args& g;
  Shared<N>& s;
  int group, thread;
  int own = thread % 4 * 8;

  static __device__ constexpr int at(int part, int half, int i) {
    return 16 * part + 4 * (i / 2) + 2 * half + i % 2;
  }

  __device__ __forceinline__ void multiply(Sums& d, int stage) {
    for (int step = 0; step < g.steps; ++step) {
      begin_products();
#pragma unroll
      for (int i = 0; i < kDepth / 16; ++i)
        multiply_shared(d, describe(s.x[stage][step] + 32 * i), describe(s.w[step] + 32 * i),
                        step > 0 || i > 0);
      commit_products();
    }
    wait_for_products<0>();
    settle(d);
    if (thread == 0) arrive(&s.empty[stage]);
  }

  __device__ __forceinline__ void finish(const Sums& d, const Raw8<bf16> (&bias)[kParts], int row,
                                         int column) {
    const int64_t to = int64_t{row} * g.columns + column, below = int64_t{8} * g.columns;
    const bool inside[2] = {row < g.rows, row + 8 < g.rows};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const Eight b = unpack(bias[part]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Eight v;
#pragma unroll
        for (int i = 0; i < 8; ++i) v.v[i] = d[at(part, half, i)] + b.v[i];
        const Raw8<bf16> raw = pack<bf16>(v);
        const int64_t here = to + half * below + 32 * part;
        store_if(inside[half] && g.pre, g.pre + here, raw);
        v = unpack(raw);
#pragma unroll
        for (int i = 0; i < 8; ++i) v.v[i] = activate<Act::kGelu, bf16>(v.v[i]);
        store_if(inside[half], g.y + here, pack<bf16>(v));
      }
    }
  }

  __device__ void run() {
    const Place<N> place(g);
    const int column = place.column + own, row = thread / kWarp * 16 + thread % kWarp / 4;
    Raw8<bf16> bias[kParts];
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      bias[part] = g.bias ? load_raw(g.bias + column + 32 * part) : Raw8<bf16>{};
    wait_barrier(&s.weights, 0);
    Sums d;
    Ring<kStages> ring;
    for (int turn = 0; place.tile(turn) < g.tiles; ++turn, ring.advance()) {
      if (turn % kGroups != group) continue;
      wait_barrier(&s.full[ring.at], ring.parity);
      multiply(d, ring.at);
      finish(d, bias, place.tile(turn) * kTileRows + row, column);
    }
  }
};
#endif

template <int N>
__global__ void __launch_bounds__(kThreads, 1)
    linear_shallow([[maybe_unused]] const __grid_constant__ Args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::byte memory[];
  auto& s = *reinterpret_cast<Shared<N>*>(memory);
  if (threadIdx.x == 0) {
    init_barrier(&s.weights, 1);
    for (int i = 0; i < kStages; ++i) init_barrier(&s.full[i], 1), init_barrier(&s.empty[i], 1);
    publish_barriers();
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  if (group < kGroups) {
    take_registers<232>();
    Consumer<N>{g, s, group, static_cast<int>(threadIdx.x) % kGroup}.run();
  } else {
    give_registers<40>();
    if (threadIdx.x == kGroups * kGroup) produce(g, s);
  }
#endif
}

template <int N>
KernelPtr launch(CudaBackend& cuda, const TensorView& w, Args args) {
  args.w = shuffled_rows(w, kDepth, N);
  allow_shared_memory(linear_shallow<N>, sizeof(Shared<N>));
  const int wide = args.columns / N, high = std::min(args.tiles, cuda.processors() / wide);
  return launch_kernel(cuda, linear_shallow<N>, static_cast<unsigned>(wide * high), kThreads,
                       sizeof(Shared<N>), args);
}

}  // namespace

bool has_linear_shallow(const CudaBackend& cuda, const Linear& op, const Operands& io) {
  constexpr int64_t kFewestRows = 8192;  // half of the processors would be idle with fewer
  const TensorView &x = io.in[0], &w = io.in[1], &y = io.out[0], pre = operand(io.out, 1);
  if (!has_copy_engine(cuda) || op.act != Act::kGelu || op.drop != 0 || !y) return false;
  if (x.dtype != DType::kBF16 || w.dtype != DType::kBF16 || y.dtype != DType::kBF16) return false;
  return (w.shape[0] % 256 == 0 || w.shape[0] % 192 == 0) && w.shape[0] <= 2048 &&
         w.shape[1] <= kMostSteps * kDepth && x.shape.rows() >= kFewestRows &&
         x.shape.rows() < INT32_MAX / 2 &&
         common_alignment({x, w, y, pre, operand(io.in, 2)}) == 16;
}

KernelPtr lower_linear_shallow(CudaBackend& cuda, const Operands& io) {
  const TensorView &x = io.in[0], &w = io.in[1];
  const Args args{.x = tiles_of(x, kDepth, kTileRows),
                  .bias = static_cast<const bf16*>(operand(io.in, 2).data),
                  .pre = static_cast<bf16*>(operand(io.out, 1).data),
                  .y = static_cast<bf16*>(io.out[0].data),
                  .rows = static_cast<int>(x.shape.rows()),
                  .columns = static_cast<int>(w.shape[0]),
                  .steps = static_cast<int>(divide_up(w.shape[1], kDepth)),
                  .tiles = static_cast<int>(divide_up(x.shape.rows(), kTileRows))};
  return w.shape[0] % 256 == 0 ? launch<256>(cuda, w, args) : launch<192>(cuda, w, args);
}

}  // namespace vitrum::cuda
