#pragma once
#include <cassert>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

#include "vitrum/core/philox.h"

namespace vitrum {

// Fisher-Yates; std::shuffle's order is not fixed by the standard.
inline void shuffle(std::span<int64_t> items, PhiloxStream random) {
  assert(items.size() <= std::numeric_limits<uint32_t>::max());
  for (size_t left = items.size(); left > 1; --left) {
    std::swap(items[left - 1], items[random.below(static_cast<uint32_t>(left))]);
  }
}

}  // namespace vitrum
