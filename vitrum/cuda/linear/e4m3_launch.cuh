// Launches of layers of e4m3 (linear/e4m3.cuh), one file a kernel.
#pragma once
#include "vitrum/cuda/host/tensor_map.h"
#include "vitrum/cuda/linear/e4m3.h"
#include "vitrum/cuda/norm/layer_norm.cuh"
#include "vitrum/cuda/primitives/activation.cuh"
#include "vitrum/cuda/primitives/e4m3.cuh"
#include "vitrum/cuda/primitives/tma.cuh"
#include "vitrum/cuda/primitives/wgmma.cuh"
// Written in what is above.
#include "vitrum/cuda/linear/e4m3.cuh"

// For other cards the kernels are empty, and nothing uses what is here.
#pragma nv_diag_suppress 177

namespace vitrum::cuda::e4m3 {

// A product: rows of x and of w as half as many bf16, and what its sums are times.
struct Product {
  TensorView x, w;
  const float *scale, *bias;  // bias may be null
};
// Bytes two at a time.
inline TensorView as_pairs(const TensorView& bytes) {
  return {bytes.data, {bytes.shape.rows(), bytes.shape[-1] / 2}, DType::kBF16};
}

// With each End of linear/e4m3.cuh that a layer can have.
KernelPtr launch_few(CudaBackend& cuda, const Product& of, int splits, const ToRows& end);
KernelPtr launch_few(CudaBackend& cuda, const Product& of, int splits, const ToSum& end);
KernelPtr launch_few(CudaBackend& cuda, const Product& of, int splits,
                     const ActToE4M3<Act::kGelu>& end);
KernelPtr launch_few(CudaBackend& cuda, const Product& of, int splits,
                     const ActToE4M3<Act::kGeluTanh>& end);
KernelPtr launch_few(CudaBackend& cuda, const Product& of, int splits,
                     const ActToE4M3<Act::kQuickGelu>& end);
KernelPtr launch_tiles(CudaBackend& cuda, const Product& of, const ToRows& end);
KernelPtr launch_tiles(CudaBackend& cuda, const Product& of, const ToSum& end);
KernelPtr launch_tiles(CudaBackend& cuda, const Product& of, const ActToE4M3<Act::kGelu>& end);
KernelPtr launch_tiles(CudaBackend& cuda, const Product& of, const ActToE4M3<Act::kGeluTanh>& end);
KernelPtr launch_tiles(CudaBackend& cuda, const Product& of, const ActToE4M3<Act::kQuickGelu>& end);

}  // namespace vitrum::cuda::e4m3
