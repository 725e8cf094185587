#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "vitrum/data/dataset.h"

namespace vitrum {

// Images of one size, kept as raw bytes: what IDX and CIFAR files are read into.
struct MemoryData {
  std::string split;  // for messages
  ImageSize image_size;
  std::vector<std::string> classes;
  std::vector<uint8_t> pixels;  // (N, channels, height, width)
  std::vector<uint8_t> labels;  // (N), each below classes.size()
};

class MemoryDataset final : public Dataset {
 public:
  explicit MemoryDataset(MemoryData data) : data_(std::move(data)) {}

  int64_t size() const override { return static_cast<int64_t>(data_.labels.size()); }
  ImageSize image_size() const override { return data_.image_size; }
  const std::vector<std::string>& classes() const override { return data_.classes; }
  int label(int64_t index) const override { return data_.labels[static_cast<size_t>(index)]; }
  std::string name(int64_t index) const override {
    return data_.split + " sample " + std::to_string(index);
  }
  void read_into(int64_t index, Image& image) const override {
    image.reshape(data_.image_size.channels, data_.image_size.height, data_.image_size.width);
    const auto n = static_cast<int64_t>(image.pixels.size());
    std::copy_n(data_.pixels.begin() + index * n, n, image.pixels.begin());
  }

 private:
  MemoryData data_;
};

}  // namespace vitrum
