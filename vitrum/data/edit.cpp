#include "vitrum/data/edit.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>

#include "vitrum/data/edit_loops.h"

namespace vitrum {
namespace {

template <class Map>
Lut lut_of(const Map& map) {
  Lut lut;
  for (int i = 0; i < 256; ++i)
    lut[static_cast<size_t>(i)] = static_cast<uint8_t>(std::clamp<int64_t>(map(i), 0, 255));
  return lut;
}

void apply_to_all(const Lut& lut, Image& image) {
  apply_lut(lut, {image.pixels.data(), image.pixels.size()});
}

std::span<uint8_t> plane_span(Image& image, int channel) {
  return {image.plane(channel), image.plane_size()};
}

Lut contrast_lut(const Histogram& counts) {
  const auto used = [](uint32_t n) { return n > 0; };
  const auto low = std::find_if(counts.begin(), counts.end(), used) - counts.begin();
  const auto high = 255 - (std::find_if(counts.rbegin(), counts.rend(), used) - counts.rbegin());
  if (high <= low) return lut_of([](int i) { return i; });
  const double scale = 255.0 / static_cast<double>(high - low);
  const double offset = static_cast<double>(-low) * scale;
  return lut_of([&](int i) { return static_cast<int64_t>(i * scale + offset); });
}

Lut equalize_lut(const Histogram& counts) {
  uint64_t total = 0, last = 0;
  for (const uint32_t n : counts) {
    total += n;
    if (n > 0) last = n;
  }
  const uint64_t step = (total - last) / 255;
  if (step == 0) return lut_of([](int i) { return i; });
  uint64_t n = step / 2;
  return lut_of([&](int i) {
    const uint64_t level = n / step;
    n += counts[static_cast<size_t>(i)];
    return static_cast<int64_t>(level);
  });
}

// Image.blend() with one colour.
Lut blend_lut(int from, float keep) {
  return lut_of([&](int i) {
    return static_cast<int64_t>(static_cast<float>(from) + keep * static_cast<float>(i - from));
  });
}

int mean_of(const uint8_t* grey, size_t n) {
  uint64_t sum = 0;
  for (size_t i = 0; i < n; ++i) sum += grey[i];
  return static_cast<int>(static_cast<double>(sum) / static_cast<double>(n) + 0.5);
}

// ---- hue ----

struct Hsv {
  uint8_t hue, saturation, value;
};

// Single and double precision where Pillow has them.
Hsv to_hsv(int red, int green, int blue) {
  const int top = std::max({red, green, blue}), bottom = std::min({red, green, blue});
  if (top == bottom) return {0, 0, static_cast<uint8_t>(top)};
  const auto range = static_cast<float>(top - bottom);
  const auto lack = [&](int x) { return static_cast<float>(top - x) / range; };
  float hue;
  if (red == top)
    hue = lack(blue) - lack(green);
  else if (green == top)
    hue =
        static_cast<float>(2.0 + static_cast<double>(lack(red)) - static_cast<double>(lack(blue)));
  else
    hue =
        static_cast<float>(4.0 + static_cast<double>(lack(green)) - static_cast<double>(lack(red)));
  hue = static_cast<float>(std::fmod(static_cast<double>(hue) / 6.0 + 1.0, 1.0));
  const float saturation = range / static_cast<float>(top);
  const auto byte = [](float x) {
    return static_cast<uint8_t>(
        std::clamp(static_cast<int>(static_cast<double>(x) * 255.0), 0, 255));
  };
  return {byte(hue), byte(saturation), static_cast<uint8_t>(top)};
}

ByteColour to_rgb(const Hsv& in) {
  if (in.saturation == 0) return {in.value, in.value, in.value};
  const double place = static_cast<double>(static_cast<float>(in.hue)) * 6.0 / 255.0;
  const int sector = static_cast<int>(std::floor(place));
  const auto part = static_cast<double>(static_cast<float>(place - static_cast<double>(sector)));
  const auto full = static_cast<double>(in.value);
  const auto deep = static_cast<double>(static_cast<float>(in.saturation / 255.0));
  const auto byte = [](double x) {
    return static_cast<uint8_t>(std::clamp(static_cast<int>(std::round(x)), 0, 255));
  };
  const uint8_t v = in.value, p = byte(full * (1.0 - deep)), q = byte(full * (1.0 - deep * part)),
                t = byte(full * (1.0 - deep * (1.0 - part)));
  switch (sector % 6) {
    case 0: return {v, t, p};
    case 1: return {q, v, p};
    case 2: return {p, v, t};
    case 3: return {p, q, v};
    case 4: return {t, p, v};
    default: return {v, p, q};
  }
}

void turn_hue(Image& image, double turn) {
  if (image.channels != 3) return;
  const auto shift = static_cast<uint8_t>(static_cast<int32_t>(turn * 255));
  uint8_t *red = image.plane(0), *green = image.plane(1), *blue = image.plane(2);
  for (size_t i = 0; i < image.plane_size(); ++i) {
    Hsv hsv = to_hsv(red[i], green[i], blue[i]);
    hsv.hue = static_cast<uint8_t>(hsv.hue + shift);
    const ByteColour rgb = to_rgb(hsv);
    red[i] = rgb[0], green[i] = rgb[1], blue[i] = rgb[2];
  }
}

// ---- blur ----

// Three boxes that together have this deviation (Gwosdek et al., 2011), in single precision.
BoxWeights box_of(float deviation) {
  const float variance = deviation * deviation / 3;
  const auto length = static_cast<float>(std::sqrt(12.0 * static_cast<double>(variance) + 1.0));
  const auto whole = static_cast<float>(std::floor((static_cast<double>(length) - 1.0) / 2.0));
  float rest = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance);
  rest /= 6 * (variance - (whole + 1) * (whole + 1));
  const float radius = whole + rest;
  const auto inner = static_cast<uint32_t>(16777216.f / (radius * 2 + 1));
  const int r = static_cast<int>(radius);
  return {r, inner, ((1u << 24) - static_cast<uint32_t>(2 * r + 1) * inner) / 2};
}

// The border pixel goes on for ever.
void box_rows(const BoxWeights& box, const uint8_t* in, int height, size_t width, uint8_t* out) {
  std::vector<const uint8_t*> rows(static_cast<size_t>(2 * box.radius + 3));
  for (int y = 0; y < height; ++y, out += width) {
    for (int k = 0; k < static_cast<int>(rows.size()); ++k) {
      const int from = std::clamp(y + k - box.radius - 1, 0, height - 1);
      rows[static_cast<size_t>(k)] = in + static_cast<size_t>(from) * width;
    }
    box_row(box, rows.data(), width, out);
  }
}

void box_columns(const BoxWeights& box, int height, size_t width, uint8_t* image,
                 std::vector<uint8_t>& padded) {
  const auto edge = static_cast<size_t>(box.radius) + 1;
  padded.resize(width + 2 * edge);
  std::vector<const uint8_t*> shifted(2 * edge + 1);
  for (size_t k = 0; k < shifted.size(); ++k) shifted[k] = padded.data() + k;
  for (int y = 0; y < height; ++y, image += width) {
    std::fill_n(padded.begin(), edge, image[0]);
    std::copy_n(image, width, padded.begin() + static_cast<std::ptrdiff_t>(edge));
    std::fill_n(padded.end() - static_cast<std::ptrdiff_t>(edge), edge, image[width - 1]);
    box_row(box, shifted.data(), width, image);
  }
}

}  // namespace

