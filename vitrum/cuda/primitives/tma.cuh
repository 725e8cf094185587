// TMA (cp.async.bulk.tensor): copies of tiles between global and shared memory, the mbarriers that
// count what has arrived, and thread block clusters (sm_90).
#pragma once
#include <cuda.h>

#include "vitrum/cuda/primitives/mma.cuh"

namespace vitrum::cuda {

__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(barrier)),
               "r"(arrivals));
}
// Makes initialised mbarriers visible to TMA; __syncthreads() must follow.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_address(barrier))
               : "memory");
}
// One arrival, which also says how many bytes are to come.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
// Waits until the barrier has completed its phase of this parity.
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0], %1;\n"
      "@p bra done;\nbra again;\ndone:\n}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
// Whether a wait for it would be none.
__device__ __forceinline__ bool mbarrier_test(uint64_t* barrier, uint32_t parity) {
  uint32_t passed;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(passed)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return passed;
}
// Counts in shared memory. What was done before is seen by who has a later number.
__device__ __forceinline__ int fetch_add_shared(int* counter) {
  int before;
  asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], 1;\n"
               : "=r"(before)
               : "r"(shared_address(counter))
               : "memory");
  return before;
}
// A stage of a circular buffer of kSize, and the mbarrier phase to wait for there.
template <int kSize>
struct PipelineState {
  int index = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++index == kSize) index = 0, phase ^= 1;
  }
};

// A tile from (column, row) of the matrix that `map` describes; zeros for what lies outside of it.
__device__ __forceinline__ void tma_load_2d(const CUtensorMap& map, void* to, uint64_t* barrier,
                                            int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];\n" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(barrier)), "r"(column), "r"(row)
      : "memory");
}
// Rows described by four numbers, from (column, 0, 0, 0, group) on.
__device__ __forceinline__ void tma_load_5d(const CUtensorMap& map, void* to, uint64_t* barrier,
                                            int column, int group) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %4, %4, %5}], [%2];\n" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(barrier)), "r"(column), "r"(0), "r"(group)
      : "memory");
}
// A box from (column, row, image) on of the tensor that `map` describes; zeros for what lies
// outside.
__device__ __forceinline__ void tma_load_3d(const CUtensorMap& map, void* to, uint64_t* barrier,
                                            int column, int row, int image) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];\n" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(image)
      : "memory");
}
// A box from (channel, column, line, image) on of a tensor of channels last; zeros for what lies
// outside, before its first pixels too.
__device__ __forceinline__ void tma_load_4d(const CUtensorMap& map, void* to, uint64_t* barrier,
                                            int channel, int column, int line, int image) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];\n" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(barrier)), "r"(channel), "r"(column), "r"(line), "r"(image)
      : "memory");
}
// The way back; what lies outside is left out.
__device__ __forceinline__ void tma_store_2d(const CUtensorMap& map, const void* from, int column,
                                             int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\n"
      "cp.async.bulk.commit_group;\n" ::"l"(&map),
      "r"(shared_address(from)), "r"(column), "r"(row)
      : "memory");
}
__device__ __forceinline__ void tma_store_3d(const CUtensorMap& map, const void* from, int column,
                                             int row, int image) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];\n"
      "cp.async.bulk.commit_group;\n" ::"l"(&map),
      "r"(shared_address(from)), "r"(column), "r"(row), "r"(image)
      : "memory");
}
// Until shared memory is no longer needed for what this thread stored in boxes.
__device__ __forceinline__ void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");
}

// ---- clusters: blocks that run side by side and reach each other's shared memory ----

__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::
                   : "memory");
}
// Arrives at the barrier that block `rank` has where this one has `barrier`.
__device__ __forceinline__ void mbarrier_arrive_cluster(uint64_t* barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}
// Four numbers to where block `rank` has what is `to` here.
__device__ __forceinline__ void store4_cluster(float* to, int rank, const float* v) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "st.shared::cluster.v4.f32 [there], {%2, %3, %4, %5};\n}\n" ::"r"(shared_address(to)),
      "r"(rank), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
      : "memory");
}
// A tile as above, to the same place and the same barrier of every block in `blocks`.
__device__ __forceinline__ void tma_load_2d(const CUtensorMap& map, void* to, uint64_t* barrier,
                                            int column, int row, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;\n" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(barrier)), "r"(column), "r"(row), "h"(blocks)
      : "memory");
}
__device__ __forceinline__ void tma_load_5d(const CUtensorMap& map, void* to, uint64_t* barrier,
                                            int column, int group, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %4, %4, %5}], [%2], %6;\n" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(barrier)), "r"(column), "r"(0), "r"(group), "h"(blocks)
      : "memory");
}

}  // namespace vitrum::cuda
