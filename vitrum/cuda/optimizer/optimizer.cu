// The update: the norm of all gradients, then one pass over every arena; LAMB makes two.
#include <cassert>
#include <vector>

#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 256;

// ---- the global norm ----

__device__ __forceinline__ float square(float4 v) {
  return fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, v.w * v.w)));
}

// One sum a block, of every gridDim-th stretch. `fours`: how many vectors of four to read; the
// elements behind them are read one by one.
__global__ void __launch_bounds__(kThreads)
    sum_squares(const float* x, int64_t fours, int64_t count, double* partials) {
  constexpr int kInFlight = 8;
  const int64_t start = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const auto* vectors = reinterpret_cast<const float4*>(x);
  double sum = 0;
  int64_t i = start;
  for (; i + (kInFlight - 1) * stride < fours; i += kInFlight * stride) {
    float4 v[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) v[u] = vectors[i + u * stride];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) sum += static_cast<double>(square(v[u]));
  }
  for (; i < fours; i += stride) sum += static_cast<double>(square(vectors[i]));
  for (i = fours * 4 + start; i < count; i += stride) {
    const auto v = static_cast<double>(x[i]);
    sum += v * v;
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    clip_scale(const double* partials, int parts, double max_norm, float* y) {
  double sum = 0;
  for (int i = threadIdx.x; i < parts; i += kThreads) sum += partials[i];
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x != 0) return;
  const double norm = sqrt(sum), factor = max_norm / (norm + 1e-6);
  y[0] = static_cast<float>(norm);
  y[1] = max_norm > 0 && factor < 1 ? static_cast<float>(factor) : 1.0f;
}

// ---- the step ----

constexpr int64_t kChunk = 8192;  // elements a block updates

struct Chunk {
  int64_t first = 0;
  int32_t count = 0, segment = 0;
  float lr_scale = 1, decay = 0;
};

std::vector<Chunk> cut(const std::vector<Segment>& segments, int64_t size = kChunk) {
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < segments.size(); ++i) {
    const Segment& s = segments[i];
    for (int64_t at = 0; at < s.size; at += size)
      chunks.push_back({s.offset + at, static_cast<int32_t>(std::min(size, s.size - at)),
                        static_cast<int32_t>(i), s.lr_scale, s.decay});
  }
  return chunks;
}

