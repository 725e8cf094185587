// Launch of the passes of batch_norm.cuh, and the running statistics.
#include "vitrum/cuda/conv/tile.h"
#include "vitrum/cuda/norm/batch_norm.h"
#include "vitrum/cuda/primitives/device.cuh"
// Written in what is above.
#include "vitrum/cuda/norm/batch_norm.cuh"

namespace vitrum::cuda {
namespace {

using namespace batch_norm;

template <class T, bool kWide>
__global__ void __launch_bounds__(kThreads, 4) sum_moments(Moments<T> moments) {
  __shared__ Shared shared;
  add_moments<T, kWide>(moments, shared);
  trigger_dependents();
}
template <class T, bool kWide>
__global__ void __launch_bounds__(kThreads, 3) sum_gradients(Gradients<T> gradients) {
  __shared__ Shared shared;
  add_gradients<T, kWide>(gradients, shared);
  trigger_dependents();
}
template <class Sink>
__global__ void __launch_bounds__(kFinishThreads)
    finish_sums(const float* partials, Plan plan, Counted counted, Sink sink) {
  __shared__ FinishShared shared;
  finish(partials, plan, counted, sink, shared);
}
__global__ void __launch_bounds__(kFinishThreads)
    finish_products(const float* partials, int chunks, int width, Affine affine) {
  __shared__ MomentsShared shared;
  finish_moments(partials, chunks, width, affine, shared);
}
template <class T, bool kWide>
__global__ void __launch_bounds__(kThreads, 3) normalize(Application<T> application) {
  apply<T, kWide>(application);
}
template <class T, bool kWide>
__global__ void __launch_bounds__(kThreads, 3) go_back(BackApplication<T> application) {
  apply_back<T, kWide>(application);
}

// norm(x) = x * scale + shift by given statistics.
__global__ void __launch_bounds__(kThreads)
    make_affine(Affine affine, const float* mean, const float* var, int channels) {
  const int k = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (k >= channels) return;
  affine.set(k, static_cast<double>(mean[k]), static_cast<double>(var[k]));
}

__global__ void __launch_bounds__(kThreads)
    move_running(RunningStats op, const float* mean, const float* var, const float* weight,
                 float* running_mean, float* running_var, int64_t channels) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k >= channels) return;
  const auto& [momentum, samples, positions] = op;
  int64_t counted = weight ? 0 : samples;
  for (int64_t b = 0; weight && b < samples; ++b) counted += weight[b] > 0;
  const Running running{momentum, running_mean, running_var};
  running.move(k, mean[k], var[k], static_cast<double>(counted * positions));
}

// ---- lowering ----

dim3 grid_of(const Plan& plan) {
  return dim3(static_cast<unsigned>(plan.tiles), static_cast<unsigned>(plan.chunks));
}

// Tables of a number for every column.
struct Tables {
  float* memory;
  int64_t each;
  uint8_t* bytes;
  float* at(int i) const { return memory + i * each; }
};

// (rows, width) of a tensor of channels last, which samples count.
struct Matrix {
  int64_t rows, width;
  bool wide;
  Counted counted;

  // w: one of the tables of its columns.
  Matrix(const TensorView& x, const TensorView& w, const TensorView& weight,
         std::initializer_list<TensorView> views)
      : rows(x.shape.numel() / w.shape.numel()),
        width(w.shape.numel()),
        wide(w.shape.numel() % 8 == 0) {
    constexpr int64_t kMostRows = int64_t{1} << 30;
    if (rows > kMostRows) check(cudaErrorInvalidValue, "batch norm of more than 2^30 pixels");
    for (const TensorView& view : views) wide = wide && aligned16(view);
    const int64_t samples = std::max<int64_t>(x.shape[0], 1);
    counted = {weight.f32(), static_cast<int>(samples), static_cast<int>(rows / samples)};
  }
  Plan sums() const { return plan_sums(rows, width, wide); }
  Plan pass() const { return plan_pass(rows, width, wide); }
  // So many tables of a number for every column, what a pass over sums leaves behind them, and
  // behind that so many bytes.
  Tables tables(CudaBackend& cuda, int count, int64_t bytes = 0) const {
    const int64_t each = divide_up(width, 8) * 8,
                  floats = count * each + divide_up(int64_t{2} * sums().chunks * width, 4) * 4;
    auto* const memory = static_cast<float*>(
        cuda.scratch(static_cast<size_t>(floats) * sizeof(float) + static_cast<size_t>(bytes)));
    return {memory, each, reinterpret_cast<uint8_t*>(memory + floats)};
  }
};

