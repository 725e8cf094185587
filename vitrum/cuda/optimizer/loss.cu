// Losses and what counts as a right answer: one block a row of logits, as wide as the row is
// long.
#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kMaxThreads = 512;

struct Loss {
  Mixed logits, target;  // target: class probabilities or their logarithms, unless there are labels
  const int32_t* labels;
  const float* weight;
  int64_t classes;
  LossKind kind;
  float rest, share;   // of the target and of the even spread in the smoothed target
  float per_tau;       // 1 / tau
  float scale, slope;  // of the loss and of its gradient

  __device__ __forceinline__ float logit(int64_t i) const { return logits.load(i) * per_tau; }
  __device__ __forceinline__ float wanted(int64_t b, int64_t k) const {
    if (kind == LossKind::kDivergence) return expf(target.load(b * classes + k));
    const float t = labels ? (labels[b] == k ? 1.0f : 0.0f) : target.load(b * classes + k);
    return fmaf(t, rest, share);
  }
  // What a divergence has to subtract.
  __device__ __forceinline__ float log_wanted(int64_t b, int64_t k) const {
    return kind == LossKind::kDivergence ? fmaxf(target.load(b * classes + k), -200.0f) : 0.0f;
  }
};

Loss loss_of(const TensorView& logits, const TensorView& target, const TensorView& weight,
             const LossForm& form) {
  const bool labels = target.dtype == DType::kI32, softmax = has_softmax(form.kind);
  const int64_t classes = logits.shape.numel() / logits.shape[0];
  const float tau = softmax ? form.tau : 1.0f, over = softmax ? tau : static_cast<float>(classes);
  return {mixed(logits),
          labels ? Mixed{} : mixed(target),
          labels ? target.i32() : nullptr,
          weight.f32(),
          classes,
          form.kind,
          1.0f - form.smoothing,
          form.smoothing / static_cast<float>(classes),
          1.0f / tau,
          form.scale,
          form.scale / over};
}

// Whole warps: 32 threads for ten classes, 256 for a thousand.
unsigned threads_for(int64_t classes) {
  unsigned threads = kWarp;
  while (threads < kMaxThreads && int64_t{threads} * 4 < classes) threads *= 2;
  return threads;
}

// The warps' values combined in their order; every thread gets the result. The first barrier lets
// the call before finish reading.
template <class T, class Combine>
__device__ __forceinline__ T over_warps(T x, const Combine& combine) {
  __shared__ T each[kMaxThreads / kWarp];
  __syncthreads();
  if (threadIdx.x % kWarp == 0) each[threadIdx.x / kWarp] = x;
  __syncthreads();
  T total = each[0];
  for (unsigned w = 1; w < blockDim.x / kWarp; ++w) total = combine(total, each[w]);
  return total;
}
__device__ __forceinline__ float block_sum(float x) {
  return over_warps(warp_sum(x), [](float a, float b) { return a + b; });
}
__device__ __forceinline__ float block_max(float x) {
  return over_warps(warp_max(x), [](float a, float b) { return fmaxf(a, b); });
}

// The largest of a row of x / tau, and log sum exp(x / tau - largest).
struct Peak {
  float most;
  double log_sum;
};
template <class Load>
__device__ __forceinline__ Peak peak_of(int64_t count, const Load& load) {
  float most = -INFINITY, sum = 0;
  for (int64_t k = threadIdx.x; k < count; k += blockDim.x) most = fmaxf(most, load(k));
  most = block_max(most);
  for (int64_t k = threadIdx.x; k < count; k += blockDim.x) sum += expf(load(k) - most);
  return {most, log(static_cast<double>(block_sum(sum)))};
}

// ---- forward ----

