// How a product of linear_tile.cuh is launched, and for how many rows it is worth it.
#pragma once
#include <algorithm>

#include "vitrum/cuda/device.cuh"
#include "vitrum/cuda/linear.h"
#include "vitrum/cuda/tensor_map.h"
#include "vitrum/cuda/tma.cuh"
#include "vitrum/cuda/wgmma.cuh"
// Written in what is above.
#include "vitrum/cuda/linear_tile.cuh"

namespace vitrum::cuda::tile {

template <class Ending>
__global__ void __launch_bounds__(kThreads, 1)
    product([[maybe_unused]] const __grid_constant__ Args<Ending> g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::byte memory[];
  work(g, *reinterpret_cast<Shared<Ending>*>(memory));
#endif
}

inline int64_t tiles_in(int64_t rows, int64_t columns) {
  return divide_up(rows, kRows * kCluster) * (columns / kColumns);
}

inline bool enough(const CudaBackend& cuda, int64_t rows, int64_t columns) {
  return fills(cuda, tiles_in(rows, columns), kCluster);
}

// x (rows, depth) times w (columns, depth), transposed.
template <class Ending>
KernelPtr launch(CudaBackend& cuda, const TensorView& x, const TensorView& w,
                 const Ending& ending) {
  const Args<Ending> args{.x = tiles_of(x, kDepth, kRows),
                          .w = shuffled_rows(w, kDepth, kShare),
                          .columns = static_cast<int>(w.shape[0]),
                          .steps = static_cast<int>(divide_up(w.shape[1], kDepth)),
                          .tiles = static_cast<int>(tiles_in(x.shape.rows(), w.shape[0])),
                          .ending = ending};
  allow_shared_memory(product<Ending>, sizeof(Shared<Ending>));
  const int clusters = std::min(args.tiles, cuda.processors() / kCluster);
  return make_kernel([=, stream = cuda.stream()] {
    cudaLaunchAttribute pairs{.id = cudaLaunchAttributeClusterDimension};
    pairs.val.clusterDim = {kCluster, 1, 1};
    const cudaLaunchConfig_t config{.gridDim = static_cast<unsigned>(clusters * kCluster),
                                    .blockDim = kThreads,
                                    .dynamicSmemBytes = sizeof(Shared<Ending>),
                                    .stream = stream,
                                    .attrs = &pairs,
                                    .numAttrs = 1};
    check(cudaLaunchKernelEx(&config, product<Ending>, args), "launching a kernel");
  });
}

}  // namespace vitrum::cuda::tile
