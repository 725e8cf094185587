// Element-wise ops: eight elements a thread and several such vectors in flight where all operands
// have one type, aligned addresses and a count that allows it; else one element a thread.
#include "vitrum/cuda/primitives/activation.cuh"
#include "vitrum/cuda/primitives/branch_sum.h"
#include "vitrum/cuda/primitives/column_sums.cuh"
#include "vitrum/cuda/primitives/device.cuh"
#include "vitrum/cuda/primitives/index.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 256, kInFlight = 4;

// A function F of one or two arrays has
//   kInputs
//   void eight<T>(Eight& a, const Eight& b, int64_t first)    in place; all lanes call it
//   float one(float a, float b, int64_t i, const Mixed& y)    y for its type: where to round
template <class T, class F>
__global__ void __launch_bounds__(kThreads)
    map_eights(const T* a, const T* b, T* y, int64_t eights, F f) {
  const int64_t start =
      reversed_index(blockIdx.x, gridDim.x) * (kThreads * kInFlight) + threadIdx.x;
  Raw8<T> first[kInFlight] = {}, second[kInFlight] = {};
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    const int64_t i = start + u * kThreads;
    if (i >= eights) continue;
    first[u] = load_raw(a + i * 8);
    if constexpr (F::kInputs == 2) second[u] = load_raw(b + i * 8);
  }
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    const int64_t i = start + u * kThreads;
    Eight v = unpack(first[u]);
    f.template eight<T>(v, unpack(second[u]), i * 8);  // beyond the end too: lanes share draws
    if (i < eights) store8(y + i * 8, v);
  }
}

template <class F>
__global__ void __launch_bounds__(kThreads)
    map_ones(Mixed a, Mixed b, Mixed y, int64_t count, F f) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  y.store(i, f.one(a.load(i), F::kInputs == 2 ? b.load(i) : 0.0f, i, y));
}

bool aligned(const Mixed& array) { return reinterpret_cast<uintptr_t>(array.data) % 16 == 0; }

template <class F>
void launch_map(const Mixed& a, const Mixed& b, const Mixed& y, int64_t count, bool wide,
                const F& f, cudaStream_t stream) {
  if (!y.data || count == 0) return;
  const bool one_type = a.dtype == y.dtype && (F::kInputs == 1 || b.dtype == y.dtype);
  if (!wide || !one_type || count % 8 != 0 || !aligned(a) || !aligned(b) || !aligned(y)) {
    map_ones<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(a, b, y, count, f);
    return;
  }
  with_type(y.dtype, [&](auto type) {
    using T = decltype(type);
    map_eights<T><<<blocks_for(count / 8, kThreads * kInFlight), kThreads, 0, stream>>>(
        static_cast<const T*>(a.data), static_cast<const T*>(b.data), static_cast<T*>(y.data),
        count / 8, f);
  });
}

template <class F>
KernelPtr map(CudaBackend& cuda, const TensorView& a, const TensorView& b, const TensorView& y,
              const F& f, bool wide = true) {
  return make_kernel([f, wide, a = mixed(a), b = mixed(b), y = mixed(y), count = a.shape.numel(),
                      stream = cuda.stream()] { launch_map(a, b, y, count, wide, f, stream); });
}

// ---- the functions ----

template <Act kAct, bool kDrop>
struct Activate {
  static constexpr int kInputs = 1;
  DropSite drop;

  template <class T>
  __device__ __forceinline__ void eight(Eight& a, const Eight&, int64_t first) const {
#pragma unroll
    for (int k = 0; k < 8; ++k) a.v[k] = activate<kAct, T>(a.v[k]);
    if constexpr (kDrop) {
#pragma unroll
      for (int k = 0; k < 8; ++k) a.v[k] = rounded<T>(a.v[k]);
      drop8(a, keep8(drop, first), drop.scale);
    }
  }
  __device__ __forceinline__ float one(float a, float, int64_t i, const Mixed& y) const {
    const float v = y.dtype == DType::kBF16 ? activate<kAct, bf16>(a) : activate<kAct, float>(a);
    if constexpr (!kDrop) return v;
    const float factor = drop_factor(drop, i);
    return factor > 0 ? __fmul_rn(y.round(v), factor) : 0.0f;
  }
};

template <Act kAct>
struct ActivateBack {
  static constexpr int kInputs = 2;  // dy, x

  template <class T>
  __device__ __forceinline__ void eight(Eight& dy, const Eight& x, int64_t) const {
#pragma unroll
    for (int k = 0; k < 8; ++k)
      dy.v[k] = __fmul_rn(dy.v[k], activation_derivative<kAct, T>(x.v[k]));
  }
  __device__ __forceinline__ float one(float dy, float x, int64_t, const Mixed& dx) const {
    return __fmul_rn(dy, dx.dtype == DType::kBF16 ? activation_derivative<kAct, bf16>(x)
                                                  : activation_derivative<kAct, float>(x));
  }
};

