// Preprocessing and, for training, a random crop and flip.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "vitrum/core/philox.h"
#include "vitrum/data/preprocess.h"

namespace vitrum {

// What only training adds, after Preprocess.
struct Augment {
  int crop_padding =
      0;  // as torchvision's RandomCrop(size, padding): zeros round the image, then a random window
  bool flip = false;  // left-right, every second image
};

// Applies both to one image after the other; keeps scratch memory, so give each thread its own.
class Transform {
 public:
  Transform(const Preprocess& preprocess, const Augment& augment);

  // Writes (channels, height, width) to `out`. The draws come from `random` alone.
  void apply(const Image& image, PhiloxStream& random, std::span<uint8_t> out);

 private:
  Preprocess size_;
  Augment augment_;
  Preprocessor preprocessor_;
  std::vector<uint8_t> plain_;  // before the augmentation
};

}  // namespace vitrum
