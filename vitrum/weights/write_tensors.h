// Named tensors to files that other tools read. All are atomic; `verify` is as in
// write_safetensors.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "vitrum/weights/safetensors.h"

namespace vitrum {

// PyTorch's batch norms count their updates beside the running statistics. Nothing reads the count,
// but transformers misses it aloud: zeros.
void add_counters(std::vector<NamedTensor>& tensors);

// What torch.load(weights_only=True) gives back as a dictionary of tensors; floats only.
void write_pth(
    const std::string& path, std::span<const NamedTensor> tensors,
    const std::function<void()>& verify = [] {});
// What numpy.load gives back; bf16, which NumPy has not, is not for it.
void write_npz(
    const std::string& path, std::span<const NamedTensor> tensors,
    const std::function<void()>& verify = [] {});

}  // namespace vitrum