struct Sum {
  static constexpr int kInputs = 2;

  template <class T>
  __device__ __forceinline__ void eight(Eight& a, const Eight& b, int64_t) const {
#pragma unroll
    for (int k = 0; k < 8; ++k) a.v[k] += b.v[k];
  }
  __device__ __forceinline__ float one(float a, float b, int64_t, const Mixed&) const {
    return a + b;
  }
};

struct ScaleChannels {
  static constexpr int kInputs = 1;
  const float* gamma;
  int64_t width;

  template <class T>
  __device__ __forceinline__ void eight(Eight& a, const Eight&, int64_t first) const {
    const Eight g = load8(gamma + first - divide_index(first, width) * width);
#pragma unroll
    for (int k = 0; k < 8; ++k) a.v[k] *= g.v[k];
  }
  __device__ __forceinline__ float one(float a, float, int64_t i, const Mixed&) const {
    return a * gamma[i % width];
  }
};

// Whole samples of `each` elements.
struct DropSamples {
  static constexpr int kInputs = 1;
  DropSite drop;
  int64_t each;

  __device__ __forceinline__ bool kept(int64_t i) const {
    return !drop.rng ||
           draw16(*drop.rng, drop.site, /*per_row=*/1, divide_index(i, each), 0) < drop.threshold;
  }
  template <class T>
  __device__ __forceinline__ void eight(Eight& a, const Eight&, int64_t first) const {
    drop8(a, kept(first) ? 0xff : 0, drop.scale);
  }
  __device__ __forceinline__ float one(float a, float, int64_t i, const Mixed&) const {
    return kept(i) ? a * drop.scale : 0.0f;
  }
};

// A residual branch and what it is added to: the three above, one after the other.
struct AddBranch {
  static constexpr int kInputs = 2;  // the branch, the other
  const float* gamma;                // may be null
  int64_t width;
  DropSamples drop;

  template <class T>
  __device__ __forceinline__ void eight(Eight& a, const Eight& b, int64_t first) const {
    if (gamma) {
      const Eight g = load8(gamma + first - divide_index(first, width) * width);
#pragma unroll
      for (int k = 0; k < 8; ++k) a.v[k] = rounded<T>(__fmul_rn(a.v[k], g.v[k]));
    }
    if (drop.drop.rng) {
      drop.eight<T>(a, b, first);
#pragma unroll
      for (int k = 0; k < 8; ++k) a.v[k] = rounded<T>(a.v[k]);
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) a.v[k] = __fadd_rn(a.v[k], b.v[k]);
  }
  __device__ __forceinline__ float one(float a, float b, int64_t i, const Mixed& y) const {
    if (gamma) a = y.round(__fmul_rn(a, gamma[i % width]));
    if (drop.drop.rng) a = y.round(drop.one(a, 0, i, y));
    return __fadd_rn(a, b);
  }
};

// ---- the gradient of ChannelScale: dx, and the column sums of dy x ----

template <class T>
struct ScaleBack {
  const T* dy;
  const T* x;
  const float* gamma;
  T* dx;

  struct Loaded {
    Raw8<T> dy, x;
  };
  __device__ __forceinline__ Loaded load(int64_t at) const {
    return {load_raw(dy + at), load_raw(x + at)};
  }
  __device__ __forceinline__ Eight use(const Loaded& held, int64_t at, int64_t column,
                                       bool inside) const {
    const Eight d = unpack(held.dy), v = unpack(held.x);
    if (dx && inside) {
      Eight out = load8(gamma + column);
#pragma unroll
      for (int k = 0; k < 8; ++k) out.v[k] *= d.v[k];
      store8(dx + at, out);
    }
    Eight product;
#pragma unroll
    for (int k = 0; k < 8; ++k) product.v[k] = d.v[k] * v.v[k];
    return product;
  }
  __device__ __forceinline__ float one(int64_t at, int64_t column) const {
    const float d = to_float(dy[at]);
    if (dx) dx[at] = from_float<T>(d * gamma[column]);
    return d * to_float(x[at]);
  }
};

}  // namespace

void launch_activation(const void* pre, void* y, int64_t count, DType dtype, Act act,
                       const DropSite& drop, cudaStream_t stream) {
  const Mixed from{const_cast<void*>(pre), dtype}, to{y, dtype};
  with_act(act, [&](auto kind) {
    constexpr Act kAct = decltype(kind)::value;
    if (drop.rng)
      launch_map(from, Mixed{}, to, count, true, Activate<kAct, true>{drop}, stream);
    else
      launch_map(from, Mixed{}, to, count, true, Activate<kAct, false>{}, stream);
  });
}

