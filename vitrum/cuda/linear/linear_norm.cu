// Linear layer, residual add and LayerNorm in one kernel for 192 or 256 columns (sm_90a): the
// layer's result is never stored, and the sum is normalised in registers.
//
// Persistent TMA/WGMMA GEMM on tiles of 128 whole rows: a producer thread issues the loads of x and
// w, 64 of K a stage; two consumer warpgroups have 64 rows each. The rows of w arrive permuted, so
// that a thread has eight neighbouring columns of every 32 and the four threads of a quad a whole
// row.
#include <algorithm>

#include "vitrum/cuda/host/tensor_map.h"
#include "vitrum/cuda/linear/linear_norm.h"
#include "vitrum/cuda/primitives/tma.cuh"
#include "vitrum/cuda/primitives/wgmma.cuh"
// Written in what is above.
#include "vitrum/cuda/linear/mainloop.cuh"

// For other cards the kernels are empty, and nothing uses what is here.
#pragma nv_diag_suppress 177

namespace vitrum::cuda {
namespace {

constexpr int kGroup = 128, kGroups = 2, kThreads = (kGroups + 1) * kGroup;  // and a producer
constexpr int kTileRows = 64 * kGroups, kDepth = 64;

template <int N>
struct Shared {
  static constexpr int kStages = N > 192 ? 4 : 5;
  static constexpr int kBytesX = kTileRows * kSwizzledRow, kBytesW = N * kSwizzledRow;
  std::byte x[kStages][kBytesX], w[kStages][kBytesW];
  float bias[N], gamma[N], scale[N], shift[N];
  uint64_t full[kStages], empty[kStages];
};

struct Args {
  CUtensorMap x, w;
  const bf16 *bias, *skip;
  bf16 *sum, *y;
  const float *scale, *shift;
  float *mean, *rstd;
  Branch branch;
  int rows, tiles, steps;  // steps: of depth
  float eps;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Where a block's tile of this turn begins; below zero: there is none. As other passes, it works
// from the end.
__device__ __forceinline__ int first_row(const Args& g, int turn) {
  return (g.tiles - 1 - static_cast<int>(blockIdx.x + turn * gridDim.x)) * kTileRows;
}

template <int N>
__device__ void produce(const Args& g, Shared<N>& s) {
  PipelineState<Shared<N>::kStages> pipe;
  for (int turn = 0, row; (row = first_row(g, turn)) >= 0; ++turn)
    for (int step = 0; step < g.steps; ++step, pipe.advance()) {
      uint64_t* const full = &s.full[pipe.index];
      mbarrier_wait(&s.empty[pipe.index], pipe.phase ^ 1);
      mbarrier_arrive_expect_tx(full, Shared<N>::kBytesX + Shared<N>::kBytesW);
      tma_load_2d(g.x, s.x[pipe.index], full, step * kDepth, row);
      tma_load_5d(g.w, s.w[pipe.index], full, step * kDepth, 0);
    }
}

// A thread's part of a tile: columns own to own + 7 of every 32, in rows `row` and `row` + 8.
template <int N, bool kBranch>
struct Consumer {
  static constexpr int kParts = N / 32;
  using Accumulators = float[N / 2];
  using Skip = Raw8<bf16>[2][kParts];
  const Args& g;
  Shared<N>& s;
  int group, thread;
  int own = thread % 4 * 8;
  PipelineState<Shared<N>::kStages> pipe = {};

  // Asked for a tile ahead. Rows beyond the last one take its values, and are not stored.
  __device__ __forceinline__ void read_skip(Skip& skip, int row) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t from = int64_t{min(row + 8 * half, g.rows - 1)} * N + own;
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        skip[half][part] = load_raw(g.skip + from + 32 * part);
    }
  }