// One sum a block, in an order that depends on the chunk alone.
__global__ void __launch_bounds__(kThreads)
    block_squares(const float* x, const Chunk* chunks, double* sums) {
  const Chunk chunk = chunks[blockIdx.x];
  double sum = 0;
  for (int i = threadIdx.x; i < chunk.count; i += kThreads) {
    const auto v = static_cast<double>(x[chunk.first + i]);
    sum += v * v;
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// ---- gradients on their way up a tree ----

struct Lefts {
  static constexpr int kMost = 32;
  const float* at[kMost];
  int count;
};

__global__ void __launch_bounds__(kThreads)
    fold(Lefts lefts, float* gradient, float* sum, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  float x = gradient[i];
  for (int k = 0; k < lefts.count; ++k) x = lefts.at[k][i] + x;
  gradient[i] = sum ? 0.0f : x;
  if (sum) sum[i] = x;
}

struct Arenas {
  float *gradient, *param, *first, *second, *ema;  // from `first` on any may be absent
  bf16* copy;
  const float *hyper, *clip;
  const float* ratios;  // of LAMB, one a segment; absent in its first pass
  float beta1, rest1, beta2, rest2, eps;
  bool nesterov;
  bool aligned;  // all of them to 16 bytes
};

struct Rates {
  float clip, root2, step, decay, shrink, ema, ema_rest;  // root2: 1 / sqrt(correction2)
  float whole1;                                           // of LAMB: 1 / correction1
};

// From the scalars in device memory, in f64 as on the CPU.
template <OptimizerKind kKind>
__device__ Rates rates(const Arenas& g, const Chunk& chunk) {
  const double lr = static_cast<double>(g.hyper[0]) * static_cast<double>(chunk.lr_scale);
  constexpr bool kAdam = kKind == OptimizerKind::kAdam || kKind == OptimizerKind::kAdamW;
  constexpr bool kLamb = kKind == OptimizerKind::kLamb;
  Rates r;
  r.clip = g.clip ? g.clip[1] : 1.0f;
  r.root2 = kAdam || kLamb ? static_cast<float>(1.0 / sqrt(static_cast<double>(g.hyper[2]))) : 0.0f;
  r.whole1 = kLamb ? static_cast<float>(1.0 / static_cast<double>(g.hyper[1])) : 0.0f;
  r.step = static_cast<float>(
      kAdam   ? lr / static_cast<double>(g.hyper[1])
      : kLamb ? lr * static_cast<double>(g.ratios ? g.ratios[chunk.segment] : 1.0f)
              : lr);
  r.decay = chunk.decay;
  r.shrink = static_cast<float>(1.0 - lr * static_cast<double>(chunk.decay));
  r.ema = g.hyper[3];
  r.ema_rest = static_cast<float>(1.0 - static_cast<double>(g.hyper[3]));
  return r;
}

// One element of every arena; formulas and their order are PyTorch's, and timm's for Lion and LAMB.
struct Element {
  float d, p, m, v, ema;
};
__device__ __forceinline__ void take_in(const Arenas& g, float d, Element& e) {
  e.m = fmaf(g.beta1, e.m, g.rest1 * d);
  e.v = fmaf(g.beta2, e.v, g.rest2 * d * d);
}
__device__ __forceinline__ float lamb_update(const Arenas& g, const Rates& k, const Element& e) {
  return fmaf(k.decay, e.p, __fdiv_rn(e.m * k.whole1, fmaf(__fsqrt_rn(e.v), k.root2, g.eps)));
}
template <OptimizerKind kKind>
__device__ __forceinline__ void update(const Arenas& g, const Rates& k, Element& e) {
  using enum OptimizerKind;
  float d = e.d * k.clip;
  if constexpr (kKind == kSgd || kKind == kAdam) d = fmaf(k.decay, e.p, d);
  if constexpr (kKind == kAdamW || kKind == kLion || kKind == kMuon) e.p = e.p * k.shrink;
  if constexpr (kKind == kSgd) {
    if (g.first) {
      e.m = fmaf(g.beta1, e.m, d);
      d = g.nesterov ? fmaf(g.beta1, e.m, d) : e.m;
    }
  } else if constexpr (kKind == kLion) {
    const float c = fmaf(g.beta1, e.m, g.rest1 * d);
    e.m = fmaf(g.beta2, e.m, g.rest2 * d);
    d = c > 0 ? 1.0f : c < 0 ? -1.0f : 0.0f;
  } else if constexpr (kKind == kLamb) {
    d = lamb_update(g, k, e);
  } else if constexpr (kKind != kMuon) {
    take_in(g, d, e);
    d = __fdiv_rn(e.m, fmaf(__fsqrt_rn(e.v), k.root2, g.eps));
  }
  e.p = fmaf(-k.step, d, e.p);
  e.ema = fmaf(k.ema, e.ema, k.ema_rest * e.p);
}

template <OptimizerKind kKind>
__device__ __forceinline__ void step_one(const Arenas& g, const Rates& k, int64_t i) {
  Element e{g.gradient[i], g.param[i], g.first ? g.first[i] : 0.0f, g.second ? g.second[i] : 0.0f,
            g.ema ? g.ema[i] : 0.0f};
  update<kKind>(g, k, e);
  g.gradient[i] = 0, g.param[i] = e.p;
  if (g.first) g.first[i] = e.m;
  if (g.second) g.second[i] = e.v;
  if (g.ema) g.ema[i] = e.ema;
  if (g.copy) g.copy[i] = from_float<bf16>(e.p);
}

struct Fours {
  float4 d, p, m, v, ema;
};
__device__ __forceinline__ float4 load4(const float* p, int64_t i) {
  return p ? *reinterpret_cast<const float4*>(p + i) : make_float4(0, 0, 0, 0);
}
__device__ __forceinline__ void store4(float* p, int64_t i, float4 v) {
  if (p) *reinterpret_cast<float4*>(p + i) = v;
}
__device__ __forceinline__ Fours load_fours(const Arenas& g, int64_t i) {
  return {load4(g.gradient, i), load4(g.param, i), load4(g.first, i), load4(g.second, i),
          load4(g.ema, i)};
}
template <OptimizerKind kKind>
__device__ __forceinline__ void step_fours(const Arenas& g, const Rates& k, Fours x, int64_t i) {
  const auto one = [&](float& d, float& p, float& m, float& v, float& ema) {
    Element e{d, p, m, v, ema};
    update<kKind>(g, k, e);
    p = e.p, m = e.m, v = e.v, ema = e.ema;
  };
  one(x.d.x, x.p.x, x.m.x, x.v.x, x.ema.x);
  one(x.d.y, x.p.y, x.m.y, x.v.y, x.ema.y);
  one(x.d.z, x.p.z, x.m.z, x.v.z, x.ema.z);
  one(x.d.w, x.p.w, x.m.w, x.v.w, x.ema.w);
  store4(g.gradient, i, make_float4(0, 0, 0, 0));
  store4(g.param, i, x.p), store4(g.first, i, x.m), store4(g.second, i, x.v);
  store4(g.ema, i, x.ema);
  if (g.copy)
    *reinterpret_cast<uint2*>(g.copy + i) = make_uint2(pack2(x.p.x, x.p.y), pack2(x.p.z, x.p.w));
}

template <OptimizerKind kKind>
__global__ void __launch_bounds__(kThreads) optimizer_step(Arenas g, const Chunk* chunks) {
  const Chunk chunk = chunks[blockIdx.x];
  const Rates k = rates<kKind>(g, chunk);
  const int fours = g.aligned && chunk.first % 4 == 0 ? chunk.count / 4 : 0;
  constexpr int kInFlight = 2;
  int i = threadIdx.x;
  for (; i + (kInFlight - 1) * kThreads < fours; i += kInFlight * kThreads) {
    Fours x[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) x[u] = load_fours(g, chunk.first + (i + u * kThreads) * 4);
#pragma unroll
    for (int u = 0; u < kInFlight; ++u)
      step_fours<kKind>(g, k, x[u], chunk.first + (i + u * kThreads) * 4);
  }
  for (; i < fours; i += kThreads) {
    const int64_t at = chunk.first + i * 4;
    step_fours<kKind>(g, k, load_fours(g, at), at);
  }
  for (i = fours * 4 + threadIdx.x; i < chunk.count; i += kThreads)
    step_one<kKind>(g, k, chunk.first + i);
}

// ---- LAMB's first pass ----

struct Squares {
  double weights, updates;
};

// The moments take in the gradient; one pair of sums a chunk.
__global__ void __launch_bounds__(kThreads)
    lamb_moments(Arenas g, const Chunk* chunks, Squares* squares) {
  const Chunk chunk = chunks[blockIdx.x];
  const Rates k = rates<OptimizerKind::kLamb>(g, chunk);
  double weights = 0, updates = 0;
  for (int64_t i = chunk.first + threadIdx.x; i < chunk.first + chunk.count; i += kThreads) {
    Element e{g.gradient[i], g.param[i], g.first[i], g.second[i], 0};
    take_in(g, e.d * k.clip, e);
    g.first[i] = e.m, g.second[i] = e.v;
    const auto p = static_cast<double>(e.p), u = static_cast<double>(lamb_update(g, k, e));
    weights += p * p, updates += u * u;
  }
  weights = block_sum<kThreads>(weights);
  __syncthreads();
  updates = block_sum<kThreads>(updates);
  if (threadIdx.x == 0) squares[blockIdx.x] = {weights, updates};
}

// |weights| / |update| of one segment a block; 1 where the tensor does not decay, as in timm.
struct ChunksOf {
  int32_t first, count;
  float decay;
};
__global__ void __launch_bounds__(kThreads)
    trust_ratios(const Squares* squares, const ChunksOf* segments, float* ratios) {
  const ChunksOf own = segments[blockIdx.x];
  double weights = 0, updates = 0;
  for (int i = threadIdx.x; i < own.count; i += kThreads)
    weights += squares[own.first + i].weights, updates += squares[own.first + i].updates;
  weights = block_sum<kThreads>(weights);
  __syncthreads();
  updates = block_sum<kThreads>(updates);
  if (threadIdx.x != 0) return;
  const bool adapts = own.decay != 0 && weights > 0 && updates > 0;
  ratios[blockIdx.x] = adapts ? static_cast<float>(sqrt(weights / updates)) : 1.0f;
}

// ---- SAM ----

__global__ void __launch_bounds__(kThreads)
    perturb(float* gradient, float* param, bf16* copy, const float* norms, double rho,
            const Chunk* chunks) {
  const Chunk chunk = chunks[blockIdx.x];
  const auto scale = static_cast<float>(rho / (static_cast<double>(norms[0]) + 1e-12));
  for (int64_t i = chunk.first + threadIdx.x; i < chunk.first + chunk.count; i += kThreads) {
    const float p = fmaf(scale, gradient[i], param[i]);
    param[i] = p, gradient[i] = 0;
    if (copy) copy[i] = from_float<bf16>(p);
  }
}

Arenas arenas(const OptimizerStep& op, const Operands& io) {
  const auto& [kind, beta1, beta2, eps, nesterov, segments] = op;
  const auto rest = [](double beta) { return static_cast<float>(1.0 - beta); };
  Arenas g{};
  g.gradient = io.out[OptimizerStep::kGradients].f32(),
  g.param = io.out[OptimizerStep::kParameters].f32();
  g.first = operand(io.out, OptimizerStep::kMoment1).f32(),
  g.second = operand(io.out, OptimizerStep::kMoment2).f32();
  g.ema = operand(io.out, OptimizerStep::kEma).f32();
  g.copy = reinterpret_cast<bf16*>(operand(io.out, OptimizerStep::kCopy).bf16());
  g.hyper = io.in[OptimizerStep::kHyper].f32(), g.clip = operand(io.in, OptimizerStep::kClip).f32();
  g.beta1 = static_cast<float>(beta1), g.rest1 = rest(beta1);
  g.beta2 = static_cast<float>(beta2), g.rest2 = rest(beta2);
  g.eps = eps, g.nesterov = nesterov;
  g.aligned = true;
  for (const TensorView& arena : io.out) g.aligned = g.aligned && aligned16(arena);
  return g;
}

__global__ void narrow(const float* x, bf16* y, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) y[i] = __float2bfloat16_rn(x[i]);
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const ClipScale& op, const Operands& io) {
  const auto& [max_norm, of_sums] = op;
  const TensorView x = io.in[ClipScale::kGradients];
  if (of_sums)
    return make_kernel([sums = x.f64(), count = static_cast<int>(x.shape.numel()),
                        max_norm = static_cast<double>(max_norm),
                        y = io.out[ClipScale::kNorms].f32(), stream = cuda.stream()] {
      clip_scale<<<1, kThreads, 0, stream>>>(sums, count, max_norm, y);
    });
  const int64_t count = x.shape.numel(), fours = aligned16(x) ? count / 4 : 0;
  const auto blocks = static_cast<int>(
      std::clamp<int64_t>(divide_up(count, kThreads * 4), 1, int64_t{cuda.processors()} * 8));
  auto* partials = cuda.scratch_of<double>(blocks);
  return make_kernel([=, x = x.f32(), y = io.out[ClipScale::kNorms].f32(),
                      max_norm = static_cast<double>(max_norm), stream = cuda.stream()] {
    sum_squares<<<blocks, kThreads, 0, stream>>>(x, fours, count, partials);
    clip_scale<<<1, kThreads, 0, stream>>>(partials, blocks, max_norm, y);
  });
}

KernelPtr lower(CudaBackend& cuda, const BlockSquares& op, const Operands& io) {
  const auto& [segments] = op;
  const std::vector<Chunk> chunks = cut(segments, BlockSquares::kBlock);
  if (chunks.empty()) return make_kernel([] {});
  return make_kernel([table = to_card(cuda, chunks), x = io.in[BlockSquares::kGradients].f32(),
                      sums = io.out[BlockSquares::kSums].f64(),
                      blocks = static_cast<unsigned>(chunks.size()), stream = cuda.stream()] {
    block_squares<<<blocks, kThreads, 0, stream>>>(x, reinterpret_cast<const Chunk*>(table.data()),
                                                   sums);
  });
}

KernelPtr lower(CudaBackend& cuda, const ClearRange& op, const Operands& io) {
  const auto& [first, count] = op;
  return make_kernel([x = io.out[ClearRange::kX].f32() + first,
                      bytes = static_cast<size_t>(count) * sizeof(float),
                      stream = cuda.stream()] { cudaMemsetAsync(x, 0, bytes, stream); });
}

KernelPtr lower(CudaBackend& cuda, const NoAttributes<Fold>&, const Operands& io) {
  Lefts lefts{};
  assert(io.in.size() <= Lefts::kMost);  // a tree of 2^32 leaves
  for (const TensorView& left : io.in) lefts.at[lefts.count++] = left.f32();
  const int64_t count = io.out[Fold::kGradients].shape.numel();
  return make_kernel([lefts, gradient = io.out[Fold::kGradients].f32(),
                      sum = operand(io.out, Fold::kSum).f32(), count, stream = cuda.stream()] {
    fold<<<static_cast<unsigned>(divide_up(count, int64_t{kThreads})), kThreads, 0, stream>>>(
        lefts, gradient, sum, count);
  });
}

static KernelPtr lower_lamb(CudaBackend& cuda, const OptimizerStep& op, const Operands& io) {
  const auto& [kind, beta1, beta2, eps, nesterov, segments] = op;
  const std::vector<Chunk> chunks = cut(segments);
  std::vector<ChunksOf> chunks_of;
  for (const Segment& s : segments) chunks_of.push_back({0, 0, s.decay});
  for (size_t i = chunks.size(); i-- > 0;) {
    ChunksOf& own = chunks_of[static_cast<size_t>(chunks[i].segment)];
    own.first = static_cast<int32_t>(i), ++own.count;
  }
  return make_kernel([first = arenas(op, io), table = to_card(cuda, chunks),
                      of = to_card(cuda, chunks_of),
                      ratios = cuda.allocate(segments.size() * sizeof(float)),
                      squares = cuda.scratch_of<Squares>(static_cast<int64_t>(chunks.size())),
                      count = static_cast<unsigned>(segments.size()),
                      blocks = static_cast<unsigned>(chunks.size()), stream = cuda.stream()] {
    const auto* list = reinterpret_cast<const Chunk*>(table.data());
    auto* trust = reinterpret_cast<float*>(ratios.data());
    Arenas second = first;
    second.ratios = trust;
    lamb_moments<<<blocks, kThreads, 0, stream>>>(first, list, squares);
    trust_ratios<<<count, kThreads, 0, stream>>>(
        squares, reinterpret_cast<const ChunksOf*>(of.data()), trust);
    optimizer_step<OptimizerKind::kLamb><<<blocks, kThreads, 0, stream>>>(second, list);
  });
}

KernelPtr lower(CudaBackend& cuda, const OptimizerStep& op, const Operands& io) {
  const auto& [kind, beta1, beta2, eps, nesterov, segments] = op;
  const std::vector<Chunk> chunks = cut(segments);
  if (chunks.empty()) return make_kernel([] {});
  if (kind == OptimizerKind::kLamb) return lower_lamb(cuda, op, io);
  return make_kernel([table = to_card(cuda, chunks), g = arenas(op, io), kind = kind,
                      blocks = static_cast<unsigned>(chunks.size()), stream = cuda.stream()] {
    const auto* list = reinterpret_cast<const Chunk*>(table.data());
    const auto launch = [&](auto* kernel) { kernel<<<blocks, kThreads, 0, stream>>>(g, list); };
    switch (kind) {
      case OptimizerKind::kSgd: return launch(optimizer_step<OptimizerKind::kSgd>);
      case OptimizerKind::kAdam: return launch(optimizer_step<OptimizerKind::kAdam>);
      case OptimizerKind::kAdamW: return launch(optimizer_step<OptimizerKind::kAdamW>);
      case OptimizerKind::kLion: return launch(optimizer_step<OptimizerKind::kLion>);
      case OptimizerKind::kMuon: return launch(optimizer_step<OptimizerKind::kMuon>);
      case OptimizerKind::kLamb: break;
    }
  });
}

KernelPtr lower(CudaBackend& cuda, const Perturb& op, const Operands& io) {
  const auto& [rho, segments] = op;
  const std::vector<Chunk> chunks = cut(segments);
  if (chunks.empty()) return make_kernel([] {});
  return make_kernel([table = to_card(cuda, chunks), gradient = io.out[Perturb::kGradients].f32(),
                      param = io.out[Perturb::kParameters].f32(),
                      norms = io.in[Perturb::kNorms].f32(),
                      copy = reinterpret_cast<bf16*>(operand(io.out, Perturb::kCopy).bf16()),
                      rho = static_cast<double>(rho), blocks = static_cast<unsigned>(chunks.size()),
                      stream = cuda.stream()] {
    perturb<<<blocks, kThreads, 0, stream>>>(gradient, param, copy, norms, rho,
                                             reinterpret_cast<const Chunk*>(table.data()));
  });
}

KernelPtr lower(CudaBackend& cuda, const NoAttributes<Copy>&, const Operands& io) {
  if (io.in[Copy::kX].dtype != io.out[Copy::kY].dtype)
    return make_kernel([x = io.in[Copy::kX].f32(),
                        y = reinterpret_cast<bf16*>(io.out[Copy::kY].bf16()),
                        n = io.in[Copy::kX].shape.numel(), stream = cuda.stream()] {
      narrow<<<static_cast<unsigned>((n + kThreads - 1) / kThreads), kThreads, 0, stream>>>(x, y,
                                                                                            n);
    });
  return make_kernel([x = io.in[Copy::kX], y = io.out[Copy::kY], stream = cuda.stream()] {
    check(cudaMemcpyAsync(y.data, x.data, x.bytes(), cudaMemcpyDeviceToDevice, stream), "a copy");
  });
}

}  // namespace vitrum::cuda
