#include "vitrum/weights/open_tensors.h"

#include <algorithm>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/weights/npz.h"
#include "vitrum/weights/pytorch.h"
#include "vitrum/weights/quantized_tensors.h"
#include "vitrum/weights/safetensors.h"
#include "vitrum/weights/sharded.h"

namespace vitrum {
namespace {

enum class Format { kSafetensors, kIndex, kZip, kPickle, kUnknown };

// A safetensors header is JSON as well, but its length comes first: 8 bytes, of which at least the
// last four are zero, and no text has zeros.
Format format_of(std::string_view bytes) {
  if (bytes.starts_with("PK\3\4") || bytes.starts_with("PK\5\6")) return Format::kZip;
  const std::string_view length = bytes.substr(0, 8);
  const bool short_length = bytes.size() >= 8 && length.ends_with(std::string_view("\0\0\0\0", 4));
  // Before the pickle: a header of 640 bytes begins as one.
  if (short_length && bytes.size() > 8 && bytes[8] == '{') return Format::kSafetensors;
  if (bytes.size() > 1 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5)
    return Format::kPickle;
  const size_t first = length.find_first_not_of(" \n\r\t");
  if (first < length.size() && length[first] == '{' && length.find('\0') == length.npos)
    return Format::kIndex;
  if (short_length) return Format::kSafetensors;
  if (bytes.size() > 8 && bytes[8] == '{') return Format::kSafetensors;
  return Format::kUnknown;
}

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.size()};
}

std::unique_ptr<TensorSource> open_zip(const std::string& path) {
  ZipFile zip(path);
  if (PyTorchFile::recognizes(zip)) return std::make_unique<PyTorchFile>(std::move(zip));
  if (NpzFile::recognizes(zip)) return std::make_unique<NpzFile>(std::move(zip));
  fail_input("'{}' is a zip archive, but neither a PyTorch file (no data.pkl) nor a NumPy .npz",
             path);
}

std::unique_ptr<TensorSource> open_as(const MappedFile& file, bool index_allowed) {
  const std::string& path = file.path();
  switch (format_of(text_of(file))) {
    case Format::kSafetensors: return std::make_unique<SafetensorsFile>(path);
    case Format::kIndex:
      if (index_allowed) return std::make_unique<ShardedFile>(path);
      fail_input("'{}' is JSON; expected a file of tensors", path);
    case Format::kZip: return open_zip(path);
    case Format::kPickle:
      fail_input(
          "'{}' is a bare pickle, as PyTorch wrote before 1.6; load it with torch.load and save "
          "it again with torch.save",
          path);
    case Format::kUnknown: break;
  }
  fail_input(
      "'{}' holds no weights that can be read; accepted are safetensors, the index.json of a "
      "sharded checkpoint, a PyTorch file (.pth, .pt, .bin) and a NumPy .npz",
      path);
}

std::unique_ptr<TensorSource> open(const std::string& path, bool index_allowed) {
  const MappedFile file(path);
  try {
    return open_as(file, index_allowed);
  } catch (const Error&) {
    file.check_intact();  // the better reason
    throw;
  }
}

}  // namespace

std::unique_ptr<TensorSource> open_tensors(const std::string& path) {
  std::unique_ptr<TensorSource> file = open(path, true);
  if (!QuantizedTensors::recognizes(*file)) return file;
  return std::make_unique<QuantizedTensors>(std::move(file));
}
std::unique_ptr<TensorSource> open_tensor_file(const std::string& path) {
  return open(path, false);
}

}  // namespace vitrum
