// What follows a convolution in inference, while its results are in registers: a norm of given
// statistics, y * scale + shift, perhaps a skip and ReLU. Rounded wherever a graph of several ops
// has a tensor.
//
// The primitives it is written in (device.cuh) are included before it: tests without a card have a
// second set.
#pragma once
#include <cmath>
#include <cstdint>

namespace vitrum::cuda {

// What becomes of a convolution's results: nothing; what is below; or moments of their columns are
// left beside them (norm/moments.cuh).
enum class Ends : uint8_t { kPlain, kFollowed, kMoments };

__device__ __forceinline__ void follow(Eight& v, const Eight& scale, const Eight& shift,
                                       const Raw8<bf16>& skip, bool adds, bool relu) {
  const Eight s = unpack(skip);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    v.v[k] = rounded<bf16>(fmaf(rounded<bf16>(v.v[k]), scale.v[k], shift.v[k]));
    if (adds) v.v[k] = rounded<bf16>(v.v[k] + s.v[k]);
    if (relu) v.v[k] = v.v[k] <= 0 ? 0.0f : v.v[k];  // NaN stays NaN
  }
}

}  // namespace vitrum::cuda
