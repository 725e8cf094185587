// Attention in plain loops, without tensor cores: f32 programs and heads that the other kernels do
// not take. A warp has one query (or, for dk and dv, one key); lanes share the values of a head.
#include "vitrum/cuda/attention/attention.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kWarps = 4;       // a block
constexpr int kLaneValues = 8;  // of a head in one lane: heads of up to 256

// One row of a head, spread over the lanes of a warp.
struct Row {
  float v[kLaneValues];

  template <class T>
  __device__ void load(const T* from, int size) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i)
      v[i] = lane + i * kWarp < size ? to_float(from[lane + i * kWarp]) : 0;
  }
  template <class T>
  __device__ void store(T* to, int size, float factor) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i)
      if (lane + i * kWarp < size) to[lane + i * kWarp] = from_float<T>(v[i] * factor);
  }
  __device__ void clear() {
#pragma unroll
    for (float& x : v) x = 0;
  }
  __device__ void add(const Row& other, float factor) {
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) v[i] = fmaf(factor, other.v[i], v[i]);
  }
  __device__ float dot(const Row& other) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) sum = fmaf(v[i], other.v[i], sum);
    return warp_sum(sum);
  }
};

// Where the rows of head `head` of `image` lie.
template <class T>
struct Place {
  const AttentionArgs& args;
  int64_t image, head;

  __device__ int64_t qkv(int t, int which) const {
    return (image * args.shape.tokens + t) * args.shape.qkv_stride() +
           which * args.shape.y_stride() + head * args.shape.size;
  }
  __device__ int64_t y(int t) const {
    return (image * args.shape.tokens + t) * args.shape.y_stride() + head * args.shape.size;
  }
  __device__ int64_t row(int t) const {
    return (image * args.shape.heads + head) * args.shape.tokens + t;
  }
  __device__ Row part(int t, int which) const {
    Row r;
    return r.load(static_cast<const T*>(args.qkv) + qkv(t, which), args.shape.size), r;
  }
  __device__ Row of(const void* tensor, int t) const {
    Row r;
    return r.load(static_cast<const T*>(tensor) + y(t), args.shape.size), r;
  }
  // The score of a product q . k.
  __device__ float score(float product, int t, int u) const {
    const float scale = 1 / sqrtf(static_cast<float>(args.shape.size));
    if (!args.bias && !args.mask) return scale * product;
    const int64_t square = int64_t{args.shape.tokens} * args.shape.tokens;
    const int64_t place = int64_t{t} * args.shape.tokens + u;
    float offset = args.bias ? args.bias[head * square + place] : 0;
    if (args.mask) offset += args.mask[image % args.masks * square + place];
    return scale * product + offset;
  }
  __device__ float factor(int t, int u) const {
    if (!args.drop.rng) return 1;
    const uint16_t draw =
        draw16(*args.drop.rng, args.drop.site, draws_per_row(args.shape.tokens), row(t), u);
    return draw < args.drop.threshold ? args.drop.scale : 0;
  }
};

// Calls body(place, t) for the token that this warp has.
template <class T, class Body>
__device__ void for_own_token(const AttentionArgs& args, int64_t images, const Body& body) {
  const int64_t all = images * args.shape.heads * args.shape.tokens;
  const int64_t at = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (at >= all) return;
  const int64_t head = at / args.shape.tokens;
  body(Place<T>{args, head / args.shape.heads, head % args.shape.heads},
       static_cast<int>(at % args.shape.tokens));
}

template <class T>
__global__ void forward(AttentionArgs args, int64_t images) {
  for_own_token<T>(args, images, [&](const Place<T>& at, int t) {
    const Row q = at.part(t, 0);
    float top = -INFINITY, sum = 0;
    for (int u = 0; u < args.shape.tokens; ++u) {
      const float s = at.score(q.dot(at.part(u, 1)), t, u), higher = fmaxf(top, s);
      sum = sum * expf(top - higher) + expf(s - higher);
      top = higher;
    }
    const float lse = top + logf(sum);
    Row y;
    y.clear();
    for (int u = 0; u < args.shape.tokens && args.out; ++u)
      y.add(at.part(u, 2), expf(at.score(q.dot(at.part(u, 1)), t, u) - lse) * at.factor(t, u));
    if (args.out) y.store(static_cast<T*>(args.out) + at.y(t), args.shape.size, 1);
    if (args.lse && threadIdx.x % kWarp == 0) args.lse[at.row(t)] = lse;
  });
}

template <class T>
__global__ void backward_queries(AttentionArgs args, int64_t images) {
  for_own_token<T>(args, images, [&](const Place<T>& at, int t) {
    const float scale = 1 / sqrtf(static_cast<float>(args.shape.size)), lse = args.lse[at.row(t)];
    const Row q = at.part(t, 0), dy = at.of(args.dy, t);
    const float delta = dy.dot(at.of(args.y, t));
    Row dq;
    dq.clear();
    for (int u = 0; u < args.shape.tokens; ++u) {
      const Row k = at.part(u, 1);
      const float p = expf(at.score(q.dot(k), t, u) - lse),
                  g = at.factor(t, u) * dy.dot(at.part(u, 2));
      dq.add(k, p * (g - delta));
    }
    dq.store(static_cast<T*>(args.out) + at.qkv(t, 0), args.shape.size, scale);
  });
}