__global__ void __launch_bounds__(kMaxThreads) loss_rows(Loss g, double* losses, float* lse) {
  const int64_t b = blockIdx.x, at = b * g.classes;
  const Peak peak = peak_of(g.classes, [&](int64_t k) { return g.logit(at + k); });
  float mass = 0, dot = 0;  // of the target, of the target times the logits
  for (int64_t k = threadIdx.x; k < g.classes; k += blockDim.x) {
    const float t = g.wanted(b, k);
    mass += t, dot = fmaf(t, g.logit(at + k) - peak.most - g.log_wanted(b, k), dot);
  }
  mass = block_sum(mass), dot = block_sum(dot);
  if (threadIdx.x != 0) return;
  if (lse) lse[b] = static_cast<float>(static_cast<double>(peak.most) + peak.log_sum);
  const double weight = static_cast<double>(g.weight[b]) * static_cast<double>(g.scale);
  // 0: a padding row, whose label need not mean anything.
  losses[b] = weight == 0
                  ? 0.0
                  : weight * (static_cast<double>(mass) * peak.log_sum - static_cast<double>(dot));
}

__global__ void __launch_bounds__(kMaxThreads) binary_rows(Loss g, double* losses) {
  const int64_t b = blockIdx.x, at = b * g.classes;
  float sum = 0;
  for (int64_t k = threadIdx.x; k < g.classes; k += blockDim.x) {
    const float z = g.logits.load(at + k);
    sum += fmaxf(z, 0.0f) - z * g.wanted(b, k) + log1pf(expf(-fabsf(z)));
  }
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  const double weight = static_cast<double>(g.weight[b]) * static_cast<double>(g.slope);
  losses[b] = weight == 0 ? 0.0 : weight * static_cast<double>(sum);
}

__global__ void __launch_bounds__(kMaxThreads) square_rows(Loss g, double* losses) {
  const int64_t b = blockIdx.x, at = b * g.classes;
  float sum = 0;
  for (int64_t k = threadIdx.x; k < g.classes; k += blockDim.x) {
    const float d = g.logits.load(at + k) - g.target.load(at + k);
    sum = fmaf(d, d, sum);
  }
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  const double weight = static_cast<double>(g.weight[b]) * static_cast<double>(g.slope);
  losses[b] = weight == 0 ? 0.0 : weight * static_cast<double>(sum);
}

constexpr int kTotalThreads = 256;

// The sum of `count` values by one block, in a fixed order.
template <class T>
__device__ double total_of(const T* values, int64_t count) {
  __shared__ double sums[kTotalThreads];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kTotalThreads)
    sum += static_cast<double>(values[i]);
  __syncthreads();
  sums[threadIdx.x] = sum;
  for (int half = kTotalThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  __syncthreads();
  return sums[0];
}

__global__ void __launch_bounds__(kTotalThreads)
    loss_total(const double* losses, int64_t count, float* loss) {
  const double total = total_of(losses, count);
  if (threadIdx.x == 0) *loss = static_cast<float>(total);
}

// ---- backward ----

__global__ void __launch_bounds__(kMaxThreads)
    loss_rows_back(Loss g, const float* lse, Mixed dlogits) {
  const int64_t b = blockIdx.x, at = b * g.classes;
  float mass = 1;  // unless soft targets do not add up to it
  if (!g.labels) {
    mass = 0;
    for (int64_t k = threadIdx.x; k < g.classes; k += blockDim.x) mass += g.wanted(b, k);
    mass = block_sum(mass);
  }
  const float factor = g.weight[b] * g.slope, base = lse[b];
  for (int64_t k = threadIdx.x; k < g.classes; k += blockDim.x) {
    const float p = expf(g.logit(at + k) - base);
    dlogits.store(at + k, factor * (mass * p - g.wanted(b, k)));
  }
}

__global__ void __launch_bounds__(kMaxThreads) binary_rows_back(Loss g, Mixed dlogits) {
  const int64_t b = blockIdx.x, at = b * g.classes;
  const float factor = g.weight[b] * g.slope;
  for (int64_t k = threadIdx.x; k < g.classes; k += blockDim.x) {
    const float p = 1.0f / (1.0f + expf(-g.logits.load(at + k)));
    dlogits.store(at + k, factor * (p - g.wanted(b, k)));
  }
}

