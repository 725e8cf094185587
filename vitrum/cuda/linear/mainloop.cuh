// The consumers' main loop over K: WGMMA on pipeline stages that TMA fills.
//
// The primitives it is written in (tma.cuh, wgmma.cuh) are included before it: tests without a card
// have a second set.
#pragma once
#include <cstdint>

namespace vitrum::cuda {

// d = the products of `steps` stages, 64 deep each: multiply(stage, i, add) adds the i-th 16 of it
// to d, or sets d. A stage is released when the products of the next one have begun and its own are
// done.
template <int kCount, int kStages, class Multiply, class Release>
__device__ __forceinline__ void mainloop(float (&d)[kCount], PipelineState<kStages>& pipe,
                                         uint64_t* full, int steps, const Multiply& multiply,
                                         const Release& release) {
  int before = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    mbarrier_wait(&full[pipe.index], pipe.phase);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply(pipe.index, i, step > 0 || i > 0);
    wgmma_commit();
    wgmma_wait<1>();
    if (step > 0) release(before);
    before = pipe.index;
    pipe.advance();
  }
  wgmma_wait<0>();
  fence_accumulators(d);
  release(before);
}

// 32 bytes of depth: of bf16, unless an Epilogue says otherwise.
template <class Epilogue, int kCount>
__device__ __forceinline__ void multiply_for(float (&d)[kCount], uint64_t x, uint64_t w, bool add) {
  if constexpr (requires { Epilogue::multiply(d, x, w, add); })
    Epilogue::multiply(d, x, w, add);
  else
    wgmma_ss(d, x, w, add);
}

}  // namespace vitrum::cuda
