// Heads of other sizes than 64 for TMA and WGMMA: what tma.cuh, wgmma.cuh and host/tensor_map.h
// have of rows of 64 values, 128 bytes, for rows of 32 and 16, which are swizzled over 64 and 32
// bytes; and products of 136 columns.
#pragma once
#include "vitrum/cuda/host/tensor_map.h"
#include "vitrum/cuda/primitives/tma.cuh"
#include "vitrum/cuda/primitives/wgmma.cuh"

namespace vitrum::cuda {

#define VITRUM_NAMES_68 \
  VITRUM_NAMES_64       \
  ", %64, %65, %66, %67"
#define VITRUM_SUMS_68 VITRUM_SUMS_64, VITRUM_4_SUMS(64)
VITRUM_MULTIPLY(wgmma_ss, 136, 68, "%68", "%69", "%70", 0)
// d (64, N) = or += a (64, 16 of registers) b (16 rows of N), by a descriptor.
__device__ __forceinline__ void wgmma_rs_bt(float (&d)[8], const FragmentA& a, uint64_t b,
                                            bool add = true) {
  asm volatile(VITRUM_PRODUCT(16, 8, "%13", "{%8, %9, %10, %11}, %12, p, 1, 1, 1")
               : VITRUM_SUMS_8
               : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b),
                 "r"(static_cast<int>(add)));
}
__device__ __forceinline__ void wgmma_rs_bt(float (&d)[16], const FragmentA& a, uint64_t b,
                                            bool add = true) {
  asm volatile(VITRUM_PRODUCT(32, 16, "%21", "{%16, %17, %18, %19}, %20, p, 1, 1, 1")
               : VITRUM_SUMS_16
               : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b),
                 "r"(static_cast<int>(add)));
}
// d (64, 32) = or += a (16 rows of 64)^T b (16 rows of 32), both by descriptors.
__device__ __forceinline__ void wgmma_ss_at_bt(float (&d)[16], uint64_t a, uint64_t b, bool add) {
  asm volatile(VITRUM_PRODUCT(32, 16, "%18", "%16, %17, p, 1, 1, 1, 1")
               : VITRUM_SUMS_16
               : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

// A box of a tensor of four dimensions from shared memory; what lies outside is left out.
__device__ __forceinline__ void tma_store_4d(const CUtensorMap& map, const void* from, int column,
                                             int head, int row, int image) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];\n"
      "cp.async.bulk.commit_group;\n" ::"l"(&map),
      "r"(shared_address(from)), "r"(column), "r"(head), "r"(row), "r"(image)
      : "memory");
}

// As make_tensor_map(); the swizzle is as wide as the box, of 16, 32 or 64 columns.
template <size_t kRank>
CUtensorMap make_rows_map(const void* data, const cuuint64_t (&sizes)[kRank],
                          const cuuint64_t (&apart)[kRank - 1], const cuuint32_t (&box)[kRank]) {
  CUtensorMap map;
  cuuint32_t steps[kRank];
  std::fill_n(steps, kRank, 1u);
  const CUtensorMapSwizzle swizzle = box[0] == 16   ? CU_TENSOR_MAP_SWIZZLE_32B
                                     : box[0] == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                    : CU_TENSOR_MAP_SWIZZLE_128B;
  const CUresult status =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kRank, const_cast<void*>(data), sizes,
                apart, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) check(cudaErrorInvalidValue, "describing a tensor for copies");
  return map;
}

}  // namespace vitrum::cuda
