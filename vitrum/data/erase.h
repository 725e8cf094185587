// Random erasing (Zhong et al., 2017) as timm does it, on bytes: what timm draws as a normalised
// pixel is mean + std * pixel here, rounded and cut to 0..255.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "vitrum/core/philox.h"
#include "vitrum/data/image.h"

namespace vitrum {

enum class EraseMode : uint8_t {
  kConst,  // the mean colour
  kRand,   // one random colour
  kPixel,  // every pixel its own
};

struct Erase {
  double probability = 0;
  EraseMode mode = EraseMode::kPixel;
  std::array<double, 2> area = {0.02, 1.0 / 3};  // of the image
  // Of pixels in [0, 1], a channel each.
  std::array<double, 3> mean = {0.5, 0.5, 0.5}, std = {0.25, 0.25, 0.25};
};

class Eraser {
 public:
  explicit Eraser(const Erase& erase);

  // Draws the box that is erased; empty where the image is spared.
  Window draw_box(int height, int width, PhiloxStream& random) const;
  // Erases one box, or nothing, from `pixels` (channels, height, width).
  void apply(int channels, int height, int width, PhiloxStream& random, uint8_t* pixels) const;

 private:
  static constexpr int kBits = 12;
  Erase erase_;
  // A normal pixel of each channel by 12 random bits.
  std::array<std::vector<uint8_t>, 3> normal_;
};

}  // namespace vitrum
