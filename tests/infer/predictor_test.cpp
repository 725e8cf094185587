#include "vitrum/infer/predictor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "tests/support/data_files.h"
#include "tests/support/expect_error.h"
#include "tests/support/tiny_model.h"
#include "tests/support/vit_of.h"
#include "vitrum/core/files.h"
#include "vitrum/infer/match_labels.h"
#include "vitrum/infer/predict_all.h"
#include "vitrum/weights/model_config.h"

namespace vitrum {
namespace {

using test::TempDir;

// Photos of different sizes, and what the model makes of them.
class PredictorTest : public testing::Test {
 protected:
  PredictorTest() { test::write_tiny_model(dir_ / "model", test::tiny_rgb_model()); }

  std::string model() const { return dir_ / "model"; }
  static Image photo(int i) { return test::gradient(3, 40 + 7 * i, 90 - 5 * i); }
  std::vector<uint8_t> pixels(int count) const {
    Preprocessor preprocessor(preprocess_of(test::tiny_rgb_model()));
    std::vector<uint8_t> all(preprocessor.bytes() * static_cast<size_t>(count));
    for (int i = 0; i < count; ++i)
      preprocessor.apply(photo(i % 9),
                         std::span(all).subspan(preprocessor.bytes() * static_cast<size_t>(i),
                                                preprocessor.bytes()));
    return all;
  }

