// Attention of one query, the same for every image. A block has one head of one image: its warps
// take tokens in turn for what is a sum over a head's values, its threads the values for what is a
// sum over tokens. `Data` loads and stores elements of whatever type they have (Mixed).
#pragma once
#include <cstdint>

#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda::attend_pool {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;

template <class Data>
struct Args {
  Data kv, q;  // (B, T, 2C) and (C)
  Data out;    // forward y (B, C), backward dkv
  Data dy;     // (B, C), backward only
  float* dq;   // (B, C): each image's own part; may be null
  bool writes_dkv;
  int tokens, heads, size;
  float* room = nullptr;  // of shared_floats() a block, where shared memory has too little

  __device__ int64_t k(int64_t image, int head, int t) const {
    return (image * tokens + t) * 2 * heads * size + static_cast<int64_t>(head) * size;
  }
  __device__ int64_t v(int64_t image, int head, int t) const {
    return k(image, head, t) + static_cast<int64_t>(heads) * size;
  }
  __device__ int64_t y(int64_t image, int head) const { return (image * heads + head) * size; }
};

// Weights of tokens, the gradients of their scores, and a number a warp.
__host__ __device__ inline int64_t shared_floats(int tokens) {
  return 2 * static_cast<int64_t>(tokens) + kWarps;
}

__device__ inline float sum_over_warp(float x) {
  for (int i = kWarp / 2; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
  return x;
}

// `x` of all threads, combined in the order of the warps; every thread gets the result.
template <class Combine>
__device__ float over_block(float x, float* of_warp, const Combine& combine) {
  for (int i = kWarp / 2; i > 0; i /= 2) x = combine(x, __shfl_xor_sync(0xffffffffu, x, i));
  __syncthreads();  // whoever still reads the last result
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = of_warp[0];
  for (int i = 1; i < kWarps; ++i) x = combine(x, of_warp[i]);
  return x;
}

// to[t] = factor * (left . right of token t), for the head's values.
template <class Data, class Right>
__device__ void dots(const Args<Data>& args, const Data& left, int64_t left_at, const Right& right,
                     float factor, float* to) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int t = warp; t < args.tokens; t += kWarps) {
    const int64_t at = right(t);
    float sum = 0;
    for (int i = lane; i < args.size; i += kWarp)
      sum = fmaf(left.load(left_at + i), args.kv.load(at + i), sum);
    sum = sum_over_warp(sum);
    if (lane == 0) to[t] = factor * sum;
  }
}

// How much of each token the query takes, to p.
template <class Data>
__device__ void weights(const Args<Data>& args, int64_t image, int head, float* p, float* of_warp) {
  const float scale = 1 / sqrtf(static_cast<float>(args.size));
  dots(
      args, args.q, static_cast<int64_t>(head) * args.size,
      [&](int t) { return args.k(image, head, t); }, scale, p);
  __syncthreads();
  float top = -INFINITY, sum = 0;
  for (int t = static_cast<int>(threadIdx.x); t < args.tokens; t += kThreads)
    top = fmaxf(top, p[t]);
  top = over_block(top, of_warp, [](float a, float b) { return fmaxf(a, b); });
  for (int t = static_cast<int>(threadIdx.x); t < args.tokens; t += kThreads)
    sum += p[t] = expf(p[t] - top);
  sum = over_block(sum, of_warp, [](float a, float b) { return a + b; });
  for (int t = static_cast<int>(threadIdx.x); t < args.tokens; t += kThreads) p[t] /= sum;
  __syncthreads();
}

template <class Data>
__device__ void forward(const Args<Data>& args, float* shared) {
  if (args.room) shared = args.room + blockIdx.x * shared_floats(args.tokens);
  float *p = shared, *of_warp = shared + 2 * args.tokens;
  const int64_t image = blockIdx.x / args.heads;
  const int head = static_cast<int>(blockIdx.x % args.heads);
  weights(args, image, head, p, of_warp);
  for (int i = static_cast<int>(threadIdx.x); i < args.size; i += kThreads) {
    float sum = 0;
    for (int t = 0; t < args.tokens; ++t)
      sum = fmaf(p[t], args.kv.load(args.v(image, head, t) + i), sum);
    args.out.store(args.y(image, head) + i, sum);
  }
}

// With g_t = dy . v_t, the gradient of score t is p_t (g_t - sum_j p_j g_j).
template <class Data>
__device__ void backward(const Args<Data>& args, float* shared) {
  if (args.room) shared = args.room + blockIdx.x * shared_floats(args.tokens);
  float *p = shared, *ds = shared + args.tokens, *of_warp = shared + 2 * args.tokens;
  const int64_t image = blockIdx.x / args.heads;
  const int head = static_cast<int>(blockIdx.x % args.heads);
  const int64_t y = args.y(image, head), q = static_cast<int64_t>(head) * args.size;
  weights(args, image, head, p, of_warp);
  dots(
      args, args.dy, y, [&](int t) { return args.v(image, head, t); }, 1, ds);
  __syncthreads();
  float mean = 0;
  for (int t = static_cast<int>(threadIdx.x); t < args.tokens; t += kThreads) mean += p[t] * ds[t];
  mean = over_block(mean, of_warp, [](float a, float b) { return a + b; });
  const float scale = 1 / sqrtf(static_cast<float>(args.size));
  for (int t = static_cast<int>(threadIdx.x); t < args.tokens; t += kThreads)
    ds[t] = scale * p[t] * (ds[t] - mean);
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); args.writes_dkv && e < args.tokens * args.size;
       e += kThreads) {
    const int t = e / args.size, i = e % args.size;
    args.out.store(args.k(image, head, t) + i, ds[t] * args.q.load(q + i));
    args.out.store(args.v(image, head, t) + i, p[t] * args.dy.load(y + i));
  }
  for (int i = static_cast<int>(threadIdx.x); args.dq && i < args.size; i += kThreads) {
    float sum = 0;
    for (int t = 0; t < args.tokens; ++t)
      sum = fmaf(ds[t], args.kv.load(args.k(image, head, t) + i), sum);
    args.dq[y + i] = sum;
  }
}

}  // namespace vitrum::cuda::attend_pool
