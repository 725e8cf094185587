// LayerNorm forward: one warp (of short rows half a warp) a row. A row of up to 2048 elements is
// read once and stays in registers as it lies in memory; other widths, addresses and mixed types go
// through a slower kernel that adds in the same order, so that the same rows give the same bits on
// either path.
#include <cassert>

#include "vitrum/cuda/norm/layer_norm.cuh"
#include "vitrum/cuda/primitives/e4m3.cuh"

namespace vitrum::cuda {
namespace {

// Products and sums are spelt out: paths and fused ops must agree to the bit, however the compiler
// would contract them.
struct Statistics {
  float mean, missed, rstd;  // missed: what f32 could not hold of the mean
  __device__ __forceinline__ float unit(float x) const {
    return fmaf(__fsub_rn(x, mean), rstd, __fmul_rn(-missed, rstd));
  }
};
// `each(f)` calls f on every element of the row that this lane owns, in their order. Two passes:
// the variance is that of the deviations, whose sum also says what the mean missed.
template <int kLanes, class Each>
__device__ __forceinline__ Statistics statistics(float width, float eps, const Each& each) {
  float sum = 0, rest = 0, squares = 0;
  each([&](float x) { sum = __fadd_rn(sum, x); });
  const float mean = __fdiv_rn(row_sum<kLanes>(sum), width);
  each([&](float x) {
    const float d = __fsub_rn(x, mean);
    rest = __fadd_rn(rest, d), squares = fmaf(d, d, squares);
  });
  rest = row_sum<kLanes>(rest), squares = row_sum<kLanes>(squares);
  const float missed = __fdiv_rn(rest, width);
  const float variance = __fdiv_rn(fmaxf(fmaf(-rest, missed, squares), 0.0f), width);
  return {mean, missed, __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(variance, eps)))};
}

struct Forward {
  TensorView a = {}, b = {}, sum = {}, y = {};  // b and sum: of AddLayerNorm
  const float *w = nullptr, *bias = nullptr;
  float *mean = nullptr, *rstd = nullptr;
  int64_t rows = 0;
  int width = 0;
  float eps = 0;
  const Branch* branch = nullptr;
  TensorView rounded = {};  // in place of y
  float scale = 1;
};

template <class T>
struct ForwardRows {
  const T *a, *b;
  T *sum, *y;
  const float *w, *bias;
  float *mean, *rstd;
  int64_t rows;
  int width;
  float eps;
  Branch branch;
  uint8_t* rounded;  // e4m3, in place of y; or null
  float inverse;
};

// What is added to the row, or kBehind to what the norm has made of it.
enum class Added { kNothing, kPlain, kBranch, kBehind };

template <class T, class RowShape, Added kAdded>
__global__ void __launch_bounds__(kRowWarps* kWarp) norm_rows(ForwardRows<T> g) {
  constexpr int kVectors = RowShape::kVectors, kLanes = RowShape::kLanes;
  const int lane = threadIdx.x % kLanes;
  const int64_t block = reversed_index(blockIdx.x, gridDim.x);
  const int64_t r = (block * kRowWarps * kWarp + threadIdx.x) / kLanes;
  if (r >= g.rows) return;
  const int64_t at = r * g.width;
  constexpr bool through = kAdded == Added::kBranch, behind = kAdded == Added::kBehind;
  Raw8<T> row[kVectors] = {}, other[kVectors] = {};
  load_row(row, g.a + (behind ? g.branch.from(r) * g.width : at), g.width, lane);
  if constexpr (kAdded != Added::kNothing)
    load_row(other, g.b + (through ? g.branch.from(r) * g.width : at), g.width, lane);
  const bool kept = (through || behind) && g.branch.drop.rng ? g.branch.kept(r) : true;
  if constexpr (kAdded == Added::kPlain || through) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int i = j * kSpan + lane * 8;
      Eight v = unpack(row[j]), u = unpack(other[j]);
      if (through && g.branch.gamma && i < g.width) g.branch.template scale<T>(u, i);
      if (through && g.branch.drop.rng) g.branch.template drop_row<T>(u, kept);
#pragma unroll
      for (int k = 0; k < 8; ++k) v.v[k] = __fadd_rn(v.v[k], u.v[k]);
      row[j] = pack<T>(v);
      if (g.sum && i < g.width) store_raw(g.sum + at + i, row[j]);
    }
  }
  const Statistics s = statistics<kLanes>(static_cast<float>(g.width), g.eps, [&](const auto& f) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (j * kSpan + lane * 8 >= g.width) continue;
      const Eight v = unpack(row[j]);
#pragma unroll
      for (int k = 0; k < 8; ++k) f(v.v[k]);
    }
  });
  if (lane == 0 && g.mean) g.mean[r] = __fadd_rn(s.mean, s.missed);
  if (lane == 0 && g.rstd) g.rstd[r] = s.rstd;
  if (!g.y && !g.rounded) return;
  const int64_t to = g.branch.to(r) * g.width;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int i = j * kSpan + lane * 8;
    if (i >= g.width) continue;
    Eight v = unpack(row[j]);
    const Eight w = load8(g.w + i), bias = g.bias ? load8(g.bias + i) : Eight{};
