// Linear layers fused with the residual add and the LayerNorm behind them, forward, and with the
// norm's gradient, backward (sm_90a).
#pragma once
#include <optional>

#include "vitrum/cuda/attention/rotate.cuh"
#include "vitrum/cuda/linear/linear.h"
#include "vitrum/cuda/norm/layer_norm.cuh"

namespace vitrum::cuda {

// `branch` holds for the result of `linear`, whose rows are in the order of the sum.
KernelPtr lower_linear_norm(CudaBackend& cuda, const Operands& linear, const AddLayerNorm& op,
                            const Operands& norm, const Branch& branch);

// The same for many rows of 256 to 1024 columns, a multiple of 256, as two kernels: the layer
// leaves the sum, from which the norm is made.
KernelPtr lower_linear_sum(CudaBackend& cuda, const Operands& linear, const AddLayerNorm& op,
                           const Operands& norm, const Branch& branch);

// A norm right before a layer.
struct InnerNorm {
  LayerNorm op;
  Operands io;
};

// Two linear layers with the residual sum and its LayerNorm between them, many rows, 512 to 1024
// wide, where no backward pass wants to know of the norm: `first` and `second` are the layers'
// operands, y where the result goes, gated, or turned by `rotation` where there is one. `inner` is
// the norm before the first layer, if there is one; the branch is the layer's own result then.
KernelPtr lower_linear_norm_linear(CudaBackend& cuda, const Operands& first, const Branch& branch,
                                   const AddLayerNorm& op, const Operands& norm,
                                   const Linear& behind, const Operands& second,
                                   const TensorView& y, const std::optional<Rotation>& rotation,
                                   bool gated, const std::optional<InnerNorm>& inner);

// The weights behind a norm with what the norm does in them (linear/linear_norm_linear.cuh); its
// memory must outlive the kernels.
struct FoldedNorm {
  Buffer memory;
  bf16* scaled = nullptr;
  float *sums = nullptr, *shift = nullptr;
};
FoldedNorm fold_norm(CudaBackend& cuda, const Operands& norm, const Operands& second);

// The same for few rows.
KernelPtr lower_small_m_norm(CudaBackend& cuda, const Operands& first, const AddLayerNorm& op,
                             const Operands& norm, const Linear& behind, const Operands& second);

// `branch` is what the norm's gradient goes through, `result` where it then goes; its `from` gives
// the norm's row of a row of dx. norm.column_sums are those of the last result.
LinearParts linear_norm_bwd(CudaBackend& cuda, const Operands& linear, const Operands& norm,
                            const Branch& branch, const TensorView& result);

}  // namespace vitrum::cuda
