// The norm of a channel by its length over an image. Rows of an image are cut into chunks whose
// sums are added up in order; a block then has all channels of an image.
#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 256, kDeep = kThreads / kWarp;

struct Images {
  int64_t count, rows, channels, chunk_rows, chunks;
};
Images images_of(const Shape& x) {
  const int64_t count = x[0], rows = x.rows() / x[0], channels = x[-1];
  const int64_t wanted = std::clamp<int64_t>(
      132 * 16 / std::max<int64_t>(1, count * divide_up(channels, kWarp)), 1, divide_up(rows, 32));
  const int64_t each = divide_up(rows, wanted);
  return {count, rows, channels, each, divide_up(rows, each)};
}

// Sums over a chunk of rows of term(element), kN of them, for 32 channels a block.
template <int kN, class Term>
__device__ __forceinline__ void sum_chunk(const Images& g, float* partials, const Term& term) {
  __shared__ float sums[kN][kDeep][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, depth = threadIdx.x / kWarp;
  const int64_t c = int64_t{blockIdx.x} * kWarp + lane, image = blockIdx.z;
  const int64_t begin = blockIdx.y * g.chunk_rows, end = min(g.rows, begin + g.chunk_rows);
  float sum[kN] = {};
  for (int64_t r = begin + depth; r < end && c < g.channels; r += kDeep)
    term((image * g.rows + r) * g.channels + c, sum);
#pragma unroll
  for (int k = 0; k < kN; ++k) sums[k][depth][lane] = sum[k];
  __syncthreads();
  if (depth != 0 || c >= g.channels) return;
#pragma unroll
  for (int k = 0; k < kN; ++k) {
    float total = 0;
    for (int d = 0; d < kDeep; ++d) total += sums[k][d][lane];
    partials[((image * g.chunks + blockIdx.y) * kN + k) * g.channels + c] = total;
  }
}

// Sum k of channel c of an image, chunks in order.
template <int kN>
__device__ __forceinline__ float chunk_sum(const Images& g, const float* partials, int64_t image,
                                           int k, int64_t c) {
  float sum = 0;
  for (int64_t i = 0; i < g.chunks; ++i)
    sum += partials[((image * g.chunks + i) * kN + k) * g.channels + c];
  return sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads) sum_squares(Images g, const T* x, float* partials) {
  sum_chunk<1>(g, partials, [&](int64_t at, float(&sum)[1]) {
    const float v = to_float(x[at]);
    sum[0] = fmaf(v, v, sum[0]);
  });
}

// factor (B, C), and length where it is wanted.
__global__ void __launch_bounds__(kThreads) measure(Images g, const float* partials, const float* w,
                                                    float eps, float* factor, float* length_out) {
  const int64_t image = blockIdx.x;
  float* mine = factor + image * g.channels;
  double total = 0;
  for (int64_t c = threadIdx.x; c < g.channels; c += kThreads) {
    const float length = sqrtf(chunk_sum<1>(g, partials, image, 0, c));
    mine[c] = length, total += static_cast<double>(length);
    if (length_out) length_out[image * g.channels + c] = length;
  }
  const double mean = block_sum<kThreads>(total) / static_cast<double>(g.channels) + eps;
  for (int64_t c = threadIdx.x; c < g.channels; c += kThreads)
    mine[c] = static_cast<float>(1 + static_cast<double>(w[c]) * mine[c] / mean);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    apply(Images g, const T* x, const float* factor, const float* bias, T* y, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t c = i % g.channels, image = i / g.channels / g.rows;
  y[i] = from_float<T>(fmaf(to_float(x[i]), factor[image * g.channels + c], bias[c]));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_products(Images g, const T* dy, const T* x, float* partials) {
  sum_chunk<2>(g, partials, [&](int64_t at, float(&sum)[2]) {
    const float d = to_float(dy[at]);
    sum[0] += d, sum[1] = fmaf(d, to_float(x[at]), sum[1]);
  });
}

// Of each image: what is multiplied with dy and with x, and its part of the gradients of bias and
// w, each (B, C).
struct Measures {
  float *scale, *slope, *dbias, *dw;
};
__global__ void __launch_bounds__(kThreads)
    measure_back(Images g, const float* partials, const float* w, const float* length, float eps,
                 Measures to) {
  const int64_t image = blockIdx.x, at = image * g.channels;
  double total = 0, shared = 0;
  for (int64_t c = threadIdx.x; c < g.channels; c += kThreads) {
    const float product = chunk_sum<2>(g, partials, image, 1, c);
    to.dbias[at + c] = chunk_sum<2>(g, partials, image, 0, c), to.dw[at + c] = product;
    total += static_cast<double>(length[at + c]);
    shared += static_cast<double>(w[c]) * product * length[at + c];
  }
  const double n = static_cast<double>(g.channels),
               mean = block_sum<kThreads>(total) / n + static_cast<double>(eps);
  __syncthreads();
  const double off = block_sum<kThreads>(shared) / (mean * mean * n);
  for (int64_t c = threadIdx.x; c < g.channels; c += kThreads) {
    const double weight = w[c], g0 = length[at + c], product = to.dw[at + c];
    to.scale[at + c] = static_cast<float>(1 + weight * g0 / mean);
    to.slope[at + c] = g0 > 0 ? static_cast<float>((weight * product / mean - off) / g0) : 0.0f;
    to.dw[at + c] = static_cast<float>(product * g0 / mean);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    apply_back(Images g, const T* dy, const T* x, Measures by, T* dx, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t at = i / g.channels / g.rows * g.channels + i % g.channels;
  dx[i] =
      from_float<T>(fmaf(to_float(x[i]), by.slope[at], __fmul_rn(to_float(dy[i]), by.scale[at])));
}

// Images in order; either may be null.
__global__ void __launch_bounds__(kThreads)
    add_images(Images g, Measures from, float* dw, float* dbias) {
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= g.channels) return;
  float w = 0, bias = 0;
  for (int64_t b = 0; b < g.count; ++b)
    w += from.dw[b * g.channels + c], bias += from.dbias[b * g.channels + c];
  if (dw) dw[c] += w;
  if (dbias) dbias[c] += bias;
}

dim3 chunk_grid(const Images& g) {
  return dim3(blocks_for(g.channels, kWarp), static_cast<unsigned>(g.chunks),
              static_cast<unsigned>(g.count));
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const ResponseNorm& op, const Operands& io) {
  const auto& [eps] = op;
  const TensorView x = io.in[ResponseNorm::kX], y = io.out[ResponseNorm::kY];
  const Images g = images_of(x.shape);
  const float *w = io.in[ResponseNorm::kWeight].f32(), *bias = io.in[ResponseNorm::kBias].f32();
  float* length = operand(io.out, ResponseNorm::kLength).f32();
  auto* partials = cuda.scratch_of<float>(g.count * (g.chunks + 1) * g.channels);
  auto* factor = partials + g.count * g.chunks * g.channels;
  const int64_t count = x.shape.numel();
  return with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    return make_kernel([=, eps = eps, stream = cuda.stream()] {
      const auto* from = static_cast<const T*>(x.data);
      sum_squares<T><<<chunk_grid(g), kThreads, 0, stream>>>(g, from, partials);
      measure<<<static_cast<unsigned>(g.count), kThreads, 0, stream>>>(g, partials, w, eps, factor,
                                                                       length);
      if (y)
        apply<T><<<blocks_for(count, kThreads), kThreads, 0, stream>>>(
            g, from, factor, bias, static_cast<T*>(y.data), count);
    });
  });
}

KernelPtr lower(CudaBackend& cuda, const ResponseNormBwd& op, const Operands& io) {
  const auto& [eps] = op;
  const TensorView dy = io.in[ResponseNormBwd::kDy], x = io.in[ResponseNormBwd::kX],
                   dx = io.out[ResponseNormBwd::kDx];
  const Images g = images_of(x.shape);
  const float *w = io.in[ResponseNormBwd::kWeight].f32(),
              *length = io.in[ResponseNormBwd::kLength].f32();
  float *dw = operand(io.out, ResponseNormBwd::kDweight).f32(),
        *dbias = operand(io.out, ResponseNormBwd::kDbias).f32();
  const int64_t all = g.count * g.channels, count = x.shape.numel();
  auto* partials = cuda.scratch_of<float>(all * (2 * g.chunks + 4));
  float* rest = partials + 2 * all * g.chunks;
  const Measures measures{rest, rest + all, rest + 2 * all, rest + 3 * all};
  return with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    return make_kernel([=, eps = eps, stream = cuda.stream()] {
      const auto *from = static_cast<const T*>(x.data), *d = static_cast<const T*>(dy.data);
      sum_products<T><<<chunk_grid(g), kThreads, 0, stream>>>(g, d, from, partials);
      measure_back<<<static_cast<unsigned>(g.count), kThreads, 0, stream>>>(g, partials, w, length,
                                                                            eps, measures);
      if (dx)
        apply_back<T><<<blocks_for(count, kThreads), kThreads, 0, stream>>>(
            g, d, from, measures, static_cast<T*>(dx.data), count);
      if (dw || dbias)
        add_images<<<blocks_for(g.channels, kThreads), kThreads, 0, stream>>>(g, measures, dw,
                                                                              dbias);
    });
  });
}

}  // namespace vitrum::cuda
