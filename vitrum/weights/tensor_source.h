// Named tensors in a file, whatever its format: what every reader of weights offers.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/core/dtype.h"
#include "vitrum/core/shape.h"
#include "vitrum/core/tensor.h"

namespace vitrum {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  size_t offset = 0;  // for the reader's own use
  size_t bytes = 0;
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  virtual const std::string& path() const = 0;
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the order of the file

  const TensorInfo* find(std::string_view name) const;  // null: no such tensor
  const TensorInfo& at(std::string_view name) const;    // fails naming file and tensor

  // Little-endian, in C order, valid as long as the source; straight from the mapped file where it
  // holds them so. Not always aligned: copy before reading as numbers.
  virtual std::span<const std::byte> bytes(const TensorInfo& tensor) const = 0;
  // The tensor will not be read again soon: gives back the memory its pages take. Reading it again
  // is possible.
  virtual void release(const TensorInfo&) const {}
  // A matrix as the file holds it in eight bits, a scale a row; empty where it does not. bytes()
  // are f32 all the same.
  struct ByteRows {
    std::span<const std::byte> bytes;
    std::span<const float> scales;
    DType dtype = DType::kI8;  // or kE4M3
  };
  virtual ByteRows quantized(const TensorInfo&) const { return {}; }
  // Fails where the file was cut short while it was in use: bytes() then had zeros in place of what
  // was lost. Behind every use of them, before anything comes of it.
  virtual void check_intact() const = 0;
  // Into memory of the same dtype and shape; fails naming the tensor where they differ.
  void copy_to(const TensorInfo& tensor, const TensorView& target) const;

 protected:
  void index_names();  // once tensors_ is complete; fails where a name comes twice

  std::vector<TensorInfo> tensors_;

 private:
  std::vector<uint32_t> by_name_;  // positions in tensors_, sorted by name
};

// For messages: a name from a file may be long and hold anything.
std::string shown_name(std::string_view name);

}  // namespace vitrum
