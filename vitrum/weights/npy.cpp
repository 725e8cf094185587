#include "vitrum/weights/npy.h"

#include <cassert>
#include <cstring>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/weights/npy_header.h"

namespace vitrum {

NpyArray read_npy(const std::string& path) {
  const MappedFile file(path);
  const std::string_view all(reinterpret_cast<const char*>(file.bytes().data()), file.size());
  const NpyHeader header = parse_npy_header(all, path);
  if (header.dtype != DType::kF32)
    fail_input("{}: expected little-endian float32; convert with .astype('float32')", path);
  if (header.fortran_order)
    fail_input("{}: expected C order; convert with numpy.ascontiguousarray", path);
  if (header.data_bytes == 0)
    fail_input("{}: the .npy shape {} cannot be used: it holds nothing", path, header.shape.str());
  if (all.size() - header.data_start != header.data_bytes)
    fail_input("{}: {} bytes of data, its shape {} needs {}", path, all.size() - header.data_start,
               header.shape.str(), header.data_bytes);
  NpyArray array{header.shape, std::vector<float>(header.data_bytes / sizeof(float))};
  std::memcpy(array.values.data(), all.data() + header.data_start, header.data_bytes);
  file.check_intact();
  return array;
}

std::string npy_preamble(DType dtype, const Shape& shape) {
  assert(is_float(dtype) && dtype != DType::kBF16);
  std::string dims;
  for (int64_t d : shape) dims += std::to_string(d) + ", ";
  std::string header = fmt::format("{{'descr': '<f{}', 'fortran_order': False, 'shape': ({}), }}",
                                   size_of(dtype), dims);
  header.resize((header.size() + 11 + 63) / 64 * 64 - 11, ' ');  // data starts at a multiple of 64
  header += '\n';
  std::string file(kNpyMagic);
  file += {'\x01', '\x00', static_cast<char>(header.size() & 0xff),
           static_cast<char>(header.size() >> 8)};
  return file + header;
}

void write_npy(const std::string& path, const Shape& shape, std::span<const float> values) {
  std::string file = npy_preamble(DType::kF32, shape);
  file.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  write_file_atomic(path, file);
}

}  // namespace vitrum
