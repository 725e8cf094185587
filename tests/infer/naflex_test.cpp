// SigLIP 2 for images of any shape against transformers (tools/golden/naflex_golden.py): each photo
// keeps its shape, and is a program of its own.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/data_files.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/vit_of.h"
#include "vitrum/core/files.h"
#include "vitrum/infer/predict_all.h"
#include "vitrum/infer/text_encoder.h"
#include "vitrum/infer/zero_shot.h"
#include "vitrum/weights/convert.h"
#include "vitrum/weights/convert_floats.h"
#include "vitrum/weights/json_keys.h"
#include "vitrum/weights/open_tensors.h"

namespace vitrum {
namespace {

const std::string kDir = VITRUM_SOURCE_DIR "/tests/golden/naflex";
constexpr int kPhotos = 6;
constexpr size_t kWidth = 16;

const TensorSource& golden() {
  static const auto file = open_tensors(kDir + "/expected.safetensors");
  return *file;
}
std::vector<float> expected(const std::string& name) {
  const TensorInfo& t = golden().at(name);
  return to_floats(golden().bytes(t), t.dtype);
}
Image image_of(const std::string& name) {
  const Shape& shape = golden().at(name).shape;
  Image image;
  image.reshape(3, static_cast<int>(shape[1]), static_cast<int>(shape[2]));
  const std::vector<float> values = expected(name);
  std::copy(values.begin(), values.end(), image.pixels.begin());
  return image;
}
Image photo(int i) { return image_of("photo." + std::to_string(i)); }
std::span<const float> row(const std::vector<float>& all, int i) {
  return std::span(all).subspan(static_cast<size_t>(i) * kWidth, kWidth);
}
void expect_near(std::span<const float> a, std::span<const float> b, float limit) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], limit) << i;
}

// transformers' get_image_size_for_max_num_patches.
TEST(Naflex, SizesAreTransformers) {
  const int64_t cases[][6] = {{480, 640, 16, 256, 224, 288},    {640, 480, 16, 256, 288, 224},
                              {1, 1, 16, 256, 112, 112},        {3024, 4032, 16, 256, 224, 288},
                              {100, 3000, 16, 256, 48, 1360},   {1000, 1000, 16, 256, 256, 256},
                              {1080, 1920, 16, 1024, 384, 672}, {333, 517, 14, 729, 308, 462},
                              {1, 100000, 16, 4, 16, 64},       {17, 19, 16, 1, 16, 16},
                              {720, 1280, 16, 256, 192, 336}};
  for (const auto& [height, width, patch, most, rows, columns] : cases) {
    const Preprocess p{.max_patches = static_cast<int>(most),
                       .patch_h = static_cast<int>(patch),
                       .patch_w = static_cast<int>(patch)};
    const InputSize size = input_size(p, static_cast<int>(height), static_cast<int>(width));
    EXPECT_EQ(size, (InputSize{rows, columns})) << height << " x " << width;
  }
}

TEST(Naflex, PixelsAreTransformersToTheByte) {
  Predictor predictor(kDir, {.device = "cpu"});
  std::vector<uint8_t> pixels(Preprocessor(predictor.input()).bytes());
  EXPECT_EQ(pixels.size(), 3u * 16 * 16);
  for (int i = 0; i < kPhotos; ++i) {
    const Image theirs = image_of("pixels." + std::to_string(i));
    const InputSize size = predictor.preprocess(photo(i), pixels);
    EXPECT_EQ(size, (InputSize{theirs.height, theirs.width})) << i;
    EXPECT_TRUE(std::equal(theirs.pixels.begin(), theirs.pixels.end(), pixels.begin())) << i;
  }
}

TEST(Naflex, VectorsAndProbabilitiesAreTransformers) {
  const TempDir cache;
  setenv("VITRUM_CACHE", (cache / "cache").c_str(), 1);
  const std::vector<float> images = expected("images"), probabilities = expected("probabilities");
  const std::vector<std::string> labels =
      read_labels("@" VITRUM_SOURCE_DIR "/tests/golden/words/labels.txt");
  for (const char* device : {"cpu", "reference"}) {
    Predictor predictor(kDir, {.device = device, .precision = DType::kF32});
    TextEncoder texts(kDir, predictor.device(), DType::kF32);
    expect_near(texts.encode(labels), expected("texts"), 2e-6f);
    const ZeroShot words(kDir, predictor, labels, {});
    for (int i = 0; i < kPhotos; ++i) {
      const std::vector<float> found = predictor.features(photo(i));
      expect_near(found, row(images, i), 2e-6f);
      for (const Prediction& p : words.best(found, labels.size()))
        EXPECT_NEAR(
            p.probability,
            probabilities[static_cast<size_t>(i) * labels.size() + static_cast<size_t>(p.index)],
            2e-6f);
    }
  }
  unsetenv("VITRUM_CACHE");
}

