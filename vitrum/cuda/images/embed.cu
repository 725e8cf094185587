// From patches to tokens, and from tokens to one vector an image.
#include "vitrum/cuda/primitives/column_sums.cuh"
#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 256;

// ---- tokens ----

constexpr int kMaxPrefix = 16, kImagesAThread = 4;

template <class P>
struct Prefixes {
  P* token[kMaxPrefix];
  int count;
};
// The tokens of one more operand, which may be absent.
template <class P>
void append(Prefixes<P>& all, const TensorView& view, int64_t tokens, int64_t width) {
  if (all.count + tokens > kMaxPrefix) check(cudaErrorNotSupported, "more than 16 prefix tokens");
  P* const first = view.f32();
  for (int64_t t = 0; t < tokens; ++t) all.token[all.count++] = first ? first + t * width : nullptr;
}

// A thread owns eight columns of (T, C) and walks over images.
template <class T>
__global__ void __launch_bounds__(kThreads)
    tokens_eights(const T* x, const float* pos, Prefixes<const float> prefix, T* y, int64_t images,
                  int tokens, int width) {
  const int column = (static_cast<int>(blockIdx.x) * kThreads + threadIdx.x) * 8;
  if (column >= tokens * width) return;
  const int extra = prefix.count, token = column / width;
  const Eight at = pos ? load8(pos + column) : Eight{};
  const Eight own = token < extra ? load8(prefix.token[token] + column % width) : Eight{};
  const int64_t all = int64_t{tokens} * width, given = int64_t{tokens - extra} * width;
#pragma unroll
  for (int u = 0; u < kImagesAThread; ++u) {
    const int64_t b = static_cast<int64_t>(blockIdx.y) * kImagesAThread + u;
    if (b >= images) return;
    Eight v = token < extra ? own : load8(x + b * given + (column - extra * width));
#pragma unroll
    for (int k = 0; k < 8; ++k)
      if (pos) v.v[k] += at.v[k];
    store8(y + b * all + column, v);
  }
}

__global__ void __launch_bounds__(kThreads)
    tokens_ones(Mixed x, const float* pos, Prefixes<const float> prefix, Mixed y, int64_t count,
                int64_t tokens, int64_t width) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t c = i % width, t = i / width % tokens, b = i / width / tokens;
  const int64_t extra = prefix.count;
  const float v =
      t < extra ? prefix.token[t][c] : x.load((b * (tokens - extra) + t - extra) * width + c);
  y.store(i, pos ? v + pos[t * width + c] : v);
}

// The gradient as rows of (T, C), one an image: its column sums are dpos, and dx what lies behind
// the prefix.
template <class T>
struct TokenGradient {
  const T* dy;
  T* dx;
  int64_t columns, skipped;  // of a row; of these, the prefix

  struct Loaded {
    Raw8<T> dy;
  };
  __device__ __forceinline__ Loaded load(int64_t at) const { return {load_raw(dy + at)}; }
  __device__ __forceinline__ T* place(int64_t at) const {
    return dx + (at - (at / columns + 1) * skipped);
  }
  __device__ __forceinline__ Eight use(const Loaded& held, int64_t at, int64_t column,
                                       bool inside) const {
    if (dx && inside && column >= skipped) store_raw(place(at), held.dy);
    return unpack(held.dy);
  }
  __device__ __forceinline__ float one(int64_t at, int64_t column) const {
    const T value = dy[at];
    if (dx && column >= skipped) *place(at) = value;
    return to_float(value);
  }
};

struct AddToTokens {
  float* dpos;
  Prefixes<float> dprefix;
  int64_t width;
  __device__ void operator()(int64_t column, float sum) const {
    if (dpos) dpos[column] += sum;
    const int64_t token = column / width;
    if (token < dprefix.count && dprefix.token[token]) dprefix.token[token][column % width] += sum;
  }
  bool wanted() const {
    bool any = dpos != nullptr;
    for (int i = 0; i < dprefix.count; ++i) any = any || dprefix.token[i];
    return any;
  }
};

