// Launches of attention/mma_sync_wide.cuh.
#include <algorithm>

#include "vitrum/cuda/attention/mma_sync_wide.cuh"

namespace vitrum::cuda {
namespace {

using namespace mma_sync;

template <int kSteps, bool kBiased>
__global__ void __launch_bounds__(kWarp* kWideWarps, 2)
    wide_kernel(AttentionArgs args, MmaSyncPlan layout) {
  extern __shared__ __align__(16) std::byte memory[];
  wide_forward<kSteps, kBiased>(args, layout, memory);
}

template <int kSteps>
KernelPtr launch(CudaBackend& cuda, const AttentionArgs& args, int64_t images,
                 const MmaSyncPlan& layout) {
  const auto kernel =
      args.bias || args.mask ? wide_kernel<kSteps, true> : wide_kernel<kSteps, false>;
  allow_shared_memory(kernel, layout.bytes);
  const int64_t tiles = divide_up(layout.tokens16, kWideRows),
                warps = divide_up(tiles, divide_up(tiles, kWideWarps));
  return launch_kernel(cuda, kernel, static_cast<unsigned>(images * args.shape.heads),
                       static_cast<unsigned>(warps * kWarp), layout.bytes, args, layout);
}

}  // namespace

KernelPtr mma_sync_wide_attention(CudaBackend& cuda, const AttentionArgs& args, int64_t images,
                                  const MmaSyncPlan& plan) {
  switch (divide_up(args.shape.size, 16)) {
    case 2: return launch<2>(cuda, args, images, plan);
    case 4: return launch<4>(cuda, args, images, plan);
    default: return launch<5>(cuda, args, images, plan);
  }
}

}  // namespace vitrum::cuda
