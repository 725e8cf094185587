// 1x1 convolutions that write more than they read: linear layers of small K over pixels
// (linear/small_k.cuh), with what follows them.
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
template <Ends kEnds>
using Of = Traits<256, Act::kNone, /*kBack=*/false, kEnds>;
constexpr int kWidth = Of<Ends::kPlain>::kColumns;
static_assert(kSmallKColumns == kWidth && kSmallKDepth == kMaxSteps * kDepth);

template <Ends kEnds>
__global__ void __launch_bounds__(Of<kEnds>::kThreads, 1)
    multiply_pixels([[maybe_unused]] const __grid_constant__ Args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::byte memory[];
  work<Of<kEnds>>(g, *reinterpret_cast<typename Of<kEnds>::Shared*>(memory));
#endif
}

Args args_of(const Operands& io, const ConvTask& task) {
  const TensorView x = io.in[Conv2d::kX];
  TensorView w = io.in[Conv2d::kWeight];
  w.shape = {w.shape[0], w.shape[1]};
  const int64_t rows = x.shape.rows();
  return {.x = tile_map(x, kDepth, kTileRows),
          .w = permuted_rows_map(w, kDepth, kWidth),
          .y = static_cast<bf16*>(io.out[Conv2d::kY].data),
          .rows = static_cast<int>(rows),
          .columns = static_cast<int>(task.out),
          .steps = static_cast<int>(divide_up(task.channels, kDepth)),
          .tiles = static_cast<int>(divide_up(rows, kTileRows))};
}
// Rows of blocks, each of all columns.
int blocks_high(const CudaBackend& cuda, int64_t rows, int64_t columns) {
  return static_cast<int>(
      std::min(divide_up(rows, kTileRows), int64_t{cuda.processors()} / (columns / kWidth)));
}

// `first` is launched before it.
template <Ends kEnds, class First>
KernelPtr launch(CudaBackend& cuda, const Args& args, const First& first) {
  using Shared = typename Of<kEnds>::Shared;
  allow_shared_memory(multiply_pixels<kEnds>, sizeof(Shared));
  const int blocks = blocks_high(cuda, args.rows, args.columns) * (args.columns / kWidth);
  return named(
      "small_k", make_kernel([=, stream = cuda.stream()] {
        first(stream);
        multiply_pixels<kEnds>
            <<<static_cast<unsigned>(blocks), Of<kEnds>::kThreads, sizeof(Shared), stream>>>(args);
      }));
}

}  // namespace

int small_k_moments_chunks(const CudaBackend& cuda, const ConvTask& task) {
  return blocks_high(cuda, task.images * task.height * task.width, task.out);
}

KernelPtr lower_small_k(CudaBackend& cuda, const Conv2d& op, const ConvTask& task,
                        const Operands& io, const ConvMoments& moments) {
  const auto& [stride, padding, eps, act] = op;
  Args args = args_of(io, task);
  if (moments.partials) {
    args.moments = moments.partials, args.weight = moments.weight;
    args.each = static_cast<int>(task.height * task.width);
    return launch<Ends::kMoments>(cuda, args, [](cudaStream_t) {});
  }
  auto* const tables = cuda.scratch_of<float>(2 * task.out);
  const FrozenAffine affine{io.in[Conv2d::kNormWeight],
                            io.in[Conv2d::kNormBias],
                            io.in[Conv2d::kMean],
                            io.in[Conv2d::kVar],
                            eps,
                            tables,
                            tables + task.out};
  args.saved = static_cast<const bf16*>(operand(io.in, Conv2d::kSkip).data);
  args.scale = affine.scale, args.shift = affine.shift, args.relu = act == Act::kRelu;
  return launch<Ends::kFollowed>(cuda, args,
                                 [=](cudaStream_t stream) { launch_affine(affine, stream); });
}

}  // namespace vitrum::cuda
