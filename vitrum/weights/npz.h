// NumPy's .npz: a zip archive of .npy arrays, as Google publishes its checkpoints.
#pragma once
#include "vitrum/weights/gathered.h"
#include "vitrum/weights/npy_header.h"
#include "vitrum/weights/tensor_source.h"
#include "vitrum/weights/zip.h"

namespace vitrum {

class NpzFile final : public TensorSource {
 public:
  static constexpr size_t kMaxArrays = 16'384;
  // Deflated arrays may grow this many times the file's size, and by 32 MB: weights hardly
  // compress.
  static constexpr uint64_t kMaxGrowth = 32;

  static bool recognizes(const ZipFile& zip);
  explicit NpzFile(ZipFile zip);

  const std::string& path() const override { return zip_.path(); }
  void check_intact() const override { zip_.check_intact(); }
  std::span<const std::byte> bytes(const TensorInfo& tensor) const override;

 private:
  struct Array {
    const ZipFile::Member* member;
    NpyHeader header;
  };

  NpyHeader read_header(const ZipFile::Member& member) const;
  TensorBytes inflate(const Array& array) const;

  ZipFile zip_;
  std::vector<Array> arrays_;  // of tensors_[i], whose offset is i
  mutable GatheredTensors gathered_;
};

}  // namespace vitrum
