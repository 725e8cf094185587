// Batch norm: statistics as sums over the rows (primitives/column_sums.cuh), then one pass with a
// multiply-add a channel. The mean is taken off before squares are summed, so that nothing cancels.
#include "vitrum/cuda/primitives/activation.cuh"
#include "vitrum/cuda/primitives/column_sums.cuh"
#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 256;

// Which elements of (B, .., C) belong to samples that count.
struct Counted {
  const float* weight;    // (B); null: all
  int64_t samples, each;  // elements a sample

  __device__ __forceinline__ bool operator()(int64_t at) const {
    return !weight || weight[at / each] > 0;
  }
  __device__ float rows(int64_t width) const {
    int64_t n = weight ? 0 : samples;
    for (int64_t b = 0; weight && b < samples; ++b) n += weight[b] > 0;
    return static_cast<float>(n * (each / width));
  }
};
Counted counted_of(const TensorView& x, const TensorView& weight) {
  const int64_t samples = x.shape[0];
  return {weight.f32(), samples, samples ? x.shape.numel() / samples : 1};
}

// One warp.
__global__ void count_rows(Counted counted, int64_t width, float* rows) {
  float n = 0;
  for (int64_t b = threadIdx.x; b < counted.samples; b += kWarp)
    n += !counted.weight || counted.weight[b] > 0 ? 1.0f : 0.0f;
  n = warp_sum(n);
  if (threadIdx.x == 0) *rows = n * static_cast<float>(counted.each / width);
}

// x, or with kSquares the squares of its deviations from the mean, of what counts.
template <class T, bool kSquares>
struct Moments {
  const T* x;
  const float* mean;
  Counted counted;

  struct Loaded {
    Raw8<T> x;
  };
  __device__ __forceinline__ float term(float v, int64_t column) const {
    if constexpr (!kSquares) return v;
    const float d = __fsub_rn(v, mean[column]);
    return __fmul_rn(d, d);
  }
  __device__ __forceinline__ Loaded load(int64_t at) const { return {load_raw(x + at)}; }
  __device__ __forceinline__ Eight use(const Loaded& held, int64_t at, int64_t column,
                                       bool inside) const {
    Eight v = unpack(held.x);
    const bool counts = inside && counted(at);
#pragma unroll
    for (int k = 0; k < 8; ++k) v.v[k] = counts ? term(v.v[k], column + k) : 0.0f;
    return v;
  }
  __device__ __forceinline__ float one(int64_t at, int64_t column) const {
    return counted(at) ? term(to_float(x[at]), column) : 0.0f;
  }
};

struct Average {
  float* to;
  const float* rows;
  __device__ void operator()(int64_t column, float sum) const {
    to[column] = __fdiv_rn(sum, *rows);
  }
};

// norm(x) = x * scale + shift; statistics are copied to where they are wanted.
struct Affine {
  const float *w, *bias, *mean, *var;
  float eps;
  float *scale, *shift, *mean_out, *var_out;
};
__global__ void __launch_bounds__(kThreads) make_affine(Affine a, int64_t channels) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k >= channels) return;
  if (a.mean_out) a.mean_out[k] = a.mean[k];
  if (a.var_out) a.var_out[k] = a.var[k];
  const double scale = static_cast<double>(a.w[k]) /
                       sqrt(static_cast<double>(a.var[k]) + static_cast<double>(a.eps));
  a.scale[k] = static_cast<float>(scale);
  a.shift[k] =
      static_cast<float>(static_cast<double>(a.bias[k]) - static_cast<double>(a.mean[k]) * scale);
}

// act(x * scale + shift + skip), rounded where a graph of three ops has tensors.
template <class T>
__device__ __forceinline__ float finished(float x, float scale, float shift, bool add, float skip,
                                          bool relu) {
  float v = rounded<T>(fmaf(x, scale, shift));
  if (add) v = rounded<T>(__fadd_rn(v, skip));
  return relu ? activate<Act::kRelu, float>(v) : v;
}

template <class T, bool kWide>
__global__ void __launch_bounds__(kThreads)
    apply(const T* x, const T* skip, T* y, const float* scale, const float* shift, bool relu,
          int64_t width, int64_t count) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * (kWide ? 8 : 1);
  if (i >= count) return;
  const int64_t column = i % width;
  if constexpr (kWide) {
    Eight v = load8(x + i);
    const Eight a = load8(scale + column), b = load8(shift + column),
                s = skip ? load8(skip + i) : Eight{};
#pragma unroll
    for (int k = 0; k < 8; ++k)
      v.v[k] = finished<T>(v.v[k], a.v[k], b.v[k], skip != nullptr, s.v[k], relu);
    store8(y + i, v);
  } else {
    y[i] = from_float<T>(finished<T>(to_float(x[i]), scale[column], shift[column], skip != nullptr,
                                     skip ? to_float(skip[i]) : 0.0f, relu));
  }
}

