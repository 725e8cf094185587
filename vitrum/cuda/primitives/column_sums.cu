#include "vitrum/cuda/primitives/activation.cuh"
#include "vitrum/cuda/primitives/column_sums.cuh"

namespace vitrum::cuda {
namespace {

// How a thread learns which of its eight elements are kept.
enum class Draw { kNone, kShared, kAlone };

template <class T, Act kAct, Draw kDraw>
struct PreActivationGradient {
  const T* dy;
  const T* saved;
  T* d;
  DropSite drop;

  struct Loaded {
    Raw8<T> dy, saved;
  };
  __device__ __forceinline__ Loaded load(int64_t at) const {
    Loaded held;
    held.dy = load_raw(dy + at);
    if constexpr (kAct != Act::kNone) held.saved = load_raw(saved + at);
    return held;
  }
  __device__ __forceinline__ Eight use(const Loaded& held, int64_t at, int64_t, bool inside) const {
    Eight g = unpack(held.dy);
    // The output of ReLU is positive exactly where it was active and kept: no draw is needed.
    if constexpr (kAct == Act::kRelu)
      drop8(g, 0xff, drop.scale);
    else if constexpr (kDraw == Draw::kShared)
      drop8(g, keep8(drop, at), drop.scale);
    else if constexpr (kDraw == Draw::kAlone)
      drop8(g, keep8_alone(drop, at), drop.scale);
    if constexpr (kAct != Act::kNone) {
      const Eight x = unpack(held.saved);
#pragma unroll
      for (int k = 0; k < 8; ++k)
        g.v[k] = __fmul_rn(rounded<T>(g.v[k]), activation_derivative<kAct, T>(x.v[k]));
    }
    const Raw8<T> raw = pack<T>(g);
    if (d && inside) store_raw(d + at, raw);
    return unpack(raw);
  }
  __device__ __forceinline__ float one(int64_t at, int64_t) const {
    const float factor = kAct == Act::kRelu ? drop.scale : drop_factor(drop, at);
    float g = factor > 0 ? rounded<T>(__fmul_rn(to_float(dy[at]), factor)) : 0.0f;
    if constexpr (kAct != Act::kNone)
      g = rounded<T>(__fmul_rn(g, activation_derivative<kAct, T>(to_float(saved[at]))));
    if (d) d[at] = from_float<T>(g);
    return g;
  }
};

template <class T, Act kAct, Draw kDraw>
void launch_as(const PreActivation& work, const ColumnPlan& plan, float* partials,
               cudaStream_t stream) {
  const PreActivationGradient<T, kAct, kDraw> source{static_cast<const T*>(work.dy),
                                                     static_cast<const T*>(work.saved),
                                                     static_cast<T*>(work.d), work.drop};
  launch_columns(source, plan, work.dbias ? partials : nullptr, AddToColumns{work.dbias}, stream);
}

template <class T, Act kAct>
void launch_with(const PreActivation& work, const ColumnPlan& plan, float* partials,
                 cudaStream_t stream) {
  if (kAct == Act::kRelu || !work.drop.rng || !plan.wide)  // narrow: every element draws by itself
    return launch_as<T, kAct, Draw::kNone>(work, plan, partials, stream);
  if constexpr (kAct != Act::kRelu) {
    if (draws_line_up(plan))
      launch_as<T, kAct, Draw::kShared>(work, plan, partials, stream);
    else
      launch_as<T, kAct, Draw::kAlone>(work, plan, partials, stream);
  }
}

bool wide_fits(const PreActivation& work) {
  const auto bits = reinterpret_cast<uintptr_t>(work.dy) | reinterpret_cast<uintptr_t>(work.saved) |
                    reinterpret_cast<uintptr_t>(work.d);
  return bits % 16 == 0 && work.columns % 8 == 0;
}

}  // namespace

void launch_pre_activation(const PreActivation& work, float* partials, cudaStream_t stream) {
  const ColumnPlan plan = plan_columns(work.rows, work.columns, wide_fits(work));
  with_type(work.dtype, [&](auto type) {
    using T = decltype(type);
    with_act(work.saved ? work.act : Act::kNone,
             [&](auto act) { launch_with<T, decltype(act)::value>(work, plan, partials, stream); });
  });
}

KernelPtr with_column_sums(CudaBackend& cuda, KernelPtr kernel, const TensorView& result,
                           const TensorView& sums) {
  if (!sums) return kernel;
  const PreActivation work{.dy = result.data,
                           .dbias = sums.f32(),
                           .rows = result.shape.rows(),
                           .columns = result.shape[-1],
                           .dtype = result.dtype,
                           .drop = {}};
  auto* partials = static_cast<float*>(cuda.scratch(column_scratch_bytes(work.rows, work.columns)));
  return make_kernel(
      [=, first = std::shared_ptr<Kernel>(std::move(kernel)), stream = cuda.stream()] {
        first->launch();
        launch_pre_activation(work, partials, stream);
      });
}

}  // namespace vitrum::cuda
