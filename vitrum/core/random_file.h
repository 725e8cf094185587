// A regular file that is read in parts, wherever they lie; several threads may at once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace vitrum {

class RandomFile {
 public:
  explicit RandomFile(const std::string& path);  // fails as bad input
  RandomFile(const RandomFile&) = delete;
  RandomFile& operator=(const RandomFile&) = delete;
  ~RandomFile();

  // Fills `to`; a file that ends before that fails.
  void read(int64_t at, std::span<char> to) const;

  int64_t size() const { return size_; }          // when it was opened
  int64_t modified() const { return modified_; }  // in nanoseconds since 1970
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0, modified_ = 0;
};

}  // namespace vitrum
