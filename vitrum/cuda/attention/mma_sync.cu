// Launches of attention/mma_sync.cuh and, where a bias has a gradient, of
// attention/mma_sync_bias.cuh.
#include <algorithm>

#include "vitrum/cuda/attention/mma_sync.cuh"
#include "vitrum/cuda/attention/mma_sync_bias.cuh"
#include "vitrum/cuda/primitives/column_sums.cuh"

namespace vitrum::cuda {
namespace {

using namespace mma_sync;

template <int kSteps, bool kBiased>
__global__ void __launch_bounds__(kWarp* kMaxWarps, kSteps <= 5 ? 2 : 1)
    forward_kernel(AttentionArgs args, MmaSyncPlan layout) {
  extern __shared__ __align__(16) std::byte memory[];
  forward<kSteps, kBiased>(args, layout, memory);
}

template <int kSteps, bool kBiased>
__global__ void __launch_bounds__(kWarp* kMaxWarps, kSteps <= 4 ? 2 : 1)
    backward_kernel(AttentionArgs args, MmaSyncPlan layout) {
  extern __shared__ __align__(16) std::byte memory[];
  backward<kSteps, kBiased>(args, layout, memory);
}

template <int kSteps>
__global__ void __launch_bounds__(kBiasThreads) bias_kernel(BiasArgs args) {
  extern __shared__ __align__(16) std::byte memory[];
  bias_gradient<kSteps>(args, memory);
}

template <int kSteps>
KernelPtr launch(CudaBackend& cuda, const AttentionArgs& args, int64_t images, bool backward,
                 const MmaSyncPlan& layout) {
  const bool biased = args.bias || args.mask;
  auto kernel = biased ? forward_kernel<kSteps, true> : forward_kernel<kSteps, false>;
  if (backward) kernel = biased ? backward_kernel<kSteps, true> : backward_kernel<kSteps, false>;
  allow_shared_memory(kernel, layout.bytes);
  const int64_t blocks = images * args.shape.heads;
  const int tiles = layout.tokens16 / kRows;
  // With few heads the queries of one are divided over CTAs; with many, two rounds keep warps busy.
  const bool few = blocks < 2 * cuda.processors();
  const int rounds = few ? 1 : static_cast<int>(divide_up(tiles, kMaxWarps));
  const int warps = few ? std::min(2, tiles) : static_cast<int>(divide_up(tiles, rounds));
  const unsigned split = few ? blocks_for(tiles, warps) : 1;
  return launch_kernel(cuda, kernel, dim3(static_cast<unsigned>(blocks), split),
                       dim3(static_cast<unsigned>(warps * kWarp)), layout.bytes, args, layout);
}

template <int kSteps>
KernelPtr launch_bias(CudaBackend& cuda, const AttentionArgs& args, int64_t images) {
  constexpr int64_t kWaves = 4;  // of CTAs, about
  const AttentionShape& shape = args.shape;
  BiasArgs bias{args, args.dbias, images, 1};
  const int64_t ctas = int64_t{bias.tiles()} * bias.tiles() * shape.heads,
                elements = int64_t{shape.heads} * shape.tokens * shape.tokens;
  bias.parts = std::clamp<int64_t>(divide_up(kWaves * cuda.processors(), ctas), 1,
                                   std::max<int64_t>(images, 1));
  if (bias.parts > 1) bias.sums = cuda.scratch_of<float>(bias.parts * elements);
  const size_t bytes = bias_bytes<kSteps>(shape, args.drop.rng != nullptr);
  allow_shared_memory(bias_kernel<kSteps>, bytes);
  return make_kernel(
      [=, blocks = static_cast<unsigned>(ctas * bias.parts), stream = cuda.stream()] {
        bias_kernel<kSteps><<<blocks, kBiasThreads, bytes, stream>>>(bias);
        if (bias.parts > 1)
          launch_finish(bias.sums, bias.parts, elements, SetElements{args.dbias}, stream);
      });
}

// Calls body with the head's width in steps of 16, as an integral constant.
template <class Body>
KernelPtr with_steps(int size, const Body& body) {
  switch (divide_up(size, 16)) {
    case 1: return body(std::integral_constant<int, 1>{});
    case 2: return body(std::integral_constant<int, 2>{});
    case 3: return body(std::integral_constant<int, 3>{});
    case 4: return body(std::integral_constant<int, 4>{});
    case 5: return body(std::integral_constant<int, 5>{});
    case 6: return body(std::integral_constant<int, 6>{});
    case 7:
    case 8: return body(std::integral_constant<int, 8>{});
    default: return body(std::integral_constant<int, 12>{});
  }
}

}  // namespace

KernelPtr mma_sync_attention(CudaBackend& cuda, const AttentionArgs& args, int64_t images,
                             bool backward, const MmaSyncPlan& plan) {
  return with_steps(args.shape.size, [&](auto steps) -> KernelPtr {
    if (!args.dbias) return launch<steps()>(cuda, args, images, backward, plan);
    std::shared_ptr<Kernel> bias = launch_bias<steps()>(cuda, args, images);
    if (!args.out) return make_kernel([bias] { bias->launch(); });
    std::shared_ptr<Kernel> rest = launch<steps()>(cuda, args, images, backward, plan);
    return make_kernel([bias, rest] { bias->launch(), rest->launch(); });
  });
}

}  // namespace vitrum::cuda
