// Heads of unit length, eight values a thread: a head is that of one to 32 neighbouring lanes,
// which add up its square.
//
// Written in primitives/device.cuh, which is included before it: tests without a card have another.
#pragma once
#include <cstdint>

namespace vitrum::cuda::unit {

constexpr int kThreads = 256;
constexpr float kLeast = 1e-12f, kMostScale = 4.60517019f;  // ln 100

// (rows, parts, heads, dim); of the first `unit` parts heads have unit length, times a factor in
// the first of them.
struct Heads {
  int heads, parts, unit, dim;
  int64_t count;       // of all rows and parts
  const float* scale;  // of a head; may be null
};

struct Head {
  int64_t row;
  int part, head;
};
// For up to 2^32 heads; 64-bit division would take as long as the rest.
__device__ __forceinline__ Head head_of(const Heads& g, uint32_t h) {
  const uint32_t heads = static_cast<uint32_t>(g.heads), parts = static_cast<uint32_t>(g.parts),
                 first = h / heads, row = first / parts;
  return {row, static_cast<int>(first - row * parts), static_cast<int>(h - first * heads)};
}

__device__ __forceinline__ float factor_of(const Heads& g, int part, int head) {
  if (part > 0 || !g.scale) return 1;
  return sqrtf(static_cast<float>(g.dim)) * expf(fminf(g.scale[head], kMostScale));
}

// Over `lanes` neighbours, a power of two; all lanes of the warp take part.
__device__ __forceinline__ float sum_lanes(float x, int lanes) {
  for (int i = lanes / 2; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
  return x;
}
__device__ __forceinline__ float dot_eights(const Eight& a, const Eight& b) {
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) sum = fmaf(a.v[k], b.v[k], sum);
  return sum;
}

// Eight `i` of x; a head has 8 << log_lanes values.
template <class T>
__device__ __forceinline__ void unit_eight(const Heads& g, const T* x, T* y, int64_t i,
                                           int log_lanes) {
  const bool inside = i < g.count << log_lanes;
  Eight v = inside ? load8(x + i * 8) : Eight{};
  const float length = sqrtf(sum_lanes(dot_eights(v, v), 1 << log_lanes));
  if (!inside) return;
  const Head at = head_of(g, static_cast<uint32_t>(i >> log_lanes));
  if (at.part < g.unit) {
    const float factor = factor_of(g, at.part, at.head) / fmaxf(length, kLeast);
#pragma unroll
    for (int k = 0; k < 8; ++k) v.v[k] = __fmul_rn(v.v[k], factor);
  }
  store8(y + i * 8, v);
}

// along (rows, heads): of the first part, factor * (dy in the direction of x); none where the scale
// is at its most. dx, along may be null.
template <class T>
__device__ __forceinline__ void unit_back_eight(const Heads& g, const T* dy, const T* x, T* dx,
                                                float* along, int64_t i, int log_lanes) {
  const bool inside = i < g.count << log_lanes;
  Eight d = inside ? load8(dy + i * 8) : Eight{};
  const Eight v = inside ? load8(x + i * 8) : Eight{};
  const int lanes = 1 << log_lanes;
  const float length = sqrtf(sum_lanes(dot_eights(v, v), lanes)),
              dot = sum_lanes(dot_eights(d, v), lanes);
  if (!inside) return;
  const Head at = head_of(g, static_cast<uint32_t>(i >> log_lanes));
  if (at.part < g.unit) {
    const float factor = factor_of(g, at.part, at.head), reciprocal = 1 / fmaxf(length, kLeast),
                towards = dot * reciprocal, off = length > kLeast ? towards * reciprocal : 0.0f;
#pragma unroll
    for (int k = 0; k < 8; ++k) d.v[k] = factor * reciprocal * fmaf(-off, v.v[k], d.v[k]);
    if (along && at.part == 0 && i % lanes == 0)
      along[at.row * g.heads + at.head] = g.scale[at.head] <= kMostScale ? factor * towards : 0.0f;
  }
  if (dx) store8(dx + i * 8, d);
}

}  // namespace vitrum::cuda::unit
