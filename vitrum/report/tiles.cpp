// The pictures of a report: which images, and how small.
#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>

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

constexpr size_t kTiles = 24;                                         // of each kind
constexpr size_t kPairTiles = 72, kTilesOfPair = 3, kRichPairs = 12;  // later pairs have one
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

// The first of those that `wanted` by `before`, and among equals by index.
template <class Wanted, class Before>
std::vector<SampleResult> first_few(std::vector<SampleResult> all, const Wanted& wanted,
                                    const Before& before, size_t most = kTiles) {
  std::erase_if(all, [&](const SampleResult& s) { return !wanted(s); });
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), most));
  std::partial_sort(all.begin(), end, all.end(), [&](const SampleResult& a, const SampleResult& b) {
    return before(a, b) || (!before(b, a) && a.index < b.index);
  });
  all.erase(end, all.end());
  return all;
}

bool is_mistake(const SampleResult& s) { return s.guess != s.label; }
bool surer(const SampleResult& a, const SampleResult& b) { return a.probability > b.probability; }

std::vector<SampleResult> worst_mistakes(const std::vector<SampleResult>& all) {
  return first_few(all, is_mistake, surer);
}

std::vector<SampleResult> most_uncertain(const std::vector<SampleResult>& all) {
  const auto margin = [](const SampleResult& s) { return s.probability - s.second_probability; };
  return first_few(
      all, [](const SampleResult& s) { return s.guess != s.second; },
      [&](const SampleResult& a, const SampleResult& b) { return margin(a) < margin(b); });
}

// Of the pairs of classes that are mistaken most often the surest mistakes, a few each, none that
// is shown already.
std::vector<SampleResult> most_confused(const ReportRun& run, std::set<int64_t> shown) {
  std::map<std::pair<int, int>, std::vector<SampleResult>> pairs;
  for (const SampleResult& s : first_few(run.samples, is_mistake, surer, run.samples.size()))
    pairs[{s.label, s.guess}].push_back(s);
  Confusion order = confusion_of(run);
  std::erase_if(order, [](const ConfusionCell& c) { return c.truth == c.guess; });
  std::ranges::stable_sort(order, std::greater(), &ConfusionCell::count);
  std::vector<SampleResult> chosen;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    size_t left = rank < kRichPairs ? kTilesOfPair : 1;
    for (const SampleResult& s : pairs[{order[rank].truth, order[rank].guess}]) {
      if (left == 0 || chosen.size() == kPairTiles) break;
      if (shown.insert(s.index).second) chosen.push_back(s);
      --left;
    }
  }
  return chosen;
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
  std::set<int64_t> shown;
  for (const auto* list : {&run.mistakes, &run.uncertain})
    for (const ReportTile& tile : *list) shown.insert(tile.result.index);
  run.confused = tiles(run, most_confused(run, std::move(shown)), test, {}, threads);
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
