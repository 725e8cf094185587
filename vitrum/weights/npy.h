// NumPy's .npy files of f32 in C order: raw tensors in and out.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "vitrum/core/dtype.h"
#include "vitrum/core/shape.h"

namespace vitrum {

struct NpyArray {
  Shape shape;
  std::vector<float> values;
};

// Fails naming the file and what is wrong: another dtype, Fortran order, a size that does not
// match.
NpyArray read_npy(const std::string& path);
void write_npy(const std::string& path, const Shape& shape,
               std::span<const float> values);  // atomic

// What stands before the data of a .npy file of f32, f16 or f64, in C order.
std::string npy_preamble(DType dtype, const Shape& shape);

}  // namespace vitrum
