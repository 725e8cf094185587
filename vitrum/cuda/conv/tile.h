// Convolutions in boxes of pixels: what conv.cu lowers to where choose_conv() says so.
#pragma once
#include "vitrum/cuda/conv/choose.h"
#include "vitrum/cuda/host/backend.h"

namespace vitrum::cuda {

// With the norm, the skip and the activation that follow.
KernelPtr lower_tile(CudaBackend& cuda, const Conv2d& op, const ConvTask& task, const Operands& io);
// The same of an image of few channels.
KernelPtr lower_lines(CudaBackend& cuda, const Conv2d& op, const ConvTask& task,
                      const Operands& io);
// The same of single pixels, more of whose channels are written than read.
KernelPtr lower_small_k(CudaBackend& cuda, const Conv2d& op, const ConvTask& task,
                        const Operands& io);
// dx alone.
KernelPtr lower_tile_input_gradient(CudaBackend& cuda, const ConvTask& task, const Operands& io);
// dw alone, added to what is there; the second of an image of few channels.
KernelPtr lower_tile_weight_gradient(CudaBackend& cuda, const ConvTask& task, const Operands& io);
KernelPtr lower_lines_weight_gradient(CudaBackend& cuda, const ConvTask& task, const Operands& io);

}  // namespace vitrum::cuda