KernelPtr lower(CudaBackend& cuda, const Activation& op, const Operands& io) {
  const auto& [act] = op;
  return with_act(act, [&](auto kind) {
    return map(cuda, io.in[Activation::kX], {}, io.out[Activation::kY],
               Activate<decltype(kind)::value, false>{});
  });
}

KernelPtr lower(CudaBackend& cuda, const ActivationBwd& op, const Operands& io) {
  const auto& [act] = op;
  return with_act(act, [&](auto kind) {
    return map(cuda, io.in[ActivationBwd::kDy], io.in[ActivationBwd::kX],
               io.out[ActivationBwd::kDx], ActivateBack<decltype(kind)::value>{});
  });
}

KernelPtr lower(CudaBackend& cuda, const NoAttributes<Add>&, const Operands& io) {
  return map(cuda, io.in[Add::kA], io.in[Add::kB], io.out[Add::kY], Sum{});
}

KernelPtr lower(CudaBackend& cuda, const Dropout& op, const Operands& io) {
  const auto& [drop, site] = op;
  const DropSite chance = drop_site(io.in[Dropout::kRng], drop, site);
  if (!chance.rng)
    return map(cuda, io.in[Dropout::kX], {}, io.out[Dropout::kY], Activate<Act::kNone, false>{});
  return map(cuda, io.in[Dropout::kX], {}, io.out[Dropout::kY], Activate<Act::kNone, true>{chance});
}

KernelPtr lower(CudaBackend& cuda, const DropPath& op, const Operands& io) {
  const auto& [drop, site] = op;
  const int64_t samples = io.in[DropPath::kX].shape[0],
                each = samples ? io.in[DropPath::kX].shape.numel() / samples : 1;
  const DropSamples f{drop_site(io.in[DropPath::kRng], drop, site), each};
  return map(cuda, io.in[DropPath::kX], {}, io.out[DropPath::kY], f, /*wide=*/each % 8 == 0);
}

KernelPtr lower(CudaBackend& cuda, const NoAttributes<ChannelScale>&, const Operands& io) {
  const ScaleChannels f{io.in[ChannelScale::kGamma].f32(), io.in[ChannelScale::kX].shape[-1]};
  return map(cuda, io.in[ChannelScale::kX], {}, io.out[ChannelScale::kY], f,
             f.width % 8 == 0 && aligned16(io.in[ChannelScale::kGamma]));
}

KernelPtr lower_branch_sum(CudaBackend& cuda, const BranchSum& sum) {
  const int64_t width = sum.branch.shape[-1], samples = sum.branch.shape[0],
                each = samples ? sum.branch.shape.numel() / samples : 1;
  const AddBranch f{sum.gamma.f32(), width, {sum.drop, each}};
  const bool wide =
      (!sum.gamma || (width % 8 == 0 && aligned16(sum.gamma))) && (!sum.drop.rng || each % 8 == 0);
  return map(cuda, sum.branch, sum.skip, sum.y, f, wide);
}

// dy, x and dx have one type: all three are activations of the same program.
KernelPtr lower(CudaBackend& cuda, const NoAttributes<ChannelScaleBwd>&, const Operands& io) {
  const TensorView dy = io.in[ChannelScaleBwd::kDy], x = io.in[ChannelScaleBwd::kX],
                   gamma = io.in[ChannelScaleBwd::kGamma], dx = io.out[ChannelScaleBwd::kDx];
  float* dgamma = operand(io.out, ChannelScaleBwd::kDgamma).f32();
  const int64_t rows = dy.shape.rows(), width = dy.shape[-1];
  const bool wide =
      width % 8 == 0 && aligned16(dy) && aligned16(x) && aligned16(dx) && aligned16(gamma);
  const ColumnPlan plan = plan_columns(rows, width, wide);
  auto* partials =
      dgamma ? static_cast<float*>(cuda.scratch(column_scratch_bytes(rows, width))) : nullptr;
  return with_type(dy.dtype, [&](auto type) {
    using T = decltype(type);
    const ScaleBack<T> source{static_cast<const T*>(dy.data), static_cast<const T*>(x.data),
                              gamma.f32(), static_cast<T*>(dx.data)};
    return make_kernel([=, stream = cuda.stream()] {
      launch_columns(source, plan, partials, AddToColumns{dgamma}, stream);
    });
  });
}

}  // namespace vitrum::cuda