// Photos of several shapes, one of them broken, in turn.
class Photos final : public Dataset {
 public:
  int64_t size() const override { return 3 * kPhotos + 2; }
  ImageSize image_size() const override { return {.channels = 3}; }
  const std::vector<std::string>& classes() const override { return classes_; }
  int label(int64_t) const override { return 0; }
  std::string name(int64_t index) const override { return "photo " + std::to_string(index); }
  void read_into(int64_t index, Image& image) const override {
    if (index == 4) throw Error(ErrorKind::kInput, name(index) + " is bad");
    image = photo(static_cast<int>(index % kPhotos));
  }

 private:
  std::vector<std::string> classes_;
};

TEST(Naflex, ManyPhotosAreTheSameBitsAsOne) {
  const Photos photos;
  for (const int64_t batch : {1, 2, 16}) {
    Predictor predictor(kDir, {.device = "cpu", .threads = 2, .max_batch = batch});
    int64_t next = 0;
    predict_all(predictor, photos, {.threads = 2, .tolerant = true},
                [&](const PredictedSample& sample) {
                  EXPECT_EQ(sample.index, next++);
                  EXPECT_EQ(sample.error, sample.index == 4 ? "photo 4 is bad" : "");
                  if (sample.index == 4) return true;
                  const std::vector<float> alone =
                      predictor.features(photo(static_cast<int>(sample.index % kPhotos)));
                  EXPECT_TRUE(std::ranges::equal(alone, sample.features)) << sample.index;
                  return true;
                });
    EXPECT_EQ(next, photos.size());
    predictor.warm_up();
  }
}

TEST(Naflex, OneSizeForAllIsAskedFor) {
  Predictor any(kDir, {.device = "cpu", .precision = DType::kF32}),
      one(kDir, {.image_size = InputSize{12, 20}, .device = "cpu", .precision = DType::kF32}),
      fewer(kDir, {.max_patches = 4, .device = "cpu"});
  EXPECT_EQ(one.input().max_patches, 0);
  EXPECT_EQ(one.features(photo(0)), any.features(photo(0)));  // it has that shape
  EXPECT_NE(one.features(photo(1)), any.features(photo(1)));
  std::vector<uint8_t> pixels(Preprocessor(fewer.input()).bytes());
  EXPECT_EQ(fewer.preprocess(photo(3), pixels), (InputSize{4, 16}));
  EXPECT_ERROR(Predictor(kDir, {.device = "cpu", .taps = {"blocks.0"}}), ErrorKind::kUsage,
               "--image-size");
  EXPECT_ERROR(Predictor(VITRUM_SOURCE_DIR "/tests/golden/words/siglip", {.max_patches = 9}),
               ErrorKind::kUsage, "positions are those of one image size");
}

TEST(Naflex, BothFrameworksGetItBack) {
  const TempDir dir;
  convert_model(kDir, "", dir / "hf", "hf");
  const auto first = open_tensors(kDir + "/model.safetensors"),
             second = open_tensors(dir / "hf/model.safetensors");
  EXPECT_EQ(first->tensors().size(), second->tensors().size());
  for (const TensorInfo& t : first->tensors())
    EXPECT_TRUE(std::ranges::equal(first->bytes(t), second->bytes(second->at(t.name)))) << t.name;
  const JsonKeys config(read_file(dir / "hf/config.json"), "config.json");
  EXPECT_EQ(config.text("model_type", ""), "siglip2");
  EXPECT_EQ(config.texts("architectures"), std::vector<std::string>{"Siglip2Model"});
  EXPECT_EQ(config.object("text_config").text("model_type", ""), "siglip2_text_model");
  EXPECT_FALSE(config.object("vision_config").has("image_size"));

  convert_model(kDir, "", dir / "timm", "timm");
  const auto timm = open_tensors(dir / "timm/model.safetensors");
  EXPECT_EQ(timm->at("embeds.pos_embed").shape, (Shape{1, 4, 4, 16}));
  EXPECT_EQ(timm->at("embeds.proj.weight").shape, (Shape{16, 48}));
  EXPECT_ERROR(convert_model(kDir, "", dir / "original", "original"), ErrorKind::kUsage,
               "unknown dialect 'original'");
  const std::vector<float> images = expected("images");
  for (const char* name : {"hf", "timm"}) {
    EXPECT_EQ(resolve_model(dir / name).preprocess.max_patches, 16) << name;
    Predictor predictor(dir / name, {.device = "cpu", .precision = DType::kF32});
    for (int i = 0; i < kPhotos; ++i)
      expect_near(predictor.features(photo(i)), row(images, i), 2e-6f);
  }
}

}  // namespace
}  // namespace vitrum