#pragma unroll
    for (int k = 0; k < 8; ++k) v.v[k] = fmaf(s.unit(v.v[k]), w.v[k], bias.v[k]);
    if constexpr (behind) {
      v = unpack(pack<T>(v));
      if (g.branch.drop.rng) g.branch.template drop_row<T>(v, kept);
      const Eight u = unpack(other[j]);
#pragma unroll
      for (int k = 0; k < 8; ++k) v.v[k] = __fadd_rn(u.v[k], v.v[k]);
      if (g.sum) store8(g.sum + at + i, v);
    }
    if (!g.rounded) {
      store8(g.y + to + i, v);
      continue;
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) v.v[k] = rounded<T>(v.v[k]);
    *reinterpret_cast<uint2*>(g.rounded + to + i) = pack_e4m3(v, g.inverse);
  }
}

// Many rows to e4m3: warps that stay have the parameters in registers and their next row on its way
// while they compute one. The same numbers as above; a row's own warp would spend as long on the
// parameters, and on waiting, as on the row.
constexpr int kStayingWarps = 8, kStayingBlocks = 2;  // of a block; of a processor

template <int kVectors>
__global__ void __launch_bounds__(kStayingWarps* kWarp, kStayingBlocks)
    norm_many_to_e4m3(ForwardRows<bf16> g) {
  const int lane = threadIdx.x % kWarp;
  const int64_t stride = int64_t{gridDim.x} * kStayingWarps;
  int64_t turn = int64_t{blockIdx.x} * kStayingWarps + threadIdx.x / kWarp;
  if (turn >= g.rows) return;
  Eight w[kVectors] = {}, bias[kVectors] = {};
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int i = j * kSpan + lane * 8;
    if (i >= g.width) continue;
    w[j] = load8(g.w + i);
    if (g.bias) bias[j] = load8(g.bias + i);
  }
  Raw8<bf16> row[kVectors] = {}, next[kVectors] = {};
  load_row(next, g.a + reversed_index(turn, g.rows) * g.width, g.width, lane);
  for (; turn < g.rows; turn += stride) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) row[j] = next[j];
    if (turn + stride < g.rows)
      load_row(next, g.a + reversed_index(turn + stride, g.rows) * g.width, g.width, lane);
    const Statistics s = statistics<kWarp>(static_cast<float>(g.width), g.eps, [&](const auto& f) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        if (j * kSpan + lane * 8 >= g.width) continue;
        const Eight v = unpack(row[j]);
#pragma unroll
        for (int k = 0; k < 8; ++k) f(v.v[k]);
      }
    });
    uint8_t* const to = g.rounded + reversed_index(turn, g.rows) * g.width;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int i = j * kSpan + lane * 8;
      if (i >= g.width) continue;
      Eight v = unpack(row[j]);
#pragma unroll
      for (int k = 0; k < 8; ++k)
        v.v[k] = rounded<bf16>(fmaf(s.unit(v.v[k]), w[j].v[k], bias[j].v[k]));
      *reinterpret_cast<uint2*>(to + i) = pack_e4m3(v, g.inverse);
    }
  }
}

struct MixedForward {
  Mixed a, b, sum, y;
  const float *w, *bias;
  float *mean, *rstd;
  int64_t rows;
  int width;
  float eps;
};

