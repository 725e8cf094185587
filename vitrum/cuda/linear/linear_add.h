// A linear layer and what its result is added to, in one product of cuBLASLt.
#pragma once
#include "vitrum/cuda/linear/linear.h"

namespace vitrum::cuda {

// A frozen layer's weights and bias, each row times its own gamma; its memory must outlive kernels.
// Without gamma they are as they were.
struct ScaledLayer {
  Buffer memory;
  TensorView weight, bias;  // bias may be absent
};
ScaledLayer scaled_layer(CudaBackend& cuda, const Operands& linear, const float* gamma);

// y = skip + gamma (x w^T + bias); gamma may be null. See adds_residual() of linear/choose.h.
KernelPtr lower_linear_add(CudaBackend& cuda, const Operands& linear, const float* gamma,
                           const TensorView& skip, const TensorView& y);

}  // namespace vitrum::cuda