bool wide_fits(int64_t width, std::initializer_list<TensorView> views) {
  bool wide = width % 8 == 0;
  for (const TensorView& view : views) wide = wide && aligned16(view);
  return wide;
}

struct Application {
  TensorView x, skip, y;
  const float *scale, *shift;
  Act act;

  void launch(cudaStream_t stream) const {
    const int64_t width = x.shape[-1], count = x.shape.numel();
    const bool wide = wide_fits(width, {x, skip, y}), relu = act == Act::kRelu;
    const unsigned blocks = blocks_for(count, kThreads * (wide ? 8 : 1));
    with_type(y.dtype, [&](auto type) {
      using T = decltype(type);
      const auto kernel = wide ? apply<T, true> : apply<T, false>;
      kernel<<<blocks, kThreads, 0, stream>>>(
          static_cast<const T*>(x.data), static_cast<const T*>(skip.data), static_cast<T*>(y.data),
          scale, shift, relu, width, count);
    });
  }
};

// (columns rounded up to whole vectors) floats each.
int64_t room(int64_t channels) { return divide_up(channels, 8) * 8; }

// dy behind the ReLU, and with kProduct times the deviation of x from its mean.
template <class T, bool kProduct>
struct GradientMoments {
  const T *dy, *x, *y;  // y: null without ReLU
  const float* mean;

  struct Loaded {
    Raw8<T> dy, x, y;
  };
  __device__ __forceinline__ float term(float d, float y_value, float x_value,
                                        int64_t column) const {
    const float g = y && !(y_value > 0) ? 0.0f : d;
    return kProduct ? __fmul_rn(g, __fsub_rn(x_value, mean[column])) : g;
  }
  __device__ __forceinline__ Loaded load(int64_t at) const {
    Loaded held = {};
    held.dy = load_raw(dy + at);
    if (y) held.y = load_raw(y + at);
    if constexpr (kProduct) held.x = load_raw(x + at);
    return held;
  }
  __device__ __forceinline__ Eight use(const Loaded& held, int64_t, int64_t column,
                                       bool inside) const {
    Eight d = unpack(held.dy);
    const Eight v = unpack(held.x), out = unpack(held.y);
#pragma unroll
    for (int k = 0; k < 8; ++k) d.v[k] = inside ? term(d.v[k], out.v[k], v.v[k], column + k) : 0.0f;
    return d;
  }
  __device__ __forceinline__ float one(int64_t at, int64_t column) const {
    return term(to_float(dy[at]), y ? to_float(y[at]) : 1.0f, to_float(x[at]), column);
  }
};

// dx = d * scale - (offset + (x - mean) * slope), the bracket for what counts only.
struct BackwardCoefficients {
  const float *w, *var, *sum, *product, *rows;
  float eps;
  float *scale, *offset, *slope, *dw, *dbias;
};
__global__ void __launch_bounds__(kThreads)
    make_backward_coefficients(BackwardCoefficients s, int64_t channels) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k >= channels) return;
  const double rstd = 1 / sqrt(static_cast<double>(s.var[k]) + static_cast<double>(s.eps));
  const double scale = static_cast<double>(s.w[k]) * rstd, n = static_cast<double>(*s.rows);
  const auto sum = static_cast<double>(s.sum[k]), product = static_cast<double>(s.product[k]);
  if (s.dw) s.dw[k] += static_cast<float>(product * rstd);
  if (s.dbias) s.dbias[k] += static_cast<float>(sum);
  s.scale[k] = static_cast<float>(scale);
  s.offset[k] = static_cast<float>(scale * sum / n);
  s.slope[k] = static_cast<float>(scale * rstd * rstd * product / n);
}

template <class T>
struct BackwardArrays {
  const T *dy, *x, *y;
  T *dx, *dskip;
  const float *mean, *scale, *offset, *slope;
  Counted counted;
  int64_t width, count;

