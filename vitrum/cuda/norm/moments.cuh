// What batch norm wants to know of a product's columns, found where the product ends: of the rows
// that a warp has in its accumulators how many count, their sum, and the squares of their
// deviations from their own mean. Two parts merge by what lies between their means (Chan et al.),
// so nothing cancels and nobody needs to know the mean before. The order of merges is fixed.
//
// A thread has columns 8 t to 8 t + 7 of every 32, t being its place in a quad, in rows `row` and
// `row` + 8 of its warp's sixteen (permuted_accumulator).
//
// The primitives it is written in (device.cuh, tma.cuh) are included before it: tests without a
// card have a second set.
#pragma once
#include <cstdint>

namespace vitrum::cuda::moments {

// How what na rows have takes in what nb rows have.
struct Merge {
  float na = 0, nb = 0, by = 0;

  Merge() = default;
  __device__ __forceinline__ Merge(float na, float nb)
      : na(na), nb(nb), by(na > 0 && nb > 0 ? 1 / (na * nb * (na + nb)) : 0.0f) {}
  __device__ __forceinline__ void operator()(float& sum, float& squares, float other_sum,
                                             float other_squares) const {
    const float apart = nb * sum - na * other_sum;
    squares += other_squares + apart * apart * by;
    sum += other_sum;
  }
};

// Which of a thread's two rows count, and how lanes 16, 8 and 4 apart merge theirs.
struct Rows {
  bool first, second;
  float count;  // of the warp's rows
  Merge steps[3];

  __device__ __forceinline__ Rows(bool first, bool second)
      : first(first), second(second), count((first ? 1.0f : 0.0f) + (second ? 1.0f : 0.0f)) {
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const float other = __shfl_xor_sync(0xffffffffu, count, 16 >> i);
      steps[i] = {count, other};
      count += other;
    }
  }
};

// Which column of every 32 a lane ends up with.
__device__ __forceinline__ int column_of(int lane) {
  return lane % 4 * 8 + (lane & 16 ? 4 : 0) + (lane & 8 ? 2 : 0) + (lane & 4 ? 1 : 0);
}

// Of a block's warps, each its own; merged in order at last.
template <int kParts, int kWarps>
struct Shared {
  float count[kWarps], sum[kWarps][kParts * kWarp], squares[kWarps][kParts * kWarp];
};

// Of all rows a warp has seen. What a lane knows of its columns lies in shared memory, where no
// other lane looks before leave(): registers are scarce beside accumulators.
template <int kParts>
struct Seen {
  float count = 0;
  float *sum, *squares;  // of the lane's column in the first part

  template <int kWarps>
  __device__ __forceinline__ Seen(Shared<kParts, kWarps>& s, int thread)
      : sum(s.sum[thread / kWarp] + column_of(thread % kWarp)),
        squares(s.squares[thread / kWarp] + column_of(thread % kWarp)) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) sum[part * kWarp] = squares[part * kWarp] = 0;
  }

  // Columns of part `part`: what a tensor holds of them.
  __device__ __forceinline__ void add(int part, const Eight& a, const Eight& b, const Rows& rows,
                                      const Merge& into, int lane) {
    float sums[8], parts[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float x = rows.first ? a.v[k] : 0.0f, y = rows.second ? b.v[k] : 0.0f;
      sums[k] = x + y, parts[k] = rows.first && rows.second ? 0.5f * (x - y) * (x - y) : 0.0f;
    }
#pragma unroll
    for (int step = 0; step < 3; ++step) {
      const int bit = 16 >> step, half = 4 >> step;
      const bool upper = (lane & bit) != 0;
#pragma unroll
      for (int i = 0; i < half; ++i) {
        const auto exchange = [&](float(&v)[8]) {
          const float sent = upper ? v[i] : v[i + half];
          v[i] = upper ? v[i + half] : v[i];
          return __shfl_xor_sync(0xffffffffu, sent, bit);
        };
        const float other = exchange(sums), other_parts = exchange(parts);
        rows.steps[step](sums[i], parts[i], other, other_parts);
      }
    }
    float all = sum[part * kWarp], all_parts = squares[part * kWarp];
    into(all, all_parts, sums[0], parts[0]);
    sum[part * kWarp] = all, squares[part * kWarp] = all_parts;
  }
};

// A block's columns to `to`, (3, width) of partial results, from `column` on: count, sum, squares.
// kWarps whole warps call it.
template <int kParts, int kWarps>
__device__ void leave(const Seen<kParts>& seen, Shared<kParts, kWarps>& s, int thread, float* to,
                      int column, int width) {
  if (thread % kWarp == 0) s.count[thread / kWarp] = seen.count;
  sync_threads<kWarps * kWarp>();
  for (int k = thread; k < kParts * kWarp && column + k < width; k += kWarps * kWarp) {
    float count = 0, sum = 0, squares = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      Merge(count, s.count[w])(sum, squares, s.sum[w][k], s.squares[w][k]);
      count += s.count[w];
    }
    to[column + k] = count, to[width + column + k] = sum, to[2 * width + column + k] = squares;
  }
}

}  // namespace vitrum::cuda::moments
