// A linear layer with narrow rows, the residual branch it ends and the LayerNorm behind that in one
// pass (sm_90): the layer's result is never stored, and the sum is normalised before it leaves.
//
// A block works on 128 whole rows at a time. One thread starts the copies of x and of the weights,
// 64 columns deep each; two warpgroups multiply 64 rows each. The weights' rows arrive in an order
// that gives a thread eight neighbouring columns of every 32: four threads, a quad, have a whole
// row, and read and write it in pieces of 16 bytes.
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

constexpr int kGroup = 128, kGroups = 2, kThreads = (kGroups + 1) * kGroup;  // one group copies
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
  Ring<Shared<N>::kStages> ring;
  for (int turn = 0, row; (row = first_row(g, turn)) >= 0; ++turn)
    for (int step = 0; step < g.steps; ++step, ring.advance()) {
      uint64_t* const full = &s.full[ring.at];
      wait_barrier(&s.empty[ring.at], ring.parity ^ 1);
      expect_bytes(full, Shared<N>::kBytesX + Shared<N>::kBytesW);
      load_tile(g.x, s.x[ring.at], full, step * kDepth, row);
      load_groups(g.w, s.w[ring.at], full, step * kDepth, 0);
    }
}

// A thread's part of a tile: columns own to own + 7 of every 32, in rows `row` and `row` + 8.
template <int N, bool kBranch>
struct Consumer {
  static constexpr int kParts = N / 32;
  using Sums = float[N / 2];
  using Skip = Raw8<bf16>[2][kParts];
  const Args& g;
  Shared<N>& s;
  int group, thread;
  int own = thread % 4 * 8;
  Ring<Shared<N>::kStages> ring = {};

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

  __device__ __forceinline__ void multiply(Sums& d) {
    multiply_steps(
        d, ring, s.full, g.steps,
        [&](int stage, int i, bool add) {
          multiply_shared(d, describe(s.x[stage] + group * 64 * kSwizzledRow + 32 * i),
                          describe(s.w[stage] + 32 * i), add);
        },
        [&](int stage) {
          if (thread == 0) arrive(&s.empty[stage]);
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
  __device__ __forceinline__ void add_up(Sums& d, const Skip& skip, int row, float (&sum)[2]) {
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
        for (int i = 0; i < 8; ++i) v.v[i] = d[shuffled_sum(part, half, i)] + bias.v[i];
        const Raw8<bf16> raw =
            add(skip[half][part], through_branch(pack<bf16>(v), column, kept[half]));
        if (g.sum && row + 8 * half < g.rows)
          store_raw(g.sum + int64_t{row + 8 * half} * N + column, raw);
        v = unpack(raw);
#pragma unroll
        for (int i = 0; i < 8; ++i) d[shuffled_sum(part, half, i)] = v.v[i], sum[half] += v.v[i];
      }
    }
  }

  __device__ __forceinline__ void normalise(Sums& d, int row, const float (&sum)[2]) {
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
          v.v[i] = fmaf(d[shuffled_sum(part, half, i)] * rstd[half], scale.v[i], shift.v[i]);
        if (row + 8 * half < g.rows) store8(y[half] + 32 * part, v);
      }
    }
  }

  __device__ void run() {
    const int in_tile = group * 64 + thread / kWarp * 16 + thread % kWarp / 4;
    Sums d;
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
      init_barrier(&s.full[i], 1), init_barrier(&s.empty[i], kGroups);
    publish_barriers();
  }
  for (int i = threadIdx.x; i < N; i += kThreads) {
    s.bias[i] = g.bias ? to_float(g.bias[i]) : 0;
    s.gamma[i] = g.branch.gamma ? g.branch.gamma[i] : 1;
    s.scale[i] = g.scale[i], s.shift[i] = g.shift ? g.shift[i] : 0;
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  if (group < kGroups) {
    take_registers<240>();
    Consumer<N, kBranch>{g, s, group, static_cast<int>(threadIdx.x) % kGroup}.run();
  } else {
    give_registers<24>();
    if (threadIdx.x == kGroups * kGroup) produce(g, s);
  }
#endif
}

// ---- how the copy engine sees the operands ----

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

bool has_copy_engine(const CudaBackend& cuda) {
  static const bool available = cuda.capability() == 90 && built() && encoder();
  return available;
}

bool has_linear_norm(const CudaBackend& cuda, const Linear& op, const Operands& io) {
  constexpr int64_t kFewestRows = 8192;  // half of the processors would be idle with fewer
  const TensorView &x = io.in[0], &w = io.in[1];
  const bool narrow = w.shape[0] == 192 || w.shape[0] == 256;
  return has_copy_engine(cuda) && narrow && op.act == Act::kNone && op.drop == 0 &&
         x.dtype == DType::kBF16 && w.dtype == DType::kBF16 && x.shape[-1] % 8 == 0 &&
         x.shape.rows() >= kFewestRows && x.shape.rows() < INT32_MAX / 2;
}

KernelPtr lower_linear_norm(CudaBackend& cuda, const Operands& linear, const AddLayerNorm& op,
                            const Operands& norm, const Branch& branch) {
  const TensorView &x = linear.in[0], &w = linear.in[1];
  const int64_t rows = x.shape.rows();
  const Args args{.x = tiles_of(x, kDepth, kTileRows),
                  .w = shuffled_rows(w, kDepth, w.shape[0]),
                  .bias = static_cast<const bf16*>(operand(linear.in, 2).data),
                  .skip = static_cast<const bf16*>(norm.in[0].data),
                  .sum = static_cast<bf16*>(norm.out[0].data),
                  .y = static_cast<bf16*>(operand(norm.out, 1).data),
                  .scale = norm.in[2].f32(),
                  .shift = operand(norm.in, 3).f32(),
                  .mean = operand(norm.out, 2).f32(),
                  .rstd = operand(norm.out, 3).f32(),
                  .branch = branch,
                  .rows = static_cast<int>(rows),
                  .tiles = static_cast<int>(divide_up(rows, kTileRows)),
                  .steps = static_cast<int>(divide_up(x.shape[-1], kDepth)),
                  .eps = op.eps};
  return w.shape[0] == 256 ? launch<256>(cuda, args) : launch<192>(cuda, args);
}

}  // namespace vitrum::cuda
