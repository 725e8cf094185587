// LayerNorm backward: dx as the forward pass, one warp or half of one a row; each keeps the sums
// for dw and dbias of all rows it walks over, and they are added up in a fixed order.
#include "vitrum/cuda/columns.cuh"
#include "vitrum/cuda/norm.cuh"

namespace vitrum::cuda {
namespace {

// The gradient g = dy w of one row, less its projections on 1 and on the normalised row.
// Products and sums are spelt out: paths and fused ops must agree to the bit, however the compiler
// would contract them.
struct RowGradient {
  float mean, rstd;
  float sum = 0, sum_hat = 0;  // of g and of g hat; after finish(), their means

  __device__ __forceinline__ float hat(float x) const {
    return __fmul_rn(__fsub_rn(x, mean), rstd);
  }
  __device__ __forceinline__ void add(float g, float hat) {
    sum = __fadd_rn(sum, g), sum_hat = fmaf(g, hat, sum_hat);
  }
  template <int kLanes>
  __device__ __forceinline__ void finish(float width) {
    sum = __fdiv_rn(row_sum<kLanes>(sum), width);
    sum_hat = __fdiv_rn(row_sum<kLanes>(sum_hat), width);
  }
  __device__ __forceinline__ float dx(float g, float hat) const {
    return __fmul_rn(fmaf(-hat, sum_hat, __fsub_rn(g, sum)), rstd);
  }
};

struct Backward {
  TensorView dy = {}, x = {}, dskip = {}, dx = {};
  const float *w = nullptr, *mean = nullptr, *rstd = nullptr;
  float *dw = nullptr, *dbias = nullptr;
  int64_t rows = 0;
  int width = 0;
};

template <class T>
struct BackwardRows {
  const T *dy, *x, *dskip;
  T* dx;
  const float *w, *mean, *rstd;
  float* partials;
  int64_t rows;
  int width;
};

// The sums of dw and dbias take sixteen registers a vector, each row held at least four more: how
// many warps a processor then has room for, and whether the next row is read ahead of its use.
template <class T, class RowShape>
struct BackwardShape {
  static constexpr int kVectors = RowShape::kVectors;
  static constexpr bool kNarrow = sizeof(T) == 2;
  static constexpr int kRoom[2][9] = {{0, 20, 12, 12, 8}, {0, 28, 20, 16, 12, 8, 8, 8, 8}};
  static constexpr int kHeld = kRoom[kNarrow][kVectors];
  static constexpr int kWarps = kHeld == 16 ? 8 : 4;
  static constexpr int kBlocks = kHeld / kWarps;
  static constexpr int kThreads = kWarps * kWarp, kRows = kThreads / RowShape::kLanes;
  static constexpr bool kAhead = kVectors <= (kNarrow ? 4 : 2);
};

template <class T, class RowShape, bool kSums>
__global__ void __launch_bounds__(BackwardShape<T, RowShape>::kThreads,
                                  BackwardShape<T, RowShape>::kBlocks)
    norm_rows_back(BackwardRows<T> g) {
  using Shape = BackwardShape<T, RowShape>;
  constexpr bool kAhead = Shape::kAhead;
  constexpr int kVectors = RowShape::kVectors, kLanes = RowShape::kLanes;
  extern __shared__ float4 shared[];
  const int lane = threadIdx.x % kLanes, team = threadIdx.x / kLanes;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * Shape::kRows;
  const auto width = static_cast<float>(g.width);
  Eight dw[kVectors] = {}, dbias[kVectors] = {};
  Raw8<T> next_dy[kVectors] = {}, next_x[kVectors] = {}, next_skip[kVectors] = {};
  float next_mean = 0, next_rstd = 0;
  const auto read_ahead = [&](int64_t r) {
    if (r >= g.rows) return;
    load_row(next_dy, g.dy + r * g.width, g.width, lane);
    load_row(next_x, g.x + r * g.width, g.width, lane);
    if (kVectors == 1 && g.dskip) load_row(next_skip, g.dskip + r * g.width, g.width, lane);
    next_mean = g.mean[r], next_rstd = g.rstd[r];
  };
  int64_t r = static_cast<int64_t>(blockIdx.x) * Shape::kRows + team;
  if constexpr (kAhead) read_ahead(r);
  for (; r < g.rows; r += stride) {
    const int64_t at = r * g.width;
    if constexpr (!kAhead) read_ahead(r);
    Raw8<T> dy[kVectors], x[kVectors], skip[kVectors] = {};
#pragma unroll
    for (int j = 0; j < kVectors; ++j) dy[j] = next_dy[j], x[j] = next_x[j], skip[j] = next_skip[j];
    RowGradient row{next_mean, next_rstd};
    if constexpr (kAhead) read_ahead(r + stride);
    if (kVectors > 1 && g.dskip) load_row(skip, g.dskip + at, g.width, lane);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int i = j * kSpan + lane * 8;
      if (i >= g.width) continue;
      const Eight d = unpack(dy[j]), v = unpack(x[j]), w = load8(g.w + i);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float hat = row.hat(v.v[k]);
        row.add(__fmul_rn(d.v[k], w.v[k]), hat);
        if constexpr (kSums) {
          dw[j].v[k] = fmaf(d.v[k], hat, dw[j].v[k]);
          dbias[j].v[k] = __fadd_rn(dbias[j].v[k], d.v[k]);
        }
      }
    }
    if (!g.dx) continue;
    row.template finish<kLanes>(width);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int i = j * kSpan + lane * 8;
      if (i >= g.width) continue;
      Eight d = unpack(dy[j]);
      const Eight v = unpack(x[j]), w = load8(g.w + i), s = unpack(skip[j]);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        d.v[k] = row.dx(__fmul_rn(d.v[k], w.v[k]), row.hat(v.v[k]));
        if (g.dskip) d.v[k] = __fadd_rn(rounded<T>(d.v[k]), s.v[k]);
      }
      store8(g.dx + at + i, d);
    }
  }
  if constexpr (!kSums) return;
  let_next_begin();
  // Who had rows of the block in turn: (2, width) sums in shared memory, then this block's
  // partials.
  auto* sums = reinterpret_cast<float*>(shared);
  for (int turn = 0; turn < Shape::kRows; ++turn) {
    if (team == turn) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        const int i = j * kSpan + lane * 8;
        if (i >= g.width) continue;
        if (turn > 0) {
          const Eight a = load8(sums + i), b = load8(sums + g.width + i);
#pragma unroll
          for (int k = 0; k < 8; ++k) dw[j].v[k] += a.v[k], dbias[j].v[k] += b.v[k];
        }
        store8(sums + i, dw[j]), store8(sums + g.width + i, dbias[j]);
      }
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < 2 * g.width; i += Shape::kThreads)
    g.partials[static_cast<int64_t>(blockIdx.x) * 2 * g.width + i] = sums[i];
}

