// Convolution of every channel with a window of its own. Neighbouring threads have neighbouring
// channels, so that every access is one run of memory; a thread has kStrip pixels of a line and
// loads each pixel of x once for all of them.
#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 256, kStrip = 7;

struct Windows {
  int height, width, channels, down, across, kernel, padding;
  int strips() const { return static_cast<int>(divide_up(across, kStrip)); }
};

Windows windows_of(const Shape& x, const Shape& y, int64_t kernel, int64_t padding) {
  const auto narrow = [](int64_t n) { return static_cast<int>(n); };
  return {narrow(x[1]), narrow(x[2]),   narrow(x[3]),   narrow(y[1]),
          narrow(y[2]), narrow(kernel), narrow(padding)};
}

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

// Chunks in order; dw is (channels, places). Either may be null.
__global__ void __launch_bounds__(kThreads)
    finish_weights(const float* partials, int64_t chunks, int channels, int places, float* dw,
                   float* dbias) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= channels * (places + 1)) return;
  float sum = 0;
  for (int64_t k = 0; k < chunks; ++k) sum += partials[k * channels * (places + 1) + i];
  const int place = i / channels, c = i % channels;
  if (place < places && dw) dw[c * places + place] += sum;
  if (place == places && dbias) dbias[c] += sum;
}

// ---- lowering ----

template <class T>
void launch_convolve(const Windows& g, const T* x, const float* w, const float* bias, T* y,
                     int64_t lines, cudaStream_t stream) {
  const bool usual = g.kernel == 7;
  const int64_t count = lines * (usual ? g.strips() : g.across) * g.channels;
  const unsigned blocks = blocks_for(count, kThreads);
  if (usual)
    convolve<T, 7><<<blocks, kThreads, 0, stream>>>(g, x, w, bias, y, g.strips(), count);
  else
    convolve_any<T><<<blocks, kThreads, 0, stream>>>(g, x, w, bias, y, count);
}

void launch_pack(const float* w, float* to, const Windows& g, bool turned, cudaStream_t stream) {
  const int places = g.kernel * g.kernel;
  pack_weights<<<blocks_for(int64_t{g.channels} * places, kThreads), kThreads, 0, stream>>>(
      w, to, g.channels, places, turned);
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const DepthwiseConv& op, const Operands& io) {
  const auto& [padding] = op;
  const TensorView x = io.in[DepthwiseConv::kX], w = io.in[DepthwiseConv::kWeight],
                   y = io.out[DepthwiseConv::kY];
  const Windows g = windows_of(x.shape, y.shape, w.shape[2], padding);
  const float* bias = operand(io.in, DepthwiseConv::kBias).f32();
  auto* packed = cuda.scratch_of<float>(w.shape.numel());
  const int64_t lines = y.shape[0] * y.shape[1];
  return with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    return make_kernel([=, stream = cuda.stream()] {
      launch_pack(w.f32(), packed, g, false, stream);
      launch_convolve(g, static_cast<const T*>(x.data), packed, bias, static_cast<T*>(y.data),
                      lines, stream);
    });
  });
}

// The image's gradient is a convolution of dy with the window turned round.
KernelPtr lower(CudaBackend& cuda, const DepthwiseConvBwd& op, const Operands& io) {
  const auto& [padding] = op;
  const TensorView dy = io.in[DepthwiseConvBwd::kDy], x = io.in[DepthwiseConvBwd::kX],
                   w = io.in[DepthwiseConvBwd::kWeight], dx = io.out[DepthwiseConvBwd::kDx];
  float *dw = operand(io.out, DepthwiseConvBwd::kDweight).f32(),
        *dbias = operand(io.out, DepthwiseConvBwd::kDbias).f32();
  const int64_t kernel = w.shape[2], places = kernel * kernel, channels = x.shape[3];
  const Windows back = windows_of(dy.shape, x.shape, kernel, kernel - 1 - padding),
                forth = windows_of(x.shape, dy.shape, kernel, padding);
  const Chunks chunks = chunks_of(dy.shape, kernel);
  auto* scratch =
      cuda.scratch_of<float>(std::max(w.shape.numel(), chunks.count * (places + 1) * channels));
  const int64_t lines = x.shape[0] * x.shape[1];
  const dim3 grid(blocks_for(channels, kThreads),
                  static_cast<unsigned>(kernel == 7 ? kernel + 1 : places + 1),
                  static_cast<unsigned>(chunks.count));
  return with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    return make_kernel([=, stream = cuda.stream()] {
      const auto *from = static_cast<const T*>(x.data), *d = static_cast<const T*>(dy.data);
      if (dx) {
        launch_pack(w.f32(), scratch, back, true, stream);
        launch_convolve(back, d, scratch, nullptr, static_cast<T*>(dx.data), lines, stream);
      }
      if (!dw && !dbias) return;
      if (kernel == 7)
        sum_weights<T, 7><<<grid, kThreads, 0, stream>>>(forth, from, d, chunks, scratch);
      else
        sum_weights_any<T><<<grid, kThreads, 0, stream>>>(forth, from, d, chunks, scratch);
      finish_weights<<<blocks_for(channels * (places + 1), kThreads), kThreads, 0, stream>>>(
          scratch, chunks.count, static_cast<int>(channels), static_cast<int>(places), dw, dbias);
    });
  });
}

}  // namespace vitrum::cuda