  __device__ __forceinline__ void at(int64_t i) const {
    const int64_t k = i % width;
    const float d = y && !(to_float(y[i]) > 0) ? 0.0f : to_float(dy[i]);
    if (dskip) dskip[i] = from_float<T>(d);
    if (!dx) return;
    float v = __fmul_rn(d, scale[k]);
    if (counted(i)) v = __fsub_rn(v, fmaf(__fsub_rn(to_float(x[i]), mean[k]), slope[k], offset[k]));
    dx[i] = from_float<T>(v);
  }
  __device__ __forceinline__ void eight(int64_t i) const {
    const int64_t column = i % width;
    Eight d = load8(dy + i);
    if (y) {
      const Eight out = load8(y + i);
#pragma unroll
      for (int k = 0; k < 8; ++k) d.v[k] = out.v[k] > 0 ? d.v[k] : 0.0f;
    }
    if (dskip) store8(dskip + i, d);
    if (!dx) return;
    const Eight v = load8(x + i), m = load8(mean + column), a = load8(scale + column),
                b = load8(offset + column), c = load8(slope + column);
    const bool counts = counted(i);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      d.v[k] = __fmul_rn(d.v[k], a.v[k]);
      if (counts) d.v[k] = __fsub_rn(d.v[k], fmaf(__fsub_rn(v.v[k], m.v[k]), c.v[k], b.v[k]));
    }
    store8(dx + i, d);
  }
};
template <class T, bool kWide>
__global__ void __launch_bounds__(kThreads) apply_back(BackwardArrays<T> arrays) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * (kWide ? 8 : 1);
  if (i >= arrays.count) return;
  if constexpr (kWide)
    arrays.eight(i);
  else
    arrays.at(i);
}

__global__ void __launch_bounds__(kThreads)
    move_running(RunningStats op, const float* mean, const float* var, const float* weight,
                 float* running_mean, float* running_var, int64_t channels) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k >= channels) return;
  const auto& [momentum, samples, positions] = op;
  const double n = static_cast<double>(Counted{weight, samples, positions}.rows(1));
  const double step = static_cast<double>(momentum), unbiased = n / fmax(n - 1, 1.0);
  const auto moved = [&](float from, double to) {
    return static_cast<float>((1 - step) * static_cast<double>(from) + step * to);
  };
  if (running_mean) running_mean[k] = moved(running_mean[k], static_cast<double>(mean[k]));
  if (running_var) running_var[k] = moved(running_var[k], static_cast<double>(var[k]) * unbiased);
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const BatchNorm& op, const Operands& io) {
  const auto& [eps, act] = op;
  const TensorView x = io.in[BatchNorm::kX], y = io.out[BatchNorm::kY];
  const int64_t rows = x.shape.rows(), width = x.shape[-1], each = room(width);
  const Counted counted = counted_of(x, operand(io.in, BatchNorm::kSampleWeight));
  const ColumnPlan plan = plan_columns(rows, width, wide_fits(width, {x}));
  auto* scratch = static_cast<float*>(
      cuda.scratch(column_scratch_bytes(rows, width) + (4 * each + 8) * sizeof(float)));
  float *mean = scratch, *var = mean + each, *scale = var + each, *shift = scale + each,
        *n = shift + each, *partials = n + 8;
  const Affine affine{.w = io.in[BatchNorm::kWeight].f32(),
                      .bias = io.in[BatchNorm::kBias].f32(),
                      .mean = mean,
                      .var = var,
                      .eps = eps,
                      .scale = scale,
                      .shift = shift,
                      .mean_out = operand(io.out, BatchNorm::kMean).f32(),
                      .var_out = operand(io.out, BatchNorm::kVar).f32()};
  const Application application{x, operand(io.in, BatchNorm::kSkip), y, scale, shift, act};
  return with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* data = static_cast<const T*>(x.data);
    return make_kernel([=, stream = cuda.stream()] {
      count_rows<<<1, kWarp, 0, stream>>>(counted, width, n);
      launch_columns(Moments<T, false>{data, mean, counted}, plan, partials, Average{mean, n},
                     stream);
      launch_columns(Moments<T, true>{data, mean, counted}, plan, partials, Average{var, n},
                     stream);
      make_affine<<<blocks_for(width, kThreads), kThreads, 0, stream>>>(affine, width);
      if (application.y) application.launch(stream);
    });
  });
}

