// Rotary positions: pairs of values of q and k turned by the angles of their token. A thread has
// eight neighbours of a row, and reads those that they are paired with where these lie elsewhere.
#pragma once
#include "vitrum/cuda/primitives/device.cuh"
#include "vitrum/cuda/primitives/index.cuh"

namespace vitrum::cuda {

struct Rotation {
  const float* table;  // (patches, head): cosines, then sines
  int tokens, prefix, width, head;
  bool halves;
  float sign;  // -1: by the negative angles

  __host__ __device__ int pairs() const { return head / 2; }
  // The angles of a row's token, or null where nothing is turned: prefix tokens, v.
  __device__ const float* angles(int64_t row, int column) const {
    const int token = static_cast<int>(row - divide_index(row, tokens) * tokens) - prefix;
    return token < 0 || column >= 2 * width ? nullptr : table + int64_t{token} * head;
  }
};

// One of a pair: its own value, the other's, and whether it is the first of them.
__device__ __forceinline__ float turned(float own, float other, float cosine, float sine,
                                        bool first) {
  return fmaf(first ? -other : other, sine, __fmul_rn(own, cosine));
}

// Heads of a multiple of 8 values, where halves are paired of 16.
template <class T>
__device__ __forceinline__ void rotate_eight(const T* x, T* y, const Rotation& r, int64_t at) {
  const int64_t row = divide_index(at, 3 * r.width);
  const int column = static_cast<int>(at - row * (3 * r.width)), in_head = column % r.head;
  const float* angles = r.angles(row, column);
  Eight v = load8(x + at);
  if (angles && r.halves) {
    const bool first = in_head < r.pairs();
    const int pair = first ? in_head : in_head - r.pairs();
    const Eight other = load8(x + at + (first ? r.pairs() : -r.pairs()));
    const Eight cosines = load8(angles + pair), sines = load8(angles + r.pairs() + pair);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      v.v[i] = turned(v.v[i], other.v[i], cosines.v[i], __fmul_rn(r.sign, sines.v[i]), first);
  } else if (angles) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float a = v.v[2 * i], b = v.v[2 * i + 1], c = angles[in_head / 2 + i],
                  s = __fmul_rn(r.sign, angles[r.pairs() + in_head / 2 + i]);
      v.v[2 * i] = turned(a, b, c, s, true), v.v[2 * i + 1] = turned(b, a, c, s, false);
    }
  }
  store8(y + at, v);
}

}  // namespace vitrum::cuda
