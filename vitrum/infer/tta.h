// Test-time augmentation: what a model says of an image is the mean of what it says of several
// views of it.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace vitrum {

enum class Tta : uint8_t { kNone, kFlip };  // kFlip: the image and its mirror image

// Turns lines of `width` pixels round: of any number of images and channels.
inline void mirror_lines(std::span<uint8_t> pixels, size_t width) {
  for (; !pixels.empty(); pixels = pixels.subspan(width))
    std::reverse(pixels.begin(), pixels.begin() + static_cast<ptrdiff_t>(width));
}

// The mean of both takes the place of the first; an image and its mirror image get the same bits.
inline void take_mean(std::span<float> x, std::span<const float> other) {
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0.5f * (x[i] + other[i]);
}

}  // namespace vitrum
