// The pictures of a report: which images, and how small.
#include <algorithm>
#include <numeric>

#include "vitrum/core/base64.h"
#include "vitrum/core/error.h"
#include "vitrum/data/encode_png.h"
#include "vitrum/data/encode_webp.h"
#include "vitrum/data/resize.h"
#include "vitrum/report/run.h"
#include "vitrum/train/trainer.h"

namespace vitrum {
namespace {

constexpr size_t kTiles = 24;    // of each kind
constexpr int kPixelSize = 64;   // up to here an image is kept as it is
constexpr int kPhotoSize = 144;  // the longest edge of the others
constexpr int64_t kAugmentedSamples = 24;

std::string data_url(const Image& image) {
  const int longest = std::max(image.height, image.width);
  if (longest <= kPixelSize) return "data:image/png;base64," + base64(encode_png(image));
  const auto side = [&](int n) {
    return std::max(1, static_cast<int>(int64_t{n} * std::min(kPhotoSize, longest) / longest));
  };
  const Image small = resize(image, side(image.height), side(image.width), Filter::kBicubic);
  return small.channels == 3 ? "data:image/webp;base64," + base64(encode_webp(small))
                             : "data:image/png;base64," + base64(encode_png(small));
}

bool is_small(const Image& image) { return std::max(image.height, image.width) <= kPixelSize; }

// The first kTiles of those that `wanted` by `before`, and among equals by index.
template <class Wanted, class Before>
std::vector<SampleResult> first_few(std::vector<SampleResult> all, const Wanted& wanted,
                                    const Before& before) {
  std::erase_if(all, [&](const SampleResult& s) { return !wanted(s); });
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), kTiles));
  std::partial_sort(all.begin(), end, all.end(), [&](const SampleResult& a, const SampleResult& b) {
    return before(a, b) || (!before(b, a) && a.index < b.index);
  });
  all.erase(end, all.end());
  return all;
}

std::vector<SampleResult> worst_mistakes(const std::vector<SampleResult>& all) {
  return first_few(
      all, [](const SampleResult& s) { return s.guess != s.label; },
      [](const SampleResult& a, const SampleResult& b) { return a.probability > b.probability; });
}

std::vector<SampleResult> most_uncertain(const std::vector<SampleResult>& all) {
  const auto margin = [](const SampleResult& s) { return s.probability - s.second_probability; };
  return first_few(
      all, [](const SampleResult& s) { return s.guess != s.second; },
      [&](const SampleResult& a, const SampleResult& b) { return margin(a) < margin(b); });
}

ReportTile tile(const SampleResult& result, const Dataset& test, const Overlay& overlay) {
  ReportTile tile{.result = result};
  if (result.index >= test.size()) fail_input("the data has no image {}", result.index);
  tile.name = test.name(result.index);
  const Image image = test.read(result.index);
  tile.image = data_url(image), tile.small = is_small(image);
  if (!overlay) return tile;
  if (const Image drawn = overlay(image, result); !drawn.pixels.empty())
    tile.overlay = data_url(drawn);
  return tile;
}

// An image that cannot be read any more is a tile without a picture.
std::vector<ReportTile> tiles(ReportRun& run, const std::vector<SampleResult>& chosen,
                              const Dataset& test, const Overlay& overlay) {
  std::vector<ReportTile> all;
  bool noted = false;
  for (const SampleResult& result : chosen) {
    try {
      all.push_back(tile(result, test, overlay));
    } catch (const Error& error) {
      all.push_back({.result = result});
      if (!std::exchange(noted, true))
        run.notes.push_back(fmt::format("Some images are missing: {}", error.what()));
    }
  }
  return all;
}

Image image_of(const Batch& batch, int64_t row, const Preprocess& size) {
  Image image;
  image.reshape(size.channels, size.height, size.width);
  const size_t bytes = image.pixels.size();
  std::ranges::copy(batch.pixels().subspan(static_cast<size_t>(row) * bytes, bytes),
                    image.pixels.begin());
  return image;
}

}  // namespace

void add_test_images(ReportRun& run, const Dataset& test, const Overlay& overlay) {
  if (run.classes.size() <= test.classes().size()) run.classes = test.classes();
  std::copy(test.classes().begin(), test.classes().end(), run.classes.begin());
  run.mistakes = tiles(run, worst_mistakes(run.samples), test, overlay);
  run.uncertain = tiles(run, most_uncertain(run.samples), test, overlay);
}

void add_training_samples(ReportRun& run, const Recipe& recipe, const ModelSpec& model,
                          const Dataset& train) {
  LoaderConfig config = loader_config(recipe, model, train, 1);
  config.batch_size = std::min(kAugmentedSamples, train.size());
  config.threads = config.prefetch = 1, config.tolerant = true;
  Loader loader(train, config);
  loader.start(0);
  Batch batch;
  if (!loader.next(batch)) return;
  run.augmented.clear();
  for (int64_t i = 0; i < batch.count; ++i) {
    const auto row = static_cast<size_t>(i);
    const Image image = image_of(batch, i, config.preprocess);
    if (!batch.errors[row].empty()) continue;
    run.augmented.push_back({.result = {.index = batch.indices[row], .label = batch.labels[row]},
                             .name = train.name(batch.indices[row]),
                             .image = data_url(image),
                             .small = is_small(image)});
  }
}

}  // namespace vitrum
