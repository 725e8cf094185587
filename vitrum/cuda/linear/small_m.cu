// Lowering of linear layers with few rows (linear/small_m.cuh): tile width, split-K, and folded
// norms.
#include <algorithm>

#include "vitrum/cuda/host/tensor_map.h"
#include "vitrum/cuda/linear/gelu.h"
#include "vitrum/cuda/linear/linear_norm.h"
#include "vitrum/cuda/primitives/activation.cuh"
#include "vitrum/cuda/primitives/tma.cuh"
#include "vitrum/cuda/primitives/wgmma.cuh"
// Written in what is above.
#include "vitrum/cuda/linear/small_m.cuh"

namespace vitrum::cuda {
namespace {

using namespace small_m;

static_assert(kRows == 64 && kDepth == 64 && kMaxSplits == 4 && kMaxTiles == 16);  // plan_small_m

template <class Epilogue>
__global__ void __launch_bounds__(kThreads, 1)
    product([[maybe_unused]] const __grid_constant__ Args<Epilogue> g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::byte memory[];
  work(g, *reinterpret_cast<Shared<Epilogue>*>(memory));
#endif
}

template <class Body>
auto with_columns(const SmallMPlan& plan, const Body& body) {
  if (plan.columns == 96) return body(std::integral_constant<int, 96>{});
  return body(std::integral_constant<int, 128>{});
}

template <class Epilogue>
KernelPtr launch(CudaBackend& cuda, const TensorView& x, const TensorView& w,
                 const SmallMPlan& plan, const Epilogue& epilogue) {
  const Args<Epilogue> args{.x = tile_map(x, kDepth, kRows),
                            .w = permuted_rows_map(w, kDepth, Epilogue::kColumns),
                            .steps = static_cast<int>(divide_up(w.shape[1], kDepth)),
                            .splits = plan.splits,
                            .high = static_cast<int>(divide_up(x.shape.rows(), kRows)),
                            .epilogue = epilogue};
  const int blocks = args.high * static_cast<int>(w.shape[0] / Epilogue::kColumns) * plan.splits;
  allow_shared_memory(product<Epilogue>, sizeof(Shared<Epilogue>));
  return make_kernel([=, stream = cuda.stream()] {
    launch_cluster(product<Epilogue>, blocks, plan.splits, kThreads, sizeof(Shared<Epilogue>),
                   stream,
                   /*early=*/true, args);
  });
}

template <class Body>
auto with_gelu(Act act, const Body& body) {
  if (act == Act::kGelu) return body(std::integral_constant<Act, Act::kGelu>{});
  return body(std::integral_constant<Act, Act::kNone>{});
}

}  // namespace

KernelPtr lower_small_m(CudaBackend& cuda, const Linear& op, const Operands& io) {
  const auto& [act, drop, site] = op;
  const SmallMPlan plan = plan_small_m(cuda.card(), linear_task(op, io));
  return with_columns(plan, [&](auto tile) {
    return with_gelu(act, [&](auto kind) {
      return launch(cuda, io.in[Linear::kX], io.in[Linear::kWeight], plan,
                    BiasActEpilogue<tile(), decltype(kind)::value>{
                        .bias = static_cast<const bf16*>(operand(io.in, Linear::kBias).data),
                        .y = static_cast<bf16*>(io.out[Linear::kY].data),
                        .rows = static_cast<int>(io.in[Linear::kX].shape.rows()),
                        .columns = static_cast<int>(io.in[Linear::kWeight].shape[0])});
    });
  });
}

KernelPtr lower_small_m_norm(CudaBackend& cuda, const Operands& first, const AddLayerNorm& op,
                             const Operands& norm, const Linear& behind, const Operands& second) {
  const auto& [eps] = op;
  const auto& [act, drop, site] = behind;
  const TensorView &x = first.in[Linear::kX], &w = first.in[Linear::kWeight],
                   &next = second.in[Linear::kWeight], &sum = norm.out[AddLayerNorm::kSum];
  const int64_t rows = x.shape.rows(), width = w.shape[0], columns = next.shape[0];
  const SmallMPlan to_sum = plan_small_m(cuda.card(), linear_task({}, first)),
                   to_y = plan_small_m(cuda.card(), linear_task(behind, second));
  const int wide = to_sum.columns;
  const auto weights = std::make_shared<FoldedNorm>(fold_norm(cuda, norm, second));
  // The kernel behind looks at them before it waits for anything.
  check(cudaStreamSynchronize(cuda.stream()), "folding a norm");
  auto* const row_moments = cuda.scratch_of<RowMoments>(width / wide * rows);
  const std::shared_ptr<Kernel> add_up = with_columns(to_sum, [&](auto tile) {
    return launch(cuda, x, w, to_sum,
                  ResidualEpilogue<tile()>{
                      .bias = static_cast<const bf16*>(operand(first.in, Linear::kBias).data),
                      .skip = static_cast<const bf16*>(norm.in[AddLayerNorm::kA].data),
                      .sum = static_cast<bf16*>(sum.data),
                      .row_moments = row_moments,
                      .rows = static_cast<int>(rows),
                      .columns = static_cast<int>(width)});
  });
  const std::shared_ptr<Kernel> multiply = with_columns(to_y, [&](auto tile) {
    return with_gelu(act, [&](auto kind) {
      const FoldedNormEpilogue<tile(), decltype(kind)::value> epilogue{
          .row_moments = row_moments,
          .sums = weights->sums,
          .shift = weights->shift,
          .y = static_cast<bf16*>(second.out[Linear::kY].data),
          .rows = static_cast<int>(rows),
          .columns = static_cast<int>(columns),
          .tiles = static_cast<int>(width / wide),
          .wide = static_cast<float>(wide),
          .eps = eps};
      return launch(cuda, sum, {weights->scaled, next.shape, DType::kBF16}, to_y, epilogue);
    });
  });
  return make_kernel([weights, add_up, multiply] { add_up->launch(), multiply->launch(); });
}

}  // namespace vitrum::cuda
