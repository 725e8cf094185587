// LayerNorm backward: dx as the forward pass, one warp or half of one a row; each keeps the sums
// for dw and dbias of all rows it walks over, and they are added up in a fixed order.
#include <cassert>

#include "vitrum/cuda/norm/layer_norm_bwd.cuh"
#include "vitrum/cuda/primitives/column_sums.cuh"
#include "vitrum/cuda/primitives/mma.cuh"

namespace vitrum::cuda {
namespace {

struct Backward {
  TensorView dy = {}, x = {}, dskip = {}, dx = {};
  const float *w = nullptr, *mean = nullptr, *rstd = nullptr;
  float *dw = nullptr, *dbias = nullptr;
  float* sums = nullptr;  // of dx, or of what becomes of it
  int64_t rows = 0;
  int width = 0;
  const Branch* branch = nullptr;
  BranchGradient gradient = {};
};

template <class T>
struct BackwardRows {
  const T *dy, *x, *dskip;
  T* dx;
  const float *w, *mean, *rstd;
  float* partials;
  uint32_t rows;  // fewer than 2^31
  int width;
  float inverse;  // of the width
  Branch branch;
  T* result;       // dx behind the branch
  const T* input;  // of ChannelScale
};

// Every sum takes eight registers a vector: how many warps a processor then has room for. Rows are
// read ahead of their use into shared memory, as many as that has room for.
template <class T, class RowShape, int kSums, bool kBranch>
struct BackwardShape {
  static constexpr int kVectors = RowShape::kVectors;
  static constexpr int kRoom[2][9] = {{0, 20, 16, 12, 8}, {0, 28, 20, 16, 12, 8, 8, 8, 8}};
  static constexpr int kFewer = (kSums > 2 && kBranch ? 4 : 0) + (kSums > 3 ? 4 : 0);
  static constexpr int kHeld = std::max(kRoom[sizeof(T) == 2][kVectors] - kFewer, 8);
  static constexpr int kWarps = sizeof(T) == 2 ? kHeld / 2 : 4;  // few blocks leave few partials
  static constexpr int kBlocks = kHeld / kWarps;
  static constexpr int kThreads = kWarps * kWarp, kRows = kThreads / RowShape::kLanes;
  static constexpr int kOperands = kSums > 3 ? 4 : 3;
  static constexpr size_t kBytes = kThreads * kOperands * kVectors * sizeof(Raw8<T>);  // a stage
  static constexpr size_t kSharedOfProcessor = 220 << 10, kSharedOfBlock = 96 << 10;
  static constexpr int kStages = static_cast<int>(
      std::clamp<size_t>(std::min(kSharedOfProcessor / kBlocks, kSharedOfBlock) / kBytes, 2, 4));
};

// Rows on their way into shared memory. A lane asks for its own pieces and reads no others, so
// nobody waits for anybody else.
template <class T, class Shape>
struct Ahead {
  Raw8<T>* mine;     // [stage][operand][vector], one for each thread
  int first, width;  // this lane's first element of a row; how many a row has
  int stage = 0;

