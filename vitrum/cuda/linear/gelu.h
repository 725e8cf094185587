// GEMM kernels of our own (TMA/WGMMA, sm_90a) that do more than cuBLASLt's epilogues: bias and GELU
// forward, and backward the pre-activation gradient with the gradient of the bias.
#pragma once
#include "vitrum/cuda/linear/linear.h"

namespace vitrum::cuda {

// One a kernel of linear/choose.h, which must take the layer.
KernelPtr lower_gelu_tile(CudaBackend& cuda, const Linear& op, const Operands& io);
KernelPtr lower_small_k(CudaBackend& cuda, const Linear& op, const Operands& io);
KernelPtr lower_small_m(CudaBackend& cuda, const Linear& op, const Operands& io);

// A layer of queries, keys and values, which are turned by their positions.
KernelPtr lower_linear_rotate(CudaBackend& cuda, const Operands& linear, const Rotate& op,
                              const Operands& rotate);
// A layer of gates and values, y = SiLU(gate) value; its own result is written where there is
// memory for it.
KernelPtr lower_linear_gate(CudaBackend& cuda, const Operands& linear, const TensorView& y);

// Calls body(std::integral_constant<Act, act>{}) for the forms of GELU.
template <class Body>
KernelPtr with_gelu_form(Act act, const Body& body) {
  if (act == Act::kGeluTanh) return body(std::integral_constant<Act, Act::kGeluTanh>{});
  if (act == Act::kQuickGelu) return body(std::integral_constant<Act, Act::kQuickGelu>{});
  return body(std::integral_constant<Act, Act::kGelu>{});
}

// d = dy w times GELU's derivative at pre, and dbias += the column sums of d; y = GELU of pre.
struct GeluGradient {
  TensorView dy, w, pre, d;
  float* dbias;        // null: not wanted
  std::byte* scratch;  // as much as the kernel asks for
  TensorView y;        // null: not wanted; kTile alone has it, and it may be pre
};
size_t tile_gelu_bwd_scratch(const TensorView& dy, const TensorView& w);
KernelPtr lower_tile_gelu_bwd(CudaBackend& cuda, const GeluGradient& of);
size_t small_k_gelu_bwd_scratch(const CudaBackend& cuda, const TensorView& w);
KernelPtr lower_small_k_gelu_bwd(CudaBackend& cuda, const GeluGradient& of);

// Backward through two linear layers with GELU between them: the gradient of what lies between is
// never stored. `behind` is the later layer, `before` the one that ends in GELU. By type and shape:
// memory is not needed yet.
GeluBwdKernel choose_mlp_bwd(const CudaBackend& cuda, const LinearBwd& behind, const Operands& io,
                             const LinearBwd& before, const Operands& before_io);
// `again`: gets GELU's result, unless it is null; see GeluGradient::y.
LinearParts mlp_bwd_parts(CudaBackend& cuda, const Operands& behind, const Operands& before,
                          const TensorView& again);

}  // namespace vitrum::cuda
