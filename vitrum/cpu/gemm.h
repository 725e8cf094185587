// Matrix products on the thread pool. Blocks are fixed by shape; see simd/gemm.h for why results
// are too.
#pragma once
#include "vitrum/cpu/backend.h"
#include "vitrum/cpu/simd/gemm.h"

namespace vitrum::cpu {

// A whole right operand B (depth, columns) as packed panels in shared scratch.
struct PackedB {
  int64_t depth = 0, columns = 0;
  int64_t panels() const { return ceil_div(columns, kPanel); }
  size_t bytes() const { return static_cast<size_t>(panels() * kPanel * depth) * sizeof(float); }
  const float* panel(const float* base, int64_t p) const { return base + p * kPanel * depth; }
};

// Packs a row-major matrix, or the transpose of one, on all threads.
void pack(CpuBackend& cpu, const PackedB& shape, const TensorView& b, bool transposed, float* to);

// Rows of a product handled by one task: many, since each task streams its panels of B anew.
inline constexpr int64_t kRowBlock = 192;

}  // namespace vitrum::cpu
