#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace vitrum {

enum class DType : uint8_t { kF32, kF64, kBF16, kF16, kU8, kI8, kI32, kI64, kE4M3 };

constexpr size_t size_of(DType t) {
  switch (t) {
    case DType::kU8:
    case DType::kI8:
    case DType::kE4M3: return 1;
    case DType::kBF16:
    case DType::kF16: return 2;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF64:
    case DType::kI64: return 8;
  }
  return 0;
}

constexpr std::string_view name_of(DType t) {
  switch (t) {
    case DType::kU8: return "u8";
    case DType::kI8: return "int8";
    case DType::kBF16: return "bf16";
    case DType::kF16: return "f16";
    case DType::kF32: return "f32";
    case DType::kI32: return "i32";
    case DType::kF64: return "f64";
    case DType::kI64: return "i64";
    case DType::kE4M3: return "fp8";
  }
  return "?";
}

constexpr bool is_float(DType t) {
  return t == DType::kF32 || t == DType::kF64 || t == DType::kBF16 || t == DType::kF16;
}

// bf16 is the upper half of an f32. Rounding is to nearest even; NaN stays NaN (quiet).
constexpr uint16_t to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
constexpr float from_bf16(uint16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

}  // namespace vitrum
