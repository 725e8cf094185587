// Weights of eight bits in a file (compressed-tensors' schema, "int-quantized" and
// "float-quantized"), seen as the f32 numbers they stand for: whoever reads tensors need not know.
// Internal to weights/.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "vitrum/core/buffer.h"
#include "vitrum/weights/tensor_source.h"

namespace vitrum {

// A matrix NAME of I8 or F8_E4M3, (out, in), has a tensor NAME_scale beside it, a number a row or
// one for all; NAME_zero_point may be there and is zero. Each matrix is computed when it is first
// read.
class QuantizedTensors final : public TensorSource {
 public:
  static bool recognizes(const TensorSource& file);
  // Fails, naming the tensor, where a scale is missing, of another shape, or no positive number.
  explicit QuantizedTensors(std::unique_ptr<TensorSource> file);

  const std::string& path() const override { return file_->path(); }
  void check_intact() const override { file_->check_intact(); }
  std::span<const std::byte> bytes(const TensorInfo& tensor) const override;
  void release(const TensorInfo& tensor) const override;
  ByteRows quantized(const TensorInfo& tensor) const override;

 private:
  struct Place {
    const TensorInfo* stored;
    std::vector<float> scales;  // one a row; none: as it is stored
    mutable Buffer numbers;     // empty: not read yet
  };
  std::vector<float> scales_of(const TensorInfo& matrix) const;

  std::unique_ptr<TensorSource> file_;
  mutable std::mutex mutex_;   // of the numbers
  std::vector<Place> places_;  // of tensors_[i], whose offset is i
};

}  // namespace vitrum
