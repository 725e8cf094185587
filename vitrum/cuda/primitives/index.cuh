// Division of indices of elements: by 64 bits it takes longer than all else that a pass over memory
// does with eight of them, and few tensors need it.
#pragma once
#include <cstdint>

namespace vitrum::cuda {

__device__ __forceinline__ int64_t divide_index(int64_t a, int64_t b) {
  if ((a | b) >> 32) return a / b;
  return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
}

}  // namespace vitrum::cuda
