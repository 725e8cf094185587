// Batch norm in passes over (rows, width): one that adds up what the statistics need, or what the
// gradient needs of them, and one with a multiply-add a channel. A thread keeps its columns, eight
// or one, and walks down rows; a block's threads lie side by side on a row as far as it is wide,
// and below each other.
//
// Both sums of a pass come out of one reading. Forward they are of x less a pivot, the average of a
// few rows, and of its square: the pivot is near enough to the mean that their difference loses
// nothing.
//
// The primitives it is written in (device.cuh) are included before it: tests without a card have a
// second set.
#pragma once
#include <cstdint>

namespace vitrum::cuda::batch_norm {

constexpr int kThreads = 256, kFinishThreads = 1024;

// ---- who walks where ----

struct Plan {
  int rows = 0, width = 0;
  int lanes = kWarp;  // threads side by side
  int tiles = 1, chunks = 1, chunk_rows = 1;
};
// Chunks of at least `least` rows a thread, as many as `most` over all tiles.
inline Plan plan_walk(int64_t rows, int64_t width, bool wide, int least, int64_t most) {
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t threads = wide ? width / 8 : width;
  int lanes = kWarp;
  while (lanes > 8 && lanes / 2 >= threads) lanes /= 2;
  const int64_t deep = kThreads / lanes, tiles = up(threads, lanes),
                wanted = std::max<int64_t>(1, std::min(most / tiles, rows / (deep * least))),
                chunk_rows = std::max<int64_t>(up(up(rows, wanted), deep), 1) * deep;
  return {static_cast<int>(rows),
          static_cast<int>(width),
          lanes,
          static_cast<int>(tiles),
          static_cast<int>(up(rows, chunk_rows)),
          static_cast<int>(chunk_rows)};
}
// A pass that adds up leaves two sums of every column and chunk.
inline Plan plan_sums(int64_t rows, int64_t width, bool wide) {
  return plan_walk(rows, width, wide, 4, 1056);
}
inline Plan plan_pass(int64_t rows, int64_t width, bool wide) {
  return plan_walk(rows, width, wide, 16, 16384);
}

// Which rows belong to samples that count.
struct Counted {
  const float* weight;  // (samples); null: all
  int samples, each;    // rows a sample

  __device__ __forceinline__ bool operator()(int row) const {
    return !weight || weight[row / each] > 0;
  }
};

// ---- what a thread has of a row: eight columns as they lie in memory, or one ----

template <class T, bool kWide>
struct Part {
  static constexpr int kCount = 8;
  Raw8<T> raw;

  __device__ __forceinline__ void load(const T* from) { raw = load_raw(from); }
  __device__ __forceinline__ void unpack_to(float (&v)[8]) const {
    const Eight all = unpack(raw);
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = all.v[k];
  }
};
template <class T>
struct Part<T, false> {
  static constexpr int kCount = 1;
  T raw;

  __device__ __forceinline__ void load(const T* from) { raw = *from; }
  __device__ __forceinline__ void unpack_to(float (&v)[1]) const { v[0] = to_float(raw); }
};
template <class T>
__device__ __forceinline__ void store_part(T* to, const float (&v)[8]) {
  Eight all;
#pragma unroll
  for (int k = 0; k < 8; ++k) all.v[k] = v[k];
  store8(to, all);
}
template <class T>
__device__ __forceinline__ void store_part(T* to, const float (&v)[1]) {
  *to = from_float<T>(v[0]);
}
// Of a table with a number for every column.
template <int kCount>
__device__ __forceinline__ void load_columns(const float* table, int column, float (&v)[kCount]) {
  if constexpr (kCount == 8) {
    const Eight all = load8(table + column);
#pragma unroll
    for (int k = 0; k < kCount; ++k) v[k] = all.v[k];
  } else {
    v[0] = table[column];
  }
}

struct Place {
  int lane, depth, deep, column;
  bool inside;  // the matrix has the column
};
template <int kCount>
__device__ __forceinline__ Place place_of(const Plan& plan) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % plan.lanes,
            column = (static_cast<int>(blockIdx.x) * plan.lanes + lane) * kCount;
  return {lane, thread / plan.lanes, kThreads / plan.lanes, column, column < plan.width};
}

