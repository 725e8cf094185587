// Lowering of the pre-activation gradient between two linear layers: the kernel for large K
// (linear/gelu_bwd.cuh) is here, that for small K in linear/small_k.cu.
#include "vitrum/cuda/host/tensor_map.h"
#include "vitrum/cuda/linear/gelu.h"
#include "vitrum/cuda/primitives/activation.cuh"
#include "vitrum/cuda/primitives/column_sums.cuh"
#include "vitrum/cuda/primitives/tma.cuh"
#include "vitrum/cuda/primitives/wgmma.cuh"
// Written in what is above.
#include "vitrum/cuda/linear/gelu_bwd.cuh"

namespace vitrum::cuda {
namespace {

using namespace gelu_bwd;

static_assert(limits_of(LinearKernel::kTileGelu).min_depth > kStages * kDepth);
static_assert(kCluster == 2 && kTileRows == 256 &&
              TileScheduler::kAcross == 256);  // choose_gelu_bwd

template <bool kAgain>
__global__ void __launch_bounds__(kThreads, 1)
    gelu_bwd_kernel([[maybe_unused]] const __grid_constant__ Args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::byte memory[];
  work<kAgain>(g, *reinterpret_cast<Shared*>(memory));
#endif
}

int64_t tiles_high(const TensorView& dy) { return divide_up(dy.shape.rows(), kTileRows); }
int64_t tiles_in(const TensorView& dy, const TensorView& w) {
  return tiles_high(dy) * (w.shape[1] / TileScheduler::kAcross);
}

TensorView rows_of(const TensorView& view, int64_t first, int64_t count) {
  const int64_t columns = view.shape[-1];
  auto* const data = static_cast<std::byte*>(view.data);
  return {data + static_cast<size_t>(first * columns) * size_of(view.dtype),
          {count, columns},
          view.dtype};
}

}  // namespace

size_t tile_gelu_bwd_scratch(const TensorView& dy, const TensorView& w) {
  return static_cast<size_t>(tiles_high(dy) * w.shape[1]) * sizeof(float);
}

KernelPtr lower_tile_gelu_bwd(CudaBackend& cuda, const GeluGradient& of) {
  const int64_t depth = of.w.shape[0], columns = of.w.shape[1];
  const Args args{.dy = tile_map(of.dy, kDepth, kShare),
                  .w = tile_map(of.w, kColumns, kDepth),
                  .pre = tile_map(of.pre, kColumns, kRowsCome),
                  .d = tile_map(of.d, kColumns, kRowsGo),
                  .y = tile_map(of.y ? of.y : of.d, kColumns, kRowsAgain),
                  .partials = of.dbias ? reinterpret_cast<float*>(of.scratch) : nullptr,
                  .columns = static_cast<int>(columns),
                  .steps = static_cast<int>(divide_up(depth, kDepth)),
                  .tiles = static_cast<int>(tiles_in(of.dy, of.w))};
  std::shared_ptr<Kernel> multiply =
      launch_clusters(cuda, of.y ? gelu_bwd_kernel<true> : gelu_bwd_kernel<false>, args.tiles,
                      kCluster, kThreads, sizeof(Shared), args);
  return make_kernel([=, partials = args.partials, to = of.dbias, high = tiles_high(of.dy),
                      stream = cuda.stream()] {
    multiply->launch();
    if (to) launch_finish(partials, high, columns, AddToColumns{to}, stream);
  });
}

GeluBwdKernel choose_mlp_bwd(const CudaBackend& cuda, const LinearBwd& behind, const Operands& io,
                             const LinearBwd& before, const Operands& before_io) {
  const auto& [behind_act, behind_drop, behind_site] = behind;
  const auto& [act, drop, site] = before;
  if (behind_act != Act::kNone || behind_drop != 0) return GeluBwdKernel::kNone;
  if (act != Act::kGelu || drop != 0) return GeluBwdKernel::kNone;
  LinearTask task = input_gradient_task(io);
  for (const TensorView& view : {io.out[LinearBwd::kDx], operand(before_io.in, LinearBwd::kSaved),
                                 before_io.in[LinearBwd::kWeight]})
    task.bf16 = task.bf16 && is_bf16(view);
  return choose_gelu_bwd(cuda.card(), task);
}

LinearParts mlp_bwd_parts(CudaBackend& cuda, const Operands& behind, const Operands& before,
                          const TensorView& again) {
  const TensorView dy = behind.in[LinearBwd::kDy], w = behind.in[LinearBwd::kWeight],
                   pre = before.in[LinearBwd::kSaved];
  const bool small_k =
      choose_gelu_bwd(cuda.card(), input_gradient_task(behind)) == GeluBwdKernel::kSmallK;
  const auto to_d = [=, &cuda, dbias = operand(before.out, LinearBwd::kDbias).f32()](
                        const TensorView& d, int64_t first, std::byte* scratch) {
    const int64_t rows = d.shape[0];
    const GeluGradient of{rows_of(dy, first, rows),
                          w,
                          rows_of(pre, first, rows),
                          d,
                          dbias,
                          scratch,
                          again ? rows_of(again, first, rows) : TensorView{}};
    return small_k ? lower_small_k_gelu_bwd(cuda, of) : lower_tile_gelu_bwd(cuda, of);
  };
  return {.to_d = to_d,
          .scratch = small_k ? small_k_gelu_bwd_scratch(cuda, w) : tile_gelu_bwd_scratch(dy, w)};
}

}  // namespace vitrum::cuda