  TempDir dir_;
};

TEST_F(PredictorTest, SameBitsWhateverTheBatchThePlaceAndTheThreads) {
  for (const DType precision : {DType::kF32, DType::kBF16, DType::kI8}) {
    constexpr size_t kCount = 13, kClasses = 7, kWidth = 48;  // 12 + 1
    std::vector<float> logits(kCount * kClasses), features(kCount * kWidth);
    Predictor many(model(), {.threads = 2, .precision = precision});
    const std::vector<uint8_t> all = pixels(kCount);
    many.run(all, logits, features);
    Predictor one(model(), {.threads = 1, .precision = precision, .max_batch = 5});
    for (size_t shift = 0; shift < 3; ++shift) {
      const size_t count = kCount - shift, image = all.size() / kCount;
      std::vector<float> l(count * kClasses), f(count * kWidth);
      one.run(std::span(all).subspan(shift * image), l, f);
      EXPECT_TRUE(std::equal(l.begin(), l.end(), logits.begin() + shift * kClasses));
      EXPECT_TRUE(std::equal(f.begin(), f.end(), features.begin() + shift * kWidth));
    }
    for (size_t i = 0; i < kCount; ++i) {
      std::vector<float> l(kClasses);
      one.run(std::span(all).subspan(i * all.size() / kCount, all.size() / kCount), l, {});
      EXPECT_TRUE(std::equal(l.begin(), l.end(), logits.begin() + i * kClasses));
    }
  }
}

TEST(ImagesAtOnce, AsManyAsKeepTheThreadsOfACpuBusy) {
  const auto images = [](const std::string& model, int threads) {
    const std::unique_ptr<Backend> cpu = make_backend({.device = "cpu", .threads = threads});
    return images_at_once(resolve_model(model), *cpu, DType::kF32, 16);
  };
  EXPECT_EQ(images("vit_base_patch16_224", 1), 1);
  EXPECT_EQ(images("vit_base_patch16_224", 2), 2);
  EXPECT_EQ(images("vit_small_patch16_224", 2), 8);
  EXPECT_EQ(images("vit_base_patch16_224", 32), 16);
  EXPECT_EQ(images("vit_mnist", 1), 16);
}

TEST_F(PredictorTest, FilesBytesAndPixelsAgree) {
  Predictor predictor(model());
  const test::Bytes png = test::encode_png(photo(3));
  test::write_file(dir_ / "a.png", png);
  const auto from_pixels = predictor.classify(photo(3), 7);
  ASSERT_EQ(from_pixels.size(), 7u);
  float sum = 0;
  for (size_t i = 0; i < 7; ++i) {
    const auto from_file = predictor.classify(dir_ / "a.png", 7)[i];
    const auto from_bytes = predictor.classify(std::span<const uint8_t>(png), 7)[i];
    EXPECT_EQ(from_file.index, from_pixels[i].index);
    EXPECT_EQ(from_file.probability, from_pixels[i].probability);
    EXPECT_EQ(from_bytes.probability, from_pixels[i].probability);
    EXPECT_EQ(from_file.label, predictor.model().labels[static_cast<size_t>(from_file.index)]);
    EXPECT_LE(from_pixels[i].probability, from_pixels[i > 0 ? i - 1 : 0].probability);
    sum += from_pixels[i].probability;
  }
  EXPECT_NEAR(sum, 1, 1e-6);
  EXPECT_GT(from_pixels[0].probability, 0.2f);
  EXPECT_EQ(predictor.features(dir_ / "a.png"), predictor.features(photo(3)));
  EXPECT_EQ(predictor.features(photo(3)).size(), 48u);
}

TEST_F(PredictorTest, ServesSeveralThreadsAtOnce) {
  Predictor predictor(model(), {.threads = 2});
  std::vector<std::vector<float>> expected;
  for (int i = 0; i < 6; ++i) expected.push_back(predictor.features(photo(i)));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 24; ++i) {
        const int which = (i + t) % 6;
        wrong += predictor.features(photo(which)) != expected[static_cast<size_t>(which)];
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(PredictorTest, UsesTheFileInPlaceWhereItCan) {
  Predictor f32(model());
  f32.features(photo(0));
  EXPECT_EQ(f32.weights().converted(), 0u);
  EXPECT_GT(f32.weights().mapped(), 100'000u);

  // Linear weights are converted, the small rest stays; an f32 copy of them is never made.
  Predictor bf16(model(), {.precision = DType::kBF16});
  const std::vector<float> expected = bf16.features(photo(0));
  EXPECT_GT(bf16.weights().converted(), 2 * bf16.weights().mapped());
  EXPECT_EQ(bf16.weights().converted() * 2 + bf16.weights().mapped(), f32.weights().mapped());

  // A file that has them so is used in place, with the same result.
  test::write_tiny_model(dir_ / "narrow", test::tiny_rgb_model(), DType::kBF16);
  Predictor narrow(dir_ / "narrow", {.precision = DType::kBF16});
  narrow.features(photo(0));
  if (make_backend({})->packs_weights()) {
    EXPECT_LT(narrow.weights().mapped(), narrow.weights().converted());
  } else {
    EXPECT_EQ(narrow.weights().mapped(), bf16.weights().converted());
  }
  Predictor wide(dir_ / "narrow");
  wide.features(photo(0));
  EXPECT_EQ(wide.weights().mapped(), 0u);
}

// The precision of the file does not matter to a backend that packs weights: one that rounds them
// itself computes what others do with weights rounded before.
TEST_F(PredictorTest, PackedWeightsEqualLoadedOnes) {
  setenv("VITRUM_ISA", "tiles", /*overwrite=*/1);
  const auto backend = make_backend({});
  EXPECT_TRUE(backend->packs_weights());
  for (const DType stored : {DType::kF32, DType::kBF16}) {
    const std::string dir = dir_ / std::string(name_of(stored));
    test::write_tiny_model(dir, test::tiny_rgb_model(), stored);
    const ModelSpec spec = resolve_model(dir);
    Graph g;
    trace(g, spec, 1);
    ParamStore loaded(g, *backend);
    load_weights(dir, spec, loaded);
    ModelProgram plain(spec, loaded, 1, {.compute = DType::kBF16});
    plain.run(pixels(1).data());
    std::vector<float> expected(48);
    plain.read_features(expected.data());
    Predictor predictor(dir, {.precision = DType::kBF16});
    EXPECT_EQ(predictor.features(photo(0)), expected);
    const auto classes = static_cast<size_t>(predictor.classes());
    std::vector<float> logits(classes), expected_logits(classes);
    plain.read_logits(expected_logits.data());
    predictor.run(pixels(1), logits, {});
    EXPECT_EQ(logits, expected_logits);
  }
  unsetenv("VITRUM_ISA");
}

TEST_F(PredictorTest, MappedWeightsEqualLoadedOnes) {
  const ModelSpec spec = resolve_model(model());
  const auto backend = make_backend({});
  Graph g;
  trace(g, spec, 1);
  ParamStore loaded(g, *backend);
  load_weights(model(), spec, loaded);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ModelProgram plain(spec, loaded, 1, {.compute = dtype});
    plain.run(pixels(1).data());
    std::vector<float> expected(48);
    plain.read_features(expected.data());
    Predictor predictor(model(), {.precision = dtype});
    EXPECT_EQ(predictor.features(photo(0)), expected);
  }
}

TEST_F(PredictorTest, AnotherImageSizeIsThatOfALoadedModel) {
  for (const InputSize size : {InputSize{16, 16}, InputSize{48, 24}}) {
    ModelSpec spec = resolve_model(model());
    set_image_size(spec, size.height, size.width);
    const auto backend = make_backend({});
    Graph g;
    trace(g, spec, 1);
    ParamStore loaded(g, *backend);
    EXPECT_EQ(load_weights(model(), spec, loaded).adapted.size(), 1u);
    Preprocessor preprocessor(preprocess_of(spec));
    std::vector<uint8_t> pixels(preprocessor.bytes());
    preprocessor.apply(photo(2), pixels);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      ModelProgram plain(spec, loaded, 1, {.compute = dtype});
      plain.run(pixels.data());
      std::vector<float> expected(48);
      plain.read_features(expected.data());
      Predictor predictor(model(), {.image_size = size, .precision = dtype});
      EXPECT_EQ(predictor.features(photo(2)), expected);
      EXPECT_EQ(predictor.model().preprocess.crop_pct, 0.9);
      if (dtype == DType::kF32) {
        EXPECT_GT(predictor.weights().mapped(), 20 * predictor.weights().converted())
            << "only the positions are made anew";
      }
    }
  }
  EXPECT_ERROR(Predictor(model(), {.image_size = InputSize{20, 32}}), ErrorKind::kUsage,
               "image size 20x32 is not divisible");
}

TEST_F(PredictorTest, BordersAreTheConfigsMean) {
  ModelSpec bordered = test::tiny_rgb_model();
  bordered.preprocess.crop_mode = "border";
  bordered.preprocess.mean = {0.485f, 0.456f, 0.5f};
  test::write_tiny_model(dir_ / "bordered", bordered);
  const ModelSpec spec = resolve_model(dir_ / "bordered");
  EXPECT_EQ(spec.preprocess, bordered.preprocess);
  const Preprocess p = preprocess_of(spec);
  EXPECT_EQ(p.crop_mode, CropMode::kBorder);
  EXPECT_EQ(p.border, (std::array<uint8_t, 3>{124, 116, 128}));
  EXPECT_NE(Predictor(dir_ / "bordered").features(photo(1)), Predictor(model()).features(photo(1)));
}

TEST_F(PredictorTest, FailsBeforeTheFirstImage) {
  EXPECT_ERROR(Predictor("vit_tiny_patch16_224"), ErrorKind::kUsage, "preset without weights");
  EXPECT_ERROR(Predictor(dir_ / "nothing"), ErrorKind::kInput, "neither a model directory");
  ModelSpec other = test::tiny_rgb_model();
  vit_of(other).width = 96;
  write_file_atomic(dir_ / "model/config.json", model_config_text(other));
  EXPECT_ERROR(Predictor{model()}, ErrorKind::kInput, "does not fit the model");
}

TEST_F(PredictorTest, PredictAllKeepsTheOrderAndGoesOn) {
  Predictor predictor(model(), {.max_batch = 4});
  const test::FakeDataset data(23, {3, 50, 60}, /*bad=*/5);
  int64_t next = 0;
  const auto check = [&](const PredictedSample& sample) {
    EXPECT_EQ(sample.index, next++);
    if (sample.index == 5) {
      EXPECT_EQ(sample.error, "fake 5 is bad");
      EXPECT_TRUE(sample.features.empty());
    } else {
      const std::vector<float> alone = predictor.features(data.read(sample.index));
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), sample.features.begin()));
    }
    return sample.index < 20;
  };
  predict_all(predictor, data, {.threads = 3, .tolerant = true}, check);
  EXPECT_EQ(next, 21);
  EXPECT_ERROR(predict_all(predictor, data, {.threads = 3}, [](auto&) { return true; }),
               ErrorKind::kInput, "fake 5 is bad");
}

