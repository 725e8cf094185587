// Gradient of a linear layer's input fused with the backward pass of the LayerNorm that made it
// (sm_90a): dx of the layer is never stored.
//
// Persistent, warp-specialised, on 128 whole rows at a time: two producer threads issue the TMA
// loads of d (the gradient of the layer's result) and of the weights, 64 of K a stage; two consumer
// warpgroups run WGMMA and leave dx, rounded, in shared memory; a norm warpgroup (two where rows
// are narrow) takes its rows from there while the next ones are multiplied.
#include <algorithm>

#include "vitrum/cuda/host/tensor_map.h"
#include "vitrum/cuda/linear/linear_norm.h"
#include "vitrum/cuda/norm/layer_norm_bwd.cuh"
#include "vitrum/cuda/primitives/column_sums.cuh"
#include "vitrum/cuda/primitives/tma.cuh"
#include "vitrum/cuda/primitives/wgmma.cuh"

// For other cards the kernels are empty, and nothing uses what is here.
#pragma nv_diag_suppress 177

namespace vitrum::cuda {
namespace {

constexpr int kGroup = 128, kProducts = 2;              // threads, and warpgroups that multiply
constexpr int kTileRows = 64 * kProducts, kDepth = 64;  // of d
constexpr int kBlockRows = 16, kBlocks = kTileRows / kBlockRows;  // what one warp hands over
constexpr int kSums = 3;  // of columns: for dw, for dbias, and of the last result

// Warpgroups that have the norm; one more copies. How many registers the threads of each begin with
// and then have: all together as many as before.
template <int N>
struct Roles {
  static constexpr int kNorms = N > 128 ? 1 : 2;
  static constexpr int kThreads = (kProducts + kNorms + 1) * kGroup;
  static constexpr int kAtFirst = kNorms == 1 ? 128 : 96;
  static constexpr int kForProducts = N > 192 ? 160 : N > 128 ? 128 : 88;
  static constexpr int kForNorms = N > 192 ? 168 : N > 128 ? 208 : 136;
};

template <int N>
struct Shared {
  static constexpr int kPanels = (N + 63) / 64, kPanel = kDepth * kSwizzledRow;  // of the weights
  static constexpr int kBytesD = kTileRows * kSwizzledRow, kBytesW = kPanels * kPanel;
  static constexpr int kStagesD = N > 192 ? 4 : 5, kStagesW = N > 192 ? 3 : 4;
  static constexpr int kRow = N * 2 + 16;  // bytes of a row of dx; neighbours in other banks
  std::byte d[kStagesD][kBytesD], w[kStagesW][kBytesW];
  alignas(16) std::byte dx[kBlocks][kBlockRows * kRow];
  uint64_t d_full[kStagesD], d_empty[kStagesD], w_full[kStagesW], w_empty[kStagesW];
  uint64_t ready[kBlocks], taken[kBlocks];
};

struct Args {
  CUtensorMap d, w;
  const bf16 *x, *dskip;
  bf16 *dx, *result;  // of the norm; result: dx behind the branch
  const float *scale, *mean, *rstd;
  float* partials;
  Branch branch;           // its `from`: the norm's row of a row of d
  int first, rows, tiles;  // rows of d, from `first` on
  int steps;               // of depth
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ __forceinline__ int tile_of(int turn) {
  return static_cast<int>(blockIdx.x + turn * gridDim.x);
}

template <int N>
__device__ void copy_d(const Args& g, Shared<N>& s) {
  PipelineState<Shared<N>::kStagesD> pipe;
  for (int turn = 0; tile_of(turn) < g.tiles; ++turn)
    for (int step = 0; step < g.steps; ++step, pipe.advance()) {
      mbarrier_wait(&s.d_empty[pipe.index], pipe.phase ^ 1);
      mbarrier_arrive_expect_tx(&s.d_full[pipe.index], Shared<N>::kBytesD);
      tma_load_2d(g.d, s.d[pipe.index], &s.d_full[pipe.index], step * kDepth,
                  tile_of(turn) * kTileRows);
    }
}

template <int N>
__device__ void copy_w(const Args& g, Shared<N>& s) {
  PipelineState<Shared<N>::kStagesW> pipe;
  for (int turn = 0; tile_of(turn) < g.tiles; ++turn)
    for (int step = 0; step < g.steps; ++step, pipe.advance()) {
      uint64_t* const full = &s.w_full[pipe.index];
      mbarrier_wait(&s.w_empty[pipe.index], pipe.phase ^ 1);
      mbarrier_arrive_expect_tx(full, Shared<N>::kBytesW);
#pragma unroll
      for (int i = 0; i < Shared<N>::kPanels; ++i)
        tma_load_2d(g.w, s.w[pipe.index] + i * Shared<N>::kPanel, full, 64 * i, step * kDepth);
    }
}

template <int N>
struct Products {
  // The compiler wants all registers of one instruction to fit before the kernel asks for more.
  static constexpr int kParts = N > 192 ? 2 : 1, kColumns = N / kParts;
  static constexpr int kPanel = Shared<N>::kPanel;
  using Accumulators = float[kParts][kColumns / 2];
  const Args& g;
  Shared<N>& s;
  int group, thread;
  PipelineState<Shared<N>::kStagesD> d_pipe = {};
  PipelineState<Shared<N>::kStagesW> w_pipe = {};