// One number a thread and column, to be added up over the rows of threads.
struct Shared {
  float of[kThreads * 8];
};
// Column `column` of the block's, of `deep` rows of threads in order.
template <int kCount>
__device__ __forceinline__ float add_depths(const Shared& s, const Plan& plan, int deep,
                                            int column) {
  float total = 0;
  for (int d = 0; d < deep; ++d) total += s.of[d * plan.lanes * kCount + column];
  return total;
}
// The block's sums to `to`, (width).
template <int kCount>
__device__ void leave_sums(Shared& s, const Plan& plan, const float (&sum)[kCount], float* to) {
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kCount; ++k) s.of[static_cast<int>(threadIdx.x) * kCount + k] = sum[k];
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x), across = plan.lanes * kCount;
  for (int c = thread; c < across; c += kThreads) {
    const int column = static_cast<int>(blockIdx.x) * across + c;
    if (column < plan.width) to[column] = add_depths<kCount>(s, plan, kThreads / plan.lanes, c);
  }
}

// Calls body(row of the first of kInFlight) down a chunk; all threads as often.
template <int kInFlight, class Body>
__device__ __forceinline__ void walk(const Plan& plan, int chunk, const Place& at,
                                     const Body& body) {
  const int begin = chunk * plan.chunk_rows,
            end = begin + plan.chunk_rows < plan.rows ? begin + plan.chunk_rows : plan.rows;
  for (int top = begin + at.depth; top - at.depth < end; top += kInFlight * at.deep) body(top, end);
}

// ---- statistics ----

template <class T>
struct Moments {
  const T* x;
  Counted counted;
  Plan plan;
  float *pivot, *partials;  // (width); (chunks, 2, width)
};

// The average of a few rows from all over the matrix: every block has the same.
template <class T, bool kWide>
__device__ void find_pivot(const Moments<T>& m, Shared& s, const Place& at,
                           float (&pivot)[kWide ? 8 : 1]) {
  constexpr int kCount = kWide ? 8 : 1, kRows = kThreads / kWarp;  // as every block has at least
  float v[kCount] = {};
  if (at.inside && at.depth < kRows) {
    Part<T, kWide> part;
    part.load(m.x + static_cast<int64_t>(at.depth) * m.plan.rows / kRows * m.plan.width +
              at.column);
    part.unpack_to(v);
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) s.of[static_cast<int>(threadIdx.x) * kCount + k] = v[k];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kCount; ++k)
    pivot[k] = add_depths<kCount>(s, m.plan, kRows, at.lane * kCount + k) / kRows;
  if (blockIdx.y != 0 || at.depth != 0 || !at.inside) return;
#pragma unroll
  for (int k = 0; k < kCount; ++k) m.pivot[at.column + k] = pivot[k];
}

// Blocks that begin first take the last rows, which the kernel before has left in the cache.
template <class T, bool kWide>
__device__ void add_moments(const Moments<T>& m, Shared& s) {
  constexpr int kCount = kWide ? 8 : 1, kInFlight = sizeof(T) > 2 ? 2 : 4;
  const Plan& plan = m.plan;
  const Place at = place_of<kCount>(plan);
  float pivot[kCount], sum[kCount] = {}, squares[kCount] = {};
  find_pivot<T, kWide>(m, s, at, pivot);
  const int chunk = plan.chunks - 1 - static_cast<int>(blockIdx.y);
  walk<kInFlight>(plan, chunk, at, [&](int top, int end) {
    Part<T, kWide> held[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int row = top + u * at.deep;
      if (row < end && at.inside)
        held[u].load(m.x + static_cast<int64_t>(row) * plan.width + at.column);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int row = top + u * at.deep;
      if (row >= end || !at.inside || !m.counted(row)) continue;
      float v[kCount];
      held[u].unpack_to(v);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const float d = v[k] - pivot[k];
        sum[k] += d, squares[k] += d * d;
      }
    }
  });
  float* to = m.partials + static_cast<int64_t>(chunk) * 2 * plan.width;
  leave_sums(s, plan, sum, to);
  leave_sums(s, plan, squares, to + plan.width);
}

// ---- from the sums of chunks to what a pass needs of a column ----

