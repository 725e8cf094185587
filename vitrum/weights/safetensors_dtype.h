// The names of element types in safetensors headers.
#pragma once
#include <array>
#include <bit>
#include <optional>
#include <string_view>

#include "vitrum/core/dtype.h"

namespace vitrum {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

struct SafetensorsDType {
  DType dtype;
  std::string_view name;
};

// In the order of the official library, which lays out the last of these first.
inline constexpr std::array<SafetensorsDType, 9> kSafetensorsDTypes = {{{DType::kU8, "U8"},
                                                                        {DType::kI8, "I8"},
                                                                        {DType::kE4M3, "F8_E4M3"},
                                                                        {DType::kF16, "F16"},
                                                                        {DType::kBF16, "BF16"},
                                                                        {DType::kI32, "I32"},
                                                                        {DType::kF32, "F32"},
                                                                        {DType::kF64, "F64"},
                                                                        {DType::kI64, "I64"}}};

constexpr int safetensors_rank(DType t) {
  int rank = 0;
  while (kSafetensorsDTypes[static_cast<size_t>(rank)].dtype != t) ++rank;
  return rank;
}

constexpr std::string_view safetensors_name(DType t) {
  return kSafetensorsDTypes[static_cast<size_t>(safetensors_rank(t))].name;
}

constexpr std::optional<DType> safetensors_dtype(std::string_view name) {
  for (const auto& entry : kSafetensorsDTypes)
    if (entry.name == name) return entry.dtype;
  return std::nullopt;
}

}  // namespace vitrum