  __device__ __forceinline__ void multiply(Accumulators& sums) {
    int d_before = 0, w_before = 0;
    const auto release = [&] {
      if (thread == 0) mbarrier_arrive(&s.d_empty[d_before]), mbarrier_arrive(&s.w_empty[w_before]);
    };
    for (int step = 0; step < g.steps; ++step) {
      mbarrier_wait(&s.w_full[w_pipe.index], w_pipe.phase);
      mbarrier_wait(&s.d_full[d_pipe.index], d_pipe.phase);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kDepth / 16; ++i) {
        const uint64_t d = make_descriptor(s.d[d_pipe.index] + group * 64 * kSwizzledRow + 32 * i);
        const std::byte* const w = s.w[w_pipe.index] + 16 * i * kSwizzledRow;
#pragma unroll
        for (int part = 0; part < kParts; ++part)
          wgmma_ss_bt(sums[part], d,
                      make_panel_descriptor(w + part * (kColumns / 64) * kPanel, kPanel),
                      step > 0 || i > 0);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (step > 0) release();
      d_before = d_pipe.index, w_before = w_pipe.index;
      d_pipe.advance(), w_pipe.advance();
    }
    wgmma_wait<0>();
#pragma unroll
    for (auto& part : sums) fence_accumulators(part);
    release();
  }

  // Sixteen rows of this warp, rounded.
  __device__ __forceinline__ void hand_over(const Accumulators& sums, int turn) {
    const int block = group * 4 + thread / kWarp, lane = thread % kWarp;
    mbarrier_wait(&s.taken[block], (turn & 1) ^ 1);
    std::byte* const to = s.dx[block] + lane % 16 * Shared<N>::kRow + lane / 16 * 16;
#pragma unroll
    for (int i = 0; i < N / 16; ++i) {
      const float* const d = &sums[16 * i / kColumns][16 * i % kColumns / 2];
      const uint32_t four[4] = {pack2(d[0], d[1]), pack2(d[2], d[3]), pack2(d[4], d[5]),
                                pack2(d[6], d[7])};
      stmatrix_x4(to + 32 * i, four);
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&s.ready[block]);
  }