// ---- pooling ----

struct Span {
  int64_t tokens, width, first, count;
};
Span span_of(const Shape& s, int64_t first, int64_t count) {  // (B, T, C) or (B, H, W, C)
  return {s.rows() / s[0], s[-1], first, count};
}

template <class T>
__global__ void __launch_bounds__(kThreads) pool_eights(const T* x, T* y, Span s, int64_t eights) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= eights) return;
  const int64_t b = i * 8 / s.width, c = i * 8 % s.width;
  const T* from = x + (b * s.tokens + s.first) * s.width + c;
  Eight sum = {};
#pragma unroll 8
  for (int64_t t = 0; t < s.count; ++t) {
    const Eight v = load8(from + t * s.width);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum.v[k] += v.v[k];
  }
#pragma unroll
  for (int k = 0; k < 8; ++k) sum.v[k] = __fdiv_rn(sum.v[k], static_cast<float>(s.count));
  store8(y + i * 8, sum);
}

__global__ void __launch_bounds__(kThreads) pool_ones(Mixed x, Mixed y, Span s, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t from = (i / s.width * s.tokens + s.first) * s.width + i % s.width;
  float sum = 0;
  for (int64_t t = 0; t < s.count; ++t) sum += x.load(from + t * s.width);
  y.store(i, __fdiv_rn(sum, static_cast<float>(s.count)));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    pool_back_eights(const T* dy, T* dx, Span s, int64_t images) {
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 8;
  if (column >= s.tokens * s.width) return;
  const int64_t token = column / s.width, c = column % s.width;
  const bool used = token >= s.first && token < s.first + s.count;
#pragma unroll
  for (int u = 0; u < kImagesAThread; ++u) {
    const int64_t b = static_cast<int64_t>(blockIdx.y) * kImagesAThread + u;
    if (b >= images) return;
    Eight d = {};
    if (used) {
      d = load8(dy + b * s.width + c);
#pragma unroll
      for (int k = 0; k < 8; ++k) d.v[k] = __fdiv_rn(d.v[k], static_cast<float>(s.count));
    }
    store8(dx + b * s.tokens * s.width + column, d);
  }
}

__global__ void __launch_bounds__(kThreads)
    pool_back_ones(Mixed dy, Mixed dx, Span s, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t t = i / s.width % s.tokens, b = i / s.width / s.tokens;
  const bool used = t >= s.first && t < s.first + s.count;
  dx.store(
      i, used ? __fdiv_rn(dy.load(b * s.width + i % s.width), static_cast<float>(s.count)) : 0.0f);
}

// Threads over eights of a row of (T, C), blocks below each other over images.
dim3 image_grid(int64_t images, int64_t row) {
  return {blocks_for(row / 8, kThreads), blocks_for(images, kImagesAThread), 1};
}
bool images_fit(int64_t images, int64_t row) {  // an int, and the second dimension of a grid
  return row < INT32_MAX / 2 && divide_up(images, kImagesAThread) <= 65535;
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const NoAttributes<Tokens>&, const Operands& io) {
  const TensorView x = io.in[Tokens::kX], pos = io.in[Tokens::kPos], y = io.out[Tokens::kY];
  const int64_t images = y.shape[0], tokens = y.shape[1], width = y.shape[2];
  Prefixes<const float> prefix{};
  for (size_t i = Tokens::kPrefix; i < io.in.size(); ++i)
    append(prefix, io.in[i], io.in[i].shape[1], width);
  bool wide = width % 8 == 0 && x.dtype == y.dtype && images_fit(images, tokens * width);
  for (const TensorView& view : io.in) wide = wide && aligned16(view);
  if (!wide || !aligned16(y))
    return launch_kernel(cuda, tokens_ones, blocks_for(y.shape.numel(), kThreads), kThreads, 0,
                         mixed(x), pos.f32(), prefix, mixed(y), y.shape.numel(), tokens, width);
  return with_type(y.dtype, [&](auto type) {
    using T = decltype(type);
    return launch_kernel(cuda, tokens_eights<T>, image_grid(images, tokens * width), kThreads, 0,
                         static_cast<const T*>(x.data), pos.f32(), prefix, static_cast<T*>(y.data),
                         images, static_cast<int>(tokens), static_cast<int>(width));
  });
}

// dx has the type of dy: both are activations of the same program.
KernelPtr lower(CudaBackend& cuda, const TokensBwd& op, const Operands& io) {
  const auto& [prefixes] = op;
  const TensorView dy = io.in[TokensBwd::kDy], dx = io.out[TokensBwd::kDx];
  const int64_t images = dy.shape[0], width = dy.shape[2], columns = dy.shape[1] * width;
  Prefixes<float> dprefix{};
  for (size_t i = 0; i < prefixes.size(); ++i)
    append(dprefix, io.out[TokensBwd::kDprefix + i], prefixes[i], width);
  const AddToTokens sink{operand(io.out, TokensBwd::kDpos).f32(), dprefix, width};
  const bool wide = width % 8 == 0 && aligned16(dy) && aligned16(dx);
  const ColumnPlan plan = plan_columns(images, columns, wide);
  auto* partials = sink.wanted()
                       ? static_cast<float*>(cuda.scratch(column_scratch_bytes(images, columns)))
                       : nullptr;
  return with_type(dy.dtype, [&](auto type) {
    using T = decltype(type);
    const TokenGradient<T> source{static_cast<const T*>(dy.data), static_cast<T*>(dx.data), columns,
                                  sink.dprefix.count * width};
    return make_kernel(
        [=, stream = cuda.stream()] { launch_columns(source, plan, partials, sink, stream); });
  });
}

KernelPtr lower(CudaBackend& cuda, const Pool& op, const Operands& io) {
  const auto& [first, count] = op;
  const TensorView x = io.in[Pool::kX], y = io.out[Pool::kY];
  const Span span = span_of(x.shape, first, count);
  const int64_t values = y.shape.numel();
  if (span.width % 8 != 0 || x.dtype != y.dtype || !aligned16(x) || !aligned16(y))
    return launch_kernel(cuda, pool_ones, blocks_for(values, kThreads), kThreads, 0, mixed(x),
                         mixed(y), span, values);
  return with_type(y.dtype, [&](auto type) {
    using T = decltype(type);
    return launch_kernel(cuda, pool_eights<T>, blocks_for(values / 8, kThreads), kThreads, 0,
                         static_cast<const T*>(x.data), static_cast<T*>(y.data), span, values / 8);
  });
}

KernelPtr lower(CudaBackend& cuda, const PoolBwd& op, const Operands& io) {
  const auto& [first, count] = op;
  const TensorView dy = io.in[PoolBwd::kDy], dx = io.out[PoolBwd::kDx];
  if (!dx) return make_kernel([] {});
  const Span span = span_of(dx.shape, first, count);
  const int64_t images = dx.shape[0], row = span.tokens * span.width, values = dx.shape.numel();
  if (span.width % 8 != 0 || dx.dtype != dy.dtype || !aligned16(dx) || !aligned16(dy) ||
      !images_fit(images, row))
    return launch_kernel(cuda, pool_back_ones, blocks_for(values, kThreads), kThreads, 0, mixed(dy),
                         mixed(dx), span, values);
  return with_type(dx.dtype, [&](auto type) {
    using T = decltype(type);
    return launch_kernel(cuda, pool_back_eights<T>, image_grid(images, row), kThreads, 0,
                         static_cast<const T*>(dy.data), static_cast<T*>(dx.data), span, images);
  });
}

}  // namespace vitrum::cuda
