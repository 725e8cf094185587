#include "vitrum/data/loader.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/support/data_files.h"
#include "vitrum/core/error.h"

namespace vitrum {
namespace {

using test::FakeDataset;

struct Recorded {
  int64_t count;
  std::vector<uint8_t> pixels;
  std::vector<int32_t> labels;
  std::vector<int64_t> indices;
  bool operator==(const Recorded&) const = default;
};

std::vector<Recorded> record(Loader& loader, int64_t epoch, int64_t first_batch = 0) {
  loader.start(epoch, first_batch);
  std::vector<Recorded> all;
  for (Batch batch; loader.next(batch);) {
    all.push_back(
        {batch.count, {batch.pixels().begin(), batch.pixels().end()}, batch.labels, batch.indices});
  }
  return all;
}

std::vector<int64_t> indices_of(const std::vector<Recorded>& batches) {
  std::vector<int64_t> all;
  for (const Recorded& batch : batches)
    all.insert(all.end(), batch.indices.begin(), batch.indices.begin() + batch.count);
  return all;
}

LoaderConfig training(int threads) {
  return {.batch_size = 70,
          .shuffle = true,
          .seed = 5,
          .threads = threads,
          .prefetch = 3,
          .preprocess = {.channels = 1, .height = 6, .width = 6},
          .augment = {.crop_padding = 2, .flip = true}};
}

// Loaders that take turns give the batches of one, wherever an epoch is entered.
TEST(Loader, SharesAnEpochWithOthers) {
  const FakeDataset data(150, {1, 6, 6});
  LoaderConfig config = training(2);
  config.batch_size = 7;  // 22 batches
  Loader alone(data, config);
  for (const int64_t first : {0, 5, 6, 22}) {
    const std::vector<Recorded> whole = record(alone, 1, first);
    std::vector<Recorded> shared(whole.size());
    size_t taken = 0;
    for (const Turns turns : {Turns{5, 0, 2}, Turns{5, 2, 1}, Turns{5, 3, 2}}) {
      config.turns = turns;
      Loader loader(data, config);
      EXPECT_EQ(loader.batches(), 22);
      loader.start(1, first);
      for (Batch batch; loader.next(batch); ++taken) {
        EXPECT_GE(batch.number % 5, turns.first);
        EXPECT_LT(batch.number % 5, turns.first + turns.count);
        shared.at(static_cast<size_t>(batch.number - first)) = {
            batch.count,
            {batch.pixels().begin(), batch.pixels().end()},
            batch.labels,
            batch.indices};
      }
    }
    EXPECT_EQ(taken, whole.size());
    EXPECT_TRUE(shared == whole) << first;
  }
}

TEST(Loader, GivesEverySampleOnceAndPadsTheLastBatch) {
  const FakeDataset data(150, {1, 6, 6});
  LoaderConfig config = training(2);
  config.augment = {};
  Loader loader(data, config);
  EXPECT_EQ(loader.batches(), 3);
  const auto batches = record(loader, 0);
  ASSERT_EQ(batches.size(), 3u);
  std::set<int64_t> seen;
  for (const Recorded& batch : batches) {
    for (size_t i = 0; i < static_cast<size_t>(batch.count); ++i) {
      seen.insert(batch.indices[i]);
      EXPECT_EQ(batch.labels[i], data.label(batch.indices[i]));
      const PixelVector pixels(batch.pixels.begin() + static_cast<int64_t>(i) * 36,
                               batch.pixels.begin() + static_cast<int64_t>(i + 1) * 36);
      EXPECT_EQ(pixels, data.read(batch.indices[i]).pixels);
    }
  }
  EXPECT_EQ(seen.size(), 150u);
  const Recorded& last = batches.back();
  EXPECT_EQ(last.count, 10);
  ASSERT_EQ(last.pixels.size(), 70u * 36u);
  EXPECT_TRUE(
      std::all_of(last.pixels.begin() + 360, last.pixels.end(), [](uint8_t p) { return p == 0; }));
  EXPECT_TRUE(
      std::all_of(last.labels.begin() + 10, last.labels.end(), [](int32_t l) { return l == 0; }));
  EXPECT_TRUE(std::all_of(last.indices.begin() + 10, last.indices.end(),
                          [](int64_t i) { return i == -1; }));
}

TEST(Loader, DoesNotDependOnThreads) {
  const FakeDataset data(500, {3, 9, 8});
  LoaderConfig in_order = training(1);
  in_order.shuffle = false;
  Loader one(data, training(1)), sorted(data, in_order);
  const auto first = record(one, 3), second = record(one, 4);
  // Another order, not only other flips.
  EXPECT_NE(indices_of(first), indices_of(second));
  EXPECT_NE(indices_of(first), indices_of(record(sorted, 3)));
  EXPECT_EQ(record(one, 3), first);
  for (const int threads : {2, 3, 4}) {
    Loader loader(data, training(threads));
    EXPECT_EQ(record(loader, 3), first) << threads;
    EXPECT_EQ(record(loader, 4), second) << threads;
  }
}

TEST(Loader, ResumesInTheMiddle) {
  const FakeDataset data(500, {1, 6, 6});
  for (const int threads : {1, 3}) {
    Loader loader(data, training(threads));
    const auto all = record(loader, 2);
    for (const int64_t first : {0, 1, 4, 7, 8}) {
      EXPECT_EQ(record(loader, 2, first), std::vector<Recorded>(all.begin() + first, all.end()));
    }
    loader.start(9);  // dropped half way
    Batch batch;
    EXPECT_TRUE(loader.next(batch));
    EXPECT_EQ(record(loader, 2), all);
  }
}

TEST(Loader, KeepsOrderWithoutShuffle) {
  const FakeDataset data(100, {1, 6, 6});
  LoaderConfig config = training(2);
  config.shuffle = false;
  Loader loader(data, config);
  int64_t expected = 0;
  for (const Recorded& batch : record(loader, 7)) {
    for (size_t i = 0; i < static_cast<size_t>(batch.count); ++i)
      EXPECT_EQ(batch.indices[i], expected++);
  }
}

TEST(Loader, RecyclesMemory) {
  const FakeDataset data(1000, {1, 6, 6});
  LoaderConfig config = training(2);
  Loader loader(data, config);
  std::set<const void*> addresses;
  Batch batch;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    loader.start(epoch);
    while (loader.next(batch)) addresses.insert(batch.storage.data());
  }
  EXPECT_LE(addresses.size(), static_cast<size_t>(config.prefetch) + 1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(batch.storage.data()) % 64, 0u);
}

TEST(Loader, RethrowsTheFirstErrorInOrder) {
  const FakeDataset data(500, {1, 6, 6}, 130);
  LoaderConfig config = training(3);
  config.shuffle = false;
  Loader loader(data, config);
  Batch batch;
  for (int again = 0; again < 3; ++again) {
    loader.start(again);
    EXPECT_TRUE(loader.next(batch));
    EXPECT_EQ(test::input_error([&] { loader.next(batch); }), "fake 130 is bad");
  }
  loader.start(0, 2);
  EXPECT_TRUE(loader.next(batch));
}

// Two that cannot be read, in two parts of one batch.
class TwoBad final : public Dataset {
 public:
  int64_t size() const override { return fake_.size(); }
  ImageSize image_size() const override { return fake_.image_size(); }
  const std::vector<std::string>& classes() const override { return fake_.classes(); }
  int label(int64_t index) const override { return fake_.label(index); }
  std::string name(int64_t index) const override { return fake_.name(index); }
  void read_into(int64_t index, Image& image) const override {
    if (index == 75 || index == 130) fail_input("fake {} is bad", index);
    fake_.read_into(index, image);
  }

