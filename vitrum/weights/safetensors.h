// The safetensors format: an 8-byte little-endian header length, a JSON header, and the tensors'
// bytes end to end. The reader trusts nothing: whatever is accepted has every tensor inside the
// file, with no gap and no overlap.
#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "vitrum/core/files.h"
#include "vitrum/weights/tensor_source.h"

namespace vitrum {

class SafetensorsFile final : public TensorSource {
 public:
  static constexpr size_t kMaxHeader = 100'000'000;  // bytes, as the official library has it
  static constexpr size_t kMaxTensors = 65'536;
  static constexpr size_t kMaxName = 512;                   // bytes
  static constexpr size_t kMaxMetadata = size_t{16} << 20;  // bytes of keys and values

  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const override { return file_.path(); }
  void check_intact() const override { file_.check_intact(); }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::span<const std::byte> bytes(const TensorInfo& tensor) const override;
  void release(const TensorInfo& tensor) const override { file_.release(bytes(tensor)); }

 private:
  void validate_layout() const;

  MappedFile file_;
  size_t data_start_ = 0;
  std::map<std::string, std::string> metadata_;
};

struct NamedTensor {
  std::string name;
  TensorView tensor;  // host memory
};

// Atomic. Tensors are laid out by element size (largest first), then by name, as the official
// library does, so each is aligned. A name given twice or "__metadata__" fails.
// `verify` throws where what was written must not appear.
void write_safetensors(
    const std::string& path, std::span<const NamedTensor> tensors,
    const std::map<std::string, std::string>& metadata = {},
    const std::function<void()>& verify = [] {});

}  // namespace vitrum
