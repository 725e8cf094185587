#include "vitrum/explain/picture.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "vitrum/data/resize.h"

namespace vitrum {
namespace {

// ---- smooth interpolation ----

// The four patches round a position on one axis and their weights (Catmull-Rom: patch centres keep
// their values).
struct Taps {
  std::array<int64_t, 4> at;
  std::array<double, 4> weight;
};

// `position` in patches, a patch reaching from i to i + 1; past the border the last patch goes on.
Taps taps_at(double position, int64_t patches) {
  const double centre = position - 0.5, floor = std::floor(centre), t = centre - floor;
  const double t2 = t * t, t3 = t2 * t;
  Taps taps{{},
            {(-t3 + 2 * t2 - t) / 2, (3 * t3 - 5 * t2 + 2) / 2, (-3 * t3 + 4 * t2 + t) / 2,
             (t3 - t2) / 2}};
  for (int64_t i = 0; i < 4; ++i)
    taps.at[static_cast<size_t>(i)] =
        std::clamp(static_cast<int64_t>(floor) - 1 + i, int64_t{0}, patches - 1);
  return taps;
}

// A patch far above the others would leave a ring of low values round itself.
double within(const ColourScale& range, double value) {
  return value > range.low ? std::min(value, std::max(range.low, range.high)) : range.low;
}

// Values along one row of a picture, already scaled to [0, 1].
class Interpolator {
 public:
  Interpolator(const PatchMap& map, const ColourScale& range, const Area& seen, int width)
      : rows_(map.rows),
        width_(static_cast<size_t>(width)),
        low_(static_cast<float>(range.low)),
        scale_(static_cast<float>(range.high > range.low ? 1 / (range.high - range.low) : 1)),
        seen_(seen),
        along_(static_cast<size_t>(map.rows) * width_) {
    for (size_t x = 0; x < width_; ++x) {
      const Taps taps = taps_at((static_cast<double>(x) + 0.5 - seen.left) / seen.width *
                                    static_cast<double>(map.columns),
                                map.columns);
      for (int64_t r = 0; r < map.rows; ++r) {
        double v = 0;
        for (size_t i = 0; i < 4; ++i)
          v += taps.weight[i] *
               within(range, map.values[static_cast<size_t>(r * map.columns + taps.at[i])]);
        along_[static_cast<size_t>(r) * width_ + x] = static_cast<float>(v);
      }
    }
  }
  void row(int y, std::vector<float>& out) const {
    const Taps taps =
        taps_at((y + 0.5 - seen_.top) / seen_.height * static_cast<double>(rows_), rows_);
    const auto line = [&](size_t i) {
      return along_.data() + static_cast<size_t>(taps.at[i]) * width_;
    };
    const auto weight = [&](size_t i) { return static_cast<float>(taps.weight[i]); };
    const float *a = line(0), *b = line(1), *c = line(2), *d = line(3);
    const float wa = weight(0), wb = weight(1), wc = weight(2), wd = weight(3);
    for (size_t x = 0; x < width_; ++x) {
      const float v = (wa * a[x] + wb * b[x] + wc * c[x] + wd * d[x] - low_) * scale_;
      out[x] = v > 0 ? std::min(v, 1.f) : 0.f;  // NaN is low
    }
  }

 private:
  int64_t rows_;
  size_t width_;
  float low_, scale_;
  Area seen_;
  std::vector<float> along_;  // (rows of patches, width): interpolated across
};

// ---- light ----

float luma(uint8_t r, uint8_t g, uint8_t b) { return 0.299f * r + 0.587f * g + 0.114f * b; }
// Of what is not negative.
uint8_t to_byte(float x) { return static_cast<uint8_t>(std::min(static_cast<int>(x + 0.5f), 255)); }

// One pixel of an overlay, in place.
struct Pixel {
  uint8_t &r, &g, &b;

