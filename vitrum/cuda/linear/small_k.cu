// Lowering of linear layers with small K (linear/small_k.cuh), forward and backward.
#include "vitrum/cuda/host/tensor_map.h"
#include "vitrum/cuda/linear/gelu.h"
#include "vitrum/cuda/primitives/activation.cuh"
#include "vitrum/cuda/primitives/column_sums.cuh"
#include "vitrum/cuda/primitives/tma.cuh"
#include "vitrum/cuda/primitives/wgmma.cuh"
// Written in what is above.
#include "vitrum/cuda/linear/small_k.cuh"

namespace vitrum::cuda {
namespace {

using namespace small_k;

static_assert(limits_of(LinearKernel::kSmallK).max_depth == kMaxSteps * kDepth);

template <class F>
__global__ void __launch_bounds__(F::kThreads, 1)
    small_k_kernel([[maybe_unused]] const __grid_constant__ Args g) {
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
  args.w = permuted_rows_map(w, kDepth, F::kColumns);
  allow_shared_memory(small_k_kernel<F>, sizeof(typename F::Shared));
  const int blocks = blocks_high<F>(cuda, args) * (args.columns / F::kColumns);
  return launch_kernel(cuda, small_k_kernel<F>, static_cast<unsigned>(blocks), F::kThreads,
                       sizeof(typename F::Shared), args);
}

// ---- backward ----

using Back = Traits<128, Act::kGelu, /*kBack=*/true>;

// to (columns, rows) = from (rows, columns)^T
constexpr int kPatch = 32;
__global__ void __launch_bounds__(kPatch * 8)
    transpose(const bf16* from, bf16* to, int rows, int columns) {
  __shared__ bf16 patch[kPatch][kPatch + 2];
  const int top = blockIdx.y * kPatch, left = blockIdx.x * kPatch, x = threadIdx.x;
  for (int y = threadIdx.y; y < kPatch && top + y < rows; y += 8)
    if (left + x < columns) patch[y][x] = from[int64_t{top + y} * columns + left + x];
  __syncthreads();
  for (int y = threadIdx.y; y < kPatch && left + y < columns; y += 8)
    if (top + x < rows) to[int64_t{left + y} * rows + top + x] = patch[x][y];
}

KernelPtr lower_transpose(CudaBackend& cuda, const TensorView& from, const TensorView& to) {
  const auto rows = static_cast<int>(from.shape[0]), columns = static_cast<int>(from.shape[1]);
  return launch_kernel(cuda, transpose, dim3(blocks_for(columns, kPatch), blocks_for(rows, kPatch)),
                       dim3(kPatch, 8), 0, static_cast<const bf16*>(from.data),
                       static_cast<bf16*>(to.data), rows, columns);
}

size_t transposed_bytes(const TensorView& w) { return (w.bytes() + 255) / 256 * 256; }

}  // namespace

KernelPtr lower_small_k(CudaBackend& cuda, const Linear& op, const Operands& io) {
  const auto& [act, drop, site] = op;
  const TensorView &x = io.in[Linear::kX], &w = io.in[Linear::kWeight];
  const Args args{.x = tile_map(x, kDepth, kTileRows),
                  .bias = static_cast<const bf16*>(operand(io.in, Linear::kBias).data),
                  .pre = static_cast<bf16*>(operand(io.out, Linear::kSaved).data),
                  .y = static_cast<bf16*>(io.out[Linear::kY].data),
                  .rows = static_cast<int>(x.shape.rows()),
                  .columns = static_cast<int>(w.shape[0]),
                  .steps = static_cast<int>(divide_up(w.shape[1], kDepth)),
                  .tiles = static_cast<int>(divide_up(x.shape.rows(), kTileRows))};
  if (act == Act::kNone) return launch<Traits<256, Act::kNone>>(cuda, w, args);
  if (args.columns % 256 != 0) return launch<Traits<192, Act::kGelu>>(cuda, w, args);
  return launch<Traits<256, Act::kGelu>>(cuda, w, args);
}

size_t small_k_gelu_bwd_scratch(const CudaBackend& cuda, const TensorView& w) {
  return transposed_bytes(w) +
         static_cast<size_t>(cuda.processors() * Back::kColumns) * sizeof(float);
}

// `scratch` has w transposed, then partial sums.
KernelPtr lower_small_k_gelu_bwd(CudaBackend& cuda, const GeluGradient& of) {
  const int64_t rows = of.dy.shape.rows(), depth = of.w.shape[0], columns = of.w.shape[1];
  const TensorView transposed{of.scratch, {columns, depth}, of.w.dtype};
  auto* const partials = reinterpret_cast<float*>(of.scratch + transposed_bytes(of.w));
  const Args args{.x = tile_map(of.dy, kDepth, kTileRows),
                  .saved = static_cast<const bf16*>(of.pre.data),
                  .y = static_cast<bf16*>(of.d.data),
                  .partials = of.dbias ? partials : nullptr,
                  .rows = static_cast<int>(rows),
                  .columns = static_cast<int>(columns),
                  .steps = static_cast<int>(divide_up(depth, kDepth)),
                  .tiles = static_cast<int>(divide_up(rows, kTileRows))};
  std::shared_ptr<Kernel> turn = lower_transpose(cuda, of.w, transposed),
                          multiply = launch<Back>(cuda, transposed, args);
  const int high = blocks_high<Back>(cuda, args);
  return make_kernel([=, to = of.dbias, stream = cuda.stream()] {
    turn->launch(), multiply->launch();
    if (args.partials) launch_finish(args.partials, high, columns, AddToColumns{to}, stream);
  });
}

}  // namespace vitrum::cuda
