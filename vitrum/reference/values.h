// What the reference kernels are made of: operands as doubles, and results rounded once to their
// dtype.
#pragma once
#include <cstdint>
#include <vector>

#include "vitrum/core/philox.h"
#include "vitrum/core/tensor.h"

namespace vitrum::reference {

using Values = std::vector<double>;

// Operand `i` of a node; null where it is absent or the list is shorter.
TensorView at(const std::vector<TensorView>& operands, size_t i);

Values read(const TensorView& from);                     // empty when absent
void write(const TensorView& to, const Values& values);  // nothing when absent, as is add_to
void add_to(const TensorView& to, const Values& values);

// The value a tensor of this dtype would hold. Fused ops call it where the plain graph has a
// tensor.
double rounded(double x, DType dtype);
void round_all(Values& values, DType dtype);

Values transpose(const Values& a, int64_t rows, int64_t cols);
Values matmul(const Values& a, const Values& b, int64_t m, int64_t k, int64_t n);  // (m, k) (k, n)
Values sum_rows(const Values& a, int64_t cols);  // (.., cols) -> (cols)

// The factors of one random site: 0 where an element is dropped, else 1 / keep. All 1 without
// dropout.
class DropMask {
 public:
  DropMask(const TensorView& rng, float drop, uint32_t site);
  double at(int64_t per_row, int64_t row, int64_t u) const;
  double at(int64_t element) const {  // element-wise ops
    return at(draws_per_row(kDrawRow), element / kDrawRow, element % kDrawRow);
  }

 private:
  RandomState rng_;
  float drop_;
  uint32_t site_;
};

}  // namespace vitrum::reference
