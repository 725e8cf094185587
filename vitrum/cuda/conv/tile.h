// Convolutions in boxes of pixels: what conv.cu lowers to where choose_conv() says so.
#pragma once
#include "vitrum/cuda/conv/choose.h"
#include "vitrum/cuda/host/backend.h"

namespace vitrum::cuda {

ConvTask conv_task(const Conv2d& op, const Operands& io);

// Where moments of the result's columns go (norm/moments.cuh), and which samples count. Null: none,
// and all.
struct ConvMoments {
  float* partials = nullptr;
  const float* weight = nullptr;
};
// (chunks, 3, out) of them; chunks 0: none, where leaves_moments() does not hold. The convolution
// takes so many bytes of the scratch's beginning.
struct MomentsPlan {
  int chunks = 0;
  size_t scratch_bytes = 0;
};
MomentsPlan plan_moments(CudaBackend& cuda, const Conv2d& op, const Operands& io);
KernelPtr lower_with_moments(CudaBackend& cuda, const Conv2d& op, const Operands& io,
                             const ConvMoments& moments);

// With the norm, the skip and the activation that follow.
KernelPtr lower_tile(CudaBackend& cuda, const Conv2d& op, const ConvTask& task, const Operands& io,
                     const ConvMoments& moments = {});
// The same of an image of few channels.
KernelPtr lower_lines(CudaBackend& cuda, const Conv2d& op, const ConvTask& task,
                      const Operands& io);
// The same of single pixels, more of whose channels are written than read; or with moments, of
// which it leaves so many chunks.
KernelPtr lower_small_k(CudaBackend& cuda, const Conv2d& op, const ConvTask& task,
                        const Operands& io, const ConvMoments& moments = {});
int small_k_moments_chunks(const CudaBackend& cuda, const ConvTask& task);
// dx alone.
KernelPtr lower_tile_input_gradient(CudaBackend& cuda, const ConvTask& task, const Operands& io);
// dw alone, added to what is there; the second of an image of few channels.
KernelPtr lower_tile_weight_gradient(CudaBackend& cuda, const ConvTask& task, const Operands& io);
KernelPtr lower_lines_weight_gradient(CudaBackend& cuda, const ConvTask& task, const Operands& io);

}  // namespace vitrum::cuda
