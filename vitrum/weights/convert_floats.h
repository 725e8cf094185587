// Tensors of a file as f32, the type that parameters are kept in.
#pragma once
#include <span>
#include <vector>

#include "vitrum/weights/tensor_source.h"

namespace vitrum {

// f32, f16, bf16 or f64 in file order, not always aligned, as f32.
void to_floats(std::span<const std::byte> bytes, DType dtype, std::span<float> values);
std::vector<float> to_floats(std::span<const std::byte> bytes, DType dtype);

// Exact from f16 and bf16; f64 is rounded. Fails naming the tensor where it holds integers.
void read_floats(const TensorSource& source, const TensorInfo& tensor, std::span<float> values);
std::vector<float> read_floats(const TensorSource& source, const TensorInfo& tensor);

}  // namespace vitrum
