// A linear layer with its bias and GELU as one kernel, for Hopper and many rows.
#pragma once
#include "vitrum/cuda/backend.h"

namespace vitrum::cuda {

// Deep layers, which multiplying takes longest.
bool has_linear_act(const CudaBackend& cuda, const Linear& op, const Operands& io);
KernelPtr lower_linear_act(CudaBackend& cuda, const Operands& io);
// Shallow ones, which writing takes longest.
bool has_linear_shallow(const CudaBackend& cuda, const Linear& op, const Operands& io);
KernelPtr lower_linear_shallow(CudaBackend& cuda, const Operands& io);

}  // namespace vitrum::cuda