 private:
  FakeDataset fake_{500, {1, 6, 6}};
};

TEST(Loader, OfSeveralErrorsTheFirstIsToldWhateverTheThreads) {
  const TwoBad data;
  for (const int threads : {1, 2, 4}) {
    LoaderConfig config = training(threads);
    config.shuffle = false;
    Loader loader(data, config);
    Batch batch;
    loader.start(0);
    EXPECT_TRUE(loader.next(batch));
    EXPECT_EQ(test::input_error([&] { loader.next(batch); }), "fake 75 is bad") << threads;
  }
}

TEST(Loader, EndsWhileWorkIsUnderWay) {
  const FakeDataset data(5000, {1, 6, 6});
  for (int i = 0; i < 20; ++i) {
    Loader loader(data, training(4));
    Batch batch;
    EXPECT_FALSE(loader.next(batch));  // not started
    loader.start(i);
    if (i % 2 == 1) {
      EXPECT_TRUE(loader.next(batch));
    }
  }
}

TEST(Loader, RefusesBadSettings) {
  const FakeDataset data(5, {1, 6, 6}), none(0, {1, 6, 6});
  LoaderConfig config = training(1);
  EXPECT_THROW(Loader(none, config), Error);
  config.batch_size = 0;
  EXPECT_THROW(Loader(data, config), Error);
  config = training(1);
  config.preprocess.channels = 2;
  EXPECT_THROW(Loader(data, config), Error);
  config = training(1);
  config.preprocess.crop_pct = 0;
  EXPECT_THROW(Loader(data, config), Error);
}

std::vector<uint8_t> apply(const Image& image, const Preprocess& preprocess,
                           const Augment& augment = {}, int64_t index = 0) {
  std::vector<uint8_t> out(
      static_cast<size_t>(preprocess.channels * preprocess.height * preprocess.width));
  Transform(preprocess, augment).apply(image, {.seed = 1, .index = index}, false, out);
  return out;
}

TEST(Transform, AdaptsChannels) {
  Image grey;
  grey.reshape(1, 1, 2);
  grey.pixels = {10, 200};
  EXPECT_THAT(apply(grey, {.channels = 3, .height = 1, .width = 2}),
              testing::ElementsAre(10, 200, 10, 200, 10, 200));
  Image rgb;
  rgb.reshape(3, 1, 2);
  rgb.pixels = {255, 10, 0, 20, 0, 30};
  EXPECT_THAT(apply(rgb, {.channels = 1, .height = 1, .width = 2}),
              testing::ElementsAre(76, 18));  // Pillow's L
}

// Every output is one of the (2 * padding + 1)^2 windows of the padded image, mirrored or not, and
// all of them occur.
TEST(Transform, CropsAndFlips) {
  Image image;
  image.reshape(1, 3, 4);
  std::iota(image.pixels.begin(), image.pixels.end(), uint8_t{1});
  std::set<std::vector<int>> windows, seen;
  for (int dy = -1; dy <= 1; ++dy) {
    for (int dx = -1; dx <= 1; ++dx) {
      std::vector<int> plain, mirrored;
      for (int y = 0; y < 3; ++y) {
        for (int x = 0; x < 4; ++x) {
          const auto at = [&](int column) -> uint8_t {
            const int sy = y + dy, sx = column + dx;
            return sy < 0 || sy >= 3 || sx < 0 || sx >= 4
                       ? uint8_t{0}
                       : image.pixels[static_cast<size_t>(sy * 4 + sx)];
          };
          plain.push_back(at(x));
          mirrored.push_back(at(3 - x));
        }
      }
      windows.insert({plain, mirrored});
    }
  }
  const Preprocess same{.channels = 1, .height = 3, .width = 4};
  for (int64_t i = 0; i < 500; ++i) {
    const auto out = apply(image, same, {.crop_padding = 1, .flip = true}, i);
    seen.emplace(out.begin(), out.end());
  }
  EXPECT_EQ(windows.size(), 18u);
  EXPECT_EQ(seen, windows);
}

// Values by torchvision's Resize and CenterCrop, and timm's ResizeKeepRatio.
TEST(Transform, ResizesAsTheModelsWere) {
  Preprocess p{.crop_pct = 0.875, .crop_mode = CropMode::kCenter};
  EXPECT_EQ(resize_target(p, 375, 500), std::pair(int64_t{256}, int64_t{341}));
  EXPECT_EQ(resize_target(p, 500, 333), std::pair(int64_t{384}, int64_t{256}));
  p.crop_pct = 0.9;
  EXPECT_EQ(resize_target(p, 300, 300), std::pair(int64_t{248}, int64_t{248}));
  p.crop_mode = CropMode::kSquash;
  EXPECT_EQ(resize_target(p, 300, 500), std::pair(int64_t{248}, int64_t{248}));
}

TEST(Transform, CropsTheCentre) {
  Image image = test::gradient(1, 7, 4);
  const auto out =
      apply(image, {.channels = 1, .height = 4, .width = 4, .crop_mode = CropMode::kCenter});
  // (7 - 4) / 2 = 1.5 rounds to even, 2, as Python does.
  EXPECT_EQ(out, std::vector<uint8_t>(image.pixels.begin() + 8, image.pixels.begin() + 24));
}

// timm's ResizeKeepRatio(longest=1) and CenterCropOrPad.
TEST(Transform, PutsABorderRoundWhatIsSmaller) {
  Preprocess p{.channels = 1,
               .height = 6,
               .width = 6,
               .interpolation = Filter::kNearest,
               .crop_mode = CropMode::kBorder,
               .border = {200, 0, 0}};
  Image wide = test::gradient(1, 3, 6);
  EXPECT_EQ(resize_target(p, 3, 6), std::pair(int64_t{3}, int64_t{6}));
  std::vector<uint8_t> expected(36, 200);  // one row above, two below
  std::copy(wide.pixels.begin(), wide.pixels.end(), expected.begin() + 6);
  EXPECT_EQ(apply(wide, p), expected);
  // The long edge is cropped and the short one bordered: 6 x 8 of 7 x 8, and of 2 x 8.
  p.crop_pct = 0.75;
  EXPECT_EQ(resize_target(p, 2, 8), std::pair(int64_t{2}, int64_t{8}));
  Image flat = test::gradient(1, 2, 8);
  expected.assign(36, 200);
  for (size_t y = 0; y < 2; ++y)
    std::copy_n(flat.pixels.begin() + static_cast<ptrdiff_t>(y * 8 + 1), 6,
                expected.begin() + static_cast<ptrdiff_t>((y + 2) * 6));
  EXPECT_EQ(apply(flat, p), expected);
  // One row more than there is: it comes below.
  p.crop_pct = 1;
  Image high = test::gradient(1, 5, 6);
  expected.assign(36, 200);
  std::copy(high.pixels.begin(), high.pixels.end(), expected.begin());
  EXPECT_EQ(apply(high, p), expected);
  p.crop_pct = 0.75;
  EXPECT_EQ(resize_target(p, 1, 4000), std::pair(int64_t{1}, int64_t{8})) << "never nothing";
  p.crop_mode = CropMode::kCenter;
  EXPECT_EQ(crop_window(p, 9, 9).top, 2);
}

TEST(Transform, RefusesWhatIsTooThin) {
  Image image;
  image.reshape(1, 1, 2'000'000);
  EXPECT_THAT(
      test::input_error([&] { apply(image, {.channels = 1, .crop_mode = CropMode::kCenter}); }),
      testing::HasSubstr("too long and thin"));
}

}  // namespace
}  // namespace vitrum
