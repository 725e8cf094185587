// Batch norm for other kernels: with the running statistics that it moves, its gradient where two
// gradients of its result meet, and what given statistics make of it.
#pragma once
#include "vitrum/cuda/host/backend.h"

namespace vitrum::cuda {

// As lower(), and what moves the running statistics by this batch's; `stats` null: nothing.
KernelPtr lower(CudaBackend& cuda, const BatchNorm& op, const Operands& io,
                const RunningStats* stats, const Operands& stats_io);

// A convolution that leaves_moments() and the batch norm of its result, with what moves the running
// statistics, or null.
KernelPtr lower_conv_norm(CudaBackend& cuda, const Conv2d& conv, Operands conv_io,
                          const BatchNorm& op, const Operands& io, const RunningStats* stats,
                          const Operands& stats_io);

// As lower(), of dy + more, rounded; `more` absent: of dy.
KernelPtr lower(CudaBackend& cuda, const BatchNormBwd& op, const Operands& io,
                const TensorView& more);

// norm(x) = x * scale + shift
struct FrozenAffine {
  TensorView w, bias, mean, var;
  float eps = 0;
  float *scale = nullptr, *shift = nullptr;  // made by launch_affine()
};
void launch_affine(const FrozenAffine& affine, cudaStream_t stream);

}  // namespace vitrum::cuda
