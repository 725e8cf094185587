// Gated activations: a thread has eight neighbours of a row's first half, and those of its second.
#pragma once
#include "vitrum/cuda/primitives/activation.cuh"
#include "vitrum/cuda/primitives/device.cuh"
#include "vitrum/cuda/primitives/index.cuh"

namespace vitrum::cuda {

template <Act kAct, class T>
__device__ __forceinline__ float gated(float gate, float value) {
  return __fmul_rn(activate<kAct, T>(gate), value);
}
template <Act kAct, class T>
__device__ __forceinline__ float gate_slope(float d, float gate, float value) {
  return __fmul_rn(__fmul_rn(d, value), activation_derivative<kAct, T>(gate));
}

// Element `at` of y and the seven behind it; a row of x is twice as long.
template <Act kAct, class T>
__device__ __forceinline__ void gate_eight(const T* x, T* y, int64_t width, int64_t at) {
  const int64_t from = divide_index(at, width) * width + at;
  Eight gate = load8(x + from);
  const Eight value = load8(x + from + width);
#pragma unroll
  for (int k = 0; k < 8; ++k) gate.v[k] = gated<kAct, T>(gate.v[k], value.v[k]);
  store8(y + at, gate);
}

template <Act kAct, class T>
__device__ __forceinline__ void gate_bwd_eight(const T* dy, const T* x, T* dx, int64_t width,
                                               int64_t at) {
  const int64_t from = divide_index(at, width) * width + at;
  const Eight d = load8(dy + at), gate = load8(x + from), value = load8(x + from + width);
  Eight first, second;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    first.v[k] = gate_slope<kAct, T>(d.v[k], gate.v[k], value.v[k]);
    second.v[k] = gated<kAct, T>(gate.v[k], d.v[k]);
  }
  store8(dx + from, first), store8(dx + from + width, second);
}

}  // namespace vitrum::cuda