struct FinishShared {
  float of[2][kFinishThreads];
  float counted;
};
// Calls sink(column, sum, other sum, rows that count), of 32 columns a block.
template <class Sink>
__device__ void finish(const float* partials, const Plan& plan, const Counted& counted,
                       const Sink& sink, FinishShared& s) {
  constexpr int kDeep = kFinishThreads / kWarp, kInFlight = 8;
  const int thread = static_cast<int>(threadIdx.x), depth = thread / kWarp,
            column = static_cast<int>(blockIdx.x) * kWarp + thread % kWarp;
  wait_on_previous_grid();
  float sums[2] = {};
  for (int top = depth; top < plan.chunks && column < plan.width; top += kInFlight * kDeep) {
    float held[kInFlight][2];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int chunk = top + u * kDeep;
        held[u][i] = chunk < plan.chunks
                         ? partials[(static_cast<int64_t>(chunk) * 2 + i) * plan.width + column]
                         : 0.0f;
      }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) sums[0] += held[u][0], sums[1] += held[u][1];
  }
  s.of[0][thread] = sums[0], s.of[1][thread] = sums[1];
  if (thread < kWarp) {
    float samples = 0;
    for (int b = thread; b < counted.samples; b += kWarp)
      samples += !counted.weight || counted.weight[b] > 0 ? 1.0f : 0.0f;
    samples = warp_sum(samples);
    if (thread == 0) s.counted = samples;
  }
  __syncthreads();
  if (depth != 0 || column >= plan.width) return;
  float total[2] = {};
  for (int d = 0; d < kDeep; ++d)
    total[0] += s.of[0][d * kWarp + thread], total[1] += s.of[1][d * kWarp + thread];
  sink(column, static_cast<double>(total[0]), static_cast<double>(total[1]),
       static_cast<double>(s.counted) * counted.each);
}

// Running statistics, moved towards a batch's of n rows.
struct Running {
  float momentum = 0;
  float *mean = nullptr, *var = nullptr;  // may be null

  __device__ void move(int64_t k, float to_mean, float to_var, double n) const {
    const double step = static_cast<double>(momentum), unbiased = n / (n > 2 ? n - 1 : 1.0);
    const auto moved = [&](float from, double to) {
      return static_cast<float>((1 - step) * static_cast<double>(from) + step * to);
    };
    if (mean) mean[k] = moved(mean[k], static_cast<double>(to_mean));
    if (var) var[k] = moved(var[k], static_cast<double>(to_var) * unbiased);
  }
};

// Calls sink as well, for what products left where they end (norm/moments.cuh): (chunks, 3, width).
struct MomentsShared {
  double of[3][kFinishThreads];
};
template <class Sink>
__device__ void finish_moments(const float* partials, int chunks, int width, const Sink& sink,
                               MomentsShared& s) {
  constexpr int kDeep = kFinishThreads / kWarp;
  const int thread = static_cast<int>(threadIdx.x), depth = thread / kWarp,
            column = static_cast<int>(blockIdx.x) * kWarp + thread % kWarp;
  wait_on_previous_grid();
  double total[3] = {};
#pragma unroll 4
  for (int chunk = depth; chunk < chunks; chunk += kDeep) {
    if (column >= width) break;
    const float* const from = partials + static_cast<int64_t>(chunk) * 3 * width + column;
    const double count = static_cast<double>(from[0]), sum = static_cast<double>(from[width]),
                 squares = static_cast<double>(from[2 * width]);
    total[0] += count, total[1] += sum;
    total[2] += count > 0 ? squares + sum * (sum / count) : 0;
  }
#pragma unroll
  for (int i = 0; i < 3; ++i) s.of[i][thread] = total[i];
  __syncthreads();
  if (depth != 0 || column >= width) return;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    total[i] = 0;
    for (int d = 0; d < kDeep; ++d) total[i] += s.of[i][d * kWarp + thread];
  }
  sink(column, total[1], total[2], total[0]);
}

// norm(x) = x * scale + shift; the statistics go where they are wanted.
struct Affine {
  const float *w, *bias, *pivot;  // pivot: what sums are less of; null: nothing
  float eps;
  float *scale, *shift, *mean, *var;  // mean, var: may be null
  Running running = {};