  // Only the last vector of a row may be short of elements, or missing where there are eight.
  __device__ __forceinline__ bool has(int vector) const {
    constexpr int kSure = Shape::kVectors == 8 ? 6 : Shape::kVectors - 1;
    return vector < kSure || vector * kSpan + first < width;
  }
  __device__ __forceinline__ Raw8<T>* at(int stage, int operand) const {
    return mine + (stage * Shape::kOperands + operand) * Shape::kVectors * Shape::kThreads;
  }
  __device__ __forceinline__ Eight read(int operand, int vector) const {
    Raw8<T> raw = {};
    if (has(vector)) raw = at(stage, operand)[vector * Shape::kThreads];
    return unpack(raw);
  }
  // `from`: of this lane's first piece.
  __device__ __forceinline__ void ask(int stage, int operand, const T* from) const {
    Raw8<T>* const to = at(stage, operand);
#pragma unroll
    for (int j = 0; j < Shape::kVectors; ++j)
      if (has(j))
#pragma unroll
        for (size_t k = 0; k < sizeof(T) / 2; ++k)
          cp_async_16(&to[j * Shape::kThreads].part[k],
                      reinterpret_cast<const uint4*>(from + j * kSpan) + k);
  }
};

// What the teams have, where the rows were: (team, kSums, width). Then this block's partials.
template <int kSums, class T, class Shape, int kCount>
__device__ __forceinline__ void write_partials(const BackwardRows<T>& g,
                                               const Ahead<T, Shape>& rows,
                                               const Eight (&sums)[kCount][Shape::kVectors],
                                               float* of_teams, int team) {
  __syncthreads();
  const int columns = kSums * g.width;
#pragma unroll
  for (int which = 0; which < kSums; ++which)
#pragma unroll
    for (int j = 0; j < Shape::kVectors; ++j)
      if (rows.has(j))
        store8(of_teams + team * columns + which * g.width + j * kSpan + rows.first,
               sums[which][j]);
  __syncthreads();
  for (int i = threadIdx.x; i < columns; i += Shape::kThreads) {
    float sum = of_teams[i];
#pragma unroll
    for (int t = 1; t < Shape::kRows; ++t) sum += of_teams[t * columns + i];
    g.partials[static_cast<int64_t>(blockIdx.x) * columns + i] = sum;
  }
}

// kSums: none, those of dw and dbias, those of the last result too, and those of dgamma.
template <class T, class RowShape, int kSums, bool kBranch>
__global__ void __launch_bounds__(BackwardShape<T, RowShape, kSums, kBranch>::kThreads,
                                  BackwardShape<T, RowShape, kSums, kBranch>::kBlocks)
    norm_rows_back(BackwardRows<T> g) {
  using Shape = BackwardShape<T, RowShape, kSums, kBranch>;
  constexpr int kVectors = RowShape::kVectors, kLanes = RowShape::kLanes;
  constexpr int kLast = Shape::kStages - 1;
  enum Operand { kDy, kX, kSkip, kInput };
  extern __shared__ float4 shared[];
  const int team = threadIdx.x / kLanes, first = threadIdx.x % kLanes * 8;
  const auto stride = static_cast<uint32_t>(gridDim.x * Shape::kRows);
  const auto scales = [&](int j) { return load8(g.w + j * kSpan + first); };
  Eight sums[kSums == 0 ? 1 : kSums][kVectors] = {};
  Ahead<T, Shape> rows{reinterpret_cast<Raw8<T>*>(shared) + threadIdx.x, first, g.width};
  const auto ask = [&](int stage, uint32_t r) {
    if (r < g.rows) {
      const int64_t at = int64_t{r} * g.width + first;
      rows.ask(stage, kDy, g.dy + (kBranch ? g.branch.from(r) * g.width + first : at));
      rows.ask(stage, kX, g.x + at);
      if (g.dskip) rows.ask(stage, kSkip, g.dskip + at);
      if (kSums > 3) rows.ask(stage, kInput, g.input + at);
    }
    cp_async_commit();
  };
  uint32_t r = blockIdx.x * Shape::kRows + team;
  float next_mean = 0, next_rstd = 0;
  const auto ask_scalars = [&](uint32_t r) {
    if (r < g.rows) next_mean = g.mean[r], next_rstd = g.rstd[r];
  };
#pragma unroll
  for (int s = 0; s < kLast; ++s) ask(s, r + s * stride);
  ask_scalars(r);
  for (; r < g.rows; r += stride) {
    ask(rows.stage == 0 ? kLast : rows.stage - 1, r + kLast * stride);
    RowGradient row{next_mean, next_rstd};
    ask_scalars(r + stride);
    cp_async_wait<kLast>();
    // Elements that a lane lacks are zeros: they add nothing, and nothing branches around them.
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const Eight d = rows.read(kDy, j), v = rows.read(kX, j);
      const Eight w = rows.has(j) ? scales(j) : Eight{};
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float hat = row.hat(v.v[k]);
        row.add(__fmul_rn(d.v[k], w.v[k]), hat);
        if constexpr (kSums > 0) {
          sums[0][j].v[k] = fmaf(d.v[k], hat, sums[0][j].v[k]);
          sums[1][j].v[k] = __fadd_rn(sums[1][j].v[k], d.v[k]);
        }
      }
    }
    if (g.dx || kBranch) {
      row.template finish<kLanes>(static_cast<float>(g.width), g.inverse);
      // What is kept from before would not leave enough registers.
      if constexpr (kVectors > 6 || (kSums > 2 && !kBranch)) __syncwarp(row_lanes<kLanes>());
      const bool kept = kBranch && g.branch.drop.rng ? g.branch.kept(r) : true;
      const int64_t at = int64_t{r} * g.width + first,
                    to = kBranch ? g.branch.to(r) * g.width + first : at;
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        if (!rows.has(j)) continue;
        Eight d = rows.read(kDy, j);
        const Eight v = rows.read(kX, j), w = scales(j);
#pragma unroll
        for (int k = 0; k < 8; ++k) d.v[k] = row.dx(__fmul_rn(d.v[k], w.v[k]), row.hat(v.v[k]));
        Raw8<T> raw = pack<T>(d);
        if (g.dskip) {
          const Eight s = rows.read(kSkip, j);
          d = unpack(raw);
#pragma unroll
          for (int k = 0; k < 8; ++k) d.v[k] = __fadd_rn(d.v[k], s.v[k]);
          raw = pack<T>(d);
        }
        if (g.dx) store_raw(g.dx + at + j * kSpan, raw);
        d = unpack(raw);
        if constexpr (kBranch) {
          if (g.branch.drop.rng) g.branch.template drop_row<T>(d, kept);
          if constexpr (kSums > 3) {
            const Eight seen = rows.read(kInput, j);
#pragma unroll
            for (int k = 0; k < 8; ++k) sums[3][j].v[k] = fmaf(d.v[k], seen.v[k], sums[3][j].v[k]);
            g.branch.template scale<T>(d, j * kSpan + first);
          }
          store8(g.result + to + j * kSpan, d);
        }
        if constexpr (kSums > 2)
#pragma unroll
          for (int k = 0; k < 8; ++k) sums[2][j].v[k] = __fadd_rn(sums[2][j].v[k], d.v[k]);
      }
    }
    rows.stage = rows.stage == kLast ? 0 : rows.stage + 1;
  }
  if constexpr (kSums == 0) return;
  trigger_dependents();
  write_partials<kSums>(g, rows, sums, reinterpret_cast<float*>(shared), team);
}