  __device__ __forceinline__ void multiply(Accumulators& d) {
    mainloop(
        d, pipe, s.full, g.steps,
        [&](int stage, int i, bool add) {
          wgmma_ss(d, make_descriptor(s.x[stage] + group * 64 * kSwizzledRow + 32 * i),
                   make_descriptor(s.w[stage] + 32 * i), add);
        },
        [&](int stage) {
          if (thread == 0) mbarrier_arrive(&s.empty[stage]);
        });
  }

  // What the branch adds, rounded where the plain graph has a tensor.
  __device__ __forceinline__ Raw8<bf16> through_branch(const Raw8<bf16>& t, int column,
                                                       bool kept) const {
    if constexpr (!kBranch) return t;
    Eight v = unpack(t);
    if (g.branch.gamma) {
      const Eight gamma = load8(s.gamma + column);
#pragma unroll
      for (int i = 0; i < 8; ++i) v.v[i] = rounded<bf16>(__fmul_rn(v.v[i], gamma.v[i]));
    }
    if (g.branch.drop.rng) g.branch.template drop_row<bf16>(v, kept);
    return pack<bf16>(v);
  }

  // The residual sum, left in d as it is rounded; `sum` gets this thread's share of both rows.
  __device__ __forceinline__ void add_up(Accumulators& d, const Skip& skip, int row,
                                         float (&sum)[2]) {
    bool kept[2] = {true, true};
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (kBranch && g.branch.drop.rng) kept[half] = g.branch.kept(row + 8 * half);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int column = 32 * part + own;
      const Eight bias = load8(s.bias + column);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Eight v;
#pragma unroll
        for (int i = 0; i < 8; ++i) v.v[i] = d[permuted_accumulator(part, half, i)] + bias.v[i];
        const Raw8<bf16> raw =
            add(skip[half][part], through_branch(pack<bf16>(v), column, kept[half]));
        if (g.sum && row + 8 * half < g.rows)
          store_raw(g.sum + int64_t{row + 8 * half} * N + column, raw);
        v = unpack(raw);
#pragma unroll
        for (int i = 0; i < 8; ++i)
          d[permuted_accumulator(part, half, i)] = v.v[i], sum[half] += v.v[i];
      }
    }
  }

  __device__ __forceinline__ void normalise(Accumulators& d, int row, const float (&sum)[2]) {
    float mean[2], squares[2] = {0, 0}, rstd[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) mean[half] = row_sum<4>(sum[half]) / N;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const int half = i / 2 % 2;
      d[i] -= mean[half];
      squares[half] = fmaf(d[i], d[i], squares[half]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      rstd[half] = rsqrtf(row_sum<4>(squares[half]) / N + g.eps);
      if (own > 0 || row + 8 * half >= g.rows) continue;
      if (g.mean) g.mean[row + 8 * half] = mean[half];
      if (g.rstd) g.rstd[row + 8 * half] = rstd[half];
    }
    if (!g.y) return;
    const auto to = [&](int half) {
      return (kBranch ? g.branch.to(row + 8 * half) : int64_t{row + 8 * half}) * N + own;
    };
    bf16* const y[2] = {g.y + to(0), g.y + to(1)};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int column = 32 * part + own;
      const Eight scale = load8(s.scale + column), shift = load8(s.shift + column);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Eight v;
#pragma unroll
        for (int i = 0; i < 8; ++i)
          v.v[i] =
              fmaf(d[permuted_accumulator(part, half, i)] * rstd[half], scale.v[i], shift.v[i]);
        if (row + 8 * half < g.rows) store8(y[half] + 32 * part, v);
      }
    }
  }

  __device__ void run() {
    const int in_tile = group * 64 + thread / kWarp * 16 + thread % kWarp / 4;
    Accumulators d;
    Skip skip;
    int row = first_row(g, 0);
    read_skip(skip, row + in_tile);
    for (int turn = 0; row >= 0; ++turn) {
      multiply(d);
      const int here = row + in_tile;
      float sum[2] = {0, 0};
      add_up(d, skip, here, sum);
      row = first_row(g, turn + 1);
      if (row >= 0) read_skip(skip, row + in_tile);
      normalise(d, here, sum);
    }
  }
};
#endif

