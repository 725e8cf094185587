// Linear layers of little depth (linear_shallow.cuh): where they are used, and with what.
#include "vitrum/cuda/activate.cuh"
#include "vitrum/cuda/columns.cuh"
#include "vitrum/cuda/linear_act.h"
#include "vitrum/cuda/tensor_map.h"
#include "vitrum/cuda/tma.cuh"
#include "vitrum/cuda/wgmma.cuh"
// Written in what is above.
#include "vitrum/cuda/linear_shallow.cuh"

namespace vitrum::cuda {
namespace {

using namespace shallow;

constexpr int64_t kFewestRows = 8192;   // half of the processors would be idle with fewer
constexpr int64_t kMostColumns = 2048;  // with more, few blocks lie below each other

template <class F>
__global__ void __launch_bounds__(F::kThreads, 1)
    linear_shallow([[maybe_unused]] const __grid_constant__ Args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::byte memory[];
  work<F>(g, *reinterpret_cast<typename F::Shared*>(memory));
#endif
}

// Blocks below each other, of as many as the card has processors.
template <class F>
int blocks_high(const CudaBackend& cuda, const Args& args) {
  return std::min(args.tiles, cuda.processors() / (args.columns / F::kColumns));
}

template <class F>
KernelPtr launch(CudaBackend& cuda, const TensorView& w, Args args) {
  args.w = shuffled_rows(w, kDepth, F::kColumns);
  allow_shared_memory(linear_shallow<F>, sizeof(typename F::Shared));
  const int blocks = blocks_high<F>(cuda, args) * (args.columns / F::kColumns);
  return launch_kernel(cuda, linear_shallow<F>, static_cast<unsigned>(blocks), F::kThreads,
                       sizeof(typename F::Shared), args);
}

bool suits(int64_t depth, int64_t rows) {
  return depth >= kDepth && depth <= kMostSteps * kDepth && rows >= kFewestRows &&
         rows < INT32_MAX / 2;
}

}  // namespace

bool has_linear_shallow(const CudaBackend& cuda, const Linear& op, const Operands& io) {
  const TensorView &x = io.in[0], &w = io.in[1], &y = io.out[0], pre = operand(io.out, 1);
  if (!has_copy_engine(cuda) || op.drop != 0 || !y) return false;
  if (op.act != Act::kGelu && (op.act != Act::kNone || pre)) return false;
  if (x.dtype != DType::kBF16 || w.dtype != DType::kBF16 || y.dtype != DType::kBF16) return false;
  const bool wide = w.shape[0] % 256 == 0 || (op.act == Act::kGelu && w.shape[0] % 192 == 0);
  return wide && w.shape[0] <= kMostColumns && suits(w.shape[1], x.shape.rows()) &&
         common_alignment({x, w, y, pre, operand(io.in, 2)}) == 16;
}

KernelPtr lower_linear_shallow(CudaBackend& cuda, const Linear& op, const Operands& io) {
  const TensorView &x = io.in[0], &w = io.in[1];
  const Args args{.x = tiles_of(x, kDepth, kTileRows),
                  .bias = static_cast<const bf16*>(operand(io.in, 2).data),
                  .pre = static_cast<bf16*>(operand(io.out, 1).data),
                  .y = static_cast<bf16*>(io.out[0].data),
                  .rows = static_cast<int>(x.shape.rows()),
                  .columns = static_cast<int>(w.shape[0]),
                  .steps = static_cast<int>(divide_up(w.shape[1], kDepth)),
                  .tiles = static_cast<int>(divide_up(x.shape.rows(), kTileRows))};
  if (op.act == Act::kNone) return launch<Form<256, Act::kNone>>(cuda, w, args);
  if (args.columns % 256 != 0) return launch<Form<192, Act::kGelu>>(cuda, w, args);
  return launch<Form<256, Act::kGelu>>(cuda, w, args);
}

using Back = Form<128, Act::kGelu, /*kBack=*/true>;

bool has_shallow_gradient(const CudaBackend& cuda, const TensorView& dy, const TensorView& w) {
  return has_copy_engine(cuda) && w.shape[1] % Back::kColumns == 0 && w.shape[1] <= kMostColumns &&
         w.shape[0] % 8 == 0 && suits(w.shape[0], dy.shape.rows());
}

int64_t shallow_partials(const CudaBackend& cuda) {
  return int64_t{cuda.processors()} * Back::kColumns;
}

KernelPtr lower_shallow_gradient(CudaBackend& cuda, const GradientThrough& work) {
  const int64_t rows = work.dy.shape.rows(), columns = work.turned.shape[0];
  const Args args{.x = tiles_of(work.dy, kDepth, kTileRows),
                  .seen = static_cast<const bf16*>(work.pre.data),
                  .y = static_cast<bf16*>(work.d.data),
                  .partials = work.dbias ? work.partials : nullptr,
                  .rows = static_cast<int>(rows),
                  .columns = static_cast<int>(columns),
                  .steps = static_cast<int>(divide_up(work.turned.shape[1], kDepth)),
                  .tiles = static_cast<int>(divide_up(rows, kTileRows))};
  std::shared_ptr<Kernel> kernel = launch<Back>(cuda, work.turned, args);
  return make_kernel(
      [=, high = blocks_high<Back>(cuda, args), to = work.dbias, stream = cuda.stream()] {
        kernel->launch();
        if (args.partials) launch_finish(args.partials, high, columns, AddToColumns{to}, stream);
      });
}

}  // namespace vitrum::cuda
