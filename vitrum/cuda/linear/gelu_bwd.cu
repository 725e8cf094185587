// The gradient behind GELU between two linear layers, by the kernel that suits their depth: the
// deep one (linear/gelu_bwd.cuh) is here.
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

using namespace deep;

__global__ void __launch_bounds__(kThreads, 1)
    linear_act_bwd([[maybe_unused]] const __grid_constant__ Args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::byte memory[];
  work(g, *reinterpret_cast<Shared*>(memory));
#endif
}

int64_t tiles_high(const TensorView& dy) { return divide_up(dy.shape.rows(), kTileRows); }
int64_t tiles_in(const TensorView& dy, const TensorView& w) {
  return tiles_high(dy) * (w.shape[1] / Walk::kAcross);
}

TensorView rows_of(const TensorView& view, int64_t first, int64_t count) {
  const int64_t columns = view.shape[-1];
  auto* const data = static_cast<std::byte*>(view.data);
  return {data + static_cast<size_t>(first * columns) * size_of(view.dtype),
          {count, columns},
          view.dtype};
}

}  // namespace

bool has_deep_gradient(const CudaBackend& cuda, const TensorView& dy, const TensorView& w) {
  constexpr int64_t kLeastDepth = 384;
  static_assert(kLeastDepth > kStages * kDepth);
  return w.shape[0] >= kLeastDepth && w.shape[1] % Walk::kAcross == 0 &&
         dy.shape.rows() < INT32_MAX / 2 && fills(cuda, tiles_in(dy, w), kCluster);
}

size_t deep_gradient_scratch(const TensorView& dy, const TensorView& w) {
  return static_cast<size_t>(tiles_high(dy) * w.shape[1]) * sizeof(float);
}

KernelPtr lower_deep_gradient(CudaBackend& cuda, const GeluGradient& of) {
  const int64_t depth = of.w.shape[0], columns = of.w.shape[1];
  const Args args{.dy = tiles_of(of.dy, kDepth, kShare),
                  .w = tiles_of(of.w, kColumns, kDepth),
                  .pre = tiles_of(of.pre, kColumns, kRowsCome),
                  .d = tiles_of(of.d, kColumns, kRowsGo),
                  .partials = of.dbias ? reinterpret_cast<float*>(of.scratch) : nullptr,
                  .columns = static_cast<int>(columns),
                  .steps = static_cast<int>(divide_up(depth, kDepth)),
                  .tiles = static_cast<int>(tiles_in(of.dy, of.w))};
  std::shared_ptr<Kernel> multiply =
      launch_clusters(cuda, linear_act_bwd, args.tiles, kCluster, kThreads, sizeof(Shared), args);
  return make_kernel([=, partials = args.partials, to = of.dbias, high = tiles_high(of.dy),
                      stream = cuda.stream()] {
    multiply->launch();
    if (to) launch_finish(partials, high, columns, AddToColumns{to}, stream);
  });
}

bool has_gradient_through(const CudaBackend& cuda, const LinearBwd& behind, const Operands& io,
                          const LinearBwd& before, const Operands& before_io) {
  const TensorView &dy = io.in[0], &w = io.in[2], saved = operand(before_io.in, 3);
  if (!has_copy_engine(cuda) || behind.act != Act::kNone || behind.drop != 0) return false;
  if (before.act != Act::kGelu || before.drop != 0 || w.shape[0] % 8 != 0) return false;
  for (const TensorView& view : {dy, w, io.out[0], saved, before_io.in[2]})
    if (view.dtype != DType::kBF16) return false;
  return has_shallow_gradient(dy, w) || has_deep_gradient(cuda, dy, w);
}

LinearParts gradient_through(CudaBackend& cuda, const Operands& behind, const Operands& before) {
  const TensorView dy = behind.in[0], w = behind.in[2], pre = before.in[3];
  const bool shallow = has_shallow_gradient(dy, w);
  const auto to_d = [=, &cuda, dbias = operand(before.out, 2).f32()](
                        const TensorView& d, int64_t first, std::byte* scratch) {
    const int64_t rows = d.shape[0];
    const GeluGradient of{
        rows_of(dy, first, rows), w, rows_of(pre, first, rows), d, dbias, scratch};
    return shallow ? lower_shallow_gradient(cuda, of) : lower_deep_gradient(cuda, of);
  };
  return {.to_d = to_d,
          .scratch = shallow ? shallow_gradient_scratch(cuda, w) : deep_gradient_scratch(dy, w)};
}

}  // namespace vitrum::cuda
