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

// What is written at the ticks, all of one kind: as many digits behind the point as the step needs,
// and where these would be many, a power of ten that all are to be multiplied with.
struct AxisLabels {
  std::vector<std::string> texts;
  std::string unit;  // "x 1e-6", or nothing
};
AxisLabels axis_labels(const Ticks& ticks);

}  // namespace vitrum
