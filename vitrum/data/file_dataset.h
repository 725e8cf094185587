#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "vitrum/data/encoded_dataset.h"

namespace vitrum {

struct LabelledFile {
  std::string path;
  int label = 0;
};

class FileDataset final : public EncodedDataset {
 public:
  FileDataset(std::vector<LabelledFile> files, std::vector<std::string> classes,
              const DecodeOptions& options = {})
      : EncodedDataset(options), files_(std::move(files)), classes_(std::move(classes)) {}

  int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  const std::vector<std::string>& classes() const override { return classes_; }
  int label(int64_t index) const override { return files_[static_cast<size_t>(index)].label; }
  std::string name(int64_t index) const override { return files_[static_cast<size_t>(index)].path; }
  std::vector<uint8_t> file(int64_t index) const override { return read_bytes(name(index)); }

 private:
  std::vector<LabelledFile> files_;
  std::vector<std::string> classes_;
};

}  // namespace vitrum