// Sums of (2, width): dw and dbias, either of which may not be wanted.
struct AddToPair {
  float *dw, *dbias;
  int64_t width;
  __device__ void operator()(int64_t column, float sum) const {
    float* to = column < width ? dw : dbias;
    if (to) to[column < width ? column : column - width] += sum;
  }
};

template <class T, class RowShape>
KernelPtr backward_rows(CudaBackend& cuda, const Backward& g) {
  using Shape = BackwardShape<T, RowShape>;
  const int64_t blocks = std::min<int64_t>(int64_t{cuda.processors()} * Shape::kBlocks,
                                           divide_up(g.rows, Shape::kRows));
  const bool sums = g.dw || g.dbias;
  float* partials = sums ? cuda.scratch_of<float>(blocks * 2 * g.width) : nullptr;
  const BackwardRows<T> args{static_cast<const T*>(g.dy.data),
                             static_cast<const T*>(g.x.data),
                             static_cast<const T*>(g.dskip.data),
                             static_cast<T*>(g.dx.data),
                             g.w,
                             g.mean,
                             g.rstd,
                             partials,
                             g.rows,
                             g.width};
  return make_kernel([args, blocks, sums, dw = g.dw, dbias = g.dbias, stream = cuda.stream()] {
    constexpr int kThreads = Shape::kThreads;
    const auto grid = static_cast<unsigned>(blocks);
    if (!sums) {
      norm_rows_back<T, RowShape, false><<<grid, kThreads, 0, stream>>>(args);
      return;
    }
    const size_t shared = 2 * static_cast<size_t>(args.width) * sizeof(float);
    norm_rows_back<T, RowShape, true><<<grid, kThreads, shared, stream>>>(args);
    launch_finish(args.partials, blocks, 2 * args.width, AddToPair{dw, dbias, args.width}, stream);
  });
}

