// Launch of the GEMM of linear/tile.cuh.
#pragma once
#include "vitrum/cuda/host/tensor_map.h"
#include "vitrum/cuda/linear/linear.h"
#include "vitrum/cuda/primitives/device.cuh"
#include "vitrum/cuda/primitives/tma.cuh"
#include "vitrum/cuda/primitives/wgmma.cuh"
// Written in what is above.
#include "vitrum/cuda/linear/tile.cuh"

namespace vitrum::cuda::tile {

template <class Epilogue>
__global__ void __launch_bounds__(kThreads, 1)
    product([[maybe_unused]] const __grid_constant__ Args<Epilogue> g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::byte memory[];
  work(g, *reinterpret_cast<Shared<Epilogue>*>(memory));
#endif
}

static_assert(kRows * kCluster == 256 && kColumns == 256);  // cluster_tiles()

// x (rows, depth) times w (columns, depth), transposed. gates: a tile has 128 columns of either
// half.
template <class Epilogue>
KernelPtr launch(CudaBackend& cuda, const TensorView& x, const TensorView& w,
                 const Epilogue& epilogue, bool gates = false) {
  const auto columns = static_cast<int>(w.shape[0]);
  const Args<Epilogue> args{.x = tile_map(x, kDepth, kRows),
                            .w = permuted_rows_map(w, kDepth, kShare),
                            .columns = columns,
                            .steps = static_cast<int>(divide_up(w.shape[1], kDepth)),
                            .tiles = static_cast<int>(cluster_tiles(x.shape.rows(), w.shape[0])),
                            .next = gates ? kShare : kColumns,
                            .apart = gates ? columns / 2 : kShare,
                            .epilogue = epilogue};
  return launch_clusters(cuda, product<Epilogue>, args.tiles, kCluster, kThreads,
                         sizeof(Shared<Epilogue>), args);
}

}  // namespace vitrum::cuda::tile
