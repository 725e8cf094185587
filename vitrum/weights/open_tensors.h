// The way in to weights, whatever wrote them.
#pragma once
#include <memory>
#include <string>

#include "vitrum/weights/tensor_source.h"

namespace vitrum {

// Chooses the reader by what the file holds, never by its name: safetensors, the JSON index of a
// sharded checkpoint, a PyTorch zip, or a NumPy .npz. Fails with what is accepted otherwise.
std::unique_ptr<TensorSource> open_tensors(const std::string& path);

// The same without the index, which may not name another index.
std::unique_ptr<TensorSource> open_tensor_file(const std::string& path);

}  // namespace vitrum
