// Heads of unit length: cosine attention. A warp has one head.
#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr float kLeast = 1e-12f, kMostScale = 4.60517019f;  // ln 100

struct Heads {
  int heads, parts, unit, dim;
  int64_t count;  // of all rows and parts
};
Heads heads_of(const Shape& x, int64_t heads, int64_t parts, int64_t unit) {
  const auto narrow = [](int64_t n) { return static_cast<int>(n); };
  return {narrow(heads), narrow(parts), narrow(unit), narrow(x[-1] / (parts * heads)),
          x.rows() * parts * heads};
}

__device__ __forceinline__ float factor_of(const Heads& g, const float* scale, int part, int head) {
  if (part > 0 || !scale) return 1;
  return sqrtf(static_cast<float>(g.dim)) * expf(fminf(scale[head], kMostScale));
}

template <class T>
__device__ __forceinline__ float length_of(const T* x, int dim, int lane) {
  float squares = 0;
  for (int i = lane; i < dim; i += kWarp) squares = fmaf(to_float(x[i]), to_float(x[i]), squares);
  return sqrtf(warp_sum(squares));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    unit_heads(Heads g, const T* x, const float* scale, T* y) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t h = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (h >= g.count) return;
  const int part = static_cast<int>(h / g.heads % g.parts);
  x += h * g.dim, y += h * g.dim;
  const float factor = part < g.unit ? factor_of(g, scale, part, static_cast<int>(h % g.heads)) /
                                           fmaxf(length_of(x, g.dim, lane), kLeast)
                                     : 1.0f;
  for (int i = lane; i < g.dim; i += kWarp) y[i] = from_float<T>(__fmul_rn(to_float(x[i]), factor));
}

// along (rows, heads): of the first part, factor * (dy in the direction of x). dx, along may be
// null.
template <class T>
__global__ void __launch_bounds__(kThreads)
    unit_heads_back(Heads g, const T* dy, const T* x, const float* scale, T* dx, float* along) {
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
              factor = factor_of(g, scale, part, head);
  float dot = 0;
  for (int i = lane; i < g.dim; i += kWarp) dot = fmaf(to_float(dy[i]), to_float(x[i]), dot);
  const float towards = warp_sum(dot) * reciprocal,
              off = length > kLeast ? towards * reciprocal : 0.0f;
  for (int i = lane; i < g.dim && dx; i += kWarp)
    dx[h * g.dim + i] =
        from_float<T>(factor * reciprocal * fmaf(-off, to_float(x[i]), to_float(dy[i])));
  if (along && part == 0 && lane == 0)
    along[h / g.heads / g.parts * g.heads + head] = factor * towards;
}

// A block a head; rows in an order that their number alone decides.
__global__ void __launch_bounds__(kThreads)
    add_scales(const float* along, int64_t rows, int heads, const float* scale, float* dscale) {
  const int head = static_cast<int>(blockIdx.x);
  double sum = 0;
  for (int64_t r = threadIdx.x; r < rows; r += kThreads)
    sum += static_cast<double>(along[r * heads + head]);
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0 && scale[head] <= kMostScale) dscale[head] += static_cast<float>(sum);
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const UnitHeads& op, const Operands& io) {
  const auto& [heads, parts, unit] = op;
  const TensorView x = io.in[UnitHeads::kX], y = io.out[UnitHeads::kY];
  const Heads g = heads_of(x.shape, heads, parts, unit);
  const float* scale = operand(io.in, UnitHeads::kScale).f32();
  return with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    return launch_kernel(cuda, unit_heads<T>, blocks_for(g.count, kWarps), kThreads, 0, g,
                         static_cast<const T*>(x.data), scale, static_cast<T*>(y.data));
  });
}

KernelPtr lower(CudaBackend& cuda, const UnitHeadsBwd& op, const Operands& io) {
  const auto& [heads, parts, unit] = op;
  const TensorView dy = io.in[UnitHeadsBwd::kDy], x = io.in[UnitHeadsBwd::kX],
                   dx = io.out[UnitHeadsBwd::kDx];
  const Heads g = heads_of(x.shape, heads, parts, unit);
  const float* scale = operand(io.in, UnitHeadsBwd::kScale).f32();
  float* dscale = operand(io.out, UnitHeadsBwd::kDscale).f32();
  const int64_t rows = x.shape.rows();
  float* along = dscale ? cuda.scratch_of<float>(rows * g.heads) : nullptr;
  return with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    return make_kernel([=, stream = cuda.stream()] {
      unit_heads_back<T><<<blocks_for(g.count, kWarps), kThreads, 0, stream>>>(
          g, static_cast<const T*>(dy.data), static_cast<const T*>(x.data), scale,
          static_cast<T*>(dx.data), along);
      if (dscale)
        add_scales<<<static_cast<unsigned>(g.heads), kThreads, 0, stream>>>(along, rows, g.heads,
                                                                            scale, dscale);
    });
  });
}

}  // namespace vitrum::cuda