  __device__ void set(int k, double m, double v) const {
    if (mean) mean[k] = static_cast<float>(m);
    if (var) var[k] = static_cast<float>(v);
    const double by = static_cast<double>(w[k]) / sqrt(v + static_cast<double>(eps));
    scale[k] = static_cast<float>(by);
    shift[k] = static_cast<float>(static_cast<double>(bias[k]) - m * by);
  }
  __device__ void operator()(int k, double sum, double squares, double n) const {
    const double off = sum / n, v = squares / n - off * off;
    // Rounded as they are handed on.
    const auto m = static_cast<float>((pivot ? static_cast<double>(pivot[k]) : 0) + off),
               var_of = static_cast<float>(v > 0 || v != v ? v : 0);
    set(k, static_cast<double>(m), static_cast<double>(var_of));
    running.move(k, m, var_of, n);
  }
};

// ---- act(x * scale + shift + skip), rounded where a graph of three ops has tensors ----

template <class T>
struct Application {
  const T *x, *skip;  // skip: may be null
  T* y;
  const float *scale, *shift;
  bool relu;
  Plan plan;
};
template <class T, bool kWide>
__device__ void apply(const Application<T>& a) {
  constexpr int kCount = kWide ? 8 : 1, kInFlight = sizeof(T) > 2 ? 2 : 4;
  const Plan& plan = a.plan;
  const Place at = place_of<kCount>(plan);
  wait_on_previous_grid();
  if (!at.inside) return;
  float scale[kCount], shift[kCount];
  load_columns(a.scale, at.column, scale), load_columns(a.shift, at.column, shift);
  walk<kInFlight>(plan, static_cast<int>(blockIdx.y), at, [&](int top, int end) {
    Part<T, kWide> x[kInFlight] = {}, skip[kInFlight] = {};
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int row = top + u * at.deep;
      const int64_t from = static_cast<int64_t>(row) * plan.width + at.column;
      if (row < end) x[u].load(a.x + from);
      if (row < end && a.skip) skip[u].load(a.skip + from);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int row = top + u * at.deep;
      if (row >= end) continue;
      float v[kCount], s[kCount];
      x[u].unpack_to(v), skip[u].unpack_to(s);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        v[k] = rounded<T>(fmaf(v[k], scale[k], shift[k]));
        if (a.skip) v[k] = rounded<T>(v[k] + s[k]);
        if (a.relu) v[k] = v[k] <= 0 ? 0.0f : v[k];  // NaN stays NaN
      }
      store_part(a.y + static_cast<int64_t>(row) * plan.width + at.column, v);
    }
  });
}

// ---- backward ----

// d = dy + more, rounded, where the ReLU let through; its sum, and that of its product with the
// deviation of x from its mean. What the ReLU let through is left as a bit an element, so that the
// second pass need not read y.
template <class T>
struct Gradients {
  const T *dy, *more, *x, *y;  // more: null where there is one gradient; y: null without ReLU
  T* d;                        // null: not wanted
  uint8_t* passed;             // a byte of eight columns; null: not wanted
  const float* mean;
  Plan plan;
  float* partials;  // (chunks, 2, width)
};
// Bit k: column k is positive.
template <class T, bool kWide>
__device__ __forceinline__ uint32_t positive(const Part<T, kWide>& y) {
  float v[kWide ? 8 : 1];
  y.unpack_to(v);
  uint32_t bits = 0;
#pragma unroll
  for (int k = 0; k < (kWide ? 8 : 1); ++k) bits |= (v[k] > 0 ? 1u : 0u) << k;
  return bits;
}
template <int kCount>
__device__ __forceinline__ void keep_bits_of(uint32_t bits, float (&d)[kCount]) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) d[k] = bits >> k & 1u ? d[k] : 0.0f;
}
template <class T, bool kWide>
__device__ void add_gradients(const Gradients<T>& g, Shared& s) {
  constexpr int kCount = kWide ? 8 : 1, kInFlight = sizeof(T) > 2 ? 1 : 2;
  const Plan& plan = g.plan;
  const Place at = place_of<kCount>(plan);
  float mean[kCount] = {}, sum[kCount] = {}, products[kCount] = {};
  if (at.inside) load_columns(g.mean, at.column, mean);
  const int chunk = plan.chunks - 1 - static_cast<int>(blockIdx.y);
  walk<kInFlight>(plan, chunk, at, [&](int top, int end) {
    Part<T, kWide> dy[kInFlight] = {}, more[kInFlight] = {}, x[kInFlight] = {}, y[kInFlight] = {};
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int row = top + u * at.deep;
      if (row >= end || !at.inside) continue;
      const int64_t from = static_cast<int64_t>(row) * plan.width + at.column;
      dy[u].load(g.dy + from), x[u].load(g.x + from);
      if (g.y) y[u].load(g.y + from);
      if (g.more) more[u].load(g.more + from);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int row = top + u * at.deep;
      if (row >= end || !at.inside) continue;
      const int64_t place = static_cast<int64_t>(row) * plan.width + at.column;
      float d[kCount], v[kCount];
      dy[u].unpack_to(d), more[u].unpack_to(v);
#pragma unroll
      for (int k = 0; k < kCount; ++k) d[k] = g.more ? rounded<T>(d[k] + v[k]) : d[k];
      if (g.y) {
        const uint32_t bits = positive<T, kWide>(y[u]);
        keep_bits_of(bits, d);
        if (g.passed) g.passed[place / 8] = static_cast<uint8_t>(bits);
      }
      if (g.d) store_part(g.d + place, d);
      x[u].unpack_to(v);
#pragma unroll
      for (int k = 0; k < kCount; ++k)
        sum[k] += d[k], products[k] = fmaf(d[k], v[k] - mean[k], products[k]);
    }
  });
  float* to = g.partials + static_cast<int64_t>(chunk) * 2 * plan.width;
  leave_sums(s, plan, sum, to);
  leave_sums(s, plan, products, to + plan.width);
}

