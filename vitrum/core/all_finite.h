#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

namespace vitrum {

// By their exponents, in blocks without a branch: weights are looked at as fast as memory gives
// them.
inline bool all_finite(std::span<const float> values) {
  constexpr size_t kBlock = 1024;
  constexpr uint32_t kExponent = 0x7f800000;
  for (; !values.empty(); values = values.subspan(std::min(kBlock, values.size()))) {
    bool bad = false;
    for (const float x : values.first(std::min(kBlock, values.size())))
      bad |= (std::bit_cast<uint32_t>(x) & kExponent) == kExponent;
    if (bad) return false;
  }
  return true;
}

}  // namespace vitrum