KernelPtr lower(CudaBackend& cuda, const FrozenBatchNorm& op, const Operands& io) {
  const auto& [eps, act] = op;
  const int64_t width = io.in[FrozenBatchNorm::kX].shape[-1], each = room(width);
  auto* scale = cuda.scratch_of<float>(2 * each);
  const Affine affine{.w = io.in[FrozenBatchNorm::kWeight].f32(),
                      .bias = io.in[FrozenBatchNorm::kBias].f32(),
                      .mean = io.in[FrozenBatchNorm::kMean].f32(),
                      .var = io.in[FrozenBatchNorm::kVar].f32(),
                      .eps = eps,
                      .scale = scale,
                      .shift = scale + each,
                      .mean_out = nullptr,
                      .var_out = nullptr};
  const Application application{io.in[FrozenBatchNorm::kX],
                                operand(io.in, FrozenBatchNorm::kSkip),
                                io.out[FrozenBatchNorm::kY],
                                scale,
                                scale + each,
                                act};
  return make_kernel([=, stream = cuda.stream()] {
    make_affine<<<blocks_for(width, kThreads), kThreads, 0, stream>>>(affine, width);
    application.launch(stream);
  });
}

KernelPtr lower(CudaBackend& cuda, const RunningStats& op, const Operands& io) {
  const int64_t channels = io.in[RunningStats::kMean].shape.numel();
  return launch_kernel(cuda, move_running, blocks_for(channels, kThreads), kThreads, 0, op,
                       static_cast<const float*>(io.in[RunningStats::kMean].f32()),
                       static_cast<const float*>(io.in[RunningStats::kVar].f32()),
                       static_cast<const float*>(operand(io.in, RunningStats::kSampleWeight).f32()),
                       io.out[RunningStats::kRunningMean].f32(),
                       operand(io.out, RunningStats::kRunningVar).f32(), channels);
}

KernelPtr lower(CudaBackend& cuda, const BatchNormBwd& op, const Operands& io) {
  const auto& [eps, act] = op;
  const TensorView dy = io.in[BatchNormBwd::kDy], x = io.in[BatchNormBwd::kX],
                   y = act == Act::kRelu ? io.in[BatchNormBwd::kY] : TensorView{},
                   dx = io.out[BatchNormBwd::kDx], dskip = operand(io.out, BatchNormBwd::kDskip);
  const int64_t rows = x.shape.rows(), width = x.shape[-1], each = room(width);
  const float* mean = io.in[BatchNormBwd::kMean].f32();
  const Counted counted = counted_of(x, operand(io.in, BatchNormBwd::kSampleWeight));
  auto* scratch = static_cast<float*>(
      cuda.scratch(column_scratch_bytes(rows, width) + (5 * each + 8) * sizeof(float)));
  float *sum = scratch, *product = sum + each, *n = product + each, *scale = n + 8,
        *offset = scale + each, *slope = offset + each, *partials = slope + each;
  const BackwardCoefficients coefficients{.w = io.in[BatchNormBwd::kWeight].f32(),
                                          .var = io.in[BatchNormBwd::kVar].f32(),
                                          .sum = sum,
                                          .product = product,
                                          .rows = n,
                                          .eps = eps,
                                          .scale = scale,
                                          .offset = offset,
                                          .slope = slope,
                                          .dw = operand(io.out, BatchNormBwd::kDweight).f32(),
                                          .dbias = operand(io.out, BatchNormBwd::kDbias).f32()};
  const ColumnPlan plan = plan_columns(rows, width, wide_fits(width, {dy, x, y}));
  const bool wide = wide_fits(width, {dy, x, y, dx, dskip, io.in[BatchNormBwd::kMean]});
  return with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto data = [](const TensorView& view) { return static_cast<T*>(view.data); };
    const BackwardArrays<T> arrays{data(dy),    data(x), data(y), data(dx),
                                   data(dskip), mean,    scale,   offset,
                                   slope,       counted, width,   x.shape.numel()};
    return make_kernel([=, stream = cuda.stream()] {
      count_rows<<<1, kWarp, 0, stream>>>(counted, width, n);
      launch_columns(GradientMoments<T, false>{arrays.dy, arrays.x, arrays.y, mean}, plan, partials,
                     SetElements{sum}, stream);
      launch_columns(GradientMoments<T, true>{arrays.dy, arrays.x, arrays.y, mean}, plan, partials,
                     SetElements{product}, stream);
      make_backward_coefficients<<<blocks_for(width, kThreads), kThreads, 0, stream>>>(coefficients,
                                                                                       width);
      if (!arrays.dx && !arrays.dskip) return;
      const unsigned blocks = blocks_for(arrays.count, kThreads * (wide ? 8 : 1));
      const auto kernel = wide ? apply_back<T, true> : apply_back<T, false>;
      kernel<<<blocks, kThreads, 0, stream>>>(arrays);
    });
  });
}

}  // namespace vitrum::cuda