const uint8_t* Editor::grey_of(const Image& image) {
  if (image.channels == 1) return image.plane(0);
  grey_.resize(image.plane_size());
  to_grey(image.plane(0), image.plane(1), image.plane(2), image.plane_size(), grey_.data());
  return grey_.data();
}

void Editor::blend_with_grey(Image& image, float keep) {
  if (image.channels == 1) return;
  const uint8_t* const grey = grey_of(image);
  for (int c = 0; c < 3; ++c) blend(grey, keep, image.plane_size(), image.plane(c));
}

void Editor::sharpen(Image& image, float keep) {
  const auto width = static_cast<size_t>(image.width);
  scratch_ = image;  // borders are not smoothed
  for (int c = 0; c < image.channels; ++c) {
    for (int y = 1; y + 1 < image.height; ++y) {
      const size_t at = static_cast<size_t>(y) * width;
      const uint8_t* const row = image.plane(c) + at;
      smooth_row(row - width, row, row + width, width, scratch_.plane(c) + at);
    }
  }
  blend(scratch_.pixels.data(), keep, image.pixels.size(), image.pixels.data());
}

void Editor::blur(Image& image, float deviation) {
  if (!(deviation > 0)) return;
  const BoxWeights box = box_of(deviation);
  const auto width = static_cast<size_t>(image.width);
  scratch_.reshape(1, image.height, image.width);
  for (int c = 0; c < image.channels; ++c) {
    uint8_t* const plane = image.plane(c);
    uint8_t* const other = scratch_.plane(0);
    for (int pass = 0; pass < 3; ++pass) box_columns(box, image.height, width, plane, padded_);
    box_rows(box, plane, image.height, width, other);
    box_rows(box, other, image.height, width, plane);
    box_rows(box, plane, image.height, width, other);
    std::copy_n(other, image.plane_size(), plane);
  }
}

void Editor::apply(const Edit& edit, Image& image) {
  assert(image.channels == 1 || image.channels == 3);
  const double value = edit.value;
  const auto keep = static_cast<float>(value);
  switch (edit.kind) {
    case EditKind::kAffine:
      transform_affine(image, edit.matrix, edit.filter, edit.fill, scratch_);
      return std::swap(image, scratch_);
    case EditKind::kAutoContrast:
    case EditKind::kEqualize:
      for (int c = 0; c < image.channels; ++c) {
        const Histogram counts = histogram_of(plane_span(image, c));
        apply_lut(edit.kind == EditKind::kEqualize ? equalize_lut(counts) : contrast_lut(counts),
                  plane_span(image, c));
      }
      return;
    case EditKind::kInvert: return apply_to_all(lut_of([](int i) { return 255 - i; }), image);
    case EditKind::kPosterize: {
      const int dropped = 8 - std::clamp(static_cast<int>(value), 0, 8);
      return apply_to_all(lut_of([&](int i) { return i >> dropped << dropped; }), image);
    }
    case EditKind::kSolarize:
      return apply_to_all(lut_of([&](int i) { return i < value ? i : 255 - i; }), image);
    case EditKind::kSolarizeAdd:
      return apply_to_all(lut_of([&](int i) { return i < 128 ? i + static_cast<int>(value) : i; }),
                          image);
    case EditKind::kColor: return blend_with_grey(image, keep);
    case EditKind::kContrast:
      return apply_to_all(blend_lut(mean_of(grey_of(image), image.plane_size()), keep), image);
    case EditKind::kBrightness: return apply_to_all(blend_lut(0, keep), image);
    case EditKind::kSharpness: return sharpen(image, keep);
    case EditKind::kBlur: return blur(image, keep);
    case EditKind::kHue: return turn_hue(image, value);
  }
}

}  // namespace vitrum
