#include "vitrum/weights/convert_floats.h"

#include <bit>
#include <cassert>
#include <cstring>

#include "vitrum/core/error.h"

namespace vitrum {
namespace {

// Masks instead of branches, so that the loop becomes vector code. The exponent moves from bias 15
// to 127 (infinity and NaN: to the end); a subnormal is built as 2^-14 * (1 + fraction) and loses
// the 1 again, which is exact.
float from_f16(uint16_t bits) {
  constexpr uint32_t kRebias = 112u << 23, kSmallest = 113u << 23;
  const uint32_t magnitude = (bits & 0x7fffu) << 13;
  const uint32_t is_special = 0u - static_cast<uint32_t>(magnitude >= (31u << 23)),
                 is_subnormal = 0u - static_cast<uint32_t>(magnitude < (1u << 23));
  const uint32_t normal = magnitude + kRebias + (kRebias & is_special);
  const float small = std::bit_cast<float>(magnitude + kSmallest) - std::bit_cast<float>(kSmallest);
  const uint32_t result =
      (normal & ~is_subnormal) | (std::bit_cast<uint32_t>(small) & is_subnormal);
  return std::bit_cast<float>(result | static_cast<uint32_t>(bits & 0x8000u) << 16);
}

template <class From, class Convert>
void convert(std::span<const std::byte> bytes, std::span<float> values, Convert to_float) {
  const std::byte* in = bytes.data();
  float* out = values.data();
  for (size_t i = 0; i < values.size(); ++i) {
    From x;
    std::memcpy(&x, in + i * sizeof x, sizeof x);
    out[i] = to_float(x);
  }
}

}  // namespace

void to_floats(std::span<const std::byte> bytes, DType dtype, std::span<float> values) {
  assert(is_float(dtype) && bytes.size() == values.size() * size_of(dtype));
  if (bytes.empty()) return;
  switch (dtype) {
    case DType::kF16: return convert<uint16_t>(bytes, values, from_f16);
    case DType::kBF16: return convert<uint16_t>(bytes, values, from_bf16);
    case DType::kF64:
      return convert<double>(bytes, values, [](double x) { return static_cast<float>(x); });
    default: std::memcpy(values.data(), bytes.data(), bytes.size());
  }
}

std::vector<float> to_floats(std::span<const std::byte> bytes, DType dtype) {
  std::vector<float> values(bytes.size() / size_of(dtype));
  to_floats(bytes, dtype, values);
  return values;
}

void read_floats(const TensorSource& source, const TensorInfo& tensor, std::span<float> values) {
  assert(static_cast<int64_t>(values.size()) == tensor.shape.numel());
  if (!is_float(tensor.dtype))
    fail_input("'{}': tensor {} is {}, expected floating-point numbers", source.path(),
               shown_name(tensor.name), name_of(tensor.dtype));
  to_floats(source.bytes(tensor), tensor.dtype, values);
}

std::vector<float> read_floats(const TensorSource& source, const TensorInfo& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.shape.numel()));
  read_floats(source, tensor, values);
  return values;
}

}  // namespace vitrum