template <class T, class RowShape, int kSums, bool kBranch = false>
KernelPtr backward_rows(CudaBackend& cuda, const Backward& g) {
  using Shape = BackwardShape<T, RowShape, kSums, kBranch>;
  const int64_t blocks = std::min<int64_t>(int64_t{cuda.processors()} * Shape::kBlocks,
                                           divide_up(g.rows, Shape::kRows));
  const int64_t columns = int64_t{kSums} * g.width;
  const BackwardRows<T> args{static_cast<const T*>(g.dy.data),
                             static_cast<const T*>(g.x.data),
                             static_cast<const T*>(g.dskip.data),
                             static_cast<T*>(g.dx.data),
                             g.w,
                             g.mean,
                             g.rstd,
                             cuda.scratch_of<float>(blocks * columns),
                             static_cast<uint32_t>(g.rows),
                             g.width,
                             1.0f / static_cast<float>(g.width),
                             kBranch ? *g.branch : Branch{},
                             static_cast<T*>(g.gradient.result.data),
                             static_cast<const T*>(g.gradient.input.data)};
  const AddToEach sink{g.dw, g.dbias, g.sums, g.gradient.dgamma, g.width};
  constexpr size_t shared = Shape::kStages * Shape::kBytes;
  static_assert(shared >= Shape::kThreads * RowShape::kVectors * kSums * sizeof(Eight));
  allow_shared_memory(norm_rows_back<T, RowShape, kSums, kBranch>, shared);
  return make_kernel([=, stream = cuda.stream()] {
    norm_rows_back<T, RowShape, kSums, kBranch>
        <<<static_cast<unsigned>(blocks), Shape::kThreads, shared, stream>>>(args);
    if (kSums > 0) launch_finish(args.partials, blocks, columns, sink, stream);
  });
}

template <class T, class RowShape>
KernelPtr backward_rows(CudaBackend& cuda, const Backward& g) {
  if constexpr (RowShape::kVectors <= kMaxVectorsWithBranch) {
    if (g.branch && g.gradient.input) return backward_rows<T, RowShape, 4, true>(cuda, g);
    if (g.branch && g.sums) return backward_rows<T, RowShape, 3, true>(cuda, g);
    if (g.branch) return backward_rows<T, RowShape, 2, true>(cuda, g);
    if (g.sums) return backward_rows<T, RowShape, 3>(cuda, g);
  }
  if (g.dw || g.dbias) return backward_rows<T, RowShape, 2>(cuda, g);
  return backward_rows<T, RowShape, 0>(cuda, g);
}

struct MixedBackward {
  Mixed dy, x, dskip, dx;
  const float *w, *mean, *rstd;
  int64_t rows;
  int width;
};

__global__ void __launch_bounds__(kRowWarps* kWarp) norm_dx_mixed(MixedBackward g) {
  const int lane = threadIdx.x % kWarp;
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
  if (r >= g.rows) return;
  const int64_t at = r * g.width;
  RowGradient row{g.mean[r], g.rstd[r]};
  const auto gradient = [&](int i) { return __fmul_rn(g.dy.load(at + i), g.w[i]); };
  const auto hat = [&](int i) { return row.hat(g.x.load(at + i)); };
  for_lane(g.width, lane, [&](int i) { row.add(gradient(i), hat(i)); });
  row.finish<kWarp>(static_cast<float>(g.width));
  for_lane(g.width, lane, [&](int i) {
    float d = row.dx(gradient(i), hat(i));
    if (g.dskip.data) d = __fadd_rn(g.dx.round(d), g.dskip.load(at + i));
    g.dx.store(at + i, d);
  });
}

