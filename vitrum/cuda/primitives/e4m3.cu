// Tensors rounded to e4m3, where no kernel leaves its result so.
#include "vitrum/cuda/primitives/e4m3.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    round_eights(const T* x, uint8_t* y, int64_t eights, float inverse) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < eights) *reinterpret_cast<uint2*>(y + i * 8) = pack_e4m3(load8(x + i * 8), inverse);
}
__global__ void __launch_bounds__(kThreads)
    round_ones(Mixed x, uint8_t* y, int64_t count, float inverse) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) y[i] = static_cast<uint8_t>(pair_of_e4m3(x.load(i) * inverse, 0));
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const ToE4M3& op, const Operands& io) {
  const auto& [scale] = op;
  const TensorView &x = io.in[ToE4M3::kX], &y = io.out[ToE4M3::kY];
  const int64_t count = x.shape.numel();
  const bool wide = count % 8 == 0 && aligned16(x) && aligned16(y);
  return make_kernel([=, inverse = 1 / scale, stream = cuda.stream()] {
    auto* const to = y.e4m3();
    if (count == 0) return;
    if (!wide) {
      round_ones<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(mixed(x), to, count,
                                                                       inverse);
      return;
    }
    with_type(x.dtype, [&](auto type) {
      using T = decltype(type);
      round_eights<T><<<blocks_for(count / 8, kThreads), kThreads, 0, stream>>>(
          static_cast<const T*>(x.data), to, count / 8, inverse);
    });
  });
}

}  // namespace vitrum::cuda