  __device__ void run() {
    Accumulators sums;
    for (int turn = 0; tile_of(turn) < g.tiles; ++turn) multiply(sums), hand_over(sums, turn);
  }
};

// One of the norm's warps. A row has all its lanes, or half of them where that is enough; those
// without columns repeat the last ones, and keep the result to themselves.
template <int N, bool kBranch>
struct Norm {
  static constexpr uint32_t kAll = 0xffffffffu;
  static constexpr int kWarps = Roles<N>::kNorms * kGroup / kWarp;
  static constexpr int kTurns = kBlocks / kWarps;  // blocks of a tile
  static constexpr int kLanes = N > 128 ? kWarp : kWarp / 2, kTeams = kWarp / kLanes;
  // Rows are taken two at a time, and asked for so many such batches ahead.
  static constexpr int kBatch = 2, kBatches = kBlockRows / (kTeams * kBatch),
                       kAhead = kWarps > 4 ? 2 : 4;
  const Args& g;
  Shared<N>& s;
  int thread = static_cast<int>(threadIdx.x) - kProducts * kGroup;
  int warp = thread / kWarp, team = thread % kWarp / kLanes;
  bool works = thread % kLanes * 8 < N;
  int column = min(thread % kLanes * 8, N - 8);
  Eight scale = load8(g.scale + column);
  Eight sums[kSums] = {};

  // Of a block's sixteen rows, one in each lane of half a warp.
  struct Rows {
    int row, to;
    uint32_t kept;  // a bit each
  };
  struct Batch {
    Raw8<bf16> x[kBatch], skip[kBatch];
    float statistic;  // in the first lanes: mean and rstd of the first row, then of the second
  };

  // Beyond the last row, that one again; nothing is done with it.
  __device__ __forceinline__ Rows locate(int turn) const {
    const int block = tile_of(turn / kTurns) * kBlocks + turn % kTurns * kWarps + warp;
    const int at = min(block * kBlockRows + thread % kBlockRows, g.rows - 1) + g.first;
    const int row = kBranch ? static_cast<int>(g.branch.from(at)) : at;
    Rows rows{row, row, kAll};
    if constexpr (kBranch) rows.to = static_cast<int>(g.branch.to(row));
    if (kBranch && g.branch.drop.rng) rows.kept = __ballot_sync(kAll, g.branch.kept(row));
    return rows;
  }

  __device__ __forceinline__ int row_in_block(int batch, int i) const {
    return (batch * kBatch + i) * kTeams + team;
  }

  __device__ __forceinline__ void read(Batch& to, int row, int batch) const {
    const float* const statistics = thread % 2 == 0 ? g.mean : g.rstd;
    to.statistic = statistics[__shfl_sync(kAll, row, row_in_block(batch, thread / 2 % kBatch))];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = __shfl_sync(kAll, row, row_in_block(batch, i)) * N + column;
      to.x[i] = load_raw(g.x + at), to.skip[i] = load_raw(g.dskip + at);
    }
  }

  __device__ __forceinline__ void add_up(RowGradient& row, const Raw8<bf16>& dy,
                                         const Raw8<bf16>& x) {
    const Eight d = unpack(dy), v = unpack(x);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float hat = row.hat(v.v[k]);
      row.add(__fmul_rn(d.v[k], scale.v[k]), hat);
      sums[0].v[k] = fmaf(d.v[k], hat, sums[0].v[k]);
      sums[1].v[k] = __fadd_rn(sums[1].v[k], d.v[k]);
    }
  }

  __device__ __forceinline__ void finish(const RowGradient& row, const Raw8<bf16>& dy,
                                         const Raw8<bf16>& x, const Raw8<bf16>& skip,
                                         const Rows& rows, int r, int count) {
    const int at = __shfl_sync(kAll, rows.row, r) * N + column;
    const bool inside = works && r < count;
    Eight d = unpack(dy);
    const Eight v = unpack(x);
#pragma unroll
    for (int k = 0; k < 8; ++k) d.v[k] = row.dx(__fmul_rn(d.v[k], scale.v[k]), row.hat(v.v[k]));
    const Raw8<bf16> raw = add(pack<bf16>(d), skip);
    if (inside) store_raw(g.dx + at, raw);
    d = unpack(raw);
    if constexpr (kBranch) {
      // Where nothing is dropped the factor is one.
      g.branch.template drop_row<bf16>(d, rows.kept >> r & 1u);
      const int to = __shfl_sync(kAll, rows.to, r) * N + column;
      if (inside) store8(g.result + to, d);
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) sums[2].v[k] = __fadd_rn(sums[2].v[k], inside ? d.v[k] : 0.0f);
  }