template <class T>
__global__ void backward_keys(AttentionArgs args, int64_t images) {
  for_own_token<T>(args, images, [&](const Place<T>& at, int u) {
    const float scale = 1 / sqrtf(static_cast<float>(args.shape.size));
    const Row k = at.part(u, 1), v = at.part(u, 2);
    Row dk, dv;
    dk.clear(), dv.clear();
    for (int t = 0; t < args.shape.tokens; ++t) {
      const Row q = at.part(t, 0), dy = at.of(args.dy, t);
      const float p = expf(at.score(k.dot(q), t, u) - args.lse[at.row(t)]),
                  factor = at.factor(t, u);
      const float delta = dy.dot(at.of(args.y, t));
      dv.add(dy, p * factor);
      dk.add(q, p * (factor * v.dot(dy) - delta));
    }
    dk.store(static_cast<T*>(args.out) + at.qkv(u, 1), args.shape.size, scale);
    dv.store(static_cast<T*>(args.out) + at.qkv(u, 2), args.shape.size, 1);
  });
}

// ---- the gradient of a bias ----

constexpr int64_t kParts = 64;  // into which the images are cut; their sums are added in order

// A block has query t of a head for one part of the images; its warps share the keys.
template <class T>
__global__ void bias_sums(AttentionArgs args, int64_t images, int64_t part, float* partials) {
  extern __shared__ float sums[];
  const int tokens = args.shape.tokens, t = blockIdx.x % tokens, head = blockIdx.x / tokens;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int u = threadIdx.x; u < tokens; u += blockDim.x) sums[u] = 0;
  __syncthreads();
  const int64_t first = blockIdx.y * part, last = min(first + part, images);
  for (int64_t image = first; image < last; ++image) {
    const Place<T> at{args, image, head};
    const Row q = at.part(t, 0), dy = at.of(args.dy, t);
    const float delta = dy.dot(at.of(args.y, t)), lse = args.lse[at.row(t)];
    for (int u = warp; u < tokens; u += kWarps) {
      const float p = expf(at.score(q.dot(at.part(u, 1)), t, u) - lse);
      const float g = at.factor(t, u) * dy.dot(at.part(u, 2));
      if (lane == 0) sums[u] += p * (g - delta);
    }
  }
  __syncthreads();
  float* to = partials + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * tokens;
  for (int u = threadIdx.x; u < tokens; u += blockDim.x) to[u] = sums[u];
}

__global__ void add_parts(const float* partials, int parts, int64_t count, float* to) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  float sum = 0;
  for (int p = 0; p < parts; ++p) sum += partials[p * count + i];
  to[i] = sum;
}

struct Parts {
  int64_t size, count;
  explicit Parts(int64_t images)
      : size(divide_up(images, kParts)), count(divide_up(images, size)) {}
};

template <class T>
void launch_bias_gradient(const AttentionArgs& args, int64_t images, float* partials,
                          cudaStream_t stream) {
  constexpr int kThreads = 256;
  const Parts parts(images);
  const int64_t rows = int64_t{args.shape.heads} * args.shape.tokens,
                count = rows * args.shape.tokens;
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(parts.count));
  const size_t shared = static_cast<size_t>(args.shape.tokens) * sizeof(float);
  bias_sums<T><<<grid, kWarps * kWarp, shared, stream>>>(args, images, parts.size, partials);
  add_parts<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(
      partials, static_cast<int>(parts.count), count, args.dbias);
}

unsigned blocks_of(const AttentionArgs& args, int64_t images) {
  return blocks_for(images * args.shape.heads * args.shape.tokens, kWarps);
}

}  // namespace

void launch_plain_attention(const AttentionArgs& args, int64_t images, DType dtype,
                            cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    forward<decltype(type)><<<blocks_of(args, images), kWarps * kWarp, 0, stream>>>(args, images);
  });
}

int64_t bias_partials(const AttentionShape& shape, int64_t images) {
  return Parts(images).count * shape.heads * shape.tokens * shape.tokens;
}

void launch_plain_attention_bwd(const AttentionArgs& args, int64_t images, DType dtype,
                                float* partials, cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    if (args.dbias) launch_bias_gradient<T>(args, images, partials, stream);
    if (!args.out) return;
    backward_queries<T><<<blocks_of(args, images), kWarps * kWarp, 0, stream>>>(args, images);
    backward_keys<T><<<blocks_of(args, images), kWarps * kWarp, 0, stream>>>(args, images);
  });
}

}  // namespace vitrum::cuda
