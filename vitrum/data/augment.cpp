#include "vitrum/data/augment.h"

#include <algorithm>

#include "vitrum/core/error.h"

namespace vitrum {
namespace {

// One row of the output: columns [left, left + width) of `row`, with zeros outside of it; null is a
// row of zeros.
void copy_row(const uint8_t* row, int left, bool mirror, std::span<uint8_t> out) {
  std::fill(out.begin(), out.end(), uint8_t{0});
  if (!row) return;
  const int width = static_cast<int>(out.size());
  const int begin = std::max(0, -left), end = std::min(width, width - left);
  if (begin < end) std::copy(row + left + begin, row + left + end, out.begin() + begin);
  if (mirror) std::reverse(out.begin(), out.end());
}

}  // namespace

Transform::Transform(const Preprocess& preprocess, const Augment& augment)
    : size_(preprocess), augment_(augment), preprocessor_(preprocess) {
  constexpr int kMaxPadding = 1 << 14;
  if (augment_.crop_padding < 0 || augment_.crop_padding > kMaxPadding)
    fail_usage("crop_padding is {}; expected 0 to {}", augment_.crop_padding, kMaxPadding);
}

void Transform::apply(const Image& image, PhiloxStream& random, std::span<uint8_t> out) {
  // All draws are made whether used or not, so that one switch does not change what another one
  // does.
  const int padding = augment_.crop_padding;
  const auto window = static_cast<uint32_t>(2 * padding + 1);
  const int down = static_cast<int>(random.below(window)) - padding;
  const int right = static_cast<int>(random.below(window)) - padding;
  const bool mirror = (random.next_u32() >> 31) != 0 && augment_.flip;
  if (down == 0 && right == 0 && !mirror) return preprocessor_.apply(image, out);

  plain_.resize(out.size());
  preprocessor_.apply(image, plain_);
  const auto width = static_cast<size_t>(size_.width);
  const uint8_t* plane = plain_.data();
  for (int channel = 0; channel < size_.channels; ++channel) {
    for (int y = 0; y < size_.height; ++y, out = out.subspan(width)) {
      const int from = y + down;
      const bool inside = from >= 0 && from < size_.height;
      copy_row(inside ? plane + static_cast<size_t>(from) * width : nullptr, right, mirror,
               out.first(width));
    }
    plane += static_cast<size_t>(size_.height) * width;
  }
}

}  // namespace vitrum
