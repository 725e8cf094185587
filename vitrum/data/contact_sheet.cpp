#include "vitrum/data/contact_sheet.h"

#include <algorithm>

#include "vitrum/data/resize.h"

namespace vitrum {
namespace {

constexpr int kGap = 4;  // pixels

class Sheet {
 public:
  Sheet(int channels, int rows, int columns, int cell) : cell_(cell) {
    image_.reshape(channels, extent(rows), extent(columns));
    std::fill(image_.pixels.begin(), image_.pixels.end(), uint8_t{255});
  }

  void paste(const Image& image, int row, int column) {
    const Image small = thumbnail(image);
    const int top = extent(row), left = extent(column);
    for (int c = 0; c < image_.channels; ++c)
      for (int y = 0; y < small.height; ++y)
        std::copy_n(small.plane(std::min(c, small.channels - 1)) + y * small.width, small.width,
                    image_.plane(c) + (top + y) * image_.width + left);
  }

  Image take() { return std::move(image_); }

 private:
  int extent(int cells) const { return cells * (cell_ + kGap) + kGap; }

  // Scaled to fit a cell; pixel for pixel in whole steps where the image is smaller than half of
  // it.
  Image thumbnail(const Image& image) const {
    const int longest = std::max(image.height, image.width);
    const auto side = [&](int n) {
      return longest * 2 <= cell_ ? n * (cell_ / longest)
                                  : std::max(1, static_cast<int>(int64_t{n} * cell_ / longest));
    };
    return resize(image, side(image.height), side(image.width),
                  longest * 2 <= cell_ ? Filter::kNearest : Filter::kBicubic);
  }

  int cell_;
  Image image_;
};

}  // namespace

Image class_sheet(const Dataset& dataset) {
  constexpr size_t kColumns = 10, kRows = 32;
  const size_t rows = std::min(dataset.classes().size(), kRows);
  Sheet sheet(dataset.image_size().channels == 1 ? 1 : 3, static_cast<int>(rows), kColumns, 64);
  std::vector<size_t> filled(rows, 0);
  size_t left = rows * kColumns;
  for (int64_t i = 0; i < dataset.size() && left > 0; ++i) {
    const auto row = static_cast<size_t>(dataset.label(i));
    if (row >= rows || filled[row] == kColumns) continue;
    sheet.paste(dataset.read(i), static_cast<int>(row), static_cast<int>(filled[row]++));
    --left;
  }
  return sheet.take();
}

Image augmented_sheet(const Dataset& dataset, const Preprocess& preprocess, const Augment& augment,
                      uint64_t seed, const SheetSize& size) {
  const int64_t rows = std::min<int64_t>(size.rows, dataset.size());
  Sheet sheet(preprocess.channels, static_cast<int>(rows), size.columns, size.cell);
  Transform plain(preprocess, {}), augmented(preprocess, augment);
  Image part, shown;
  shown.reshape(preprocess.channels, preprocess.height, preprocess.width);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t index = row * dataset.size() / rows;
    for (int column = 0; column < size.columns; ++column) {
      Transform& transform = column == 0 ? plain : augmented;
      const SampleKey key{.seed = seed, .epoch = column, .index = index};
      dataset.read_part(
          index, [&](int height, int width) { return transform.part(height, width, key); }, part);
      transform.apply(part, key, false, shown.pixels);
      sheet.paste(shown, static_cast<int>(row), column);
    }
  }
  return sheet.take();
}

}  // namespace vitrum
