#pragma once
#include <string>
#include <vector>

namespace vitrum {

struct Ticks {
  std::vector<double> at;
  double step = 1;
};
// Multiples of 1, 2 or 5 times a power of ten that enclose [low, high] in about `count` steps;
// `whole` keeps to whole numbers.
Ticks nice_ticks(double low, double high, int count, bool whole = false);

// 0.25, 40, 5e-4: as many digits as the step needs.
std::string tick_label(double x, double step);

}  // namespace vitrum