  // Outside of what the model saw: nearly paper.
  void dim() const {
    const float grey = 0.12f * luma(r, g, b);
    r = to_byte(grey + 0.8f * kPaper.r), g = to_byte(grey + 0.8f * kPaper.g);
    b = to_byte(grey + 0.8f * kPaper.b);
  }
  // From a dark grey to the photo itself, under a little warm light so that black shows it too.
  void light(float value) const {
    constexpr float kDark = 0.3f, kGlow = 0.12f;
    const float dark = (1 - value) * kDark * luma(r, g, b), photo = (1 - kGlow) * value,
                glow = kGlow * value;
    const auto mix = [&](uint8_t& p, float warm) { p = to_byte(dark + photo * p + glow * warm); };
    mix(r, 255), mix(g, 205), mix(b, 100);
  }
};

// What an overlay does to a light photo, from low to high.
void draw_light_bar(Image& image, int top, int left, int height, int width) {
  for (int x = 0; x < width; ++x) {
    Rgb colour{225, 225, 225};
    Pixel{colour.r, colour.g, colour.b}.light((static_cast<float>(x) + 0.5f) /
                                              static_cast<float>(width));
    fill(image, top, left + x, height, 1, colour);
  }
}

Image to_rgb(const Image& image) {
  if (image.channels == 3) return image;
  Image rgb = blank(image.height, image.width);
  paste(image, rgb, 0, 0);
  return rgb;
}

constexpr int kGap = 4, kMargin = 12;
constexpr double kTitleSize = 14, kBelowSize = 11, kCaptionSize = 10;
constexpr int kCaptionRoom = 22;

}  // namespace

ShownPhoto show_photo(const Image& photo, const Preprocess& preprocess, int edge) {
  const double scale = edge / static_cast<double>(std::max(photo.height, photo.width));
  const auto scaled = [&](int n) { return std::max(1, static_cast<int>(std::lround(n * scale))); };
  const int height = scaled(photo.height), width = scaled(photo.width);
  const auto [resized_h, resized_w] = resize_target(preprocess, photo.height, photo.width);
  const Window crop = crop_window(preprocess, resized_h, resized_w);
  const double per_y = height / static_cast<double>(resized_h),
               per_x = width / static_cast<double>(resized_w);
  return {to_rgb(resize(photo, height, width, Filter::kBicubic)),
          {crop.top * per_y, crop.left * per_x, crop.height * per_y, crop.width * per_x}};
}

ColourScale range_of(const PatchMap& map) {
  std::vector<double> sorted = map.values;
  std::sort(sorted.begin(), sorted.end());
  const size_t outside = sorted.size() / 20;
  const ColourScale most{sorted[outside], sorted[sorted.size() - 1 - outside]};
  return most.high > most.low ? most : ColourScale{sorted.front(), sorted.back()};
}

Image overlay(const ShownPhoto& photo, const PatchMap& map, const ColourScale& range) {
  Image out = photo.image;
  const Area& seen = photo.seen;
  // The first pixel whose centre lies past an edge.
  const auto past = [](double edge, int size) {
    return static_cast<int>(std::clamp(std::ceil(edge - 0.5), 0.0, static_cast<double>(size)));
  };
  const int top = past(seen.top, out.height), bottom = past(seen.top + seen.height, out.height),
            left = past(seen.left, out.width), right = past(seen.left + seen.width, out.width);
  const Interpolator values(map, range, seen, out.width);
  std::vector<float> row(static_cast<size_t>(out.width));
  for (int y = 0; y < out.height; ++y) {
    const auto start = static_cast<ptrdiff_t>(y) * out.width;
    uint8_t *red = out.plane(0) + start, *green = out.plane(1) + start,
            *blue = out.plane(2) + start;
    const bool inside = y >= top && y < bottom;
    const int from = inside ? left : out.width, to = inside ? right : out.width;
    if (inside) values.row(y, row);
    for (int x = 0; x < from; ++x) Pixel{red[x], green[x], blue[x]}.dim();
    for (int x = from; x < to; ++x)
      Pixel{red[x], green[x], blue[x]}.light(row[static_cast<size_t>(x)]);
    for (int x = to; x < out.width; ++x) Pixel{red[x], green[x], blue[x]}.dim();
  }
  return out;
}

Image heat_map(const PatchMap& map, const ColourScale& range, int cell) {
  Image out = blank(static_cast<int>(map.rows) * cell, static_cast<int>(map.columns) * cell);
  const double span = range.high > range.low ? range.high - range.low : 1;
  for (int64_t i = 0; i < map.rows * map.columns; ++i)
    fill(out, static_cast<int>(i / map.columns) * cell, static_cast<int>(i % map.columns) * cell,
         cell, cell, colour_of((map.values[static_cast<size_t>(i)] - range.low) / span));
  return out;
}

Image with_title(const Image& picture, const Title& title) {
  constexpr int kBar = 110, kBarHeight = 10, kNarrowest = 360;
  constexpr double kLine = kBelowSize + kMargin;
  const bool bar = !title.low.empty() || !title.high.empty();
  const double low = text_width(title.low, kBelowSize), high = text_width(title.high, kBelowSize),
               below = text_width(title.below, kBelowSize);
  const int width = std::max(picture.width, kNarrowest);
  // The bar goes to the right of the second line where there is room, else below it.
  const bool beside = below + low + kBar + high + 4 * kMargin <= width;
  const double first = kMargin + kTitleSize, second = first + (below > 0 ? kLine : 0),
               third = bar && (!beside || below == 0) ? second + kLine : second;
  const int strip = static_cast<int>(third) + kMargin;
  Image out = blank(strip + picture.height, width);
  paste(picture, out, strip, (width - picture.width) / 2);
  const auto line = [&](const std::string& text, double y, double size, Rgb colour) {
    draw_text(out, {kMargin, y}, fit_text(text, size, width - 2 * kMargin), size, colour);
  };
  line(title.text, first, kTitleSize, kInk);
  line(title.below, second, kBelowSize, kFaint);
  if (!bar) return out;
  const double right = third > second ? kMargin + low + 6 + kBar + 6 : width - kMargin - high;
  const int left = static_cast<int>(right) - 6 - kBar;
  draw_text(out, {right, third}, title.high, kBelowSize, kFaint);
  title.bar == Bar::kLight
      ? draw_light_bar(out, static_cast<int>(third) - kBarHeight, left, kBarHeight, kBar)
      : draw_colour_bar(out, static_cast<int>(third) - kBarHeight, left, kBarHeight, kBar);
  draw_text(out, {left - 6 - low, third}, title.low, kBelowSize, kFaint);
  return out;
}

Image lay_out(const Sheet& sheet) {
  const size_t rows = (sheet.pictures.size() + sheet.columns - 1) / sheet.columns;
  const Image& first = sheet.pictures.front();
  double name_room = 0;
  for (const std::string& name : sheet.row_names)
    name_room = std::max(name_room, text_width(name, kCaptionSize) + kGap + 2);
  const int left = kMargin + static_cast<int>(name_room),
            top = sheet.column_names.empty() ? 0 : kCaptionRoom, step_x = first.width + kGap,
            step_y = first.height + (sheet.captions.empty() ? kGap : kCaptionRoom);
  Image out = blank(top + static_cast<int>(rows) * step_y + kMargin,
                    left + static_cast<int>(sheet.columns) * step_x - kGap + kMargin);
  const auto centred = [&](const std::string& text, double x, double y) {
    const std::string fits = fit_text(text, kCaptionSize, first.width);
    draw_text(out, {x + (first.width - text_width(fits, kCaptionSize)) / 2, y}, fits, kCaptionSize,
              kFaint);
  };
  for (size_t i = 0; i < sheet.pictures.size(); ++i) {
    const int x = left + static_cast<int>(i % sheet.columns) * step_x,
              y = top + static_cast<int>(i / sheet.columns) * step_y;
    paste(sheet.pictures[i], out, y, x);
    if (!sheet.captions.empty()) centred(sheet.captions[i], x, y + first.height + kCaptionSize + 4);
    if (i < sheet.columns && !sheet.column_names.empty())
      centred(sheet.column_names[i], x, top - 6.0);
    if (i % sheet.columns == 0 && !sheet.row_names.empty())
      draw_text(out, {kMargin, y + (first.height + kCaptionSize) / 2},
                sheet.row_names[i / sheet.columns], kCaptionSize, kFaint);
  }
  return out;
}

}  // namespace vitrum
