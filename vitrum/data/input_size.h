#pragma once
#include <compare>
#include <cstdint>

namespace vitrum {

struct InputSize {
  int64_t height = 0, width = 0;
  auto operator<=>(const InputSize&) const = default;
};

}  // namespace vitrum
