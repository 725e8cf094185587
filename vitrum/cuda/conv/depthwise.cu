// Convolution of every channel with a window of its own. Where there is enough of it, two channels
// a thread (depthwise_pairs.cuh); the kernels here are for f32, small batches and other windows.
// Neighbouring threads have neighbouring channels, so that every access is one run of memory; a
// thread has kStrip pixels of a line and loads each pixel of x once for all of them.
#include "vitrum/cuda/primitives/device.cuh"
// Written in what is above.
#include "vitrum/cuda/conv/depthwise_pairs.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 256, kStrip = 7;

int64_t strips_of(const Windows& g) { return divide_up(g.across, kStrip); }

// (channels, places) -> (places, channels); turned: the window turned round by half.
__global__ void __launch_bounds__(kThreads)
    pack_weights(const float* w, float* to, int channels, int places, bool turned) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= channels * places) return;
  const int place = i / channels, c = i % channels;
  to[i] = w[c * places + (turned ? places - 1 - place : place)];
}

// use(u, place of column j + u - padding in line i of x) for the columns that the image has.
template <int kKernel, class Use>
__device__ __forceinline__ void for_columns(const Windows& g, int64_t line, int j, const Use& use) {
#pragma unroll
  for (int u = 0; u < kStrip + kKernel - 1; ++u) {
    const int column = j + u - g.padding;
    if (column >= 0 && column < g.width) use(u, (line * g.width + column) * g.channels);
  }
}

template <class T, int kKernel>
__global__ void __launch_bounds__(kThreads)
    convolve(Windows g, const T* x, const float* w, const float* bias, T* y, int strips,
             int64_t count) {
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (item >= count) return;
  const int c = static_cast<int>(item % g.channels),
            j = static_cast<int>(item / g.channels % strips) * kStrip;
  const int64_t line = item / g.channels / strips, image = line / g.down * g.height;
  const int top = static_cast<int>(line % g.down) - g.padding;
  float sum[kStrip];
#pragma unroll
  for (int t = 0; t < kStrip; ++t) sum[t] = bias ? bias[c] : 0.0f;
  for (int ky = max(0, -top); ky < min(kKernel, g.height - top); ++ky) {
    float weight[kKernel];
#pragma unroll
    for (int kx = 0; kx < kKernel; ++kx) weight[kx] = w[(ky * kKernel + kx) * g.channels + c];
    for_columns<kKernel>(g, image + top + ky, j, [&](int u, int64_t place) {
      const float v = to_float(x[place + c]);
#pragma unroll
      for (int t = 0; t < kStrip; ++t)
        if (u >= t && u - t < kKernel) sum[t] = fmaf(v, weight[u - t], sum[t]);
    });
  }
#pragma unroll
  for (int t = 0; t < kStrip; ++t)
    if (j + t < g.across) y[(line * g.across + j + t) * g.channels + c] = from_float<T>(sum[t]);
}

// Windows of any other size.
template <class T>
__global__ void __launch_bounds__(kThreads)
    convolve_any(Windows g, const T* x, const float* w, const float* bias, T* y, int64_t count) {
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (item >= count) return;
  const int c = static_cast<int>(item % g.channels),
            j = static_cast<int>(item / g.channels % g.across) - g.padding;
  const int64_t line = item / g.channels / g.across, image = line / g.down * g.height;
  const int top = static_cast<int>(line % g.down) - g.padding;
  float sum = bias ? bias[c] : 0.0f;
  for (int ky = max(0, -top); ky < min(g.kernel, g.height - top); ++ky)
    for (int kx = max(0, -j); kx < min(g.kernel, g.width - j); ++kx)
      sum = fmaf(to_float(x[((image + top + ky) * g.width + j + kx) * g.channels + c]),
                 w[(ky * g.kernel + kx) * g.channels + c], sum);
  y[item] = from_float<T>(sum);
}