struct MixedBackward {
  Mixed dy, x, dskip, dx;
  const float *w, *mean, *rstd;
  int64_t rows;
  int width;
};

__global__ void __launch_bounds__(kRowWarps* kWarp) norm_dx_mixed(MixedBackward g) {
  const int lane = threadIdx.x % kWarp;
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
  if (r >= g.rows) return;
  const int64_t at = r * g.width;
  RowGradient row{g.mean[r], g.rstd[r]};
  const auto gradient = [&](int i) { return __fmul_rn(g.dy.load(at + i), g.w[i]); };
  const auto hat = [&](int i) { return row.hat(g.x.load(at + i)); };
  for_lane(g.width, lane, [&](int i) { row.add(gradient(i), hat(i)); });
  row.finish<kWarp>(static_cast<float>(g.width));
  for_lane(g.width, lane, [&](int i) {
    float d = row.dx(gradient(i), hat(i));
    if (g.dskip.data) d = __fadd_rn(g.dx.round(d), g.dskip.load(at + i));
    g.dx.store(at + i, d);
  });
}

// What dw (with kHat) and dbias sum.
template <bool kHat>
struct MixedSums {
  MixedBackward g;
  __device__ __forceinline__ float one(int64_t at, int64_t) const {
    const float d = g.dy.load(at);
    if constexpr (!kHat) return d;
    const int64_t r = at / g.width;
    return __fmul_rn(d, RowGradient{g.mean[r], g.rstd[r]}.hat(g.x.load(at)));
  }
};

KernelPtr backward_mixed(CudaBackend& cuda, const Backward& g) {
  const MixedBackward args{mixed(g.dy), mixed(g.x), mixed(g.dskip), mixed(g.dx), g.w,
                           g.mean,      g.rstd,     g.rows,         g.width};
  const ColumnPlan plan = plan_columns(g.rows, g.width, /*wide=*/false);
  auto* partials = static_cast<float*>(cuda.scratch(column_scratch_bytes(g.rows, g.width)));
  return make_kernel([=, dw = g.dw, dbias = g.dbias, stream = cuda.stream()] {
    if (args.dx.data)
      norm_dx_mixed<<<blocks_for(args.rows, kRowWarps), kRowWarps * kWarp, 0, stream>>>(args);
    if (dw) launch_narrow_columns(MixedSums<true>{args}, plan, partials, AddToColumns{dw}, stream);
    if (dbias)
      launch_narrow_columns(MixedSums<false>{args}, plan, partials, AddToColumns{dbias}, stream);
  });
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const LayerNormBwd&, const Operands& io) {
  const Backward g{.dy = io.in[0],
                   .x = io.in[1],
                   .dskip = operand(io.in, 5),
                   .dx = io.out[0],
                   .w = io.in[2].f32(),
                   .mean = io.in[3].f32(),
                   .rstd = io.in[4].f32(),
                   .dw = operand(io.out, 1).f32(),
                   .dbias = operand(io.out, 2).f32(),
                   .rows = io.in[0].shape.rows(),
                   .width = static_cast<int>(io.in[0].shape[-1])};
  const DType dtype = g.dy.dtype;
  const bool fast = row_fits(g.width, dtype) && usable(g.dy, dtype) && usable(g.x, dtype) &&
                    usable(g.dskip, dtype) && usable(g.dx, dtype) && aligned16(g.w);
  if (!fast) return backward_mixed(cuda, g);
  KernelPtr kernel;
  with_row(dtype, g.width, [&](auto type, auto shape) {
    kernel = backward_rows<decltype(type), decltype(shape)>(cuda, g);
  });
  return kernel;
}

}  // namespace vitrum::cuda
