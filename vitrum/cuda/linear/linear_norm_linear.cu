// Lowering of linear -> residual add -> LayerNorm -> linear (linear/linear_norm_linear.cuh) with
// the folding of the norm into the second layer's weights; and of the first layer with its residual
// add alone, where the norm is wanted as a tensor.
#include "vitrum/cuda/linear/gelu.h"
#include "vitrum/cuda/linear/linear_norm.h"
#include "vitrum/cuda/linear/tile_launch.cuh"
#include "vitrum/cuda/primitives/activation.cuh"
// Written in what is above.
#include "vitrum/cuda/linear/linear_norm_linear.cuh"

// For other cards the kernels are empty, and nothing uses what is here.
#pragma nv_diag_suppress 177

namespace vitrum::cuda {
namespace {

using namespace norm_linear;

// ---- the weights behind the norm ----

struct Fold {
  const bf16 *w, *bias;         // (columns, depth); bias may be null
  const float *scale, *offset;  // of the norm; offset may be null
  bf16* scaled;
  float *sums, *shift;
  int columns, depth;
};

constexpr int kFoldWarps = 8;

// A warp a row.
__global__ void __launch_bounds__(kFoldWarps* kWarp) fold_rows(Fold g) {
  const int row = static_cast<int>(blockIdx.x * kFoldWarps + threadIdx.x / kWarp),
            lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= g.columns) return;
  float sum = 0, shift = 0;
  for (int i = lane * 8; i < g.depth; i += kSpan) {
    const int64_t at = int64_t{row} * g.depth + i;
    const Eight w = load8(g.w + at), scale = load8(g.scale + i),
                offset = g.offset ? load8(g.offset + i) : Eight{};
    Eight scaled;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      scaled.v[k] = rounded<bf16>(w.v[k] * scale.v[k]);
      sum += scaled.v[k], shift = fmaf(w.v[k], offset.v[k], shift);
    }
    store8(g.scaled + at, scaled);
  }
  sum = warp_sum(sum), shift = warp_sum(shift);
  if (lane > 0) return;
  g.sums[row] = sum, g.shift[row] = shift + (g.bias ? to_float(g.bias[row]) : 0);
}

// ---- the layer before it ----

// On its way into the sum the layer's result is scaled or dropped.
struct ScaledOrDropped {
  Branch branch;

  __device__ __forceinline__ bool kept(int row) const {
    return !branch.drop.rng || branch.kept(row);
  }
  __device__ __forceinline__ Raw8<bf16> operator()(const Raw8<bf16>& x, bool kept,
                                                   int column) const {
    Eight v = unpack(x);
    if (branch.gamma) branch.scale<bf16>(v, column);
    if (branch.drop.rng) branch.drop_row<bf16>(v, kept);
    return pack<bf16>(v);
  }
};

template <bool kNormed = false, class Change>
KernelPtr lower_sum(CudaBackend& cuda, const Operands& linear, const TensorView& skip,
                    const TensorView& sum, const Change& change, RowMoments* row_moments,
                    const NormBefore& norm = {}) {
  const TensorView &x = linear.in[Linear::kX], &w = linear.in[Linear::kWeight];
  return tile::launch(cuda, x, w,
                      ResidualEpilogue<Change, kNormed>{
                          .bias = static_cast<const bf16*>(operand(linear.in, Linear::kBias).data),
                          .skip = static_cast<const bf16*>(skip.data),
                          .sum = static_cast<bf16*>(sum.data),
                          .row_moments = row_moments,
                          .rows = static_cast<int>(x.shape.rows()),
                          .columns = static_cast<int>(w.shape[0]),
                          .change = change,
                          .norm = norm});
}

// The same of a layer with a norm before it: means and rstds of its rows first, 2 x rows of them.
KernelPtr lower_normed_sum(CudaBackend& cuda, const InnerNorm& inner, const Operands& linear,
                           const TensorView& skip, const TensorView& sum, RowMoments* row_moments,
                           float* statistics) {
  const auto& [eps] = inner.op;
  const TensorView &x = inner.io.in[LayerNorm::kX], &weight = inner.io.in[LayerNorm::kWeight],
                   bias = operand(inner.io.in, LayerNorm::kBias);
  const int64_t rows = x.shape.rows();
  const auto weights =
      std::make_shared<FoldedNorm>(fold_norm(cuda, {.in = {x, x, weight, bias}}, linear));
  const NormBefore norm{statistics, statistics + rows, weights->sums, weights->shift};
  std::shared_ptr<Kernel> look = lower(
      cuda, LayerNorm{.eps = eps},
      {.in = {x, weight, bias},
       .out = {{}, {statistics, {rows}, DType::kF32}, {statistics + rows, {rows}, DType::kF32}}});
  Operands normed = linear;
  normed.in[Linear::kX] = x;
  normed.in[Linear::kWeight] = {weights->scaled, linear.in[Linear::kWeight].shape, DType::kBF16};
  std::shared_ptr<Kernel> multiply =
      lower_sum<true>(cuda, normed, skip, sum, Identity{}, row_moments, norm);
  return make_kernel([weights, look, multiply] { look->launch(), multiply->launch(); });
}

}  // namespace

