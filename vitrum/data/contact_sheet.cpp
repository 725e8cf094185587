#include "vitrum/data/contact_sheet.h"

#include <fmt/format.h>

#include <algorithm>

#include "vitrum/data/canvas.h"
#include "vitrum/data/resize.h"

namespace vitrum {
namespace {

constexpr int kGap = 4;  // pixels
constexpr double kNameSize = 11, kWidestName = 180;
constexpr Rgb kWhite{255, 255, 255}, kBlack{32, 36, 42};

// Rows of pictures of one size, each with a name to its left, and a line of text below.
class Sheet {
 public:
  Sheet(std::vector<std::string> names, int columns, int cell, const std::string& below = "")
      : cell_(cell) {
    double widest = 0;
    for (std::string& name : names) {
      name = fit_text(name, kNameSize, kWidestName);
      widest = std::max(widest, text_width(name, kNameSize));
    }
    left_ = static_cast<int>(widest) + 2 * kGap;
    const auto rows = static_cast<int>(names.size());
    image_ = blank(extent(rows) + (below.empty() ? 0 : 24), left_ + extent(columns), kWhite);
    for (int i = 0; i < rows; ++i) {
      const std::string& name = names[static_cast<size_t>(i)];
      draw_text(image_, {left_ - text_width(name, kNameSize), extent(i) + (cell_ + kNameSize) / 2},
                name, kNameSize, kBlack);
    }
    draw_text(image_, {2 * kGap, extent(rows) + 4 + kNameSize}, below, kNameSize, kBlack);
  }

  void paste(const Image& image, int row, int column) {
    vitrum::paste(thumbnail(image), image_, extent(row), left_ + extent(column));
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

  int cell_, left_ = 0;
  Image image_;
};

std::string class_of(const Dataset& dataset, int label) {
  const auto i = static_cast<size_t>(label);
  return i < dataset.classes().size() ? dataset.classes()[i] : std::to_string(label);
}

}  // namespace

Image class_sheet(const Dataset& dataset) {
  constexpr size_t kColumns = 10, kRows = 32;
  const size_t rows = std::min(dataset.classes().size(), kRows);
  const std::vector<std::string>& names = dataset.classes();
  Sheet sheet(
      {names.begin(), names.begin() + static_cast<ptrdiff_t>(rows)}, kColumns, 64,
      rows < names.size() ? fmt::format("the first {} of {} classes", rows, names.size()) : "");
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
  const auto index_of = [&](int64_t row) { return row * dataset.size() / rows; };
  std::vector<std::string> names;
  for (int64_t row = 0; row < rows; ++row)
    names.push_back(class_of(dataset, dataset.label(index_of(row))));
  Sheet sheet(std::move(names), size.columns, size.cell);
  Transform plain(preprocess, {}), augmented(preprocess, augment);
  Image part, shown;
  shown.reshape(preprocess.channels, preprocess.height, preprocess.width);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t index = index_of(row);
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
