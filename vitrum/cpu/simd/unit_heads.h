// Heads of unit length: cosine attention.
#pragma once
#include <cstdint>

#include "vitrum/cpu/simd/simd.h"

namespace vitrum::cpu {

// Rows of `parts` x `heads` heads of `dim` values; those of the first `unit` parts get the length
// 1, those of the first of them `factor` (heads), where it is not null.
struct UnitHeadsArgs {
  Array x, y;
  Array dy, dx;  // backward, in the place of y
  const float* factor;
  int64_t heads, parts, unit, dim;
};

struct UnitHeadsKernels {
  void (*forward)(const UnitHeadsArgs&, int64_t first, int64_t last);
  // along (heads): for the first part the sums of factor * (dy in the direction of x),
  // overwritten; may be null.
  void (*backward)(const UnitHeadsArgs&, int64_t first, int64_t last, float* along);
};

}  // namespace vitrum::cpu