template <class Sink>
void launch_finish_sums(const float* partials, const Plan& plan, const Counted& counted,
                        const Sink& sink, cudaStream_t stream) {
  launch_pdl(finish_sums<Sink>, blocks_for(plan.width, kWarp), kFinishThreads, 0, stream, partials,
             plan, counted, sink);
}

// Calls body(T{}, std::bool_constant<wide>{}).
template <class Body>
auto with_walk(const Matrix& matrix, DType dtype, const Body& body) {
  return with_type(dtype, [&](auto type) {
    return matrix.wide ? body(type, std::true_type{}) : body(type, std::false_type{});
  });
}
template <class T>
T* data_of(const TensorView& view) {
  return static_cast<T*>(view.data);
}

Running running_of(const RunningStats& op, const Operands& io) {
  return {op.momentum, operand(io.out, RunningStats::kRunningMean).f32(),
          operand(io.out, RunningStats::kRunningVar).f32()};
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const BatchNorm& op, const Operands& io) {
  return lower(cuda, op, io, nullptr, {});
}

KernelPtr lower(CudaBackend& cuda, const BatchNorm& op, const Operands& io,
                const RunningStats* stats, const Operands& stats_io) {
  const auto& [eps, act] = op;
  const TensorView x = io.in[BatchNorm::kX], skip = operand(io.in, BatchNorm::kSkip),
                   y = io.out[BatchNorm::kY];
  const Matrix matrix(x, io.in[BatchNorm::kWeight], operand(io.in, BatchNorm::kSampleWeight),
                      {x, skip, y});
  const Tables tables = matrix.tables(cuda, 3);
  const Affine affine{.w = io.in[BatchNorm::kWeight].f32(),
                      .bias = io.in[BatchNorm::kBias].f32(),
                      .pivot = tables.at(0),
                      .eps = eps,
                      .scale = tables.at(1),
                      .shift = tables.at(2),
                      .mean = operand(io.out, BatchNorm::kMean).f32(),
                      .var = operand(io.out, BatchNorm::kVar).f32(),
                      .running = stats ? running_of(*stats, stats_io) : Running{}};
  return with_walk(matrix, x.dtype, [&](auto type, auto wide) {
    using T = decltype(type);
    constexpr bool kWide = decltype(wide)::value;
    const Moments<T> moments{data_of<T>(x), matrix.counted, matrix.sums(), tables.at(0),
                             tables.at(3)};
    const Application<T> application{data_of<T>(x), data_of<T>(skip),  data_of<T>(y), affine.scale,
                                     affine.shift,  act == Act::kRelu, matrix.pass()};
    return make_kernel([=, stream = cuda.stream()] {
      const Plan& plan = moments.plan;
      sum_moments<T, kWide><<<grid_of(plan), kThreads, 0, stream>>>(moments);
      launch_finish_sums(moments.partials, plan, moments.counted, affine, stream);
      if (application.y)
        launch_pdl(normalize<T, kWide>, grid_of(application.plan), kThreads, 0, stream,
                   application);
    });
  });
}

