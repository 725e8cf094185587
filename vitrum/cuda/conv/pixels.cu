// 1x1 convolutions of inference that write more than they read: linear layers of small K over
// pixels (linear/small_k.cuh), with the norm, the skip and the ReLU that follow.
#include "vitrum/cuda/conv/tile.h"
#include "vitrum/cuda/host/tensor_map.h"
#include "vitrum/cuda/norm/batch_norm.h"
#include "vitrum/cuda/primitives/activation.cuh"
#include "vitrum/cuda/primitives/tma.cuh"
#include "vitrum/cuda/primitives/wgmma.cuh"
// Written in what is above.
#include "vitrum/cuda/linear/small_k.cuh"

namespace vitrum::cuda {
namespace {

using namespace small_k;
using Followed = Traits<256, Act::kNone, /*kBack=*/false, /*kNormed=*/true>;
static_assert(kSmallKColumns == Followed::kColumns && kSmallKDepth == kMaxSteps * kDepth);

__global__ void __launch_bounds__(Followed::kThreads, 1)
    multiply_pixels([[maybe_unused]] const __grid_constant__ Args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::byte memory[];
  work<Followed>(g, *reinterpret_cast<Followed::Shared*>(memory));
#endif
}

}  // namespace

KernelPtr lower_small_k(CudaBackend& cuda, const Conv2d& op, const ConvTask& task,
                        const Operands& io) {
  const auto& [stride, padding, eps, act] = op;
  const TensorView x = io.in[Conv2d::kX];
  TensorView w = io.in[Conv2d::kWeight];
  w.shape = {w.shape[0], w.shape[1]};
  auto* const tables = cuda.scratch_of<float>(2 * task.out);
  const FrozenAffine affine{io.in[Conv2d::kNormWeight],
                            io.in[Conv2d::kNormBias],
                            io.in[Conv2d::kMean],
                            io.in[Conv2d::kVar],
                            eps,
                            tables,
                            tables + task.out};
  const int64_t rows = x.shape.rows();
  const Args args{.x = tile_map(x, kDepth, kTileRows),
                  .w = permuted_rows_map(w, kDepth, Followed::kColumns),
                  .saved = static_cast<const bf16*>(operand(io.in, Conv2d::kSkip).data),
                  .y = static_cast<bf16*>(io.out[Conv2d::kY].data),
                  .rows = static_cast<int>(rows),
                  .columns = static_cast<int>(task.out),
                  .steps = static_cast<int>(divide_up(task.channels, kDepth)),
                  .tiles = static_cast<int>(divide_up(rows, kTileRows)),
                  .scale = affine.scale,
                  .shift = affine.shift,
                  .relu = act == Act::kRelu};
  allow_shared_memory(multiply_pixels, sizeof(Followed::Shared));
  const int wide = args.columns / Followed::kColumns,
            blocks = std::min(args.tiles, cuda.processors() / wide) * wide;
  return named("small_k", make_kernel([=, stream = cuda.stream()] {
                 launch_affine(affine, stream);
                 multiply_pixels<<<static_cast<unsigned>(blocks), Followed::kThreads,
                                   sizeof(Followed::Shared), stream>>>(args);
               }));
}

}  // namespace vitrum::cuda
