// Tensors that a file does not hold as they are wanted (C order, not compressed): made when they
// are first asked for, so that a file of many views of few numbers costs nothing until then.
#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "vitrum/core/shape.h"

namespace vitrum {

using TensorBytes = std::vector<std::byte>;

// Elements of `element_size` bytes, `strides` (in elements) apart, into C order.
TensorBytes gather(const std::byte* from, const Shape& shape, const Shape& strides,
                   size_t element_size);

// The strides of a tensor in C order, or in Fortran's, where the first dimension varies fastest.
Shape c_strides(const Shape& shape);
Shape fortran_strides(const Shape& shape);

class GatheredTensors {
 public:
  // Thread-safe; the bytes stay where they are as long as this lives.
  std::span<const std::byte> get(size_t key, const std::function<TensorBytes()>& make);

 private:
  std::mutex mutex_;
  std::map<size_t, TensorBytes> made_;
};

}  // namespace vitrum
