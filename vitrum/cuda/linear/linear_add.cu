// A linear layer whose result, scaled by channel or not, is added to another tensor: cuBLASLt adds
// it, and the scale is in weights and bias, which therefore never change.
#include "vitrum/cuda/linear/linear_add.h"
#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 256;

// Rows of `width` values, each times its own scale.
__global__ void __launch_bounds__(kThreads)
    scale_rows(const bf16* from, const float* gamma, bf16* to, int64_t rows, int64_t width) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < rows * width) to[i] = from_float<bf16>(__fmul_rn(to_float(from[i]), gamma[i / width]));
}

}  // namespace

ScaledLayer scaled_layer(CudaBackend& cuda, const Operands& linear, const float* gamma) {
  const TensorView w = linear.in[Linear::kWeight], bias = operand(linear.in, Linear::kBias);
  if (!gamma) return {{}, w, bias};
  ScaledLayer layer{cuda.allocate(w.bytes() + bias.bytes()), w, bias};
  const int64_t rows = w.shape[0], width = w.shape[1];
  const auto scale = [&](TensorView& view, bf16* to, int64_t each) {
    scale_rows<<<blocks_for(rows * each, kThreads), kThreads, 0, cuda.stream()>>>(
        static_cast<const bf16*>(view.data), gamma, to, rows, each);
    view.data = to;
  };
  auto* const memory = reinterpret_cast<bf16*>(layer.memory.data());
  scale(layer.weight, memory, width);
  if (bias) scale(layer.bias, memory + rows * width, 1);
  return layer;
}

KernelPtr lower_linear_add(CudaBackend& cuda, const Operands& linear, const float* gamma,
                           const TensorView& skip, const TensorView& y) {
  const TensorView x = linear.in[Linear::kX];
  const auto layer = std::make_shared<ScaledLayer>(scaled_layer(cuda, linear, gamma));
  const TensorView &w = layer->weight, &bias = layer->bias;
  const GemmShape shape{.m = x.shape.rows(),
                        .n = w.shape[0],
                        .k = w.shape[1],
                        .b_transposed = true,
                        .in = x.dtype,
                        .out = y.dtype,
                        .bias = static_cast<bool>(bias),
                        .beta = 1};
  const Gemm gemm = cuda.gemms().prepare(shape, common_alignment({x, w, skip, y, bias}));
  return make_kernel(
      [=] { gemm.launch_with(x.data, layer->weight.data, skip.data, y.data, layer->bias.data); });
}

}  // namespace vitrum::cuda