  __device__ __forceinline__ void take(const Batch& prefetched, const Rows& rows, int count,
                                       int batch, const std::byte* block) {
    Raw8<bf16> dy[kBatch];
    RowGradient row[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int r = row_in_block(batch, i);
      row[i] = {__shfl_sync(kAll, prefetched.statistic, 2 * i, kLanes),
                __shfl_sync(kAll, prefetched.statistic, 2 * i + 1, kLanes)};
      dy[i] = load_raw(reinterpret_cast<const bf16*>(block + r * Shared<N>::kRow) + column);
      add_up(row[i], dy[i], prefetched.x[i]);
      if (!works) row[i].sum = row[i].sum_hat = 0;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) row[i].template finish<kLanes>(N, 1.0f / N);
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      finish(row[i], dy[i], prefetched.x[i], prefetched.skip[i], rows, row_in_block(batch, i),
             count);
  }

  // Whose sums they are in turn, then this block's partials.
  __device__ __forceinline__ void leave_sums() const {
    constexpr int kParts = kWarps * kTeams;
    auto* const parts = reinterpret_cast<float*>(s.dx);
    sync_threads<kWarps * kWarp>();
#pragma unroll
    for (int i = 0; i < kSums; ++i)
      if (works) store8(parts + ((warp * kTeams + team) * kSums + i) * N + column, sums[i]);
    sync_threads<kWarps * kWarp>();
    for (int i = thread; i < kSums * N; i += kWarps * kWarp) {
      float total = 0;
      for (int part = 0; part < kParts; ++part) total += parts[part * kSums * N + i];
      g.partials[static_cast<int64_t>(blockIdx.x) * kSums * N + i] = total;
    }
  }

  __device__ void run() {
    Rows rows = locate(0);
    Batch prefetched[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) read(prefetched[i], rows.row, i);
    for (int turn = 0; tile_of(turn / kTurns) < g.tiles; ++turn) {
      const int block = turn % kTurns * kWarps + warp;
      const int count = g.rows - (tile_of(turn / kTurns) * kBlocks + block) * kBlockRows;
      const Rows after = locate(turn + 1);
      mbarrier_wait(&s.ready[block], turn / kTurns & 1);
#pragma unroll 1
      for (int batch = 0; batch < kBatches; batch += kAhead) {
        const bool last = batch + kAhead >= kBatches;
        const int next_row = last ? after.row : rows.row, next = last ? 0 : batch + kAhead;
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          take(prefetched[i], rows, count, batch + i, s.dx[block]);
          read(prefetched[i], next_row, next + i);
          __syncwarp();  // keeps the compiler from mixing batches, for which registers are too few
        }
      }
      __syncwarp();
      if (thread % kWarp == 0) mbarrier_arrive(&s.taken[block]);
      rows = after;
    }
    trigger_dependents();
    leave_sums();
  }
};

template <int kBefore, int kCount>
__device__ __forceinline__ void reg_realloc() {
  if constexpr (kCount > kBefore)
    reg_alloc<kCount>();
  else if constexpr (kCount < kBefore)
    reg_dealloc<kCount>();
}

template <int N>
__device__ void begin(Shared<N>& s) {
  for (int i = 0; i < Shared<N>::kStagesD; ++i)
    mbarrier_init(&s.d_full[i], 1), mbarrier_init(&s.d_empty[i], kProducts);
  for (int i = 0; i < Shared<N>::kStagesW; ++i)
    mbarrier_init(&s.w_full[i], 1), mbarrier_init(&s.w_empty[i], kProducts);
  for (int i = 0; i < kBlocks; ++i) mbarrier_init(&s.ready[i], 1), mbarrier_init(&s.taken[i], 1);
  fence_barrier_init();
}
#endif

