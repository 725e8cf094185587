#pragma once
#include <cstdint>

namespace vitrum {

struct InputSize {
  int64_t height = 0, width = 0;
};

}  // namespace vitrum
