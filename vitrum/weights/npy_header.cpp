#include "vitrum/weights/npy_header.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "vitrum/core/error.h"
#include "vitrum/weights/tensor_source.h"

namespace vitrum {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 40;  // far above memory, far below overflow

struct Descr {
  std::string_view name;
  DType dtype;
};
// JAX saves bfloat16, which NumPy has no name for, as two bytes of anything.
constexpr std::array<Descr, 8> kDescrs = {{{"<f4", DType::kF32},
                                           {"<f2", DType::kF16},
                                           {"<f8", DType::kF64},
                                           {"|V2", DType::kBF16},
                                           {"<i4", DType::kI32},
                                           {"<i8", DType::kI64},
                                           {"|u1", DType::kU8},
                                           {"|b1", DType::kU8}}};

class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& who) : text_(text), who_(who) {}

  NpyHeader parse() {
    NpyHeader header;
    bool descr = false, order = false, shape = false;
    expect("{");
    while (!accept("}")) {
      const std::string_view key = string();
      expect(":");
      if (key == "descr" && !std::exchange(descr, true))
        header.dtype = dtype();
      else if (key == "fortran_order" && !std::exchange(order, true))
        header.fortran_order = boolean();
      else if (key == "shape" && !std::exchange(shape, true))
        header.shape = dims();
      else
        fail_input("{}: the .npy header has an unexpected key {}", who_, shown_name(key));
      if (!accept(",")) {
        expect("}");
        break;
      }
    }
    skip_space();
    if (!text_.empty()) broken();
    for (const auto& [found, key] :
         {std::pair(descr, "descr"), {order, "fortran_order"}, {shape, "shape"}})
      if (!found) fail_input("{}: the .npy header has no '{}'", who_, key);
    return header;
  }

 private:
  [[noreturn]] void broken() const {
    fail_input("{}: the .npy header is broken near {}", who_, shown_name(text_.substr(0, 20)));
  }
  void skip_space() { text_.remove_prefix(std::min(text_.find_first_not_of(" \n"), text_.size())); }
  bool accept(std::string_view token) {
    skip_space();
    if (!text_.starts_with(token)) return false;
    text_.remove_prefix(token.size());
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) broken();
  }

  std::string_view string() {
    skip_space();
    if (text_.empty() || (text_[0] != '\'' && text_[0] != '"')) broken();
    const size_t end = text_.find(text_[0], 1);
    if (end == text_.npos) broken();
    const std::string_view inside = text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
    return inside;
  }

  DType dtype() {
    skip_space();
    if (text_.starts_with("[")) fail_input("{}: holds records; expected plain numbers", who_);
    const std::string_view name = string();
    for (const Descr& d : kDescrs)
      if (d.name == name) return d.dtype;
    if (name.find('O') != name.npos)
      fail_input("{}: holds Python objects ({}), which are never loaded", who_, shown_name(name));
    fail_input(
        "{}: the dtype {} is not supported; expected float32, float16, bfloat16, float64, "
        "int32, int64 or uint8 in little-endian order",
        who_, shown_name(name));
  }

  bool boolean() {
    if (accept("True")) return true;
    expect("False");
    return false;
  }

  Shape dims() {
    const std::string_view start = (skip_space(), text_);
    Shape shape;
    int64_t elements = 1;
    expect("(");
    while (!accept(")")) {
      skip_space();
      int64_t dim = -1;
      const char* from = text_.data();
      const auto [end, error] = std::from_chars(from, from + text_.size(), dim);
      if (error != std::errc() || dim < 0 || dim > kMaxElements / elements ||
          shape.rank() == Shape::kMaxRank)
        fail_input("{}: the .npy shape {} cannot be used", who_,
                   shown_name(start.substr(0, start.find(')') + 1)));
      text_.remove_prefix(static_cast<size_t>(end - from));
      shape.append(dim);
      elements *= std::max<int64_t>(dim, 1);
      if (!accept(",")) {
        expect(")");
        break;
      }
    }
    return shape;
  }

  std::string_view text_;
  const std::string& who_;
};

}  // namespace

NpyHeader parse_npy_header(std::string_view bytes, const std::string& who) {
  if (bytes.size() < 12 || !bytes.starts_with(kNpyMagic)) fail_input("{}: not a .npy file", who);
  const int version = bytes[6];
  if (version < 1 || version > 3 || bytes[7] != 0)
    fail_input("{}: version {}.{} of .npy; expected 1.0, 2.0 or 3.0", who, version,
               static_cast<int>(bytes[7]));
  const size_t before =
      version == 1 ? 10 : 12;  // version 1 has 2 bytes for the length, later ones 4
  uint32_t length = 0;
  std::memcpy(&length, bytes.data() + 8, before - 8);
  if (length > kMaxNpyHeader - before)
    fail_input("{}: a .npy header of {} bytes; at most {} are read", who, length, kMaxNpyHeader);
  if (length > bytes.size() - before) fail_input("{}: truncated .npy header", who);
  NpyHeader header = HeaderParser(bytes.substr(before, length), who).parse();
  header.data_start = before + length;
  header.data_bytes = static_cast<size_t>(header.shape.numel()) * size_of(header.dtype);
  return header;
}

}  // namespace vitrum
