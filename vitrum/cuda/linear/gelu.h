// Products of our own for Hopper and many rows: a linear layer with its bias and GELU, and backward
// the gradient behind GELU with the bias' gradient.
#pragma once
#include "vitrum/cuda/linear/linear.h"

namespace vitrum::cuda {

// What either asks for: Hopper, bf16, nothing dropped, addresses that suit.
bool for_own_product(const CudaBackend& cuda, const Linear& op, const Operands& io);
// Deep layers, which multiplying takes longest.
bool has_linear_act(const CudaBackend& cuda, const Linear& op, const Operands& io);
KernelPtr lower_linear_act(CudaBackend& cuda, const Operands& io);
// Shallow ones, which writing takes longest.
bool has_linear_shallow(const CudaBackend& cuda, const Linear& op, const Operands& io);
KernelPtr lower_linear_shallow(CudaBackend& cuda, const Linear& op, const Operands& io);
// Few rows, with weights that stay as they are.
bool has_linear_few(const CudaBackend& cuda, const Linear& op, const Operands& io);
KernelPtr lower_linear_few(CudaBackend& cuda, const Linear& op, const Operands& io);

// d = dy w times the slope of GELU at pre, and dbias += the column sums of d.
struct GeluGradient {
  TensorView dy, w, pre, d;
  float* dbias;        // null: not wanted
  std::byte* scratch;  // as much as the kernel asks for
};
bool has_deep_gradient(const CudaBackend& cuda, const TensorView& dy, const TensorView& w);
size_t deep_gradient_scratch(const TensorView& dy, const TensorView& w);
KernelPtr lower_deep_gradient(CudaBackend& cuda, const GeluGradient& of);
bool has_shallow_gradient(const TensorView& dy, const TensorView& w);
size_t shallow_gradient_scratch(const CudaBackend& cuda, const TensorView& w);
KernelPtr lower_shallow_gradient(CudaBackend& cuda, const GeluGradient& of);

// Backward through two linear layers with GELU between them: the gradient of what lies between is
// never stored. `behind` is the later layer, `before` the one that ends in GELU. By type and shape:
// memory is not needed yet.
bool has_gradient_through(const CudaBackend& cuda, const LinearBwd& behind, const Operands& io,
                          const LinearBwd& before, const Operands& before_io);
LinearParts gradient_through(CudaBackend& cuda, const Operands& behind, const Operands& before);

}  // namespace vitrum::cuda
