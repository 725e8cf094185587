// How often what is random happens, and that no epoch repeats another: statistics of fixed seeds,
// with bounds of about five standard deviations.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/support/data_files.h"
#include "vitrum/data/loader.h"

namespace vitrum {
namespace {

using test::FakeDataset;

constexpr int kDraws = 4000;
const Preprocess kSmall{.channels = 3, .height = 12, .width = 12};

TEST(Rates, EverySecondImageIsFlippedAndEveryShiftAsLikely) {
  const Transform transform(kSmall, {.crop_padding = 2, .flip = true});
  int mirrored = 0;
  std::map<int, int> down, right;
  for (int64_t i = 0; i < kDraws; ++i) {
    const ImageRow row = transform.row({.seed = 7, .epoch = 2, .index = i}, false);
    mirrored += row.mirror ? 1 : 0;
    ++down[static_cast<int>(row.down)], ++right[static_cast<int>(row.right)];
  }
  EXPECT_NEAR(mirrored, kDraws / 2, 160);
  ASSERT_EQ(down.size(), 5u);
  ASSERT_EQ(right.size(), 5u);
  for (int by = -2; by <= 2; ++by) {
    EXPECT_NEAR(down[by], kDraws / 5, 130) << by;
    EXPECT_NEAR(right[by], kDraws / 5, 130) << by;
  }
}

// Half of the images in every epoch, and each in every second one; shifts are as without.
TEST(Rates, FlipsAlternate) {
  const Transform plain(kSmall, {.crop_padding = 2, .flip = true}),
      alternating(kSmall, {.crop_padding = 2, .flip = true, .alternates = true});
  int mirrored = 0, same = 0;
  for (int64_t i = 0; i < kDraws; ++i) {
    const auto row = [&](const Transform& transform, int64_t epoch) {
      return transform.row({.seed = 7, .epoch = epoch, .index = i}, false);
    };
    const ImageRow first = row(alternating, 0), usual = row(plain, 0);
    mirrored += first.mirror, same += first.mirror == usual.mirror;
    EXPECT_EQ(first.down, usual.down);
    EXPECT_EQ(first.right, usual.right);
    for (int64_t epoch = 1; epoch < 4; ++epoch)
      EXPECT_EQ(row(alternating, epoch).mirror, epoch % 2 == 0 ? first.mirror : 1 - first.mirror);
  }
  EXPECT_NEAR(mirrored, kDraws / 2, 160);
  EXPECT_NEAR(same, kDraws / 2, 160);
}

// In pixels, as they leave the transform, for crops of both kinds.
TEST(Rates, FlippedPixels) {
  Image slope;
  slope.reshape(3, 12, 12);
  for (size_t i = 0; i < slope.pixels.size(); ++i)
    slope.pixels[i] = static_cast<uint8_t>(20 * (i % 12));
  for (const bool resized : {false, true}) {
    Transform transform(kSmall, {.resized_crop = resized, .flip = true});
    std::vector<uint8_t> out(432);
    int mirrored = 0;
    for (int64_t i = 0; i < kDraws; ++i) {
      const SampleKey key{.seed = 1, .index = i};
      const Window part = transform.part(12, 12, key);
      Image cut;
      cut.reshape(3, part.height, part.width);
      for (int c = 0, at = 0; c < 3; ++c)
        for (int y = 0; y < part.height; ++y)
          for (int x = 0; x < part.width; ++x, ++at)
            cut.pixels[static_cast<size_t>(at)] =
                slope.pixels[static_cast<size_t>((c * 12 + part.top + y) * 12 + part.left + x)];
      transform.apply(cut, key, false, out);
      mirrored += out[0] > out[11] ? 1 : 0;
    }
    EXPECT_NEAR(mirrored, kDraws / 2, 160) << resized;
  }
}

TEST(Rates, ErasesAsOftenAsItShould) {
  for (const double probability : {0.1, 0.25, 0.6}) {
    const Transform transform(kSmall, {.erase = {.probability = probability}});
    int erased = 0;
    for (int64_t i = 0; i < kDraws; ++i)
      erased += transform.row({.seed = 3, .index = i}, false).height > 0 ? 1 : 0;
    EXPECT_NEAR(erased, kDraws * probability, 160) << probability;
  }
}

// Of a crop of fixed size every place, and of shapes as many upright as lying ones, however far the
// range goes.
TEST(Rates, ResizedCropsLieEverywhereAndStandAsOftenAsTheyLie) {
  const Transform fixed(kSmall, {.resized_crop = true, .scale = {0.44, 0.45}, .ratio = {1, 1}});
  const Transform shaped(kSmall, {.resized_crop = true, .scale = {0.05, 0.05}, .ratio = {0.25, 4}});
  std::map<int, int> tops, lefts;
  int upright = 0;
  for (int64_t i = 0; i < kDraws; ++i) {
    const SampleKey key{.seed = 5, .index = i};
    const Window w = fixed.part(12, 12, key), s = shaped.part(1000, 1000, key);
    ASSERT_EQ(w.height, 8);
    ++tops[w.top], ++lefts[w.left];
    upright += s.height > s.width ? 1 : 0;
  }
  for (int at = 0; at <= 4; ++at) {
    EXPECT_NEAR(tops[at], kDraws / 5, 130) << at;
    EXPECT_NEAR(lefts[at], kDraws / 5, 130) << at;
  }
  EXPECT_NEAR(upright, kDraws / 2, 160);
}

TEST(Rates, EverySecondCropIsBicubic) {
  const FakeDataset data(1, {3, 30, 30});
  const Image image = data.read(0);
  const auto resized = [&](const Augment& augment, int64_t index) {
    std::vector<uint8_t> out(432);
    Transform(kSmall, augment).apply(image, {.seed = 2, .index = index}, false, out);
    return out;
  };
  const Augment whole{.resized_crop = true, .scale = {1, 1}, .ratio = {1, 1}};
  Augment bilinear = whole, random = whole;
  bilinear.filter = Filter::kBilinear, random.random_filter = true;
  const auto first = resized(whole, 0), second = resized(bilinear, 0);
  ASSERT_NE(first, second);
  int bicubic = 0;
  for (int64_t i = 0; i < kDraws / 4; ++i) {
    const auto out = resized(random, i);
    ASSERT_TRUE(out == first || out == second);
    bicubic += out == first ? 1 : 0;
  }
  EXPECT_NEAR(bicubic, kDraws / 8, 80);
}

// As many boxes stand as lie, and each edge of the image is reached as often as its opposite.
TEST(Rates, ErasedBoxesFavourNeitherShapeNorSide) {
  const Transform transform(kSmall, {.erase = {.probability = 1, .area = {0.1, 0.4}}});
  int upright = 0, lying = 0, top = 0, bottom = 0, left = 0, right = 0;
  for (int64_t i = 0; i < kDraws; ++i) {
    const ImageRow row = transform.row({.seed = 9, .index = i}, false);
    upright += row.height > row.width ? 1 : 0, lying += row.width > row.height ? 1 : 0;
    top += row.top == 0 ? 1 : 0, bottom += row.top + row.height == 12 ? 1 : 0;
    left += row.left == 0 ? 1 : 0, right += row.left + row.width == 12 ? 1 : 0;
  }
  EXPECT_GT(top, kDraws / 10);
  EXPECT_NEAR(upright, lying, 300);
  EXPECT_NEAR(top, bottom, 200);
  EXPECT_NEAR(left, right, 200);
}

// Uniform over the whole range on both sides of "as it is".
TEST(Rates, JitterUsesItsWholeRange) {
  const std::array<double, 4> strength = {0.4, 0.3, 0.2, 0.1};
  const std::map<EditKind, double> reach = {{EditKind::kBrightness, 0.4},
                                            {EditKind::kContrast, 0.3},
                                            {EditKind::kColor, 0.2},
                                            {EditKind::kHue, 0.1}};
  std::map<EditKind, double> sum, least, most;
  for (int i = 0; i < kDraws; ++i) {
    PhiloxStream random(1, kJitterStream, static_cast<uint64_t>(i));
    std::vector<Edit> edits;
    draw_jitter(strength, random, edits);
    ASSERT_EQ(edits.size(), 4u);
    for (const Edit& edit : edits) {
      const double x = edit.value - (edit.kind == EditKind::kHue ? 0 : 1);
      sum[edit.kind] += std::abs(x) / kDraws;
      least[edit.kind] = std::min(least[edit.kind], x);
      most[edit.kind] = std::max(most[edit.kind], x);
    }
  }
  for (const auto& [kind, range] : reach) {
    EXPECT_NEAR(sum[kind], range / 2, 0.03 * range) << static_cast<int>(kind);
    EXPECT_NEAR(least[kind], -range, 0.02 * range) << static_cast<int>(kind);
    EXPECT_NEAR(most[kind], range, 0.02 * range) << static_cast<int>(kind);
  }
}

// An image may have the smaller share as often as the larger one.
TEST(Rates, SharesOfMixupAreSymmetric) {
  for (const double alpha : {0.2, 0.8, 1.0}) {
    int small = 0;
    double sum = 0;
    for (uint64_t i = 0; i < kDraws; ++i) {
      std::vector<MixRow> rows(2);
      draw_mix({.mixup = alpha}, 2, 32, 32, PhiloxStream(1, kMixStream, i), rows);
      small += rows[0].own < 0.5f ? 1 : 0;
      sum += static_cast<double>(rows[0].own) / kDraws;
    }
    EXPECT_NEAR(small, kDraws / 2, 160) << alpha;
    EXPECT_NEAR(sum, 0.5, 0.035) << alpha;
  }
}

TEST(Rates, SharesOfCutMixCoverSmallAndLargeBoxes) {
  int small = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    std::vector<MixRow> rows(2);
    draw_mix({.cutmix = 1}, 2, 32, 32, PhiloxStream(1, kMixStream, i), rows);
    small += own_share(rows[0], 32, 32) < 0.5 ? 1 : 0;
  }
  // Boxes are cut off at the borders, so fewer than half take most of an image.
  EXPECT_GT(small, kDraws / 8);
  EXPECT_LT(small, kDraws / 2);
}

// ---- every epoch anew ----

struct Seen {
  std::vector<int64_t> order;
  std::vector<std::vector<uint8_t>> pixels;  // by image
  std::vector<std::vector<float>> mix;       // by batch
};

Seen epoch_of(const LoaderConfig& config, int64_t epoch) {
  const FakeDataset data(64, {3, 12, 12});
  Loader loader(data, config);
  loader.start(epoch);
  Seen seen{.order = {}, .pixels = std::vector<std::vector<uint8_t>>(64), .mix = {}};
  for (Batch batch; loader.next(batch);) {
    for (size_t i = 0; i < static_cast<size_t>(batch.count); ++i) {
      seen.order.push_back(batch.indices[i]);
      const auto pixels = batch.pixels().subspan(i * 432, 432);
      seen.pixels[static_cast<size_t>(batch.indices[i])].assign(pixels.begin(), pixels.end());
    }
    if (!batch.mix.empty()) {
      const MixRow& row = batch.mix[0];
      seen.mix.push_back({row.own, row.top, row.bottom, row.left, row.right});
    }
  }
  return seen;
}

int images_alike(const Seen& a, const Seen& b) {
  int alike = 0;
  for (size_t i = 0; i < a.pixels.size(); ++i) alike += a.pixels[i] == b.pixels[i] ? 1 : 0;
  return alike;
}

LoaderConfig plain() {
  return {.batch_size = 16, .seed = 5, .preprocess = kSmall, .augment = {}, .mix = {}};
}

TEST(Epochs, ShuffleAnew) {
  LoaderConfig config = plain();
  config.shuffle = true;
  const Seen first = epoch_of(config, 0), second = epoch_of(config, 1);
  int moved = 0, sorted = 0;
  for (size_t i = 0; i < 64; ++i) {
    moved += first.order[i] != second.order[i] ? 1 : 0;
    sorted += first.order[i] == static_cast<int64_t>(i) ? 1 : 0;
  }
  EXPECT_GE(moved, 55);
  EXPECT_LE(sorted, 6);
  EXPECT_EQ(images_alike(first, second), 64) << "nothing else changes";
  config.seed = 6;
  EXPECT_NE(epoch_of(config, 0).order, first.order);
}

TEST(Epochs, AugmentAnew) {
  const std::map<std::string, std::pair<Augment, int>> each = {
      // and of 64 images how many may come out as before
      {"flip", {{.flip = true}, 48}},
      {"crop", {{.crop_padding = 4}, 8}},
      {"resized crop", {{.resized_crop = true}, 4}},
      {"erase", {{.erase = {.probability = 1}}, 2}},
      {"jitter", {{.jitter = {0.4, 0.4, 0.4, 0.1}}, 2}},
      {"policy", {{.policies = {parse_policy("trivial")}}, 24}}};
  for (const auto& [name, what] : each) {
    LoaderConfig config = plain();
    config.augment = what.first;
    const Seen first = epoch_of(config, 0);
    EXPECT_LE(images_alike(first, epoch_of(config, 1)), what.second) << name;
    EXPECT_EQ(images_alike(first, epoch_of(config, 0)), 64) << name;
    config.seed = 6;
    EXPECT_LE(images_alike(first, epoch_of(config, 0)), what.second) << name << ", another seed";
  }
}

TEST(Epochs, MixAnewInEveryBatch) {
  LoaderConfig config = plain();
  config.mix = {.mixup = 0.8, .cutmix = 1};
  const Seen first = epoch_of(config, 0), second = epoch_of(config, 1);
  ASSERT_EQ(first.mix.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NE(first.mix[i], second.mix[i]) << i;
    for (size_t k = 0; k < i; ++k) EXPECT_NE(first.mix[i], first.mix[k]) << i << k;
  }
}

}  // namespace
}  // namespace vitrum