// Lines of the gradient cut into chunks, by the shape alone; partial sums of a chunk are
// (places + 1, channels), the bias' last.
struct Chunks {
  int64_t lines, each, count;
};
Chunks chunks_of(const Shape& dy, int64_t kernel) {
  constexpr int64_t kFull = 132 * 16;  // blocks
  const int64_t lines = dy[0] * dy[1], across = divide_up(dy[3], kThreads) * (kernel * kernel + 1),
                wanted = std::clamp<int64_t>(kFull / across, 1, std::min<int64_t>(lines, 256)),
                each = divide_up(lines, wanted);
  return {lines, each, divide_up(lines, each)};
}

// One line of the window for one channel, over a chunk of lines; behind the last, the bias.
template <class T, int kKernel>
__global__ void __launch_bounds__(kThreads)
    sum_weights(Windows g, const T* x, const T* dy, Chunks chunks, float* partials) {
  const int c = static_cast<int>(blockIdx.x * kThreads + threadIdx.x),
            ky = static_cast<int>(blockIdx.y);
  if (c >= g.channels) return;
  const int64_t begin = blockIdx.z * chunks.each, end = min(chunks.lines, begin + chunks.each);
  float* to = partials + int64_t{blockIdx.z} * (kKernel * kKernel + 1) * g.channels + c;
  if (ky == kKernel) {
    float sum = 0;
    for (int64_t r = begin * g.across; r < end * g.across; ++r)
      sum += to_float(dy[r * g.channels + c]);
    to[int64_t{kKernel} * kKernel * g.channels] = sum;
    return;
  }
  float sum[kKernel] = {};
  for (int64_t line = begin; line < end; ++line) {
    const int i = static_cast<int>(line % g.down) - g.padding + ky;
    if (i < 0 || i >= g.height) continue;
    for (int j = 0; j < g.across; j += kStrip) {
      float d[kStrip];
#pragma unroll
      for (int t = 0; t < kStrip; ++t)
        d[t] = j + t < g.across ? to_float(dy[(line * g.across + j + t) * g.channels + c]) : 0.0f;
      for_columns<kKernel>(g, line / g.down * g.height + i, j, [&](int u, int64_t place) {
        const float v = to_float(x[place + c]);
#pragma unroll
        for (int t = 0; t < kStrip; ++t)
          if (u >= t && u - t < kKernel && j + t < g.across) sum[u - t] = fmaf(v, d[t], sum[u - t]);
      });
    }
  }
#pragma unroll
  for (int kx = 0; kx < kKernel; ++kx) to[(ky * kKernel + kx) * g.channels] = sum[kx];
}

// One place of a window of any other size; behind the last, the bias.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_weights_any(Windows g, const T* x, const T* dy, Chunks chunks, float* partials) {
  const int c = static_cast<int>(blockIdx.x * kThreads + threadIdx.x),
            place = static_cast<int>(blockIdx.y), places = g.kernel * g.kernel;
  if (c >= g.channels) return;
  const int64_t begin = blockIdx.z * chunks.each, end = min(chunks.lines, begin + chunks.each);
  float sum = 0;
  for (int64_t line = begin; line < end; ++line) {
    const int i = static_cast<int>(line % g.down) - g.padding + place / g.kernel;
    for (int j = 0; j < g.across; ++j) {
      const float d = to_float(dy[(line * g.across + j) * g.channels + c]);
      const int column = j - g.padding + place % g.kernel;
      if (place == places)
        sum += d;
      else if (i >= 0 && i < g.height && column >= 0 && column < g.width)
        sum =
            fmaf(to_float(x[((line / g.down * g.height + i) * g.width + column) * g.channels + c]),
                 d, sum);
    }
  }
  partials[(int64_t{blockIdx.z} * (places + 1) + place) * g.channels + c] = sum;
}