template <bool kAdd>
__global__ void __launch_bounds__(kRowWarps* kWarp) norm_rows_mixed(MixedForward g) {
  const int lane = threadIdx.x % kWarp;
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
  if (r >= g.rows) return;
  const int64_t at = r * g.width;
  const Mixed kind = g.sum.data ? g.sum : g.a;
  const auto value = [&](int i) {
    if constexpr (kAdd) return kind.round(__fadd_rn(g.a.load(at + i), g.b.load(at + i)));
    return g.a.load(at + i);
  };
  const Statistics s = statistics<kWarp>(static_cast<float>(g.width), g.eps, [&](const auto& f) {
    for_lane(g.width, lane, [&](int i) { f(value(i)); });
  });
  if (lane == 0 && g.mean) g.mean[r] = __fadd_rn(s.mean, s.missed);
  if (lane == 0 && g.rstd) g.rstd[r] = s.rstd;
  for_lane(g.width, lane, [&](int i) {
    const float v = value(i);
    if (kAdd && g.sum.data) g.sum.store(at + i, v);
    if (g.y.data) g.y.store(at + i, fmaf(s.unit(v), g.w[i], g.bias ? g.bias[i] : 0.0f));
  });
}

bool is_fast(const Forward& g) {
  const DType dtype = g.a.dtype;
  return row_fits(g.width, dtype) && usable(g.a, dtype) && usable(g.b, dtype) &&
         usable(g.sum, dtype) && usable(g.y, dtype) && aligned16(g.w) && aligned16(g.bias) &&
         aligned16(g.rounded);
}

template <Added kAdded>
KernelPtr forward(CudaBackend& cuda, const Forward& g) {
  constexpr bool kAdd = kAdded == Added::kPlain || kAdded == Added::kBranch;
  constexpr int kThreads = kRowWarps * kWarp;
  const DType dtype = g.a.dtype;
  const bool fast = is_fast(g);
  assert(fast || !(g.branch || g.rounded));
  if (kAdded != Added::kBehind && !fast) {
    const MixedForward args{mixed(g.a), mixed(g.b), mixed(g.sum), mixed(g.y), g.w,  g.bias,
                            g.mean,     g.rstd,     g.rows,       g.width,    g.eps};
    return launch_kernel(cuda, norm_rows_mixed<kAdd>, blocks_for(g.rows, kRowWarps), kThreads, 0,
                         args);
  }
  KernelPtr kernel;
  with_row(dtype, g.width, [&](auto type, auto shape) {
    using T = decltype(type);
    using Shape = decltype(shape);
    if constexpr (kAdded == Added::kNothing || kAdded == Added::kPlain ||
                  Shape::kVectors <= kMaxVectorsWithBranch) {
      const ForwardRows<T> args{static_cast<const T*>(g.a.data),
                                static_cast<const T*>(g.b.data),
                                static_cast<T*>(g.sum.data),
                                static_cast<T*>(g.y.data),
                                g.w,
                                g.bias,
                                g.mean,
                                g.rstd,
                                g.rows,
                                g.width,
                                g.eps,
                                g.branch ? *g.branch : Branch{},
                                g.rounded.e4m3(),
                                1 / g.scale};
      kernel = launch_kernel(cuda, norm_rows<T, Shape, kAdded>,
                             blocks_for(g.rows, kThreads / Shape::kLanes), kThreads, 0, args);
    }
  });
  return kernel;
}

Forward alone(const LayerNorm& op, const Operands& io) {
  const auto& [eps] = op;
  return {.a = io.in[LayerNorm::kX],
          .y = io.out[LayerNorm::kY],
          .w = io.in[LayerNorm::kWeight].f32(),
          .bias = operand(io.in, LayerNorm::kBias).f32(),
          .mean = operand(io.out, LayerNorm::kMean).f32(),
          .rstd = operand(io.out, LayerNorm::kRstd).f32(),
          .rows = io.in[LayerNorm::kX].shape.rows(),
          .width = static_cast<int>(io.in[LayerNorm::kX].shape[-1]),
          .eps = eps};
}

Forward added(const AddLayerNorm& op, const Operands& io) {
  const auto& [eps] = op;
  return {.a = io.in[AddLayerNorm::kA],
          .b = io.in[AddLayerNorm::kB],
          .sum = io.out[AddLayerNorm::kSum],
          .y = operand(io.out, AddLayerNorm::kY),
          .w = io.in[AddLayerNorm::kWeight].f32(),
          .bias = operand(io.in, AddLayerNorm::kBias).f32(),
          .mean = operand(io.out, AddLayerNorm::kMean).f32(),
          .rstd = operand(io.out, AddLayerNorm::kRstd).f32(),
          .rows = io.in[AddLayerNorm::kA].shape.rows(),
          .width = static_cast<int>(io.in[AddLayerNorm::kA].shape[-1]),
          .eps = eps};
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const LayerNorm& op, const Operands& io) {
  return forward<Added::kNothing>(cuda, alone(op, io));
}

