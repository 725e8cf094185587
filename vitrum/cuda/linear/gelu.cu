// Linear layers whose activation or gate, or the rotation of whose queries and keys, is the
// epilogue of the GEMM of linear/tile.cuh, instead of a pass of its own over the result (sm_90a).
#include "vitrum/cuda/attention/rotate.h"
#include "vitrum/cuda/linear/gelu.h"
#include "vitrum/cuda/linear/tile_launch.cuh"
#include "vitrum/cuda/primitives/activation.cuh"
// Written in what is above.
#include "vitrum/cuda/linear/outputs.cuh"

// For other cards the kernels are empty, and nothing uses what is here.
#pragma nv_diag_suppress 177

namespace vitrum::cuda {

// pre: what the form is given; may be absent.
template <class Form>
static KernelPtr launch_form(CudaBackend& cuda, const Operands& io, const TensorView& pre,
                             const TensorView& y, const Form& form) {
  const TensorView &x = io.in[Linear::kX], &w = io.in[Linear::kWeight];
  const tile::BiasEpilogue<Form> epilogue{
      .bias = static_cast<const bf16*>(operand(io.in, Linear::kBias).data),
      .pre = static_cast<bf16*>(pre.data),
      .y = static_cast<bf16*>(y.data),
      .rows = static_cast<int>(x.shape.rows()),
      .columns = static_cast<int>(w.shape[0]),
      .form = form};
  return tile::launch(cuda, x, w, epilogue, Form::kGates);
}

KernelPtr lower_gelu_tile(CudaBackend& cuda, const Linear& op, const Operands& io) {
  const auto& [act, drop, site] = op;
  return with_gelu_form(act, [&](auto kind) {
    return launch_form(cuda, io, operand(io.out, Linear::kSaved), io.out[Linear::kY],
                       tile::Activated<decltype(kind)::value>{});
  });
}

KernelPtr lower_linear_rotate(CudaBackend& cuda, const Operands& linear, const Rotate& op,
                              const Operands& rotate) {
  return launch_form(cuda, linear, {}, rotate.out[Rotate::kY],
                     tile::Rotated{rotation_of(op, rotate)});
}

KernelPtr lower_linear_gate(CudaBackend& cuda, const Operands& linear, const TensorView& y) {
  return launch_form(cuda, linear, linear.out[Linear::kY], y, tile::Gated<Act::kSilu>{});
}

}  // namespace vitrum::cuda
