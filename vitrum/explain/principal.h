#pragma once
#include <cstddef>
#include <span>
#include <vector>

namespace vitrum {

// The `count` directions in which `rows` samples of `columns` values vary most, the first one most:
// (count, columns), each of length 1 with its largest element positive. Fewer where there are not
// so many.
struct Components {
  std::vector<double> vectors;
  std::vector<double> variances;
};
Components principal_components(std::span<const float> samples, size_t rows, size_t columns,
                                size_t count);

}  // namespace vitrum
