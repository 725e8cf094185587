// How a warpgroup goes through the depth of its product: stages of shared memory that copies fill.
//
// What this is written in (primitives/tma.cuh, primitives/wgmma.cuh) is included before it: there
// is a second set for tests without a card.
#pragma once
#include <cstdint>

namespace vitrum::cuda {

// d = the products of `steps` stages, 64 deep each: multiply(stage, i, add) adds the i-th 16 of it
// to d, or sets d. A stage is released when the products of the next one have begun and its own are
// done.
template <int kCount, int kStages, class Multiply, class Release>
__device__ __forceinline__ void multiply_steps(float (&d)[kCount], Ring<kStages>& ring,
                                               uint64_t* full, int steps, const Multiply& multiply,
                                               const Release& release) {
  int before = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    wait_barrier(&full[ring.at], ring.parity);
    begin_products();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply(ring.at, i, step > 0 || i > 0);
    commit_products();
    wait_for_products<1>();
    if (step > 0) release(before);
    before = ring.at;
    ring.advance();
  }
  wait_for_products<0>();
  settle(d);
  release(before);
}

}  // namespace vitrum::cuda
