#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "vitrum/data/dataset.h"
#include "vitrum/data/decode.h"

namespace vitrum {

struct LabelledFile {
  std::string path;
  int label = 0;
};

// Images decoded from their files each time they are read; always RGB.
class FileDataset final : public Dataset {
 public:
  FileDataset(std::vector<LabelledFile> files, std::vector<std::string> classes,
              const DecodeOptions& options = {})
      : files_(std::move(files)), classes_(std::move(classes)), options_(options) {}

  int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  ImageSize image_size() const override { return {3, 0, 0}; }
  const std::vector<std::string>& classes() const override { return classes_; }
  int label(int64_t index) const override { return files_[static_cast<size_t>(index)].label; }
  std::string name(int64_t index) const override { return files_[static_cast<size_t>(index)].path; }
  void read_into(int64_t index, Image& image) const override {
    image = read_image(name(index), options_);
  }
  void read_part(int64_t index, const ChooseWindow& choose, Image& image) const override {
    if (options_.exif_orientation) return Dataset::read_part(index, choose, image);
    image = decode_part(read_bytes(name(index)), name(index), choose);
  }

 private:
  std::vector<LabelledFile> files_;
  std::vector<std::string> classes_;
  DecodeOptions options_;
};

}  // namespace vitrum
