// Zip archives of stored (not compressed) members, as PyTorch and NumPy write them. The same
// members give the same bytes.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/core/files.h"

namespace vitrum {

class ZipWriter {
 public:
  // `zip64` takes the long form of every field, which is otherwise only for what needs it: 4 GB, or
  // 65535 members.
  explicit ZipWriter(const std::string& path, bool zip64 = false) : file_(path), zip64_(zip64) {}

  // The parts, end to end. They start on a multiple of 64 bytes, so that readers can map them.
  using Bytes = std::span<const std::byte>;
  void add(std::string_view name, std::span<const Bytes> parts);
  void add(std::string_view name, std::string_view text);
  void commit();  // writes the directory; the file appears

 private:
  struct Entry {
    std::string name;
    uint32_t crc;
    uint64_t size, offset;
  };
  void write(std::string_view bytes);

  AtomicFile file_;
  bool zip64_;
  uint64_t position_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace vitrum