// Sums of chunks, each eighth by a thread and then one after the other; dw is (channels, places).
// Either may be null.
constexpr int kParts = 8, kResults = kThreads / kParts;
__global__ void __launch_bounds__(kThreads)
    finish_weights(const float* partials, int64_t chunks, int channels, int places, float* dw,
                   float* dbias) {
  __shared__ float sums[kParts][kResults];
  const int lane = static_cast<int>(threadIdx.x) % kResults,
            part = static_cast<int>(threadIdx.x) / kResults,
            i = static_cast<int>(blockIdx.x) * kResults + lane;
  const bool inside = i < channels * (places + 1);
  const int64_t row = int64_t{channels} * (places + 1);
  float sum = 0;
#pragma unroll 4
  for (int64_t k = part; k < chunks && inside; k += kParts) sum += partials[k * row + i];
  sums[part][lane] = sum;
  __syncthreads();
  if (part > 0 || !inside) return;
  for (int k = 1; k < kParts; ++k) sum += sums[k][lane];
  const int place = i / channels, c = i % channels;
  if (place < places && dw) dw[c * places + place] += sum;
  if (place == places && dbias) dbias[c] += sum;
}

__global__ void __launch_bounds__(depthwise::kThreads, 2)
    convolve_pairs(const depthwise::ConvolveArgs args) {
  __shared__ depthwise::Shared shared;
  depthwise::convolve(args, shared);
}
__global__ void __launch_bounds__(depthwise::kThreads, 2)
    sum_window_pairs(const depthwise::GradientArgs args) {
  __shared__ depthwise::Shared shared;
  depthwise::sum_windows(args, shared);
}

// ---- lowering ----

Windows windows_of(const Shape& x, const Shape& y, int64_t kernel, int64_t padding) {
  const auto narrow = [](int64_t n) { return static_cast<int>(n); };
  return {narrow(x[1]), narrow(x[2]),   narrow(x[3]),   narrow(y[1]),
          narrow(y[2]), narrow(kernel), narrow(padding)};
}

depthwise::Plan plan_of(const Windows& g, const TensorView& from, const TensorView& to) {
  const bool suits =
      from.dtype == DType::kBF16 && to.dtype == DType::kBF16 && aligned16(from) && aligned16(to);
  return plan_depthwise(g, from.shape[0], suits);
}

template <class T>
void launch_convolve(const Windows& g, const T* x, const float* w, const float* bias, T* y,
                     int64_t lines, cudaStream_t stream) {
  const bool usual = g.kernel == 7;
  const int64_t strips = strips_of(g), count = lines * (usual ? strips : g.across) * g.channels;
  const unsigned blocks = blocks_for(count, kThreads);
  if (usual)
    convolve<T, 7>
        <<<blocks, kThreads, 0, stream>>>(g, x, w, bias, y, static_cast<int>(strips), count);
  else
    convolve_any<T><<<blocks, kThreads, 0, stream>>>(g, x, w, bias, y, count);
}

void launch_pack(const float* w, float* to, const Windows& g, bool turned, cudaStream_t stream) {
  const int places = g.kernel * g.kernel;
  pack_weights<<<blocks_for(int64_t{g.channels} * places, kThreads), kThreads, 0, stream>>>(
      w, to, g.channels, places, turned);
}

// y from x; turned: with the window turned round by half.
KernelPtr lower_convolve(CudaBackend& cuda, const Windows& g, const TensorView& x,
                         const TensorView& w, const float* bias, const TensorView& y, bool turned) {
  if (const depthwise::Plan plan = plan_of(g, x, y); plan.items > 0)
    return named("pairs",
                 launch_kernel(cuda, convolve_pairs, static_cast<unsigned>(plan.blocks()),
                               depthwise::kThreads, 0,
                               depthwise::ConvolveArgs{.g = g,
                                                       .plan = plan,
                                                       .x = static_cast<const bf16*>(x.data),
                                                       .w = w.f32(),
                                                       .bias = bias,
                                                       .y = static_cast<bf16*>(y.data),
                                                       .turned = turned}));
  auto* packed = cuda.scratch_of<float>(w.shape.numel());
  const int64_t lines = y.shape[0] * y.shape[1];
  return with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    return make_kernel([=, stream = cuda.stream()] {
      launch_pack(w.f32(), packed, g, turned, stream);
      launch_convolve(g, static_cast<const T*>(x.data), packed, bias, static_cast<T*>(y.data),
                      lines, stream);
    });
  });
}