TEST_F(PredictorTest, PredictAllTakesTheMeanOfAnImageAndItsMirrorImage) {
  Predictor predictor(model(), {.max_batch = 4});
  const test::FakeDataset data(7, {3, 64, 64}, /*bad=*/5);
  const auto features = [&](const Image& image, bool mirrored) {
    std::vector<uint8_t> pixels(Preprocessor(preprocess_of(predictor.model())).bytes());
    predictor.preprocess(image, pixels);
    const auto width = static_cast<size_t>(preprocess_of(predictor.model()).width);
    if (mirrored)
      for (size_t at = 0; at < pixels.size(); at += width)
        std::reverse(pixels.begin() + static_cast<ptrdiff_t>(at),
                     pixels.begin() + static_cast<ptrdiff_t>(at + width));
    std::vector<float> out(static_cast<size_t>(predictor.dimension()));
    predictor.run(pixels, {}, out);
    return out;
  };
  int64_t seen = 0;
  const auto check = [&](const PredictedSample& sample) {
    ++seen;
    if (sample.index == 5) {
      EXPECT_EQ(sample.error, "fake 5 is bad");
      return true;
    }
    const Image image = data.read(sample.index);
    const auto one = features(image, false), other = features(image, true);
    EXPECT_NE(one, other);
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_EQ(sample.features[i], 0.5f * (one[i] + other[i]));
    return true;
  };
  predict_all(predictor, data, {.threads = 2, .tolerant = true, .tta = Tta::kFlip}, check);
  EXPECT_EQ(seen, 7);
}

