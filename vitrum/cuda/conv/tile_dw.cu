// Launch of the weights' gradient of tile_dw.cuh.
#include "vitrum/cuda/conv/tile.h"
#include "vitrum/cuda/host/tensor_map.h"
#include "vitrum/cuda/primitives/device.cuh"
#include "vitrum/cuda/primitives/tma.cuh"
#include "vitrum/cuda/primitives/wgmma.cuh"
// Written in what is above.
#include "vitrum/cuda/conv/tile_dw.cuh"

namespace vitrum::cuda {
namespace {

using namespace conv_tile_dw;

__global__ void __launch_bounds__(kThreads, 1)
    sum_boxes([[maybe_unused]] const __grid_constant__ Args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::byte memory[];
  work(g, *reinterpret_cast<Shared*>(memory));
#endif
}
__global__ void __launch_bounds__(kFinishThreads) add_splits(Finish f) {
  __shared__ FinishShared shared;
  finish(f, shared);
}

}  // namespace

void conv_tile_dw::allow() { allow_shared_memory(sum_boxes, sizeof(Shared)); }
void conv_tile_dw::launch(const Args& args, int processors, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(std::min(args.items, processors));
  sum_boxes<<<blocks, kThreads, sizeof(Shared), stream>>>(args);
}

KernelPtr lower_tile_weight_gradient(CudaBackend& cuda, const ConvTask& given, const Operands& io) {
  const ConvTask task = given.flattened();
  const Plan plan = plan_of(cuda.card(), task);
  auto* const partials = cuda.scratch_of<float>(plan.floats);
  const Args args =
      make_args(task, plan, io.in[Conv2dBwd::kDy].data, io.in[Conv2dBwd::kX].data, partials);
  const Finish finish = make_finish(task, plan, partials, io.out[Conv2dBwd::kDweight].f32());
  allow();
  const dim3 pieces(static_cast<unsigned>(finish.blocks), static_cast<unsigned>(finish.out));
  return named("tile", make_kernel([=, processors = cuda.processors(), stream = cuda.stream()] {
                 launch(args, processors, stream);
                 add_splits<<<pieces, kFinishThreads, 0, stream>>>(finish);
               }));
}

}  // namespace vitrum::cuda