__global__ void __launch_bounds__(kMaxThreads) square_rows_back(Loss g, Mixed dlogits) {
  const int64_t b = blockIdx.x, at = b * g.classes;
  const float factor = 2.0f * g.weight[b] * g.slope;
  for (int64_t k = threadIdx.x; k < g.classes; k += blockDim.x)
    dlogits.store(at + k, factor * (g.logits.load(at + k) - g.target.load(at + k)));
}

// ---- rows of a teacher's logits ----

__global__ void __launch_bounds__(kMaxThreads)
    log_softmax_rows(Mixed x, float per_tau, int64_t classes, Mixed y) {
  const int64_t at = blockIdx.x * classes;
  const auto load = [&](int64_t k) { return x.load(at + k) * per_tau; };
  const Peak peak = peak_of(classes, load);
  for (int64_t k = threadIdx.x; k < classes; k += blockDim.x)
    y.store(at + k, load(k) - peak.most - static_cast<float>(peak.log_sum));
}

// ---- metrics ----

struct Best {
  float value;
  int32_t index;
};
// The larger value, the lower index on ties.
__device__ __forceinline__ Best better(Best a, Best b) {
  return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}
__device__ __forceinline__ int32_t argmax(const Mixed& x, int64_t at, int64_t count) {
  Best best{-INFINITY, 0};
  for (int64_t k = threadIdx.x; k < count; k += blockDim.x)
    if (const float v = x.load(at + k); v > best.value) best = {v, static_cast<int32_t>(k)};
  for (int i = kWarp / 2; i > 0; i /= 2)
    best = better(best, {__shfl_xor_sync(0xffffffffu, best.value, i),
                         __shfl_xor_sync(0xffffffffu, best.index, i)});
  return over_warps(best, better).index;
}

__global__ void __launch_bounds__(kMaxThreads) argmax_rows(Mixed x, int64_t classes, int32_t* y) {
  const int32_t best = argmax(x, blockIdx.x * classes, classes);
  if (threadIdx.x == 0) y[blockIdx.x] = best;
}

// seen[b]: whether image b counts; right[b]: whether it was recognised too.
__global__ void __launch_bounds__(kMaxThreads) judge_rows(Loss g, uint8_t* seen, uint8_t* right) {
  const int64_t b = blockIdx.x, at = b * g.classes;
  const int32_t given = argmax(g.logits, at, g.classes);
  const int32_t wanted = g.labels ? g.labels[b] : argmax(g.target, at, g.classes);
  if (threadIdx.x != 0) return;
  seen[b] = g.weight[b] > 0;
  right[b] = seen[b] && given == wanted;
}

// The same where there are no right answers.
__global__ void __launch_bounds__(kTotalThreads)
    count_images(const float* loss, const float* weight, int64_t count, double* totals) {
  __shared__ double sums[kTotalThreads];
  double seen = 0;
  for (int64_t i = threadIdx.x; i < count; i += kTotalThreads) seen += weight[i] > 0 ? 1 : 0;
  sums[threadIdx.x] = seen;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kTotalThreads; ++i) seen += sums[i];
  totals[0] += *loss, totals[2] += seen;
}

__global__ void __launch_bounds__(kTotalThreads)
    add_metrics(const float* loss, const uint8_t* seen, const uint8_t* right, int64_t count,
                double* totals) {
  const double images = total_of(seen, count), correct = total_of(right, count);
  if (threadIdx.x == 0) totals[0] += *loss, totals[1] += correct, totals[2] += images;
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const CrossEntropy& op, const Operands& io) {
  const auto& [form] = op;
  const Loss g = loss_of(io.in[CrossEntropy::kLogits], io.in[CrossEntropy::kTarget],
                         io.in[CrossEntropy::kSampleWeight], form);
  const int64_t rows = io.in[CrossEntropy::kLogits].shape[0];
  auto* losses = cuda.scratch_of<double>(rows);
  return make_kernel([=, loss = io.out[CrossEntropy::kLoss].f32(),
                      lse = operand(io.out, CrossEntropy::kLse).f32(), stream = cuda.stream()] {
    const auto blocks = static_cast<unsigned>(rows);
    if (g.kind == LossKind::kSquare)
      square_rows<<<blocks, threads_for(g.classes), 0, stream>>>(g, losses);
    else if (g.kind == LossKind::kBinary)
      binary_rows<<<blocks, threads_for(g.classes), 0, stream>>>(g, losses);
    else
      loss_rows<<<blocks, threads_for(g.classes), 0, stream>>>(g, losses, lse);
    if (loss) loss_total<<<1, kTotalThreads, 0, stream>>>(losses, rows, loss);
  });
}

