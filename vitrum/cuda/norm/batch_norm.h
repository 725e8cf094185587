// Batch norm's gradient where two gradients of its result meet.
#pragma once
#include "vitrum/cuda/host/backend.h"

namespace vitrum::cuda {

// As lower(), of dy + more, rounded; `more` absent: of dy.
KernelPtr lower(CudaBackend& cuda, const BatchNormBwd& op, const Operands& io,
                const TensorView& more);

}  // namespace vitrum::cuda
