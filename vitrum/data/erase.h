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
  // The colour it takes, a channel each; of kPixel there is none, and nothing is drawn.
  std::array<uint8_t, 3> draw_colour(int channels, PhiloxStream& random) const;
  // Erases one box, or nothing, from `pixels` (channels, height, width).
  void apply(int channels, int height, int width, PhiloxStream& random, uint8_t* pixels) const;

  // (3, 2^kBits): a normal pixel of each channel by so many random bits.
  static constexpr int kBits = 12;
  const std::vector<uint8_t>& normal() const { return normal_; }

 private:
  uint8_t pixel(int channel, uint32_t bits) const {  // by the upper ones of 16
    return normal_[static_cast<size_t>(channel) << kBits | (bits & 0xffffu) >> (16 - kBits)];
  }

  Erase erase_;
  std::vector<uint8_t> normal_;
};

}  // namespace vitrum