KernelPtr lower_forward(CudaBackend& cuda, const LayerNorm& op, const Operands& io,
                        const Branch& branch) {
  Forward g = alone(op, io);
  g.branch = &branch;
  return forward<Added::kNothing>(cuda, g);
}

KernelPtr lower_forward(CudaBackend& cuda, const LayerNorm& op, const Operands& io,
                        const Branch& branch, const TensorView& skip, const TensorView& sum,
                        const TensorView& ordered) {
  Forward g = alone(op, io);
  g.b = skip, g.branch = &branch;
  if (ordered)
    g.sum = sum, g.y = ordered;
  else
    g.y = sum;
  return forward<Added::kBehind>(cuda, g);
}

// By way of scratch memory where rows are not as the fast kernel wants them.
template <Added kAdded>
static KernelPtr forward_e4m3(CudaBackend& cuda, Forward g, const TensorView& y, float scale) {
  g.y = {}, g.rounded = y, g.scale = scale;
  if (is_fast(g)) return forward<kAdded>(cuda, g);
  g.rounded = {};
  const size_t bytes = static_cast<size_t>(y.shape.numel()) * size_of(g.a.dtype);
  g.y = {cuda.scratch(bytes), y.shape, g.a.dtype};
  std::shared_ptr<Kernel> norm = forward<kAdded>(cuda, g),
                          round = lower(cuda, ToE4M3{.scale = scale}, {.in = {g.y}, .out = {y}});
  return make_kernel([norm, round] { norm->launch(), round->launch(); });
}

// Enough rows that warps that stay have several each, of a width that their registers hold.
static bool suits_staying_warps(const CudaBackend& cuda, const Forward& g) {
  constexpr int64_t kLeastTurns = 4;
  return g.a.dtype == DType::kBF16 && is_fast(g) && g.width > kSpan && g.width <= 4 * kSpan &&
         !g.mean && !g.rstd &&
         g.rows >= kLeastTurns * kStayingWarps * kStayingBlocks * cuda.processors();
}
static KernelPtr stay_and_norm(CudaBackend& cuda, const Forward& g) {
  const ForwardRows<bf16> args{.a = static_cast<const bf16*>(g.a.data),
                               .b = nullptr,
                               .sum = nullptr,
                               .y = nullptr,
                               .w = g.w,
                               .bias = g.bias,
                               .mean = nullptr,
                               .rstd = nullptr,
                               .rows = g.rows,
                               .width = g.width,
                               .eps = g.eps,
                               .branch = {},
                               .rounded = g.rounded.e4m3(),
                               .inverse = 1 / g.scale};
  const auto blocks = static_cast<unsigned>(kStayingBlocks * cuda.processors());
  const auto launch = [&](auto kernel) {
    return launch_kernel(cuda, kernel, blocks, kStayingWarps * kWarp, 0, args);
  };
  const int64_t vectors = divide_up(g.width, kSpan);
  return vectors == 2   ? launch(norm_many_to_e4m3<2>)
         : vectors == 3 ? launch(norm_many_to_e4m3<3>)
                        : launch(norm_many_to_e4m3<4>);
}

KernelPtr lower_norm_e4m3(CudaBackend& cuda, const LayerNorm& op, const Operands& io,
                          const TensorView& y, float scale) {
  Forward g = alone(op, io);
  g.y = {}, g.rounded = y, g.scale = scale;
  if (suits_staying_warps(cuda, g)) return stay_and_norm(cuda, g);
  return forward_e4m3<Added::kNothing>(cuda, alone(op, io), y, scale);
}
KernelPtr lower_norm_e4m3(CudaBackend& cuda, const AddLayerNorm& op, const Operands& io,
                          const TensorView& y, float scale) {
  return forward_e4m3<Added::kPlain>(cuda, added(op, io), y, scale);
}

KernelPtr lower(CudaBackend& cuda, const AddLayerNorm& op, const Operands& io) {
  return forward<Added::kPlain>(cuda, added(op, io));
}

KernelPtr lower_forward(CudaBackend& cuda, const AddLayerNorm& op, const Operands& io,
                        const Branch& branch) {
  Forward g = added(op, io);
  g.branch = &branch;
  return forward<Added::kBranch>(cuda, g);
}

}  // namespace vitrum::cuda
