// Files for the data tests: a temporary folder, IDX, CIFAR, PNG and JPEG writers, and where real
// data is.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "vitrum/data/dataset.h"

namespace vitrum::test {

using Bytes = std::vector<uint8_t>;

class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  // Absolute path of `name` below the folder; the folders above it are made.
  std::string operator/(const std::string& name) const;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

void write_file(const std::string& path, const Bytes& bytes);
Bytes gzip(const Bytes& bytes);

// Pixels and labels that differ from sample to sample.
Bytes idx_images(int count, int height, int width, int first = 0);
Bytes idx_labels(int count, int classes = 10);
// train with `train` and t10k with `test` samples of 4 x 5 pixels.
void write_mnist(const TempDir& dir, int train, int test, bool zipped = false);

Image gradient(int channels, int height, int width);
Bytes encode_png(const Image& image);
Bytes encode_jpeg(const Image& image);

std::optional<std::string> shared_data(const std::string& name);

// Runs `body`, which must throw vitrum::Error of kind kInput; its message.
std::string input_error(const std::function<void()>& body);

// Labelled images that are computed, not stored; sample `bad` cannot be read.
class FakeDataset final : public Dataset {
 public:
  FakeDataset(int64_t size, ImageSize image_size, int64_t bad = -1)
      : size_(size), image_size_(image_size), bad_(bad) {}
  int64_t size() const override { return size_; }
  ImageSize image_size() const override { return image_size_; }
  const std::vector<std::string>& classes() const override { return classes_; }
  int label(int64_t index) const override { return static_cast<int>(index % 3); }
  std::string name(int64_t index) const override { return "fake " + std::to_string(index); }
  void read_into(int64_t index, Image& image) const override;

 private:
  int64_t size_;
  ImageSize image_size_;
  int64_t bad_;
  std::vector<std::string> classes_ = {"a", "b", "c"};
};

}  // namespace vitrum::test
