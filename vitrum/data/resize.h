// Resizing byte-equal to Pillow's Image.resize (version 13): antialiased, a horizontal and a
// vertical pass in fixed point with an 8-bit image between them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/data/image.h"

namespace vitrum {

enum class Filter : uint8_t { kNearest, kBox, kBilinear, kHamming, kBicubic, kLanczos };

Filter parse_filter(std::string_view name);  // "bilinear", ...; fails with the nearest match
std::string_view name_of(Filter filter);

// Keeps its coefficient tables and intermediate image between calls: give each thread its own.
class Resizer {
 public:
  void resize(const Image& in, int height, int width, Filter filter, Image& out);

 private:
  // Output position i of an axis is the weighted sum of `count[i]` inputs from `first[i]` on.
  struct Axis {
    int in = 0, out = 0, taps = 0;
    Filter filter = Filter::kNearest;
    std::vector<int> first, count;
    std::vector<int32_t> weights;  // (out, taps), fixed point
    void prepare(int in_size, int out_size, Filter with);
  };
  void resize_nearest(const Image& in, Image& out);
  void pass_horizontal(const Image& in, Image& out) const;
  void pass_vertical(const Image& in, Image& out);

  Axis horizontal_, vertical_;
  Image between_;
  std::vector<int32_t> sums_;  // one output row of the vertical pass
};

Image resize(const Image& in, int height, int width, Filter filter);

}  // namespace vitrum
