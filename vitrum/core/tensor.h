#pragma once
#include <cassert>

#include "vitrum/core/dtype.h"
#include "vitrum/core/shape.h"

namespace vitrum {

// Non-owning view of contiguous memory on some device. Null data means "absent": an optional input
// not given, or an output nobody needs.
struct TensorView {
  void* data = nullptr;
  Shape shape;
  DType dtype = DType::kF32;

  explicit operator bool() const { return data != nullptr; }
  size_t bytes() const { return static_cast<size_t>(shape.numel()) * size_of(dtype); }

  float* f32() const { return typed<float>(DType::kF32); }
  double* f64() const { return typed<double>(DType::kF64); }
  uint16_t* bf16() const { return typed<uint16_t>(DType::kBF16); }
  uint8_t* u8() const { return typed<uint8_t>(DType::kU8); }
  uint8_t* e4m3() const { return typed<uint8_t>(DType::kE4M3); }
  int32_t* i32() const { return typed<int32_t>(DType::kI32); }

 private:
  template <class T>
  T* typed([[maybe_unused]] DType wanted) const {
    assert(data == nullptr || dtype == wanted);
    return static_cast<T*>(data);
  }
};

}  // namespace vitrum