KernelPtr lower(CudaBackend& cuda, const CrossEntropyBwd& op, const Operands& io) {
  const auto& [form] = op;
  const Loss g = loss_of(io.in[CrossEntropyBwd::kLogits], io.in[CrossEntropyBwd::kTarget],
                         io.in[CrossEntropyBwd::kSampleWeight], form);
  const auto rows = static_cast<unsigned>(io.in[CrossEntropyBwd::kLogits].shape[0]);
  if (form.kind == LossKind::kSquare)
    return launch_kernel(cuda, square_rows_back, rows, threads_for(g.classes), 0, g,
                         mixed(io.out[CrossEntropyBwd::kDlogits]));
  if (form.kind == LossKind::kBinary)
    return launch_kernel(cuda, binary_rows_back, rows, threads_for(g.classes), 0, g,
                         mixed(io.out[CrossEntropyBwd::kDlogits]));
  return launch_kernel(cuda, loss_rows_back, rows, threads_for(g.classes), 0, g,
                       static_cast<const float*>(io.in[CrossEntropyBwd::kLse].f32()),
                       mixed(io.out[CrossEntropyBwd::kDlogits]));
}

KernelPtr lower(CudaBackend& cuda, const NoAttributes<Argmax>&, const Operands& io) {
  const int64_t classes = io.in[Argmax::kX].shape[-1];
  return launch_kernel(cuda, argmax_rows, static_cast<unsigned>(io.in[Argmax::kX].shape.rows()),
                       threads_for(classes), 0, mixed(io.in[Argmax::kX]), classes,
                       io.out[Argmax::kY].i32());
}

KernelPtr lower(CudaBackend& cuda, const LogSoftmax& op, const Operands& io) {
  const auto& [tau] = op;
  const int64_t classes = io.in[LogSoftmax::kX].shape[-1];
  return launch_kernel(cuda, log_softmax_rows,
                       static_cast<unsigned>(io.in[LogSoftmax::kX].shape.rows()),
                       threads_for(classes), 0, mixed(io.in[LogSoftmax::kX]), 1.0f / tau, classes,
                       mixed(io.out[LogSoftmax::kY]));
}

KernelPtr lower(CudaBackend& cuda, const NoAttributes<TrainMetrics>&, const Operands& io) {
  if (!io.in[TrainMetrics::kLogits]) {
    const TensorView weight = io.in[TrainMetrics::kSampleWeight];
    return launch_kernel(cuda, count_images, 1, kTotalThreads, 0,
                         static_cast<const float*>(io.in[TrainMetrics::kLoss].f32()),
                         static_cast<const float*>(weight.f32()), weight.shape.numel(),
                         io.out[TrainMetrics::kSums].f64());
  }
  const Loss g = loss_of(io.in[TrainMetrics::kLogits], io.in[TrainMetrics::kTarget],
                         io.in[TrainMetrics::kSampleWeight], {});
  const int64_t rows = io.in[TrainMetrics::kLogits].shape.rows();
  auto* seen = cuda.scratch_of<uint8_t>(2 * rows);
  return make_kernel([=, right = seen + rows, loss = io.in[TrainMetrics::kLoss].f32(),
                      totals = io.out[TrainMetrics::kSums].f64(), stream = cuda.stream()] {
    judge_rows<<<static_cast<unsigned>(rows), threads_for(g.classes), 0, stream>>>(g, seen, right);
    add_metrics<<<1, kTotalThreads, 0, stream>>>(loss, seen, right, rows, totals);
  });
}

}  // namespace vitrum::cuda
