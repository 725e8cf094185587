#include "vitrum/data/erase.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace vitrum {

// The table holds each byte as often as the normal distribution has it.
Eraser::Eraser(const Erase& erase) : erase_(erase) {
  constexpr int kDraws = 1 << kBits;
  if (erase.probability <= 0) return;
  normal_.assign(3 * kDraws, 255);
  for (size_t c = 0; c < 3; ++c) {
    const auto table = normal_.begin() + static_cast<std::ptrdiff_t>(c * kDraws);
    int filled = 0;
    for (int byte = 0; byte < 255; ++byte) {
      const double edge = ((byte + 0.5) / 255.0 - erase.mean[c]) / erase.std[c];
      const double below = 0.5 * std::erfc(-edge / std::numbers::sqrt2);
      const int end = std::clamp(static_cast<int>(std::lround(below * kDraws)), filled, kDraws);
      std::fill(table + filled, table + end, static_cast<uint8_t>(byte));
      filled = end;
    }
  }
}

Window Eraser::draw_box(int height, int width, PhiloxStream& random) const {
  constexpr double kAspect = 0.3;
  if (random.uniform() >= erase_.probability) return {};
  const double area = static_cast<double>(height) * width;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = random.uniform(erase_.area[0], erase_.area[1]) * area;
    const double aspect = std::exp(random.uniform(std::log(kAspect), -std::log(kAspect)));
    const double h = std::nearbyint(std::sqrt(target * aspect));
    const double w = std::nearbyint(std::sqrt(target / aspect));
    if (!(w < width && h < height)) continue;
    const int rows = static_cast<int>(h), columns = static_cast<int>(w);
    const int top = static_cast<int>(random.below(static_cast<uint32_t>(height - rows + 1)));
    const int left = static_cast<int>(random.below(static_cast<uint32_t>(width - columns + 1)));
    return {top, left, rows, columns};
  }
  return {};
}

std::array<uint8_t, 3> Eraser::draw_colour(int channels, PhiloxStream& random) const {
  std::array<uint8_t, 3> colour = {};
  for (int c = 0; c < channels; ++c) {
    const auto i = static_cast<size_t>(c);
    if (erase_.mode == EraseMode::kConst)
      colour[i] = static_cast<uint8_t>(std::clamp(std::lround(255.0 * erase_.mean[i]), 0L, 255L));
    if (erase_.mode == EraseMode::kRand) colour[i] = pixel(c, random.next_u32());
  }
  return colour;
}

void Eraser::apply(int channels, int height, int width, PhiloxStream& random,
                   uint8_t* pixels) const {
  const Window box = draw_box(height, width, random);
  const std::array<uint8_t, 3> colour = draw_colour(channels, random);
  for (int c = 0; c < channels; ++c) {
    uint32_t bits = 0, draws = 0;
    const auto draw = [&] {  // two of 16 bits a number
      bits = draws++ % 2 == 0 ? random.next_u32() : bits >> 16;
      return pixel(c, bits);
    };
    for (int y = box.top; y < box.top + box.height; ++y) {
      uint8_t* const row =
          pixels + (static_cast<size_t>(c) * static_cast<size_t>(height) + static_cast<size_t>(y)) *
                       static_cast<size_t>(width);
      if (erase_.mode == EraseMode::kPixel)
        for (int x = 0; x < box.width; ++x) row[box.left + x] = draw();
      else
        std::fill_n(row + box.left, box.width, colour[static_cast<size_t>(c)]);
    }
  }
}

}  // namespace vitrum
