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

template <class Epilogue>
__global__ void __launch_bounds__(kThreads, 1)
    product([[maybe_unused]] const __grid_constant__ Args<Epilogue> g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::byte memory[];
  work(g, *reinterpret_cast<Shared<Epilogue>*>(memory));
#endif
}

// Of a tile how many columns (0: none suits) and splits of K.
struct Plan {
  int wide, splits;
};
Plan plan_of(const CudaBackend& cuda, const Operands& io) {
  const int64_t columns = io.in[1].shape[0], high = divide_up(io.in[0].shape.rows(), kRows),
                steps = divide_up(io.in[1].shape[1], kDepth);
  const auto tiles = [&](int wide) { return high * (columns / wide); };
  // Where there are many tiles, wide ones fetch less.
  const bool many = 2 * tiles(96) > cuda.processors();
  const int wide = columns % 96 != 0 || (many && columns % 128 == 0) ? 128 : 96;
  if (columns % wide != 0) return {0, 0};
  // Clusters of more than two do not come to lie on all processors, and a split of a few steps wins
  // nothing.
  constexpr int64_t kMinSteps = 6;
  const auto fits = [&](int splits) {
    const int64_t room = splits > 2 ? cuda.processors() * 3 / 4 : cuda.processors();
    return splits * tiles(wide) <= room && splits * kMinSteps <= steps;
  };
  int splits = 1;
  while (splits < kMaxSplits && fits(splits + 1)) ++splits;
  return {wide, splits};
}
template <class Body>
auto with_columns(const Plan& plan, const Body& body) {
  if (plan.wide == 96) return body(std::integral_constant<int, 96>{});
  return body(std::integral_constant<int, 128>{});
}

template <class Epilogue>
KernelPtr launch(CudaBackend& cuda, const TensorView& x, const TensorView& w, const Plan& plan,
                 const Epilogue& epilogue) {
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

// Beyond these rows it has not been held against other products.
bool suits(const CudaBackend& cuda, const Linear& op, const Operands& io) {
  constexpr int64_t kMaxRows = 512;
  const int64_t rows = io.in[0].shape.rows();
  const bool frozen_weights = io.packed;
  return frozen_weights && (op.act == Act::kNone || op.act == Act::kGelu) && rows > 0 &&
         rows <= kMaxRows && is_plain_bf16(cuda, op, io) && plan_of(cuda, io).wide > 0;
}

template <class Body>
auto with_gelu(Act act, const Body& body) {
  if (act == Act::kGelu) return body(std::integral_constant<Act, Act::kGelu>{});
  return body(std::integral_constant<Act, Act::kNone>{});
}

}  // namespace

bool has_small_m(const CudaBackend& cuda, const Linear& op, const Operands& io) {
  return suits(cuda, op, io) && for_own_product(cuda, op, io);
}

KernelPtr lower_small_m(CudaBackend& cuda, const Linear& op, const Operands& io) {
  const Plan plan = plan_of(cuda, io);
  return with_columns(plan, [&](auto tile) {
    return with_gelu(op.act, [&](auto act) {
      return launch(cuda, io.in[0], io.in[1], plan,
                    BiasActEpilogue<tile(), decltype(act)::value>{
                        .bias = static_cast<const bf16*>(operand(io.in, 2).data),
                        .y = static_cast<bf16*>(io.out[0].data),
                        .rows = static_cast<int>(io.in[0].shape.rows()),
                        .columns = static_cast<int>(io.in[1].shape[0])});
    });
  });
}

bool has_small_m_norm(const CudaBackend& cuda, const Linear& before, const Operands& first,
                      const Operands& norm, const Linear& behind, const Operands& second) {
  return suits(cuda, before, first) && suits(cuda, behind, second) && before.act == Act::kNone &&
         first.in[1].shape[0] <= kMaxTiles * plan_of(cuda, first).wide && is_bf16(norm.in[0]) &&
         !absent(norm.out[0]) && absent(operand(norm.out, 2)) && absent(operand(norm.out, 3));
}

KernelPtr lower_small_m_norm(CudaBackend& cuda, const Operands& first, const AddLayerNorm& op,
                             const Operands& norm, const Linear& behind, const Operands& second) {
  const TensorView &x = first.in[0], &w = first.in[1], &next = second.in[1], &sum = norm.out[0];
  const int64_t rows = x.shape.rows(), width = w.shape[0], columns = next.shape[0];
  const Plan to_sum = plan_of(cuda, first), to_y = plan_of(cuda, second);
  const int wide = to_sum.wide;
  const auto weights = std::make_shared<FoldedNorm>(fold_norm(cuda, norm, second));
  // The kernel behind looks at them before it waits for anything.
  check(cudaStreamSynchronize(cuda.stream()), "folding a norm");
  auto* const row_moments = cuda.scratch_of<RowMoments>(width / wide * rows);
  const std::shared_ptr<Kernel> add_up = with_columns(to_sum, [&](auto tile) {
    return launch(
        cuda, x, w, to_sum,
        ResidualEpilogue<tile()>{.bias = static_cast<const bf16*>(operand(first.in, 2).data),
                                 .skip = static_cast<const bf16*>(norm.in[0].data),
                                 .sum = static_cast<bf16*>(sum.data),
                                 .row_moments = row_moments,
                                 .rows = static_cast<int>(rows),
                                 .columns = static_cast<int>(width)});
  });
  const std::shared_ptr<Kernel> multiply = with_columns(to_y, [&](auto tile) {
    return with_gelu(behind.act, [&](auto act) {
      const FoldedNormEpilogue<tile(), decltype(act)::value> epilogue{
          .row_moments = row_moments,
          .sums = weights->sums,
          .shift = weights->shift,
          .y = static_cast<bf16*>(second.out[0].data),
          .rows = static_cast<int>(rows),
          .columns = static_cast<int>(columns),
          .tiles = static_cast<int>(width / wide),
          .wide = static_cast<float>(wide),
          .eps = op.eps};
      return launch(cuda, sum, {weights->scaled, next.shape, DType::kBF16}, to_y, epilogue);
    });
  });
  return make_kernel([weights, add_up, multiply] { add_up->launch(), multiply->launch(); });
}

}  // namespace vitrum::cuda
