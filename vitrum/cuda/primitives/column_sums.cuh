// Sums over the rows of a matrix, in an order that its shape alone decides. Rows are cut into
// chunks; a block sums a tile of columns over one chunk, and a second kernel adds the chunks up. A
// source says what is summed, and may write results of its own in passing: gradients of biases,
// scales and positions come out of a pass that has to read the matrix anyway.
#pragma once
#include <algorithm>
#include <type_traits>

#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {

constexpr int kColumnThreads = 256;
constexpr int kColumnBlocks = 4;  // a processor holds at least

struct ColumnPlan {
  int64_t rows = 0, columns = 0;
  bool wide = false;  // eight neighbouring columns a thread, else one
  int lanes = kWarp;  // threads side by side on a row; the others of the block take rows below
  int64_t tiles = 1, chunks = 1, chunk_rows = 0;

  int per_thread() const { return wide ? 8 : 1; }
};

// Enough blocks to fill a large card four times over, so that the last round costs little; of
// narrow matrices fewer, since every chunk leaves partial sums to be added up.
inline ColumnPlan plan_columns(int64_t rows, int64_t columns, bool wide) {
  constexpr int64_t kFull = 132 * kColumnBlocks, kRowsAThread = 4;
  ColumnPlan plan{.rows = rows, .columns = columns, .wide = wide};
  if (wide && columns <= 128) plan.lanes = columns <= 64 ? 8 : 16;
  const int64_t deep = kColumnThreads / plan.lanes;  // rows a block has in hand at a time
  plan.tiles = divide_up(columns, int64_t{plan.lanes} * plan.per_thread());
  const int64_t most = std::clamp<int64_t>(rows / (deep * kRowsAThread), 1, kFull);
  const int64_t wanted = std::clamp<int64_t>(4 * kFull / plan.tiles, 1, most);
  plan.chunk_rows = divide_up(divide_up(rows, wanted), deep) * deep;
  plan.chunks = divide_up(rows, plan.chunk_rows);
  return plan;
}

// For the partial sums, whichever way a matrix of this shape is walked.
inline size_t column_scratch_bytes(int64_t rows, int64_t columns) {
  const int64_t chunks =
      std::max(plan_columns(rows, columns, true).chunks, plan_columns(rows, columns, false).chunks);
  return static_cast<size_t>(chunks * columns) * sizeof(float);
}

// Whether keep8() may be used for the element-wise draws of a matrix walked by this plan: sixteen
// neighbouring threads always own one whole row of draws.
inline bool draws_line_up(const ColumnPlan& plan) {
  return plan.columns % kDrawRow == 0 || plan.columns * 2 == kDrawRow;
}

// A source has
//   struct Loaded;                            what a thread reads before it uses any of it
//   Loaded load(int64_t at)                   eight elements from `at`
//   Eight use(Loaded, int64_t at, int64_t column, bool inside)   what is summed; all lanes call it
//   float one(int64_t at, int64_t column)     the same for one element
template <class Source>
__global__ void __launch_bounds__(kColumnThreads, kColumnBlocks)
    sum_columns_wide(Source source, ColumnPlan plan, float* partials) {
  // Rows a thread reads ahead: 128 bytes, as much as the registers hold beside the arithmetic.
  constexpr int kInFlight = sizeof(typename Source::Loaded) > 32 ? 2 : 4;
  __shared__ alignas(16) float sums[kColumnThreads * 8];
  const int lanes = plan.lanes, deep = kColumnThreads / lanes;
  const int lane = threadIdx.x % lanes, depth = threadIdx.x / lanes;
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * lanes + lane) * 8;
  const int64_t chunk = reversed_index(blockIdx.y, gridDim.y), begin = chunk * plan.chunk_rows;
  const int64_t end = min(plan.rows, begin + plan.chunk_rows);
  Eight sum = {};
  // The same number of rounds for every thread: a source may exchange draws with its neighbours.
  for (int64_t top = begin; top < end; top += kInFlight * deep) {
    typename Source::Loaded held[kInFlight] = {};
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int64_t row = top + u * deep + depth;
      if (row < end && column < plan.columns) held[u] = source.load(row * plan.columns + column);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int64_t row = top + u * deep + depth;
      const bool inside = row < end && column < plan.columns;
      const Eight value = source.use(held[u], row * plan.columns + column, column, inside);
#pragma unroll
      for (int k = 0; k < 8; ++k)
        if (inside) sum.v[k] = __fadd_rn(sum.v[k], value.v[k]);
    }
  }
  if (!partials) return;
  trigger_dependents();
  store8(sums + threadIdx.x * 8, sum);
  __syncthreads();
  const int64_t across = static_cast<int64_t>(blockIdx.x) * lanes * 8 + threadIdx.x;
  if (static_cast<int>(threadIdx.x) >= lanes * 8 || across >= plan.columns) return;
  float total = 0;
  for (int d = 0; d < deep; ++d) total += sums[d * lanes * 8 + threadIdx.x];
  partials[chunk * plan.columns + across] = total;
}

