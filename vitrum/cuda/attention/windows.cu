// Tokens in windows: their order, and the bias by distance inside a window.
#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 256;

struct Window {
  int h, w, heads;
  __host__ __device__ int tokens() const { return h * w; }
  __host__ __device__ int rows() const { return (2 * h - 1) * (2 * w - 1); }
};

__global__ void relative_bias(const float* table, Window window, float* bias, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int tokens = window.tokens(), u = static_cast<int>(i % tokens),
            t = static_cast<int>(i / tokens % tokens), head = static_cast<int>(i / tokens / tokens);
  const int dy = t / window.w - u / window.w + window.h - 1,
            dx = t % window.w - u % window.w + window.w - 1;
  bias[i] = table[(dy * (2 * window.w - 1) + dx) * window.heads + head];
}

// A thread has one row of the table for one head, and adds up the pairs at its distance in order.
__global__ void relative_bias_bwd(const float* d, Window window, float* dtable) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= window.rows() * window.heads) return;
  const int head = i % window.heads, row = i / window.heads, across = 2 * window.w - 1;
  const int dy = row / across - window.h + 1, dx = row % across - window.w + 1;
  const float* pairs = d + int64_t{head} * window.tokens() * window.tokens();
  float sum = 0;
  for (int y = max(dy, 0); y < min(window.h, window.h + dy); ++y)
    for (int x = max(dx, 0); x < min(window.w, window.w + dx); ++x)
      sum += pairs[(y * window.w + x) * window.tokens() + (y - dy) * window.w + x - dx];
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

Window window_of(int64_t h, int64_t w, int64_t heads) {
  return {static_cast<int>(h), static_cast<int>(w), static_cast<int>(heads)};
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const RelativeBias& op, const Operands& io) {
  const auto& [window_h, window_w] = op;
  const int64_t count = io.out[RelativeBias::kBias].shape.numel();
  return launch_kernel(cuda, relative_bias, blocks_for(count, kThreads), kThreads, 0,
                       io.in[RelativeBias::kTable].f32(),
                       window_of(window_h, window_w, io.out[RelativeBias::kBias].shape[0]),
                       io.out[RelativeBias::kBias].f32(), count);
}

KernelPtr lower(CudaBackend& cuda, const RelativeBiasBwd& op, const Operands& io) {
  const auto& [window_h, window_w] = op;
  if (!io.out[RelativeBiasBwd::kDtable]) return make_kernel([] {});
  return launch_kernel(cuda, relative_bias_bwd,
                       blocks_for(io.out[RelativeBiasBwd::kDtable].shape.numel(), kThreads),
                       kThreads, 0, io.in[RelativeBiasBwd::kDy].f32(),
                       window_of(window_h, window_w, io.in[RelativeBiasBwd::kDy].shape[0]),
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
