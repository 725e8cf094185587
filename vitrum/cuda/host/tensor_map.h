// TMA descriptors (CUtensorMap) of tensors; the driver, opened at run time, encodes them.
#pragma once
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>

#include "vitrum/cuda/host/backend.h"

namespace vitrum::cuda {

// Whether the card is a Hopper and the library built for it: then there are products of warpgroups,
// too.
bool has_tma_wgmma(int capability);

using Encode = decltype(&cuTensorMapEncodeTiled);
inline Encode encoder() {
  static const Encode found = [] {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<Encode>(driver ? dlsym(driver, "cuTensorMapEncodeTiled") : nullptr);
  }();
  return found;
}

// A bf16 tensor whose first dimension has no gaps, the others so many bytes apart.
template <size_t kRank>
CUtensorMap make_tensor_map(const void* data, const cuuint64_t (&sizes)[kRank],
                            const cuuint64_t (&apart)[kRank - 1], const cuuint32_t (&box)[kRank]) {
  CUtensorMap map;
  cuuint32_t steps[kRank];
  std::fill_n(steps, kRank, 1u);
  const CUresult status =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kRank, const_cast<void*>(data), sizes,
                apart, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) check(cudaErrorInvalidValue, "describing a tensor for copies");
  return map;
}

// Rows as they are, so many elements of so many at a time.
inline CUtensorMap tile_map(const TensorView& x, cuuint32_t depth, cuuint32_t rows) {
  const auto columns = static_cast<cuuint64_t>(x.shape[-1]);
  return make_tensor_map(x.data, {columns, static_cast<cuuint64_t>(x.shape.rows())},
                         {columns * sizeof(uint16_t)}, {depth, rows});
}

// Of every 32 rows, row 8 t + 2 i + j arrives as 8 i + 2 t + j: sums of columns 8 i + 2 t and
// 8 i + 2 t + 1 are what thread t of a quad has, and so eight neighbours of the result.
inline CUtensorMap permuted_rows_map(const TensorView& w, cuuint32_t depth, int64_t rows) {
  const auto all = static_cast<cuuint64_t>(w.shape[0]),
             columns = static_cast<cuuint64_t>(w.shape[1]);
  const cuuint64_t row = columns * sizeof(uint16_t);
  return make_tensor_map(w.data, {columns, 2, 4, 4, all / 32}, {row, 8 * row, 2 * row, 32 * row},
                         {depth, 2, 4, 4, static_cast<cuuint32_t>(rows / 32)});
}

}  // namespace vitrum::cuda