template <class Source>
__global__ void __launch_bounds__(kColumnThreads)
    sum_columns_narrow(Source source, ColumnPlan plan, float* partials) {
  constexpr int kDeep = kColumnThreads / kWarp;
  __shared__ float sums[kColumnThreads];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x % kWarp;
  const int64_t begin = blockIdx.y * plan.chunk_rows;
  const int64_t end = min(plan.rows, begin + plan.chunk_rows);
  float sum = 0;
  for (int64_t row = begin + threadIdx.x / kWarp; row < end; row += kDeep)
    if (column < plan.columns)
      sum = __fadd_rn(sum, source.one(row * plan.columns + column, column));
  if (!partials) return;
  trigger_dependents();
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= kWarp || column >= plan.columns) return;
  float total = 0;
  for (int d = 0; d < kDeep; ++d) total += sums[d * kWarp + threadIdx.x];
  partials[blockIdx.y * plan.columns + column] = total;
}

// sink(column, sum) for every column of `parts` rows of partial sums. The block is 32 columns wide;
// its kDeep rows of threads read everything they can at once, since waiting is all that costs here.
template <int kDeep, class Sink>
__global__ void __launch_bounds__(kWarp* kDeep)
    finish_columns(const float* partials, int64_t parts, int64_t columns, Sink sink) {
  constexpr int kInFlight = 16;
  __shared__ float sums[kDeep][kWarp];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  float sum = 0;
  wait_on_previous_grid();
  for (int64_t top = threadIdx.y; top < parts && column < columns; top += kInFlight * kDeep) {
    float held[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int64_t part = top + u * kDeep;
      held[u] = part < parts ? partials[part * columns + column] : 0.0f;
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) sum += held[u];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  float total = 0;
#pragma unroll
  for (int y = 0; y < kDeep; ++y) total += sums[y][threadIdx.x];
  sink(column, total);
}

// Begins while the kernel that leaves the sums, given to the stream just before, still ends.
template <class Sink>
void launch_finish(const float* partials, int64_t parts, int64_t columns, const Sink& sink,
                   cudaStream_t stream) {
  const auto launch = [&](auto deep) {
    constexpr int kDeep = decltype(deep)::value;
    launch_pdl(finish_columns<kDeep, Sink>, blocks_for(columns, kWarp), dim3(kWarp, kDeep), 0,
               stream, partials, parts, columns, sink);
  };
  if (parts > 128) return launch(std::integral_constant<int, 32>{});
  if (parts > 16) return launch(std::integral_constant<int, 8>{});
  launch(std::integral_constant<int, 1>{});
}

// `partials` null: nothing is summed, the source is only run for what it writes.
template <class Source, class Sink>
void launch_narrow_columns(const Source& source, const ColumnPlan& plan, float* partials,
                           const Sink& sink, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(plan.tiles), static_cast<unsigned>(plan.chunks));
  sum_columns_narrow<<<grid, kColumnThreads, 0, stream>>>(source, plan, partials);
  if (partials) launch_finish(partials, plan.chunks, plan.columns, sink, stream);
}
template <class Source, class Sink>
void launch_columns(const Source& source, const ColumnPlan& plan, float* partials, const Sink& sink,
                    cudaStream_t stream) {
  if (!plan.wide) return launch_narrow_columns(source, plan, partials, sink, stream);
  const dim3 grid(static_cast<unsigned>(plan.tiles), static_cast<unsigned>(plan.chunks));
  sum_columns_wide<<<grid, kColumnThreads, 0, stream>>>(source, plan, partials);
  if (partials) launch_finish(partials, plan.chunks, plan.columns, sink, stream);
}

struct SetElements {
  float* to;
  __device__ void operator()(int64_t i, float sum) const { to[i] = sum; }
};
struct AddToColumns {
  float* to;
  __device__ void operator()(int64_t column, float sum) const { to[column] += sum; }
};

// The gradient before activation and dropout, rounded after each as their own backward ops would,
// and its column sums.
struct PreActivation {
  const void* dy = nullptr;
  const void* saved = nullptr;  // what the activation saw; its output for ReLU. Null: no activation
  void* d = nullptr;            // null: only the sums are wanted
  float* dbias = nullptr;       // +=; null: not wanted
  int64_t rows = 0, columns = 0;
  DType dtype = DType::kF32;  // of dy, saved and d
  Act act = Act::kNone;
  DropSite drop;
};
// `partials`: column_scratch_bytes(rows, columns), read and written during the launch only.
void launch_pre_activation(const PreActivation& work, float* partials, cudaStream_t stream);

}  // namespace vitrum::cuda