KernelPtr lower_linear_sum(CudaBackend& cuda, const Operands& linear, const AddLayerNorm& op,
                           const Operands& norm, const Branch& branch) {
  const auto& [eps] = op;
  const TensorView& sum = norm.out[AddLayerNorm::kSum];
  const auto added = [&](const auto& change) {
    return lower_sum(cuda, linear, norm.in[AddLayerNorm::kA], sum, change, nullptr);
  };
  std::shared_ptr<Kernel> add_up =
      branch.gamma || branch.drop.rng ? added(ScaledOrDropped{branch}) : added(Identity{});
  const Operands of_sum{
      .in = {sum, norm.in[AddLayerNorm::kWeight], operand(norm.in, AddLayerNorm::kBias)},
      .out = {operand(norm.out, AddLayerNorm::kY), operand(norm.out, AddLayerNorm::kMean),
              operand(norm.out, AddLayerNorm::kRstd)}};
  std::shared_ptr<Kernel> normalise =
      lower_forward(cuda, LayerNorm{.eps = eps}, of_sum, Branch{.from = {}, .to = branch.to});
  return make_kernel([add_up, normalise] { add_up->launch(), normalise->launch(); });
}

FoldedNorm fold_norm(CudaBackend& cuda, const Operands& norm, const Operands& second) {
  const TensorView& next = second.in[Linear::kWeight];
  const int64_t columns = next.shape[0], width = next.shape[1];
  FoldedNorm folded{cuda.allocate(next.bytes() + 2 * static_cast<size_t>(columns) * sizeof(float))};
  folded.scaled = reinterpret_cast<bf16*>(folded.memory.data());
  folded.sums = reinterpret_cast<float*>(folded.scaled + columns * width);
  folded.shift = folded.sums + columns;
  const Fold fold{.w = static_cast<const bf16*>(next.data),
                  .bias = static_cast<const bf16*>(operand(second.in, Linear::kBias).data),
                  .scale = norm.in[AddLayerNorm::kWeight].f32(),
                  .offset = operand(norm.in, AddLayerNorm::kBias).f32(),
                  .scaled = folded.scaled,
                  .sums = folded.sums,
                  .shift = folded.shift,
                  .columns = static_cast<int>(columns),
                  .depth = static_cast<int>(width)};
  fold_rows<<<blocks_for(columns, kFoldWarps), kFoldWarps * kWarp, 0, cuda.stream()>>>(fold);
  return folded;
}

KernelPtr lower_linear_norm_linear(CudaBackend& cuda, const Operands& first, const Branch& branch,
                                   const AddLayerNorm& op, const Operands& norm,
                                   const Linear& behind, const Operands& second,
                                   const TensorView& y, const std::optional<Rotation>& rotation,
                                   bool gated, const std::optional<InnerNorm>& inner) {
  const auto& [eps] = op;
  const auto& [act, drop, site] = behind;
  const TensorView &next = second.in[Linear::kWeight], &sum = norm.out[AddLayerNorm::kSum];
  const int64_t rows = sum.shape.rows(), width = sum.shape[-1], columns = next.shape[0],
                tiles = width / kColumns;
  const auto weights = std::make_shared<FoldedNorm>(fold_norm(cuda, norm, second));
  // Of each tile of a row; behind them is room for what is known of it before the first layer.
  auto* const row_moments = cuda.scratch_of<RowMoments>((tiles + 1) * rows);
  const auto added = [&](const auto& change) {
    return lower_sum(cuda, first, norm.in[AddLayerNorm::kA], sum, change, row_moments);
  };
  std::shared_ptr<Kernel> add_up =
      inner ? lower_normed_sum(cuda, *inner, first, norm.in[AddLayerNorm::kA], sum, row_moments,
                               reinterpret_cast<float*>(row_moments + tiles * rows))
      : branch.gamma ? added(ScaledOrDropped{branch})
                     : added(Identity{});
  const auto product = [&](const auto& form) {
    using Form = std::decay_t<decltype(form)>;
    const FoldedNormEpilogue<Form> epilogue{.row_moments = row_moments,
                                            .sums = weights->sums,
                                            .shift = weights->shift,
                                            .y = static_cast<bf16*>(y.data),
                                            .rows = static_cast<int>(rows),
                                            .columns = static_cast<int>(columns),
                                            .tiles = static_cast<int>(tiles),
                                            .part = 1 / static_cast<float>(tiles),
                                            .eps = eps,
                                            .form = form};
    return tile::launch(cuda, sum, {weights->scaled, next.shape, DType::kBF16}, epilogue,
                        Form::kGates);
  };
  const auto behind_norm = [&]() -> KernelPtr {
    if (rotation) return product(Rotated{*rotation});
    if (gated) return product(Gated<Act::kSilu>{});
    if (act == Act::kNone) return product(Activated<Act::kNone>{});
    return with_gelu_form(act, [&](auto kind) { return product(Activated<kind.value>{}); });
  };
  std::shared_ptr<Kernel> multiply = behind_norm();
  return make_kernel([weights, add_up, multiply] { add_up->launch(), multiply->launch(); });
}

}  // namespace vitrum::cuda
