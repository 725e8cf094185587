// Layers of e4m3 (fp8) on cards that multiply it (sm_90a), and what they are joined with: the
// LayerNorm, the GELU or the attention before one leaves its result in e4m3, and the residual sum
// behind one is the end of its product.
#pragma once
#include <span>

#include "vitrum/cuda/linear/linear.h"

namespace vitrum::cuda {

// op.scale > 0; the card has such products.
KernelPtr lower_e4m3(CudaBackend& cuda, const QLinear& op, const Operands& io);

// How many nodes, from the first on, are one kernel of e4m3 here; 1: none.
size_t joins_e4m3(const CudaBackend& cuda, std::span<const ChainNode> chain);
KernelPtr lower_joined_e4m3(CudaBackend& cuda, std::span<const ChainNode> joined);
// Where choose_attention() names `smem`; y is e4m3.
KernelPtr lower_attention_e4m3(CudaBackend& cuda, const Attention& op, const Operands& io,
                               const TensorView& y, float scale);

// Attention that choose_attention() names `smem` for; y is e4m3 of this scale.
KernelPtr lower_attention_e4m3(CudaBackend& cuda, const Attention& op, const Operands& io,
                               const TensorView& y, float scale);

}  // namespace vitrum::cuda
