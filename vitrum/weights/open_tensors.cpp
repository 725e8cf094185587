#include "vitrum/weights/open_tensors.h"

#include <algorithm>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/weights/safetensors.h"
#include "vitrum/weights/sharded.h"

namespace vitrum {
namespace {

enum class Format { kSafetensors, kIndex, kUnknown };

// A safetensors header is JSON as well, but its length comes first: 8 bytes, of which at least the
// last four are zero, and no text has zeros.
Format format_of(std::string_view bytes) {
  const std::string_view length = bytes.substr(0, 8);
  const size_t first = length.find_first_not_of(" \n\r\t");
  if (first < length.size() && length[first] == '{' && length.find('\0') == length.npos)
    return Format::kIndex;
  if (bytes.size() >= 8 && length.ends_with(std::string_view("\0\0\0\0", 4)))
    return Format::kSafetensors;
  if (bytes.size() > 8 && bytes[8] == '{') return Format::kSafetensors;
  return Format::kUnknown;
}

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.size()};
}

std::unique_ptr<TensorSource> open(const std::string& path, bool index_allowed) {
  const MappedFile file(path);
  switch (format_of(text_of(file))) {
    case Format::kSafetensors: return std::make_unique<SafetensorsFile>(path);
    case Format::kIndex:
      if (index_allowed) return std::make_unique<ShardedFile>(path);
      fail_input("'{}' is JSON; expected a file of tensors", path);
    case Format::kUnknown: break;
  }
  fail_input(
      "'{}' holds no weights that can be read; accepted are safetensors, the index.json of a "
      "sharded checkpoint, a PyTorch file (.pth, .pt, .bin) and a NumPy .npz",
      path);
}

}  // namespace

std::unique_ptr<TensorSource> open_tensors(const std::string& path) { return open(path, true); }
std::unique_ptr<TensorSource> open_tensor_file(const std::string& path) {
  return open(path, false);
}

}  // namespace vitrum
