// A linear layer, the residual branch it ends and the LayerNorm behind it as one kernel; for Hopper
// and narrow rows.
#pragma once
#include "vitrum/cuda/norm.cuh"

namespace vitrum::cuda {

// By type and shape: memory is not needed yet.
bool has_linear_norm(const CudaBackend& cuda, const Linear& op, const Operands& io);
// `branch` holds for the result of `linear`, whose rows are in the order of the sum.
KernelPtr lower_linear_norm(CudaBackend& cuda, const Operands& linear, const AddLayerNorm& op,
                            const Operands& norm, const Branch& branch);

}  // namespace vitrum::cuda