// What dw (with kHat) and dbias sum.
template <bool kHat>
struct MixedSums {
  MixedBackward g;
  __device__ __forceinline__ float one(int64_t at, int64_t) const {
    const float d = g.dy.load(at);
    if constexpr (!kHat) return d;
    const int64_t r = at / g.width;
    return __fmul_rn(d, RowGradient{g.mean[r], g.rstd[r]}.hat(g.x.load(at)));
  }
};

KernelPtr backward_mixed(CudaBackend& cuda, const Backward& g) {
  const MixedBackward args{mixed(g.dy), mixed(g.x), mixed(g.dskip), mixed(g.dx), g.w,
                           g.mean,      g.rstd,     g.rows,         g.width};
  const ColumnPlan plan = plan_columns(g.rows, g.width, /*wide=*/false);
  auto* partials = static_cast<float*>(cuda.scratch(column_scratch_bytes(g.rows, g.width)));
  return make_kernel([=, dw = g.dw, dbias = g.dbias, stream = cuda.stream()] {
    if (args.dx.data)
      norm_dx_mixed<<<blocks_for(args.rows, kRowWarps), kRowWarps * kWarp, 0, stream>>>(args);
    if (dw) launch_narrow_columns(MixedSums<true>{args}, plan, partials, AddToColumns{dw}, stream);
    if (dbias)
      launch_narrow_columns(MixedSums<false>{args}, plan, partials, AddToColumns{dbias}, stream);
  });
}

Backward backward_of(const Operands& io) {
  return {.dy = io.in[LayerNormBwd::kDy],
          .x = io.in[LayerNormBwd::kX],
          .dskip = operand(io.in, LayerNormBwd::kDskip),
          .dx = io.out[LayerNormBwd::kDx],
          .w = io.in[LayerNormBwd::kWeight].f32(),
          .mean = io.in[LayerNormBwd::kMean].f32(),
          .rstd = io.in[LayerNormBwd::kRstd].f32(),
          .dw = operand(io.out, LayerNormBwd::kDweight).f32(),
          .dbias = operand(io.out, LayerNormBwd::kDbias).f32(),
          .sums = adds_columns(LayerNormBwd{}, io) ? io.column_sums.f32() : nullptr,
          .rows = io.in[LayerNormBwd::kDy].shape.rows(),
          .width = static_cast<int>(io.in[LayerNormBwd::kDy].shape[-1])};
}

bool all_suit(const Backward& g) {
  const DType dtype = g.x.dtype;
  return row_fits(g.width, dtype) && usable(g.dy, dtype) && usable(g.x, dtype) &&
         usable(g.dskip, dtype) && usable(g.dx, dtype) && aligned16(g.w);
}

KernelPtr backward_fast(CudaBackend& cuda, const Backward& g) {
  KernelPtr kernel;
  with_row(g.x.dtype, g.width, [&](auto type, auto shape) {
    kernel = backward_rows<decltype(type), decltype(shape)>(cuda, g);
  });
  return kernel;
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const NoAttributes<LayerNormBwd>&, const Operands& io) {
  const Backward g = backward_of(io);
  const bool fast = all_suit(g);
  KernelPtr kernel = fast ? backward_fast(cuda, g) : backward_mixed(cuda, g);
  if (fast && g.sums) return kernel;
  return with_column_sums(cuda, std::move(kernel), g.dx, io.column_sums);
}

KernelPtr lower_backward(CudaBackend& cuda, const Operands& io, const Branch& branch,
                         const BranchGradient& gradient) {
  Backward g = backward_of(io);
  g.branch = &branch, g.gradient = gradient;
  assert(all_suit(g));
  KernelPtr kernel = backward_fast(cuda, g);
  if (g.sums) return kernel;
  return with_column_sums(cuda, std::move(kernel), gradient.result, io.column_sums);
}

bool adds_columns(const NoAttributes<LayerNormBwd>&, const Operands& io) {
  const TensorView& dy = io.in[LayerNormBwd::kDy];
  return dy.dtype == io.in[LayerNormBwd::kX].dtype && row_fits(dy.shape[-1], dy.dtype) &&
         dy.shape[-1] <= kMaxVectorsWithBranch * kSpan;
}

}  // namespace vitrum::cuda