// dx = d * scale - (offset + (x - mean) * slope), the bracket for what counts only.
struct Coefficients {
  const float *w, *var;
  float eps;
  float *scale, *offset, *slope, *dw, *dbias;  // dw, dbias: may be null

  __device__ void operator()(int k, double sum, double product, double n) const {
    const double rstd = 1 / sqrt(static_cast<double>(var[k]) + static_cast<double>(eps)),
                 by = static_cast<double>(w[k]) * rstd;
    if (dw) dw[k] += static_cast<float>(product * rstd);
    if (dbias) dbias[k] += static_cast<float>(sum);
    scale[k] = static_cast<float>(by);
    offset[k] = static_cast<float>(by * sum / n);
    slope[k] = static_cast<float>(by * rstd * rstd * product / n);
  }
};

template <class T>
struct BackApplication {
  const T *dy, *x, *y;    // y: null where dy is behind the ReLU already, or there is
  const uint8_t* passed;  // what it let through; may be null
  T* dx;
  const float *mean, *scale, *offset, *slope;
  Counted counted;
  Plan plan;
};
template <class T, bool kWide>
__device__ void apply_back(const BackApplication<T>& a) {
  constexpr int kCount = kWide ? 8 : 1, kInFlight = sizeof(T) > 2 ? 1 : 2;
  const Plan& plan = a.plan;
  const Place at = place_of<kCount>(plan);
  wait_on_previous_grid();
  if (!at.inside) return;
  float mean[kCount], scale[kCount], offset[kCount], slope[kCount];
  load_columns(a.mean, at.column, mean), load_columns(a.scale, at.column, scale);
  load_columns(a.offset, at.column, offset), load_columns(a.slope, at.column, slope);
  walk<kInFlight>(plan, static_cast<int>(blockIdx.y), at, [&](int top, int end) {
    Part<T, kWide> dy[kInFlight] = {}, x[kInFlight] = {}, y[kInFlight] = {};
    uint32_t bits[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int row = top + u * at.deep;
      bits[u] = ~0u;
      if (row >= end) continue;
      const int64_t from = static_cast<int64_t>(row) * plan.width + at.column;
      dy[u].load(a.dy + from), x[u].load(a.x + from);
      if (a.y) y[u].load(a.y + from);
      if (a.passed) bits[u] = a.passed[from / 8];
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int row = top + u * at.deep;
      if (row >= end) continue;
      float d[kCount], v[kCount];
      dy[u].unpack_to(d), x[u].unpack_to(v);
      keep_bits_of(a.y ? positive<T, kWide>(y[u]) : bits[u], d);
      const bool counts = a.counted(row);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        d[k] = __fmul_rn(d[k], scale[k]);
        if (counts) d[k] -= fmaf(v[k] - mean[k], slope[k], offset[k]);
      }
      store_part(a.dx + static_cast<int64_t>(row) * plan.width + at.column, d);
    }
  });
}

}  // namespace vitrum::cuda::batch_norm
