#include "vitrum/data/mix.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "tests/support/data_files.h"
#include "tests/support/op_cases.h"
#include "vitrum/data/loader.h"
#include "vitrum/reference/reference.h"

namespace vitrum {
namespace {

using testing::ElementsAre;
using testing::FloatNear;
using testing::Pointwise;

// Four images of 3 x 4 pixels: 0, 5, 10, ...
test::HostTensor four_images() {
  test::HostTensor images{.shape = {4, 1, 3, 4}, .dtype = DType::kU8};
  for (int i = 0; i < 48; ++i) images.values.push_back(5 * i);
  return images;
}

std::vector<float> mixed(const MixRow& row) {
  test::HostTensor mix{.shape = {4, 6}, .dtype = DType::kF32};
  for (int i = 0; i < 4; ++i)
    for (const float x :
         {static_cast<float>(3 - i), row.own, row.top, row.bottom, row.left, row.right})
      mix.values.push_back(static_cast<double>(x));
  const auto backend = make_reference_backend();
  const auto out =
      test::run_case(*backend, {"mix", Mix{}, {four_images(), mix}, {{.shape = {4, 1, 3, 4}}}}).out;
  return {out[0].values.begin(), out[0].values.end()};
}

// Values of timm's Mixup with lambda = 0.3 and, for CutMix, the centre (2, 1).
TEST(Mix, EqualsTimmsMixup) {
  std::vector<float> expected;
  for (const float first : {126.f, 102.f, 78.f, 54.f})
    for (int i = 0; i < 12; ++i) expected.push_back(first + 5.f * static_cast<float>(i));
  EXPECT_THAT(mixed({.own = 0.3f}), Pointwise(FloatNear(1e-4f), expected));
}

TEST(Mix, EqualsTimmsCutMix) {
  const std::vector<float> expected = {0,   5,   10,  15,  200, 205, 210, 35,  220, 225, 230, 55,
                                       60,  65,  70,  75,  140, 145, 150, 95,  160, 165, 170, 115,
                                       120, 125, 130, 135, 80,  85,  90,  155, 100, 105, 110, 175,
                                       180, 185, 190, 195, 20,  25,  30,  215, 40,  45,  50,  235};
  const Window box = cutmix_box(0.3, 2, 1, 3, 4);
  const MixRow row{.top = static_cast<float>(box.top),
                   .bottom = static_cast<float>(box.top + box.height),
                   .left = static_cast<float>(box.left),
                   .right = static_cast<float>(box.left + box.width)};
  EXPECT_EQ(mixed(row), expected);
  EXPECT_DOUBLE_EQ(own_share(row, 3, 4), 0.5);
}

TEST(Mix, HasTimmsBoxes) {
  struct Case {
    double lambda;
    int y, x, height, width, top, bottom, left, right;
  };
  for (const Case& c :
       {Case{0.9, 0, 0, 32, 32, 0, 5, 0, 5}, Case{0.51, 20, 31, 32, 32, 9, 31, 20, 32},
        Case{0, 16, 7, 32, 33, 0, 32, 0, 24}, Case{1, 3, 3, 8, 8, 3, 3, 3, 3},
        Case{0.25, 223, 100, 224, 224, 127, 224, 4, 197}}) {
    const Window box = cutmix_box(c.lambda, c.y, c.x, c.height, c.width);
    EXPECT_EQ(box.top, c.top);
    EXPECT_EQ(box.top + box.height, c.bottom);
    EXPECT_EQ(box.left, c.left);
    EXPECT_EQ(box.left + box.width, c.right);
  }
}

TEST(Mix, SharesLabels) {
  const std::vector<int32_t> labels = {0, 2, 1, 2};
  std::vector<MixRow> rows(4, {.own = 0.25f});
  for (size_t i = 0; i < 4; ++i) rows[i].partner = static_cast<float>(3 - i);
  std::vector<float> targets(12);
  mix_targets(labels, rows, 3, 4, 3, targets);
  EXPECT_THAT(targets,
              ElementsAre(0.25f, 0, 0.75f, 0, 0.75f, 0.25f, 0, 0.25f, 0.75f, 0.75f, 0, 0.25f));
}

TEST(Mix, DrawsBeta) {
  for (const double alpha : {0.2, 0.8, 1.0, 3.0}) {
    double sum = 0, squares = 0;
    constexpr int kDraws = 20000;
    PhiloxStream random(1, kMixStream, 0);
    for (int i = 0; i < kDraws; ++i) {
      const double x = draw_beta(alpha, random);
      ASSERT_TRUE(x >= 0 && x <= 1);
      sum += x, squares += x * x;
    }
    const double mean = sum / kDraws;
    EXPECT_NEAR(mean, 0.5, 0.01) << alpha;
    EXPECT_NEAR(squares / kDraws - mean * mean, 1 / (4 * (2 * alpha + 1)), 0.005) << alpha;
  }
}

TEST(Mix, SwitchesAndSkipsAsOften) {
  const MixConfig config{.mixup = 0.8, .cutmix = 1, .probability = 0.6, .switch_probability = 0.25};
  int mixes = 0, cuts = 0;
  for (uint64_t i = 0; i < 4000; ++i) {
    std::vector<MixRow> rows(6);
    draw_mix(config, 5, 32, 32, PhiloxStream(1, kMixStream, i), rows);
    EXPECT_EQ(rows[5].partner, 5);
    EXPECT_EQ(own_share(rows[5], 32, 32), 1);
    if (rows[0].partner == 0) continue;
    for (size_t k = 0; k < 5; ++k) EXPECT_EQ(rows[k].partner, static_cast<float>(4 - k));
    rows[0].own == 1 ? ++cuts : ++mixes;
  }
  EXPECT_NEAR(mixes, 4000 * 0.6 * 0.75, 100);
  EXPECT_NEAR(cuts, 4000 * 0.6 * 0.25, 80);
}

// ---- through the loader ----

LoaderConfig config_of(int threads) {
  return {
      .batch_size = 16,
      .shuffle = true,
      .seed = 5,
      .threads = threads,
      .preprocess = {.channels = 3, .height = 12, .width = 12, .interpolation = Filter::kBicubic},
      .augment = {.resized_crop = true,
                  .flip = true,
                  .policies = {parse_policy("rand-m9-mstd0.5-inc1"), parse_policy("three")},
                  .jitter = {0.3, 0.3, 0.3, 0.1},
                  .erase = {.probability = 0.5},
                  .random_filter = true},
      .mix = {.mixup = 0.8, .cutmix = 1},
      .repeat = 3};
}

std::vector<std::vector<uint8_t>> epoch_of(Loader& loader, int64_t epoch, int64_t first = 0) {
  std::vector<std::vector<uint8_t>> all;
  loader.start(epoch, first);
  for (Batch batch; loader.next(batch);) {
    std::vector<uint8_t>& bytes = all.emplace_back(batch.pixels().begin(), batch.pixels().end());
    const auto* mix = reinterpret_cast<const uint8_t*>(batch.mix.data());
    bytes.insert(bytes.end(), mix, mix + batch.mix.size() * sizeof(MixRow));
  }
  return all;
}

TEST(AugmentedLoader, DependsOnNeitherThreadsNorWhereItStarts) {
  const test::FakeDataset data(70, {3, 20, 17});
  Loader one(data, config_of(1)), three(data, config_of(3));
  const auto first = epoch_of(one, 2);
  EXPECT_NE(epoch_of(one, 3), first);
  EXPECT_EQ(epoch_of(three, 2), first);
  EXPECT_EQ(epoch_of(three, 2, 3), std::vector(first.begin() + 3, first.end()));
}

TEST(AugmentedLoader, RepeatsEachImageInOneOrder) {
  const test::FakeDataset data(50, {3, 20, 17});
  Loader loader(data, config_of(2));
  EXPECT_EQ(loader.batches(), 4);
  std::vector<int64_t> indices;
  std::vector<std::vector<uint8_t>> samples;
  loader.start(0);
  for (Batch batch; loader.next(batch);)
    for (size_t i = 0; i < static_cast<size_t>(batch.count); ++i) {
      indices.push_back(batch.indices[i]);
      const auto pixels = batch.pixels().subspan(i * 432, 432);
      samples.emplace_back(pixels.begin(), pixels.end());
    }
  ASSERT_EQ(indices.size(), 50u);
  int same = 0;
  for (size_t i = 0; i + 2 < 50; i += 3) {
    EXPECT_TRUE(indices[i] == indices[i + 1] && indices[i] == indices[i + 2]) << i;
    same += samples[i] == samples[i + 1] ? 1 : 0;
    if (i >= 3) {
      EXPECT_NE(indices[i], indices[i - 3]);
    }
  }
  EXPECT_LE(same, 1);  // each time augmented anew
}

TEST(AugmentedLoader, EndsMildAndUnmixed) {
  const test::FakeDataset data(40, {3, 12, 12});
  LoaderConfig config = config_of(1);
  config.augment.resized_crop = config.augment.flip = false;
  config.strong_epochs = 2, config.repeat = 1;
  Loader loader(data, config);
  for (const int64_t epoch : {1, 2}) {
    loader.start(epoch);
    bool plain = true, mixes = false;
    for (Batch batch; loader.next(batch);)
      for (size_t i = 0; i < static_cast<size_t>(batch.count); ++i) {
        const auto pixels = batch.pixels().subspan(i * 432, 432);
        plain &=
            std::equal(pixels.begin(), pixels.end(), data.read(batch.indices[i]).pixels.begin());
        mixes |= own_share(batch.mix[i], 12, 12) < 1;
      }
    EXPECT_EQ(plain, epoch == 2);
    EXPECT_EQ(mixes, epoch == 1);
  }
}

}  // namespace
}  // namespace vitrum
