#include "vitrum/weights/npy.h"

#include <cstdlib>
#include <cstring>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"

namespace vitrum {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

// The text after `'key':` of the header's Python dictionary.
std::string_view field(std::string_view header, std::string_view key, const std::string& path) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) fail_input("{}: the .npy header has no {}", path, key);
  std::string_view rest = header.substr(at + key.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(": "), rest.size()));
  return rest;
}

Shape parse_shape(std::string_view text, const std::string& path) {
  constexpr int64_t kLargest = int64_t{1} << 40;  // elements: far above memory, far below overflow
  Shape shape;
  int64_t numel = 1;
  const std::string inside(text.substr(1, std::min(text.find(')'), text.size()) - 1));
  for (const char* p = inside.c_str(); *p;) {
    if (*p == ' ' || *p == ',') {
      ++p;
      continue;
    }
    char* end = nullptr;
    const int64_t dim = std::strtoll(p, &end, 10);
    if (end == p || dim <= 0 || dim > kLargest || shape.rank() == Shape::kMaxRank ||
        (numel *= dim) > kLargest)
      fail_input("{}: the .npy shape ({}) cannot be used", path, inside);
    shape.append(dim);
    p = end;
  }
  return shape;
}

}  // namespace

NpyArray read_npy(const std::string& path) {
  const MappedFile file(path);
  const std::string_view all(reinterpret_cast<const char*>(file.bytes().data()),
                             file.bytes().size());
  if (all.size() < 12 || !all.starts_with(kMagic)) fail_input("{}: not a .npy file", path);
  const bool first = all[6] == 1;  // version 1 has a 2-byte header length, later ones 4
  uint32_t length = 0;
  std::memcpy(&length, all.data() + 8, first ? 2 : 4);
  const size_t start = (first ? 10 : 12) + size_t{length};
  if (start > all.size()) fail_input("{}: truncated .npy header", path);
  const std::string_view header = all.substr(first ? 10 : 12, length);
  if (!field(header, "'descr'", path).starts_with("'<f4'"))
    fail_input("{}: expected little-endian float32; convert with .astype('float32')", path);
  if (!field(header, "'fortran_order'", path).starts_with("False"))
    fail_input("{}: expected C order; convert with numpy.ascontiguousarray", path);
  const std::string_view shape = field(header, "'shape'", path);
  if (!shape.starts_with("(")) fail_input("{}: the .npy header has no shape", path);
  NpyArray array{parse_shape(shape, path), {}};
  const size_t bytes = static_cast<size_t>(array.shape.numel()) * sizeof(float);
  if (all.size() - start != bytes)
    fail_input("{}: {} bytes of data, its shape {} needs {}", path, all.size() - start,
               array.shape.str(), bytes);
  array.values.resize(bytes / sizeof(float));
  std::memcpy(array.values.data(), all.data() + start, bytes);
  return array;
}

void write_npy(const std::string& path, const Shape& shape, std::span<const float> values) {
  std::string dims;
  for (int64_t d : shape) dims += std::to_string(d) + ", ";
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", dims);
  header.resize((header.size() + 11 + 63) / 64 * 64 - 11, ' ');  // data starts at a multiple of 64
  header += '\n';
  std::string file(kMagic);
  file += {'\x01', '\x00', static_cast<char>(header.size() & 0xff),
           static_cast<char>(header.size() >> 8)};
  file += header;
  file.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  write_file_atomic(path, file);
}

}  // namespace vitrum