// The convolution leaves sums of what it stores: the pass over it that would find them is none. A
// result that nobody else reads lies where the norm's will.
KernelPtr lower_conv_norm(CudaBackend& cuda, const Conv2d& conv, Operands conv_io,
                          const BatchNorm& op, const Operands& io, const RunningStats* stats,
                          const Operands& stats_io) {
  const auto& [eps, act] = op;
  const TensorView skip = operand(io.in, BatchNorm::kSkip), y = io.out[BatchNorm::kY];
  TensorView& x = conv_io.out[Conv2d::kY];
  if (!x) x = y;
  const TensorView w = io.in[BatchNorm::kWeight], weight = operand(io.in, BatchNorm::kSampleWeight);
  const Matrix matrix(x, w, weight, {x, skip, y});
  const MomentsPlan plan = plan_moments(cuda, conv, conv_io);
  if (plan.chunks == 0 || !matrix.wide) {  // by memory's addresses alone
    Operands norm_io = io;
    norm_io.in[BatchNorm::kX] = x;
    std::shared_ptr<Kernel> product = lower(cuda, conv, conv_io),
                            norm = lower(cuda, op, norm_io, stats, stats_io);
    return make_kernel([product, norm] { product->launch(), norm->launch(); });
  }
  const size_t before = (plan.scratch_bytes + 255) / 256 * 256,
               floats = static_cast<size_t>((2 + int64_t{3} * plan.chunks) * matrix.width);
  auto* const tables = reinterpret_cast<float*>(
      static_cast<std::byte*>(cuda.scratch(before + floats * sizeof(float))) + before);
  float* const partials = tables + 2 * matrix.width;
  const Affine affine{.w = w.f32(),
                      .bias = io.in[BatchNorm::kBias].f32(),
                      .pivot = nullptr,
                      .eps = eps,
                      .scale = tables,
                      .shift = tables + matrix.width,
                      .mean = operand(io.out, BatchNorm::kMean).f32(),
                      .var = operand(io.out, BatchNorm::kVar).f32(),
                      .running = stats ? running_of(*stats, stats_io) : Running{}};
  const Application<bf16> application{data_of<bf16>(x), data_of<bf16>(skip), data_of<bf16>(y),
                                      affine.scale,     affine.shift,        act == Act::kRelu,
                                      matrix.pass()};
  std::shared_ptr<Kernel> product =
      lower_with_moments(cuda, conv, conv_io, {partials, weight.f32()});
  return make_kernel([=, width = static_cast<int>(matrix.width), stream = cuda.stream()] {
    product->launch();
    launch_pdl(finish_products, blocks_for(width, kWarp), kFinishThreads, 0, stream, partials,
               plan.chunks, width, affine);
    launch_pdl(normalize<bf16, true>, grid_of(application.plan), kThreads, 0, stream, application);
  });
}

void launch_affine(const FrozenAffine& a, cudaStream_t stream) {
  const Affine affine{.w = a.w.f32(),
                      .bias = a.bias.f32(),
                      .pivot = nullptr,
                      .eps = a.eps,
                      .scale = a.scale,
                      .shift = a.shift,
                      .mean = nullptr,
                      .var = nullptr};
  const int64_t channels = a.w.shape.numel();
  make_affine<<<blocks_for(channels, kThreads), kThreads, 0, stream>>>(
      affine, a.mean.f32(), a.var.f32(), static_cast<int>(channels));
}

