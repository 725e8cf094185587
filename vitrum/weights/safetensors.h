// The safetensors format: an 8-byte little-endian header length, a JSON header, and the tensors'
// bytes end to end. The reader trusts nothing: whatever is accepted has every tensor inside the
// file, with no gap and no overlap.
#pragma once
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/core/dtype.h"
#include "vitrum/core/files.h"
#include "vitrum/core/shape.h"
#include "vitrum/core/tensor.h"

namespace vitrum {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  size_t offset = 0;  // from the start of the data section
  size_t bytes = 0;
};

class SafetensorsFile {
 public:
  static constexpr size_t kMaxHeader = 100'000'000;  // bytes, as the official library has it
  static constexpr size_t kMaxTensors = 65'536;

  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the order of the header

  const TensorInfo* find(std::string_view name) const;  // null: no such tensor
  const TensorInfo& at(std::string_view name) const;    // fails naming file and tensor

  // Straight from the map. Older files do not align tensors: copy before reading as numbers.
  std::span<const std::byte> bytes(const TensorInfo& tensor) const;
  // Into memory of the same dtype and shape; fails naming the tensor where they differ.
  void copy_to(const TensorInfo& tensor, const TensorView& target) const;

 private:
  void index_names();
  void validate_layout() const;

  MappedFile file_;
  size_t data_start_ = 0;
  std::map<std::string, std::string> metadata_;
  std::vector<TensorInfo> tensors_;
  std::vector<uint32_t> by_name_;  // positions in tensors_, sorted by name
};

struct NamedTensor {
  std::string name;
  TensorView tensor;  // host memory
};

// Atomic. Tensors are laid out by element size (largest first), then by name, as the official
// library does, so each is aligned. A name given twice or "__metadata__" fails.
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace vitrum
