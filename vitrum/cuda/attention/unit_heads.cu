// Heads of unit length: cosine attention. Eight values a thread (unit_heads.cuh); heads of other
// sizes have a warp each.
#include <bit>

#include "vitrum/cuda/primitives/column_sums.cuh"
#include "vitrum/cuda/primitives/device.cuh"
// Written in what is above.
#include "vitrum/cuda/attention/unit_heads.cuh"

namespace vitrum::cuda {
namespace {

using namespace unit;

constexpr int kWarps = kThreads / kWarp;

template <class T>
__global__ void __launch_bounds__(kThreads) unit_eights(Heads g, const T* x, T* y, int log_lanes) {
  unit_eight(g, x, y, int64_t{blockIdx.x} * kThreads + threadIdx.x, log_lanes);
}
template <class T>
__global__ void __launch_bounds__(kThreads)
    unit_back_eights(Heads g, const T* dy, const T* x, T* dx, float* along, int log_lanes) {
  unit_back_eight(g, dy, x, dx, along, int64_t{blockIdx.x} * kThreads + threadIdx.x, log_lanes);
}

// ---- a warp a head ----

template <class T>
__device__ __forceinline__ float length_of(const T* x, int dim, int lane) {
  float squares = 0;
  for (int i = lane; i < dim; i += kWarp) squares = fmaf(to_float(x[i]), to_float(x[i]), squares);
  return sqrtf(warp_sum(squares));
}

template <class T>
__global__ void __launch_bounds__(kThreads) unit_heads(Heads g, const T* x, T* y) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t h = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (h >= g.count) return;
  const int part = static_cast<int>(h / g.heads % g.parts);
  x += h * g.dim, y += h * g.dim;
  const float factor = part < g.unit ? factor_of(g, part, static_cast<int>(h % g.heads)) /
                                           fmaxf(length_of(x, g.dim, lane), kLeast)
                                     : 1.0f;
  for (int i = lane; i < g.dim; i += kWarp) y[i] = from_float<T>(__fmul_rn(to_float(x[i]), factor));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    unit_heads_back(Heads g, const T* dy, const T* x, T* dx, float* along) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t h = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (h >= g.count) return;
  const int part = static_cast<int>(h / g.heads % g.parts), head = static_cast<int>(h % g.heads);
  x += h * g.dim, dy += h * g.dim;
  if (part >= g.unit) {
    for (int i = lane; i < g.dim && dx; i += kWarp) dx[h * g.dim + i] = dy[i];
    return;
  }
  const float length = length_of(x, g.dim, lane), reciprocal = 1 / fmaxf(length, kLeast),
              factor = factor_of(g, part, head);
  float dot = 0;
  for (int i = lane; i < g.dim; i += kWarp) dot = fmaf(to_float(dy[i]), to_float(x[i]), dot);
  const float towards = warp_sum(dot) * reciprocal,
              off = length > kLeast ? towards * reciprocal : 0.0f;
  for (int i = lane; i < g.dim && dx; i += kWarp)
    dx[h * g.dim + i] =
        from_float<T>(factor * reciprocal * fmaf(-off, to_float(x[i]), to_float(dy[i])));
  if (along && part == 0 && lane == 0)
    along[h / g.heads / g.parts * g.heads + head] =
        g.scale[head] <= kMostScale ? factor * towards : 0.0f;
}

// ---- lowering ----

struct Rows {
  const float* from;
  __device__ __forceinline__ float one(int64_t at, int64_t) const { return from[at]; }
};

Heads heads_of(const Shape& x, int64_t heads, int64_t parts, int64_t unit, const float* scale) {
  const auto narrow = [](int64_t n) { return static_cast<int>(n); };
  return {narrow(heads),
          narrow(parts),
          narrow(unit),
          narrow(x[-1] / (parts * heads)),
          x.rows() * parts * heads,
          scale};
}

// How many lanes a head has, as a power of two; -1: it has a warp.
int log_lanes(const Heads& g, std::initializer_list<TensorView> views) {
  const auto lanes = static_cast<unsigned>(g.dim / 8);
  if (g.dim % 8 != 0 || !std::has_single_bit(lanes) || lanes > kWarp || g.count > UINT32_MAX)
    return -1;
  for (const TensorView& view : views)
    if (view && !aligned16(view)) return -1;
  return std::countr_zero(lanes);
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const UnitHeads& op, const Operands& io) {
  const auto& [heads, parts, unit] = op;
  const TensorView x = io.in[UnitHeads::kX], y = io.out[UnitHeads::kY];
  const Heads g = heads_of(x.shape, heads, parts, unit, operand(io.in, UnitHeads::kScale).f32());
  const int log = log_lanes(g, {x, y});
  return with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* from = static_cast<const T*>(x.data);
    auto* const to = static_cast<T*>(y.data);
    if (log < 0)
      return launch_kernel(cuda, unit_heads<T>, blocks_for(g.count, kWarps), kThreads, 0, g, from,
                           to);
    return launch_kernel(cuda, unit_eights<T>, blocks_for(g.count << log, kThreads), kThreads, 0, g,
                         from, to, log);
  });
}

KernelPtr lower(CudaBackend& cuda, const UnitHeadsBwd& op, const Operands& io) {
  const auto& [heads, parts, unit] = op;
  const TensorView dy = io.in[UnitHeadsBwd::kDy], x = io.in[UnitHeadsBwd::kX],
                   dx = io.out[UnitHeadsBwd::kDx];
  const Heads g = heads_of(x.shape, heads, parts, unit, operand(io.in, UnitHeadsBwd::kScale).f32());
  float* dscale = operand(io.out, UnitHeadsBwd::kDscale).f32();
  const ColumnPlan plan = plan_columns(x.shape.rows(), heads, /*wide=*/false);
  // What each row adds to the scales, then sums of it.
  float* along =
      dscale ? cuda.scratch_of<float>((plan.rows + plan.chunks) * plan.columns) : nullptr;
  float* partials = dscale ? along + plan.rows * plan.columns : nullptr;
  const int log = log_lanes(g, {dy, x, dx});
  return with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    return make_kernel([=, stream = cuda.stream()] {
      const auto *d = static_cast<const T*>(dy.data), *from = static_cast<const T*>(x.data);
      auto* const to = static_cast<T*>(dx.data);
      if (log < 0)
        unit_heads_back<T>
            <<<blocks_for(g.count, kWarps), kThreads, 0, stream>>>(g, d, from, to, along);
      else
        unit_back_eights<T><<<blocks_for(g.count << log, kThreads), kThreads, 0, stream>>>(
            g, d, from, to, along, log);
      if (dscale) launch_narrow_columns(Rows{along}, plan, partials, AddToColumns{dscale}, stream);
    });
  });
}

}  // namespace vitrum::cuda
