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

struct Layer {
  Buffer memory;  // of weights and bias with the scale in them
  const void *weight, *bias;
};

Layer scaled_layer(CudaBackend& cuda, const TensorView& w, const TensorView& bias,
                   const float* gamma) {
  if (!gamma) return {{}, w.data, bias.data};
  Layer layer{cuda.allocate(w.bytes() + bias.bytes()), nullptr, nullptr};
  auto* const weight = reinterpret_cast<bf16*>(layer.memory.data());
  const int64_t rows = w.shape[0], width = w.shape[1];
  const auto scale = [&](const TensorView& from, bf16* to, int64_t each) {
    scale_rows<<<blocks_for(rows * each, kThreads), kThreads, 0, cuda.stream()>>>(
        static_cast<const bf16*>(from.data), gamma, to, rows, each);
  };
  scale(w, weight, width);
  if (bias) scale(bias, weight + rows * width, 1);
  layer.weight = weight, layer.bias = bias ? weight + rows * width : nullptr;
  return layer;
}

}  // namespace

KernelPtr lower_linear_add(CudaBackend& cuda, const Operands& linear, const float* gamma,
                           const TensorView& skip, const TensorView& y) {
  const TensorView x = linear.in[Linear::kX], &w = linear.in[Linear::kWeight],
                   bias = operand(linear.in, Linear::kBias);
  const auto layer = std::make_shared<Layer>(scaled_layer(cuda, w, bias, gamma));
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
      [=] { gemm.launch_with(x.data, layer->weight, skip.data, y.data, layer->bias); });
}

}  // namespace vitrum::cuda
