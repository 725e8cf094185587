// Warpgroups of 128 threads one after the other: each waits until the one before it has handed on.
#pragma once

namespace vitrum::cuda {

// Its barriers lie behind those of sync_warpgroup and sync_warpgroup_2 (wgmma.cuh).
__device__ __forceinline__ void wait_for_turn(int group) {
  asm volatile("bar.sync %0, 256;\n" ::"r"(8 + group) : "memory");
}
__device__ __forceinline__ void give_turn(int group) {
  asm volatile("bar.arrive %0, 256;\n" ::"r"(8 + group) : "memory");
}

}  // namespace vitrum::cuda
