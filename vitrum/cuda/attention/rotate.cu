#include "vitrum/cuda/attention/rotate.h"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    rotate_eights(const T* x, T* y, Rotation rotation, int64_t eights) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < eights) rotate_eight(x, y, rotation, i * 8);
}

__global__ void __launch_bounds__(kThreads)
    rotate_ones(Mixed x, Mixed y, Rotation r, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int column = static_cast<int>(i % (3 * r.width)), in_head = column % r.head;
  const float* angles = r.angles(i / (3 * r.width), column);
  if (!angles) return y.store(i, x.load(i));
  const bool first = r.halves ? in_head < r.pairs() : in_head % 2 == 0;
  const int apart = r.halves ? r.pairs() : 1, pair = r.halves ? in_head % r.pairs() : in_head / 2;
  y.store(i, turned(x.load(i), x.load(first ? i + apart : i - apart), angles[pair],
                    __fmul_rn(r.sign, angles[r.pairs() + pair]), first));
}

}  // namespace

Rotation rotation_of(const Rotate& op, const Operands& io) {
  const auto& [heads, prefix, halves, inverse] = op;
  const TensorView& x = io.in[Rotate::kQkv];
  const auto width = static_cast<int>(x.shape[2] / 3);
  return {.table = io.in[Rotate::kTable].f32(),
          .tokens = static_cast<int>(x.shape[1]),
          .prefix = static_cast<int>(prefix),
          .width = width,
          .head = width / static_cast<int>(heads),
          .halves = halves,
          .sign = inverse ? -1.0f : 1.0f};
}

KernelPtr lower(CudaBackend& cuda, const Rotate& op, const Operands& io) {
  const TensorView &x = io.in[Rotate::kQkv], &y = io.out[Rotate::kY],
                   &table = io.in[Rotate::kTable];
  const Rotation rotation = rotation_of(op, io);
  const int64_t count = x.shape.numel();
  const bool wide = x.dtype == y.dtype && rotation.head % (rotation.halves ? 16 : 8) == 0 &&
                    aligned16(x) && aligned16(y) && aligned16(table);
  return make_kernel([=, from = mixed(x), to = mixed(y), stream = cuda.stream()] {
    if (count == 0) return;
    if (!wide) {
      rotate_ones<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(from, to, rotation, count);
      return;
    }
    with_type(to.dtype, [&](auto type) {
      using T = decltype(type);
      rotate_eights<T><<<blocks_for(count / 8, kThreads), kThreads, 0, stream>>>(
          static_cast<const T*>(from.data), static_cast<T*>(to.data), rotation, count / 8);
    });
  });
}

}  // namespace vitrum::cuda
