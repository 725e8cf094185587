// The matrix (tokens, tokens) of each head that attention itself never stores: its weights, and
// their gradient. A block has one query, a thread every 128th key.
#include "vitrum/cuda/attention/attention.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 128;

// Rows (tokens, size) of a head within (B, T, stride), from element `first` of a token on.
struct HeadRows {
  Mixed data;
  int64_t stride, first;

  __device__ int64_t row(const AttentionShape& shape, int64_t image, int head, int t) const {
    return (image * shape.tokens + t) * stride + first + static_cast<int64_t>(head) * shape.size;
  }
};

struct MatrixArgs {
  AttentionShape shape;
  HeadRows left, right;
  float* out;  // (B, H, T, T)
  // Added to the scores (may be null): (H, T, T) and (masks, T, T).
  const float *bias = nullptr, *mask = nullptr;
  int64_t masks = 1;
};

// `x` of all threads of the block, combined; every thread gets the result.
template <class Combine>
__device__ float over_block(float x, const Combine& combine) {
  __shared__ float of_warp[kThreads / kWarp];
  for (int i = kWarp / 2; i > 0; i /= 2) x = combine(x, __shfl_xor_sync(0xffffffffu, x, i));
  __syncthreads();  // whoever still reads the last result
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = of_warp[0];
  for (int i = 1; i < kThreads / kWarp; ++i) x = combine(x, of_warp[i]);
  return x;
}

template <bool kSoftmax>
__global__ void matrix(MatrixArgs args) {
  extern __shared__ __align__(16) float left[];
  const AttentionShape shape = args.shape;
  const int64_t at = blockIdx.x;
  const int t = static_cast<int>(at % shape.tokens),
            head = static_cast<int>(at / shape.tokens % shape.heads);
  const int64_t image = at / shape.tokens / shape.heads;
  for (int i = threadIdx.x; i < shape.size; i += kThreads)
    left[i] = args.left.data.load(args.left.row(shape, image, head, t) + i);
  __syncthreads();
  const float scale = kSoftmax ? 1 / sqrtf(static_cast<float>(shape.size)) : 1;
  float* out = args.out + at * shape.tokens;  // a thread reads only what it wrote itself
  float top = -INFINITY, sum = 0;
  for (int u = threadIdx.x; u < shape.tokens; u += kThreads) {
    const int64_t right = args.right.row(shape, image, head, u);
    float dot = 0;
    for (int i = 0; i < shape.size; ++i) dot = fmaf(left[i], args.right.data.load(right + i), dot);
    out[u] = dot * scale;
    const int64_t place = static_cast<int64_t>(t) * shape.tokens + u,
                  square = static_cast<int64_t>(shape.tokens) * shape.tokens;
    if (args.bias) out[u] += args.bias[head * square + place];
    if (args.mask) out[u] += args.mask[image % args.masks * square + place];
    top = fmaxf(top, out[u]);
  }
  if (!kSoftmax) return;
  top = over_block(top, [](float a, float b) { return fmaxf(a, b); });
  for (int u = threadIdx.x; u < shape.tokens; u += kThreads) sum += out[u] = expf(out[u] - top);
  sum = over_block(sum, [](float a, float b) { return a + b; });
  for (int u = threadIdx.x; u < shape.tokens; u += kThreads) out[u] /= sum;
}

template <bool kSoftmax>
KernelPtr launch(CudaBackend& cuda, const MatrixArgs& args, int64_t images) {
  const auto blocks = static_cast<unsigned>(images * args.shape.heads * args.shape.tokens);
  // Room for whole groups of four: the compiler may read `left` in vectors, beyond its end too.
  const size_t bytes = static_cast<size_t>(divide_up(args.shape.size, 4)) * sizeof(float4);
  return make_kernel(
      [=, stream = cuda.stream()] { matrix<kSoftmax><<<blocks, kThreads, bytes, stream>>>(args); });
}

AttentionShape shape_of(const TensorView& qkv, int64_t heads) {
  return {static_cast<int>(qkv.shape[1]), static_cast<int>(heads),
          static_cast<int>(qkv.shape[2] / 3 / heads)};
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const AttentionProbs& op, const Operands& io) {
  const auto& [heads] = op;
  const TensorView qkv = io.in[AttentionProbs::kQkv], bias = operand(io.in, AttentionProbs::kBias),
                   mask = operand(io.in, AttentionProbs::kMask);
  const int64_t width = qkv.shape[2] / 3;
  return launch<true>(cuda,
                      {shape_of(qkv, heads),
                       {mixed(qkv), 3 * width, 0},
                       {mixed(qkv), 3 * width, width},
                       io.out[AttentionProbs::kProbs].f32(),
                       bias.f32(),
                       mask.f32(),
                       mask ? mask.shape[0] : 1},
                      qkv.shape[0]);
}

KernelPtr lower(CudaBackend& cuda, const AttentionProbsGrad& op, const Operands& io) {
  const auto& [heads] = op;
  const TensorView dy = io.in[AttentionProbsGrad::kDy], qkv = io.in[AttentionProbsGrad::kQkv];
  const int64_t width = qkv.shape[2] / 3;
  return launch<false>(cuda,
                       {shape_of(qkv, heads),
                        {mixed(dy), width, 0},
                        {mixed(qkv), 3 * width, 2 * width},
                        io.out[AttentionProbsGrad::kDprobs].f32()},
                       qkv.shape[0]);
}

}  // namespace vitrum::cuda
