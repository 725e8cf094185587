// Products of our own for Hopper and many rows: a linear layer with its bias and GELU, and backward
// the gradient behind GELU with the bias' gradient.
#pragma once
#include "vitrum/cuda/linear.h"

namespace vitrum::cuda {

// Deep layers, which multiplying takes longest.
bool has_linear_act(const CudaBackend& cuda, const Linear& op, const Operands& io);
KernelPtr lower_linear_act(CudaBackend& cuda, const Operands& io);
// Shallow ones, which writing takes longest.
bool has_linear_shallow(const CudaBackend& cuda, const Linear& op, const Operands& io);
KernelPtr lower_linear_shallow(CudaBackend& cuda, const Linear& op, const Operands& io);

// Two linear layers with GELU between them, backward: d = dy w times the slope of GELU at pre, and
// dbias += the column sums of d.
struct GradientThrough {
  TensorView dy, turned, pre, d;  // turned: w transposed
  float* dbias = nullptr;         // null: not wanted
  float* partials = nullptr;      // of the sums
};
KernelPtr lower_shallow_gradient(CudaBackend& cuda, const GradientThrough& work);
bool has_shallow_gradient(const CudaBackend& cuda, const TensorView& dy, const TensorView& w);
int64_t shallow_partials(const CudaBackend& cuda);  // elements

// `behind` is the later layer, `before` the one that ends in GELU. By type and shape: memory is not
// needed yet.
bool has_gradient_through(const CudaBackend& cuda, const LinearBwd& behind, const Operands& io,
                          const LinearBwd& before, const Operands& before_io);
LinearParts gradient_through(CudaBackend& cuda, const Operands& behind, const Operands& before);

}  // namespace vitrum::cuda