// A folder of class folders with one small image each.
std::unique_ptr<Dataset> folders(const TempDir& dir, const std::vector<std::string>& classes) {
  std::filesystem::remove_all(dir / "data");
  for (const std::string& name : classes)
    test::write_file(dir / ("data/" + name + "/a.png"), test::encode_png(test::gradient(3, 4, 4)));
  return open_split("folder:" + (dir / "data"));
}

TEST(MatchLabels, ByLabelSynonymIdAndNumber) {
  const TempDir dir;
  const ModelSpec model = test::tiny_rgb_model();
  const auto outputs = [&](const std::vector<std::string>& classes) {
    return match_labels(*folders(dir, classes), model).outputs;  // classes in byte order
  };
  EXPECT_EQ(outputs({"6", "Tinca tinca", "goldfish", "n02012849"}), (std::vector{6, 0, 1, 2}));
  EXPECT_EQ(outputs({"GOLDFISH", "golden-retriever"}), (std::vector{1, 3}));
  EXPECT_EQ(outputs({"crane, bird", "machine"}), (std::vector{2, 4}));
}

TEST(MatchLabels, ListsWhatDoesNotMatch) {
  const TempDir dir;
  const ModelSpec model = test::tiny_rgb_model();
  const auto data = folders(dir, {"crane", "pizza", "steak", "7"});
  EXPECT_ERROR(match_labels(*data, model), ErrorKind::kInput,
               "3 of the data's classes match no label of vit_tiny_patch16_224: \"7\", \"crane\" "
               "(outputs 2 and 4), \"steak\"");
}

TEST(MatchLabels, WithoutLabelsByPosition) {
  const TempDir dir;
  ModelSpec model = test::tiny_rgb_model();
  model.labels.clear(), model.class_ids.clear();
  const auto data = folders(dir, {"b", "a"});
  EXPECT_EQ(match_labels(*data, model).outputs, (std::vector{0, 1}));
  vit_of(model).classes = 1;
  EXPECT_ERROR(match_labels(*data, model), ErrorKind::kInput, "only 1 outputs");
  vit_of(model).classes = 2, model.labels = {"x", "y"};
  EXPECT_TRUE(match_labels(*data, model).by_position);
}

}  // namespace
}  // namespace vitrum