KernelPtr lower(CudaBackend& cuda, const FrozenBatchNorm& op, const Operands& io) {
  const auto& [eps, act] = op;
  const TensorView x = io.in[FrozenBatchNorm::kX], skip = operand(io.in, FrozenBatchNorm::kSkip),
                   y = io.out[FrozenBatchNorm::kY];
  const Matrix matrix(x, io.in[FrozenBatchNorm::kWeight], {}, {x, skip, y});
  const Tables tables = matrix.tables(cuda, 2);
  const FrozenAffine affine{.w = io.in[FrozenBatchNorm::kWeight],
                            .bias = io.in[FrozenBatchNorm::kBias],
                            .mean = io.in[FrozenBatchNorm::kMean],
                            .var = io.in[FrozenBatchNorm::kVar],
                            .eps = eps,
                            .scale = tables.at(0),
                            .shift = tables.at(1)};
  return with_walk(matrix, y.dtype, [&](auto type, auto wide) {
    using T = decltype(type);
    constexpr bool kWide = decltype(wide)::value;
    const Application<T> application{data_of<T>(x), data_of<T>(skip),  data_of<T>(y), affine.scale,
                                     affine.shift,  act == Act::kRelu, matrix.pass()};
    return make_kernel([=, stream = cuda.stream()] {
      launch_affine(affine, stream);
      launch_pdl(normalize<T, kWide>, grid_of(application.plan), kThreads, 0, stream, application);
    });
  });
}

KernelPtr lower(CudaBackend& cuda, const BatchNormBwd& op, const Operands& io) {
  return lower(cuda, op, io, {});
}

// Where the gradient behind the ReLU is wanted for itself, the first pass leaves it, and the second
// reads that instead of what it was made of.
KernelPtr lower(CudaBackend& cuda, const BatchNormBwd& op, const Operands& io,
                const TensorView& more) {
  const auto& [eps, act] = op;
  const TensorView dy = io.in[BatchNormBwd::kDy], x = io.in[BatchNormBwd::kX],
                   y = act == Act::kRelu ? io.in[BatchNormBwd::kY] : TensorView{},
                   mean = io.in[BatchNormBwd::kMean], dx = io.out[BatchNormBwd::kDx],
                   dskip = operand(io.out, BatchNormBwd::kDskip);
  const Matrix matrix(x, io.in[BatchNormBwd::kWeight], operand(io.in, BatchNormBwd::kSampleWeight),
                      {dy, more, x, y, mean, dx, dskip});
  const bool bits = y && !dskip && matrix.wide;
  const Tables tables = matrix.tables(cuda, 3, bits ? x.shape.numel() / 8 : 0);
  uint8_t* const passed = bits ? tables.bytes : nullptr;
  const Coefficients coefficients{.w = io.in[BatchNormBwd::kWeight].f32(),
                                  .var = io.in[BatchNormBwd::kVar].f32(),
                                  .eps = eps,
                                  .scale = tables.at(0),
                                  .offset = tables.at(1),
                                  .slope = tables.at(2),
                                  .dw = operand(io.out, BatchNormBwd::kDweight).f32(),
                                  .dbias = operand(io.out, BatchNormBwd::kDbias).f32()};
  return with_walk(matrix, x.dtype, [&](auto type, auto wide) {
    using T = decltype(type);
    constexpr bool kWide = decltype(wide)::value;
    const Gradients<T> gradients{data_of<T>(dy), data_of<T>(more),  data_of<T>(x),
                                 data_of<T>(y),  data_of<T>(dskip), passed,
                                 mean.f32(),     matrix.sums(),     tables.at(3)};
    const BackApplication<T> application{dskip ? data_of<T>(dskip) : data_of<T>(dy),
                                         data_of<T>(x),
                                         dskip || bits ? nullptr : data_of<T>(y),
                                         passed,
                                         data_of<T>(dx),
                                         mean.f32(),
                                         coefficients.scale,
                                         coefficients.offset,
                                         coefficients.slope,
                                         matrix.counted,
                                         matrix.pass()};
    return make_kernel([=, stream = cuda.stream(), counted = matrix.counted] {
      const Plan& plan = gradients.plan;
      sum_gradients<T, kWide><<<grid_of(plan), kThreads, 0, stream>>>(gradients);
      launch_finish_sums(gradients.partials, plan, counted, coefficients, stream);
      if (application.dx)
        launch_pdl(go_back<T, kWide>, grid_of(application.plan), kThreads, 0, stream, application);
    });
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

}  // namespace vitrum::cuda