// Only sm_90a has the instructions; a library built for other cards leaves the kernels empty.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ const bool kBuilt = true;
#else
__device__ const bool kBuilt = false;
#endif

template <int N, bool kBranch>
__global__ void __launch_bounds__(kThreads, 1)
    linear_norm_kernel([[maybe_unused]] const __grid_constant__ Args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::byte memory[];
  auto& s = *reinterpret_cast<Shared<N>*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared<N>::kStages; ++i)
      mbarrier_init(&s.full[i], 1), mbarrier_init(&s.empty[i], kGroups);
    fence_barrier_init();
  }
  for (int i = threadIdx.x; i < N; i += kThreads) {
    s.bias[i] = g.bias ? to_float(g.bias[i]) : 0;
    s.gamma[i] = g.branch.gamma ? g.branch.gamma[i] : 1;
    s.scale[i] = g.scale[i], s.shift[i] = g.shift ? g.shift[i] : 0;
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  if (group < kGroups) {
    reg_alloc<240>();
    Consumer<N, kBranch>{g, s, group, static_cast<int>(threadIdx.x) % kGroup}.run();
  } else {
    reg_dealloc<24>();
    if (threadIdx.x == kGroups * kGroup) produce(g, s);
  }
#endif
}

// ---- lowering ----

bool built() {
  bool answer = false;
  return cudaMemcpyFromSymbol(&answer, kBuilt, sizeof answer) == cudaSuccess && answer;
}

template <int N>
KernelPtr launch(CudaBackend& cuda, const Args& args) {
  const Branch& b = args.branch;
  const bool branch = b.gamma || b.drop.rng || b.to.table;
  const auto kernel = branch ? linear_norm_kernel<N, true> : linear_norm_kernel<N, false>;
  allow_shared_memory(kernel, sizeof(Shared<N>));
  const auto blocks = static_cast<unsigned>(std::min(args.tiles, cuda.processors()));
  return launch_kernel(cuda, kernel, blocks, kThreads, sizeof(Shared<N>), args);
}

}  // namespace

bool has_tma_wgmma(int capability) { return capability == 90 && built() && encoder(); }

KernelPtr lower_linear_norm(CudaBackend& cuda, const Operands& linear, const AddLayerNorm& op,
                            const Operands& norm, const Branch& branch) {
  const auto& [eps] = op;
  const TensorView &x = linear.in[Linear::kX], &w = linear.in[Linear::kWeight];
  const int64_t rows = x.shape.rows();
  const Args args{.x = tile_map(x, kDepth, kTileRows),
                  .w = permuted_rows_map(w, kDepth, w.shape[0]),
                  .bias = static_cast<const bf16*>(operand(linear.in, Linear::kBias).data),
                  .skip = static_cast<const bf16*>(norm.in[AddLayerNorm::kA].data),
                  .sum = static_cast<bf16*>(norm.out[AddLayerNorm::kSum].data),
                  .y = static_cast<bf16*>(operand(norm.out, AddLayerNorm::kY).data),
                  .scale = norm.in[AddLayerNorm::kWeight].f32(),
                  .shift = operand(norm.in, AddLayerNorm::kBias).f32(),
                  .mean = operand(norm.out, AddLayerNorm::kMean).f32(),
                  .rstd = operand(norm.out, AddLayerNorm::kRstd).f32(),
                  .branch = branch,
                  .rows = static_cast<int>(rows),
                  .tiles = static_cast<int>(divide_up(rows, kTileRows)),
                  .steps = static_cast<int>(divide_up(x.shape[-1], kDepth)),
                  .eps = eps};
  return w.shape[0] == 256 ? launch<256>(cuda, args) : launch<192>(cuda, args);
}

}  // namespace vitrum::cuda
