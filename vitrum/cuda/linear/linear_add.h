// A linear layer and what its result is added to, in one product of cuBLASLt.
#pragma once
#include "vitrum/cuda/linear/linear.h"

namespace vitrum::cuda {

// y = skip + gamma (x w^T + bias); gamma may be null. See adds_residual() of linear/choose.h.
KernelPtr lower_linear_add(CudaBackend& cuda, const Operands& linear, const float* gamma,
                           const TensorView& skip, const TensorView& y);

}  // namespace vitrum::cuda