// The windows' gradient and the bias', either of which may be null.
KernelPtr lower_sums(CudaBackend& cuda, const Windows& g, const TensorView& x, const TensorView& dy,
                     float* dw, float* dbias) {
  const int places = g.kernel * g.kernel;
  const int64_t row = int64_t{g.channels} * (places + 1);
  const auto finish = [=, stream = cuda.stream()](const float* partials, int64_t chunks) {
    finish_weights<<<blocks_for(row, kResults), kThreads, 0, stream>>>(partials, chunks, g.channels,
                                                                       places, dw, dbias);
  };
  if (const depthwise::Plan plan = plan_of(g, x, dy); plan.items > 0) {
    const depthwise::GradientArgs args{.g = g,
                                       .plan = plan,
                                       .x = static_cast<const bf16*>(x.data),
                                       .dy = static_cast<const bf16*>(dy.data),
                                       .partials = cuda.scratch_of<float>(plan.chunks * row)};
    return make_kernel([=, stream = cuda.stream()] {
      sum_window_pairs<<<static_cast<unsigned>(plan.chunks * plan.groups), depthwise::kThreads, 0,
                         stream>>>(args);
      finish(args.partials, plan.chunks);
    });
  }
  const Chunks chunks = chunks_of(dy.shape, g.kernel);
  auto* partials = cuda.scratch_of<float>(chunks.count * row);
  const bool usual = g.kernel == 7;
  const dim3 grid(blocks_for(g.channels, kThreads),
                  static_cast<unsigned>((usual ? g.kernel : places) + 1),
                  static_cast<unsigned>(chunks.count));
  return with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    return make_kernel([=, stream = cuda.stream()] {
      const auto *from = static_cast<const T*>(x.data), *d = static_cast<const T*>(dy.data);
      if (usual)
        sum_weights<T, 7><<<grid, kThreads, 0, stream>>>(g, from, d, chunks, partials);
      else
        sum_weights_any<T><<<grid, kThreads, 0, stream>>>(g, from, d, chunks, partials);
      finish(partials, chunks.count);
    });
  });
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const DepthwiseConv& op, const Operands& io) {
  const auto& [padding] = op;
  const TensorView x = io.in[DepthwiseConv::kX], w = io.in[DepthwiseConv::kWeight],
                   y = io.out[DepthwiseConv::kY];
  return lower_convolve(cuda, windows_of(x.shape, y.shape, w.shape[2], padding), x, w,
                        operand(io.in, DepthwiseConv::kBias).f32(), y, /*turned=*/false);
}

// The image's gradient is a convolution of dy with the window turned round.
KernelPtr lower(CudaBackend& cuda, const DepthwiseConvBwd& op, const Operands& io) {
  const auto& [padding] = op;
  const TensorView dy = io.in[DepthwiseConvBwd::kDy], x = io.in[DepthwiseConvBwd::kX],
                   w = io.in[DepthwiseConvBwd::kWeight], dx = io.out[DepthwiseConvBwd::kDx];
  float *dw = operand(io.out, DepthwiseConvBwd::kDweight).f32(),
        *dbias = operand(io.out, DepthwiseConvBwd::kDbias).f32();
  const int64_t kernel = w.shape[2];
  std::shared_ptr<Kernel> back, sums;
  if (dx)
    back = lower_convolve(cuda, windows_of(dy.shape, x.shape, kernel, kernel - 1 - padding), dy, w,
                          nullptr, dx, /*turned=*/true);
  if (dw || dbias)
    sums = lower_sums(cuda, windows_of(x.shape, dy.shape, kernel, padding), x, dy, dw, dbias);
  return make_kernel([back, sums] {
    if (back) back->launch();
    if (sums) sums->launch();
  });
}

}  // namespace vitrum::cuda
