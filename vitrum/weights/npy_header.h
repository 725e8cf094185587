// What stands before the numbers of a NumPy array: magic, version, and a Python dictionary with the
// element type, the order and the shape. Read strictly: nothing but what NumPy itself writes.
#pragma once
#include <string>
#include <string_view>

#include "vitrum/core/dtype.h"
#include "vitrum/core/shape.h"

namespace vitrum {

inline constexpr std::string_view kNpyMagic = "\x93NUMPY";
inline constexpr size_t kMaxNpyHeader = 16'384;  // bytes, all in all; NumPy itself stops at 10000

struct NpyHeader {
  DType dtype = DType::kF32;
  bool fortran_order = false;  // the first dimension varies fastest
  Shape shape;
  size_t data_start = 0;  // bytes from the start of the file
  size_t data_bytes = 0;
};

// `bytes` holds the whole header at least, or the first kMaxNpyHeader bytes. `who` opens messages:
// the file, or the file and the array in it.
NpyHeader parse_npy_header(std::string_view bytes, const std::string& who);

}  // namespace vitrum
