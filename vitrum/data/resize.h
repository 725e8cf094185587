// Resizing byte-equal to Pillow's Image.resize (version 13): antialiased, a horizontal and a
// vertical pass in fixed point with an 8-bit image between them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/data/image.h"
#include "vitrum/data/pixel_loops.h"

namespace vitrum {

enum class Filter : uint8_t { kNearest, kBox, kBilinear, kHamming, kBicubic, kLanczos };

Filter parse_filter(std::string_view name);  // "bilinear", ...; fails with the nearest match
std::string_view name_of(Filter filter);

// Keeps its coefficient tables and intermediate image between calls: give each thread its own.
class Resizer {
 public:
  void resize(const Image& in, int height, int width, Filter filter, Image& out);
  // Only a window of the resized image, to `out` (channels, window.height, window.width): what is
  // cropped away is not computed.
  void resize(const Image& in, int height, int width, Filter filter, const Window& window,
              uint8_t* out);

 private:
  // Output position i of an axis is the weighted sum of `count[i]` inputs from `first[i]` on.
  struct Axis {
    int in = 0, out = 0, taps = 0;
    Filter filter = Filter::kNearest;
    std::vector<int> first, count;
    std::vector<int32_t> weights;   // (out, taps), fixed point
    std::vector<WeightPair> pairs;  // (out, pairs_of(taps))

    void prepare(int in_size, int out_size, Filter with);
    void weigh(int i, const uint8_t* rows, size_t stride, size_t width, uint8_t* to) const;
    // Which inputs the outputs [begin, end) need.
    int first_of(int begin) const { return first[static_cast<size_t>(begin)]; }
    int last_of(int end) const {
      return first[static_cast<size_t>(end - 1)] + count[static_cast<size_t>(end - 1)];
    }
  };
  // Rows of an image or of a part of it. `skipped` pixels stand before it on the axis of a pass.
  struct Rows {
    const uint8_t* data;
    size_t stride, count;
    int skipped;
  };
  void resize_nearest(const Image& in, int height, int width, const Window& window, uint8_t* out);
  void resize_plane(const uint8_t* in, const Window& window, bool vertical_first, uint8_t* out);
  void pass_horizontal(const Rows& in, const Window& window, uint8_t* out);
  void pass_vertical(const Rows& in, const Window& window, size_t columns, uint8_t* out);

  Axis horizontal_, vertical_;
  std::vector<uint8_t> between_, columns_, narrow_;
};

Image resize(const Image& in, int height, int width, Filter filter);

}  // namespace vitrum
