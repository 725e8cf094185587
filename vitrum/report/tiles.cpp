// The pictures of a report: which images, and how small.
#include <algorithm>
#include <numeric>

#include "vitrum/core/base64.h"
#include "vitrum/core/error.h"
#include "vitrum/core/parallel.h"
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

// A tile whose pictures are not encoded yet.
struct Draft {
  ReportTile tile;
  Image image, overlay = {};  // without pixels: there is none
};

Draft draft(const SampleResult& result, const Dataset& test, const Overlay& overlay) {
  if (result.index >= test.size()) fail_input("the data has no image {}", result.index);
  Draft draft{.tile = {.result = result, .name = test.name(result.index)},
              .image = test.read(result.index)};
  if (overlay) draft.overlay = overlay(draft.image, result);
  return draft;
}

std::vector<ReportTile> encoded(std::vector<Draft> drafts, int threads) {
  std::vector<ReportTile> tiles(drafts.size());
  ThreadPool(threads).run(static_cast<int64_t>(drafts.size()), [&](int64_t i, int) {
    Draft& draft = drafts[static_cast<size_t>(i)];
    if (!draft.image.pixels.empty())
      draft.tile.image = data_url(draft.image), draft.tile.small = is_small(draft.image);
    if (!draft.overlay.pixels.empty()) draft.tile.overlay = data_url(draft.overlay);
    tiles[static_cast<size_t>(i)] = std::move(draft.tile);
  });
  return tiles;
}

// An image that cannot be read any more is a tile without a picture.
std::vector<ReportTile> tiles(ReportRun& run, const std::vector<SampleResult>& chosen,
                              const Dataset& test, const Overlay& overlay, int threads) {
  std::vector<Draft> all;
  bool noted = false;
  for (const SampleResult& result : chosen) {
    try {
      all.push_back(draft(result, test, overlay));
    } catch (const Error& error) {
      all.push_back({.tile = {.result = result}, .image = {}});
      if (!std::exchange(noted, true))
        run.notes.push_back(fmt::format("Some images are missing: {}", error.what()));
    }
  }
  return encoded(std::move(all), threads);
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

void add_test_images(ReportRun& run, const Dataset& test, const Overlay& overlay, int threads) {
  if (run.classes.size() <= test.classes().size()) run.classes = test.classes();
  std::copy(test.classes().begin(), test.classes().end(), run.classes.begin());
  run.mistakes = tiles(run, worst_mistakes(run.samples), test, overlay, threads);
  run.uncertain = tiles(run, most_uncertain(run.samples), test, overlay, threads);
}

void add_training_samples(ReportRun& run, const Recipe& recipe, const ModelSpec& model,
                          const Dataset& train, int threads) {
  LoaderConfig config = loader_config(recipe, model, train, 1);
  config.batch_size = std::min(kAugmentedSamples, train.size());
  config.threads = config.prefetch = 1, config.tolerant = true;
  Loader loader(train, config);
  loader.start(0);
  Batch batch;
  if (!loader.next(batch)) return;
  std::vector<Draft> drafts;
  for (int64_t i = 0; i < batch.count; ++i) {
    const auto row = static_cast<size_t>(i);
    if (!batch.errors[row].empty()) continue;
    drafts.push_back({.tile = {.result = {.index = batch.indices[row], .label = batch.labels[row]},
                               .name = train.name(batch.indices[row])},
                      .image = image_of(batch, i, config.preprocess)});
  }
  run.augmented = encoded(std::move(drafts), threads);
}

}  // namespace vitrum
