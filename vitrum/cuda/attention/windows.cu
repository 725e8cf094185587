// Tokens in windows: their order, and the bias by distance inside a window.
#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 256;

struct Window {
  int h, w, prefix, heads;
  __host__ __device__ int tokens() const { return prefix + h * w; }
  __host__ __device__ int distances() const { return (2 * h - 1) * (2 * w - 1); }
  __host__ __device__ int rows() const { return distances() + (prefix > 0 ? 3 : 0); }
  // The table's row of query t and key u.
  __device__ int row(int t, int u) const {
    if (t < prefix || u < prefix) return distances() + (u >= prefix ? 0 : t >= prefix ? 1 : 2);
    t -= prefix, u -= prefix;
    return (t / w - u / w + h - 1) * (2 * w - 1) + t % w - u % w + w - 1;
  }
};

__global__ void relative_bias(const float* table, Window window, float* bias, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int tokens = window.tokens(), u = static_cast<int>(i % tokens),
            t = static_cast<int>(i / tokens % tokens), head = static_cast<int>(i / tokens / tokens);
  bias[i] = table[window.row(t, u) * window.heads + head];
}

// A thread has one row of the table for one head, and adds up the pairs at its distance in order.
__global__ void relative_bias_bwd(const float* d, Window window, float* dtable) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= window.rows() * window.heads) return;
  const int head = i % window.heads, row = i / window.heads, across = 2 * window.w - 1;
  const int prefix = window.prefix, tokens = window.tokens();
  const float* pairs = d + int64_t{head} * tokens * tokens;
  float sum = 0;
  if (row >= window.distances()) {
    const int kind = row - window.distances();  // prefix to patches, patches to prefix, prefix
    for (int t = kind == 1 ? prefix : 0; t < (kind == 1 ? tokens : prefix); ++t)
      for (int u = kind == 0 ? prefix : 0; u < (kind == 0 ? tokens : prefix); ++u)
        sum += pairs[t * tokens + u];
    dtable[i] += sum;
    return;
  }
  const int dy = row / across - window.h + 1, dx = row % across - window.w + 1;
  for (int y = max(dy, 0); y < min(window.h, window.h + dy); ++y)
    for (int x = max(dx, 0); x < min(window.w, window.w + dx); ++x)
      sum += pairs[(prefix + y * window.w + x) * tokens + prefix + (y - dy) * window.w + x - dx];
  dtable[i] += sum;
}

struct Gather {
  int64_t given, tokens, parts;  // tokens an image before and after, pieces of a token
  const int32_t* from;
  // The piece of x that piece i of y is, or -1.
  __device__ int64_t source(int64_t i) const {
    const int64_t token = i / parts, image = token / tokens, t = from[token % tokens];
    return t < 0 ? -1 : (image * given + t) * parts + i % parts;
  }
};

__global__ void gather_sixteens(const uint4* x, uint4* y, Gather gather, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int64_t source = gather.source(i);
  y[i] = source < 0 ? make_uint4(0, 0, 0, 0) : x[source];
}

__global__ void gather_ones(Mixed x, Mixed y, Gather gather, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int64_t source = gather.source(i);
  y.store(i, source < 0 ? 0.0f : x.load(source));
}

Window window_of(int64_t h, int64_t w, int64_t prefix, int64_t heads) {
  return {static_cast<int>(h), static_cast<int>(w), static_cast<int>(prefix),
          static_cast<int>(heads)};
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const RelativeBias& op, const Operands& io) {
  const auto& [window_h, window_w, prefix] = op;
  const int64_t count = io.out[RelativeBias::kBias].shape.numel();
  return launch_kernel(cuda, relative_bias, blocks_for(count, kThreads), kThreads, 0,
                       io.in[RelativeBias::kTable].f32(),
                       window_of(window_h, window_w, prefix, io.out[RelativeBias::kBias].shape[0]),
                       io.out[RelativeBias::kBias].f32(), count);
}

KernelPtr lower(CudaBackend& cuda, const RelativeBiasBwd& op, const Operands& io) {
  const auto& [window_h, window_w, prefix] = op;
  if (!io.out[RelativeBiasBwd::kDtable]) return make_kernel([] {});
  return launch_kernel(cuda, relative_bias_bwd,
                       blocks_for(io.out[RelativeBiasBwd::kDtable].shape.numel(), kThreads),
                       kThreads, 0, io.in[RelativeBiasBwd::kDy].f32(),
                       window_of(window_h, window_w, prefix, io.in[RelativeBiasBwd::kDy].shape[0]),
                       io.out[RelativeBiasBwd::kDtable].f32());
}

KernelPtr lower(CudaBackend& cuda, const GatherTokens& op, const Operands& io) {
  const auto& [tokens, width, from] = op;
  const TensorView x = io.in[GatherTokens::kX], y = io.out[GatherTokens::kY];
  const size_t bytes = from.size() * sizeof(int32_t);
  Buffer table = cuda.allocate(bytes);
  cuda.upload({table.data(), {static_cast<int64_t>(bytes)}, DType::kU8}, from.data());
  const int64_t piece = 16 / static_cast<int64_t>(size_of(y.dtype));
  const bool wide = x.dtype == y.dtype && width % piece == 0 && aligned16(x) && aligned16(y);
  const int64_t count = wide ? y.shape.numel() / piece : y.shape.numel();
  const Gather gather{tokens, static_cast<int64_t>(from.size()), wide ? width / piece : width,
                      reinterpret_cast<const int32_t*>(table.data())};
  return make_kernel([=, table = std::move(table), stream = cuda.stream()] {
    const unsigned blocks = blocks_for(count, kThreads);
    if (wide)
      gather_sixteens<<<blocks, kThreads, 0, stream>>>(static_cast<const uint4*>(x.data),
                                                       static_cast<uint4*>(y.data), gather, count);
    else
      gather_ones<<<blocks, kThreads, 0, stream>>>(mixed(x), mixed(y), gather, count);
  });
}

}  // namespace vitrum::cuda