template <int N, bool kBranch>
__global__ void __launch_bounds__(Roles<N>::kThreads, 1)
    linear_norm_back([[maybe_unused]] const __grid_constant__ Args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using R = Roles<N>;
  extern __shared__ __align__(1024) std::byte memory[];
  auto& s = *reinterpret_cast<Shared<N>*>(memory);
  if (threadIdx.x == 0) begin(s);
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  if (group < kProducts) {
    reg_realloc<R::kAtFirst, R::kForProducts>();
    Products<N>{g, s, group, static_cast<int>(threadIdx.x) % kGroup}.run();
  } else if (group < kProducts + R::kNorms) {
    reg_realloc<R::kAtFirst, R::kForNorms>();
    Norm<N, kBranch>{g, s}.run();
  } else {
    reg_realloc<R::kAtFirst, 24>();
    if (threadIdx.x % kGroup == 0) copy_d(g, s);
    if (threadIdx.x % kGroup == kWarp) copy_w(g, s);
  }
#endif
}

int64_t most_partials(const CudaBackend& cuda, int64_t width) {
  return int64_t{cuda.processors()} * kSums * width;
}

template <int N>
KernelPtr launch(CudaBackend& cuda, const Args& args, const AddToEach& sink) {
  const bool branch = args.result != args.dx || args.branch.from.table;
  const auto kernel = branch ? linear_norm_back<N, true> : linear_norm_back<N, false>;
  allow_shared_memory(kernel, sizeof(Shared<N>));
  const int blocks = std::min(args.tiles, cuda.processors());
  return make_kernel([=, stream = cuda.stream()] {
    kernel<<<static_cast<unsigned>(blocks), Roles<N>::kThreads, sizeof(Shared<N>), stream>>>(args);
    launch_finish(args.partials, blocks, kSums * N, sink, stream);
  });
}

KernelPtr launch(CudaBackend& cuda, const Args& args, const AddToEach& sink) {
  if (sink.width == 256) return launch<256>(cuda, args, sink);
  return sink.width == 192 ? launch<192>(cuda, args, sink) : launch<96>(cuda, args, sink);
}

}  // namespace

LinearParts linear_norm_bwd(CudaBackend& cuda, const Operands& linear, const Operands& norm,
                            const Branch& branch, const TensorView& result) {
  const TensorView& w = linear.in[LinearBwd::kWeight];
  const int64_t width = w.shape[1];
  Args args{.x = static_cast<const bf16*>(norm.in[LayerNormBwd::kX].data),
            .dskip = static_cast<const bf16*>(operand(norm.in, LayerNormBwd::kDskip).data),
            .dx = static_cast<bf16*>(norm.out[LayerNormBwd::kDx].data),
            .result = static_cast<bf16*>(result.data),
            .scale = norm.in[LayerNormBwd::kWeight].f32(),
            .mean = norm.in[LayerNormBwd::kMean].f32(),
            .rstd = norm.in[LayerNormBwd::kRstd].f32(),
            .branch = branch};
  const AddToEach sink{.dw = operand(norm.out, LayerNormBwd::kDweight).f32(),
                       .dbias = operand(norm.out, LayerNormBwd::kDbias).f32(),
                       .result = norm.column_sums.f32(),
                       .width = width};
  const auto to_dx = [&cuda, args, sink, w](const TensorView& d, int64_t first,
                                            std::byte* scratch) mutable {
    const int64_t rows = d.shape.rows();
    args.d = tile_map(d, kDepth, kTileRows), args.w = tile_map(w, 64, kDepth);
    args.partials = reinterpret_cast<float*>(scratch);
    args.first = static_cast<int>(first), args.rows = static_cast<int>(rows);
    args.tiles = static_cast<int>(divide_up(rows, kTileRows));
    args.steps = static_cast<int>(divide_up(w.shape[0], kDepth));
    return launch(cuda, args, sink);
  };
  return {.to_dx = to_dx,
          .scratch = static_cast<size_t>(most_partials(cuda, width)) * sizeof(float)};
}

}  // namespace vitrum::cuda
