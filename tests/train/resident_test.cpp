// Images kept on the device: the same pixels, and so the same training, as when the host prepares
// them.
#include <gmock/gmock.h>
#include <signal.h>

#include "tests/support/cuda.h"
#include "tests/support/data_files.h"
#include "tests/support/tiny_run.h"
#include "vitrum/core/error.h"
#include "vitrum/infer/resident_images.h"

namespace vitrum {
namespace {

using test::FakeDataset;
using test::outcome;
using test::TinyRun;

class Resident : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "cuda") SKIP_WITHOUT_CUDA();
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, Resident, testing::Values("reference", "cpu", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

LoaderConfig config_of(const ImageSize& size, EraseMode mode) {
  return {.batch_size = 32,
          .shuffle = true,
          .seed = (uint64_t{7} << 32) + 5,
          .preprocess = {.channels = size.channels, .height = size.height, .width = size.width},
          .augment = {.crop_padding = 3,
                      .flip = true,
                      .erase = {.probability = 0.7, .mode = mode, .mean = {0.2, 0.4, 0.6}}},
          .mix = {.mixup = 0.8, .cutmix = 1},
          .strong_epochs = 2,
          .repeat = 2};
}

// Every batch of a strong epoch and of a mild one, the padded last one included.
void expect_same_pixels(const Dataset& data, LoaderConfig config, Backend& backend) {
  const Preprocess& p = config.preprocess;
  Loader host(data, config);
  config.rows = true;
  Loader rows(data, config);
  const Graph none;
  ParamStore store(none, backend);
  const Buffer memory =
      backend.allocate(static_cast<size_t>(config.batch_size * p.channels * p.height * p.width));
  const TensorView pixels{
      memory.data(), {config.batch_size, p.channels, p.height, p.width}, DType::kU8};
  ResidentImages images(data, config, store, pixels);
  std::vector<uint8_t> got(pixels.bytes());
  for (const int64_t epoch : {1, 2}) {
    host.start(epoch), rows.start(epoch);
    Batch expected, batch;
    for (int64_t number = 0; host.next(expected); ++number) {
      ASSERT_TRUE(rows.next(batch));
      EXPECT_EQ(batch.pixels().size(), 0u);
      images.upload(batch);
      images.program().run();
      backend.download(got.data(), pixels);
      EXPECT_TRUE(std::ranges::equal(got, expected.pixels())) << "batch " << number;
      EXPECT_EQ(batch.count, expected.count);
      EXPECT_EQ(batch.labels, expected.labels);
      EXPECT_EQ(batch.indices, expected.indices);
      for (size_t i = 0; i < batch.mix.size(); ++i)
        EXPECT_EQ(batch.mix[i].partner, expected.mix[i].partner);
    }
    EXPECT_FALSE(rows.next(batch));
  }
}

TEST_P(Resident, PixelsAreTheHosts) {
  const auto backend = make_backend({.device = GetParam(), .threads = 2});
  for (const EraseMode mode : {EraseMode::kConst, EraseMode::kRand, EraseMode::kPixel}) {
    SCOPED_TRACE(static_cast<int>(mode));
    expect_same_pixels(FakeDataset(75, {3, 13, 9}), config_of({3, 13, 9}, mode), *backend);
  }
  LoaderConfig far = config_of({1, 8, 8}, EraseMode::kPixel);
  far.augment.crop_padding = 20;  // mostly black
  expect_same_pixels(FakeDataset(40, {1, 8, 8}), far, *backend);
}

// Resizing and a change of channels are done once, before the upload.
TEST_P(Resident, KeepsPreprocessedImages) {
  const auto backend = make_backend({.device = GetParam(), .threads = 2});
  expect_same_pixels(FakeDataset(40, {1, 6, 7}), config_of({3, 12, 10}, EraseMode::kPixel),
                     *backend);
}

TEST(WhyNotResident, NamesTheReason) {
  const FakeDataset data(40, {1, 8, 8}), files(40, {3, 0, 0});
  LoaderConfig config = config_of({1, 8, 8}, EraseMode::kPixel);
  EXPECT_EQ(why_not_resident(data, config), "");
  EXPECT_THAT(why_not_resident(files, config), testing::HasSubstr("files"));
  config.augment.jitter[2] = 0.1;
  EXPECT_THAT(why_not_resident(data, config), testing::HasSubstr("augments"));
  config.augment.jitter = {}, config.augment.resized_crop = true;
  EXPECT_THAT(why_not_resident(data, config), testing::HasSubstr("augments"));
  config.augment = {}, config.preprocess.height = config.preprocess.width = 8192;
  EXPECT_THAT(why_not_resident(data, config), testing::HasSubstr("2 GiB"));
}

// ---- whole runs ----

class ResidentRun : public Resident {
 protected:
  Recipe recipe() const {
    Recipe recipe = tiny_.recipe();
    recipe.augment = "crop-flip", recipe.erase = 0.5, recipe.repeat = 2, recipe.augment_off = 0.34;
    recipe.patch_drop = 0.5;
    recipe.mixup = 0.8, recipe.cutmix = 1, recipe.mix_prob = 0.7;
    recipe.ema = 0.9, recipe.clip_norm = 0.5, recipe.eval_tta = Tta::kFlip;
    return recipe;
  }
  RunOptions options(const std::string& out) const {
    RunOptions options = tiny_.options(out, 2);
    options.device.device = GetParam();
    return options;
  }
  static void train_on_device(const Recipe& recipe, const RunOptions& options, int64_t stop_at) {
    Trainer trainer(recipe, options);
    EXPECT_TRUE(trainer.keeps_images());
    trainer.run({.step = [&](int64_t step, double) {
      if (step == stop_at) raise(SIGINT);
    }});
    EXPECT_EQ(trainer.position().step, stop_at > 0 ? stop_at : trainer.total_steps());
  }
  // Trains once with images on the host and once on the device, and compares all that is left.
  void expect_same(Recipe recipe, int64_t stop_at = 0) {
    recipe.data_on_device = OnDevice::kOff;
    Trainer(recipe, options("host")).run();
    recipe.data_on_device = OnDevice::kOn;
    train_on_device(recipe, options("device"), stop_at);
    if (stop_at > 0) {
      RunOptions rest = options("device");
      rest.resume = true;
      train_on_device(recipe, rest, 0);
    }
    test::Outcome expected = outcome(tiny_ / "host");
    expected.erase("config.toml");
    test::expect_same(outcome(tiny_ / "device"), expected);
  }

  TinyRun tiny_;
};
INSTANTIATE_TEST_SUITE_P(Devices, ResidentRun, testing::Values("cpu", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(ResidentRun, TrainsTheSame) { expect_same(recipe()); }

TEST_P(ResidentRun, TrainsTheSameAfterResume) {
  Recipe r = recipe();
  r.checkpoint_every = 1;  // so that results are read, and signals seen, at every step
  expect_same(r, 7);
}

TEST_P(ResidentRun, TrainsTheSameWithAccumulationAndSam) {
  Recipe r = recipe();
  r.batch_size = 8, r.accumulate = 2, r.sam = 0.05, r.epochs = 2;
  expect_same(r);
}

TEST_P(ResidentRun, TrainsTheSameWithATeacher) {
  Recipe teacher = tiny_.recipe();
  teacher.epochs = 1;
  Trainer(teacher, tiny_.options("teacher")).run();
  Recipe r = recipe();
  r.teacher = tiny_ / "teacher/best", r.epochs = 2;
  expect_same(r);
}

TEST_P(ResidentRun, HeldOutImagesAndLogitsInAFile) {
  Recipe teacher = tiny_.recipe();
  teacher.epochs = 1;
  Trainer(teacher, tiny_.options("teacher")).run();
  Recipe r = tiny_.recipe();
  r.holdout = 0.2, r.epochs = 2;
  r.teacher = tiny_ / "teacher/best", r.teacher_logits = tiny_ / "logits.safetensors";
  expect_same(r);
}

TEST_P(ResidentRun, WhatTheDeviceCannotDoIsRefusedOrLeftToTheHost) {
  Recipe r = recipe();
  r.augment = "crop-flip+trivial", r.data_on_device = OnDevice::kOn;
  try {
    Trainer(r, options("refused"));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), testing::HasSubstr("data_on_device"));
  }
  r.data_on_device = OnDevice::kAuto;
  EXPECT_FALSE(Trainer(r, options("left")).keeps_images());
}

// Without a key: where the host does not see the device's memory.
TEST_P(ResidentRun, IsUsedWhereItHelps) {
  Trainer trainer(recipe(), options("usual"));
  EXPECT_EQ(trainer.keeps_images(), !trainer.backend().host_visible());
}

// One launch for the whole step has the bits of its parts.
TEST_P(ResidentRun, OneLaunchIsBackwardAndUpdate) {
  const Recipe r = tiny_.recipe();
  const auto backend = make_backend({.device = GetParam(), .threads = 2});
  const TrainData data(r);
  const ModelSpec model = model_for(r, data.train());
  TrainStep whole(model, r, DType::kF32, *backend), parts(model, r, DType::kF32, *backend);
  Loader loader(data.train(), loader_config(r, model, data.train(), 1));
  loader.start(0);
  Batch batch;
  for (int64_t step = 0; loader.next(batch); ++step) {
    whole.run(batch, 1e-3, step);
    parts.backward(batch, batch.count, step), parts.update(1e-3, step);
  }
  const auto got = whole.results(), expected = parts.results();
  ASSERT_EQ(got.size(), 5u);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].loss, expected[i].loss);
    EXPECT_EQ(got[i].norm, expected[i].norm);
  }
  for (size_t i = 0; i < whole.store().specs().size(); ++i)
    EXPECT_TRUE(whole.store().read(i) == parts.store().read(i)) << whole.store().specs()[i].name;
}

}  // namespace
}  // namespace vitrum
