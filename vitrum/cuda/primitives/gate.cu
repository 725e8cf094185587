#include "vitrum/cuda/primitives/gate.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 256;

template <Act kAct, class T>
__global__ void __launch_bounds__(kThreads)
    gate_eights(const T* x, T* y, int64_t width, int64_t eights) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < eights) gate_eight<kAct>(x, y, width, i * 8);
}

template <Act kAct, class T>
__global__ void __launch_bounds__(kThreads)
    gate_bwd_eights(const T* dy, const T* x, T* dx, int64_t width, int64_t eights) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < eights) gate_bwd_eight<kAct>(dy, x, dx, width, i * 8);
}

template <Act kAct>
__global__ void __launch_bounds__(kThreads)
    gate_ones(Mixed x, Mixed y, int64_t width, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t at = i / width * width + i;
  y.store(i, gated<kAct, float>(x.load(at), x.load(at + width)));
}

template <Act kAct>
__global__ void __launch_bounds__(kThreads)
    gate_bwd_ones(Mixed dy, Mixed x, Mixed dx, int64_t width, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t at = i / width * width + i;
  const float d = dy.load(i), gate = x.load(at), value = x.load(at + width);
  dx.store(at, gate_slope<kAct, float>(d, gate, value));
  dx.store(at + width, gated<kAct, float>(gate, d));
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const Gate& op, const Operands& io) {
  const auto& [act] = op;
  const TensorView &x = io.in[Gate::kX], &y = io.out[Gate::kY];
  const int64_t width = y.shape[-1], count = y.shape.numel();
  const bool wide = x.dtype == y.dtype && width % 8 == 0 && aligned16(x) && aligned16(y);
  return make_kernel([=, act = act, from = mixed(x), to = mixed(y), stream = cuda.stream()] {
    if (count == 0) return;
    with_act(act, [&](auto kind) {
      constexpr Act kAct = decltype(kind)::value;
      if (!wide) {
        gate_ones<kAct>
            <<<blocks_for(count, kThreads), kThreads, 0, stream>>>(from, to, width, count);
        return;
      }
      with_type(to.dtype, [&](auto type) {
        using T = decltype(type);
        gate_eights<kAct, T><<<blocks_for(count / 8, kThreads), kThreads, 0, stream>>>(
            static_cast<const T*>(from.data), static_cast<T*>(to.data), width, count / 8);
      });
    });
  });
}

KernelPtr lower(CudaBackend& cuda, const GateBwd& op, const Operands& io) {
  const auto& [act] = op;
  const TensorView &dy = io.in[GateBwd::kDy], &x = io.in[GateBwd::kX], &dx = io.out[GateBwd::kDx];
  const int64_t width = dy.shape[-1], count = dy.shape.numel();
  const bool wide = x.dtype == dx.dtype && dy.dtype == dx.dtype && width % 8 == 0 &&
                    aligned16(dy) && aligned16(x) && aligned16(dx);
  return make_kernel(
      [=, act = act, d = mixed(dy), from = mixed(x), to = mixed(dx), stream = cuda.stream()] {
        if (count == 0 || !to.data) return;
        with_act(act, [&](auto kind) {
          constexpr Act kAct = decltype(kind)::value;
          if (!wide) {
            gate_bwd_ones<kAct>
                <<<blocks_for(count, kThreads), kThreads, 0, stream>>>(d, from, to, width, count);
            return;
          }
          with_type(to.dtype, [&](auto type) {
            using T = decltype(type);
            gate_bwd_eights<kAct, T><<<blocks_for(count / 8, kThreads), kThreads, 0, stream>>>(
                static_cast<const T*>(d.data), static_cast<const T*>(from.data),
                static_cast<T*>(to.data), width, count / 8);
          });
        });
      });
}

}  // namespace vitrum::cuda
