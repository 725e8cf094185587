// Models of images and texts against transformers and OpenCLIP (tools/golden/words_golden.py), and
// what becomes of directories that are not whole.
#include "vitrum/infer/zero_shot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "vitrum/core/files.h"
#include "vitrum/infer/text_encoder.h"
#include "vitrum/weights/convert.h"
#include "vitrum/weights/convert_floats.h"
#include "vitrum/weights/open_tensors.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

std::string golden(const std::string& name) {
  return VITRUM_SOURCE_DIR "/tests/golden/words/" + name;
}
std::vector<float> expected(const std::string& name) {
  static const auto file = open_tensors(golden("expected.safetensors"));
  const TensorInfo& t = file->at(name);
  return to_floats(file->bytes(t), t.dtype);
}
std::vector<std::string> labels() { return read_labels("@" + golden("labels.txt")); }

void expect_near(std::span<const float> a, std::span<const float> b, float limit) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], limit) << i;
}

class Words : public testing::TestWithParam<const char*> {
 protected:
  Words() { setenv("VITRUM_CACHE", (cache_ / "cache").c_str(), 1); }
  ~Words() override { unsetenv("VITRUM_CACHE"); }
  std::string dir() const { return golden(GetParam()); }
  std::vector<float> want(const char* what) const {
    return expected(std::string(GetParam()) + "." + what);
  }
  // (images, space)
  std::vector<float> image_vectors(Predictor& predictor) const {
    const std::vector<float> floats = want("pixels");
    const std::vector<uint8_t> pixels(floats.begin(), floats.end());
    std::vector<float> vectors(want("images").size());
    const bool head = predictor.classes() > 0;
    predictor.run(pixels, head ? std::span(vectors) : std::span<float>(),
                  head ? std::span<float>() : std::span(vectors));
    return vectors;
  }
  TempDir cache_;
};

TEST_P(Words, VectorsOfImagesAndTextsAreTransformers) {
  for (const char* device : {"cpu", "reference"}) {
    Predictor predictor(dir(), {.device = device, .precision = DType::kF32});
    expect_near(image_vectors(predictor), want("images"), 2e-6f);
    TextEncoder texts(dir(), predictor.device(), DType::kF32);
    expect_near(texts.encode(labels()), want("texts"), 2e-6f);
  }
}

TEST_P(Words, ProbabilitiesAreTransformersComputedOrCached) {
  Predictor predictor(dir(), {.device = "cpu", .precision = DType::kF32});
  const std::vector<float> vectors = image_vectors(predictor),
                           probabilities = want("probabilities");
  std::vector<std::vector<Prediction>> first;
  for (int turn = 0; turn < 2; ++turn) {
    const ZeroShot words(dir(), predictor, labels(), {});
    EXPECT_EQ(fs::exists(cache_ / "cache/texts"), true);
    const size_t space = vectors.size() / 2, classes = labels().size();
    for (size_t image = 0; image < 2; ++image) {
      const auto best = words.best(std::span(vectors).subspan(image * space, space), classes);
      ASSERT_EQ(best.size(), classes);
      for (const Prediction& p : best)
        EXPECT_NEAR(p.probability, probabilities[image * classes + static_cast<size_t>(p.index)],
                    2e-6f);
    }
  }
}

// What transformers and OpenCLIP are given computes what they computed.
TEST_P(Words, ConvertedDirectoriesComputeTheSame) {
  std::string model = dir();
  const bool siglip = std::string_view(GetParam()) == "siglip";
  int turn = 0;
  for (const char* to : {"hf", "original", "hf"}) {
    if (siglip && std::string_view(to) == "original") continue;  // no model of timm's
    SCOPED_TRACE(to);
    const std::string out = cache_ / ("converted" + std::to_string(turn++));
    convert_model(model, {}, out, to);
    Predictor predictor(out, {.device = "cpu", .precision = DType::kF32});
    expect_near(image_vectors(predictor), want("images"), 2e-6f);
    TextEncoder texts(out, predictor.device(), DType::kF32);
    expect_near(texts.encode(labels()), want("texts"), 2e-6f);
    model = out;
  }
}

// A text's numbers do not depend on how many are beside it.
TEST_P(Words, TextsAreComputedAlikeAloneAndTogether) {
  SharedDevice device(DeviceOptions{.device = "cpu", .threads = 2});
  TextEncoder encoder(dir(), device, DType::kF32);
  const std::vector<std::string> all = labels();
  const std::vector<float> together = encoder.encode(all);
  for (size_t i = 0; i < all.size(); ++i) {
    const std::vector<float> alone = encoder.encode(std::span(all).subspan(i, 1));
    const std::span row = std::span(together).subspan(i * alone.size(), alone.size());
    EXPECT_TRUE(std::ranges::equal(alone, row)) << all[i];
  }
}

TEST_P(Words, ADamagedCacheIsComputedAgain) {
  SharedDevice device(DeviceOptions{.device = "cpu"});
  const std::vector<float> once = text_vectors(dir(), device, DType::kF32, labels());
  for (const fs::directory_entry& file : fs::directory_iterator(cache_ / "cache/texts"))
    write_file_atomic(file.path().string(), "not an array");
  EXPECT_EQ(text_vectors(dir(), device, DType::kF32, labels()), once);
}

// A tokenizer that says other things of the same words has vectors of its own.
TEST_P(Words, AnotherTokenizerHasAnotherCache) {
  fs::copy(dir(), cache_ / "model");
  SharedDevice device(DeviceOptions{.device = "cpu"});
  const auto cached = [&] {
    text_vectors(cache_ / "model", device, DType::kF32, labels());
    return std::distance(fs::directory_iterator(cache_ / "cache/texts"), {});
  };
  EXPECT_EQ(cached(), 1);
  EXPECT_EQ(cached(), 1);
  const bool clip = std::string_view(GetParam()) != "siglip";
  const std::string file = cache_ / (clip ? "model/tokenizer.json" : "model/spiece.model");
  // A blank, or a field that nobody asks for.
  write_file_atomic(file, read_file(file) + (clip ? " " : std::string("\x9a\x06\0", 3)));
  EXPECT_EQ(cached(), 2);
}

// A label's vector is the mean of directions: a template whose vectors are long counts no more.
TEST_P(Words, TemplatesCountAlike) {
  Predictor predictor(dir(), {.device = "cpu", .precision = DType::kF32});
  const std::vector<std::string> templates = {"{}", "many photos of a {}, and of nothing else"};
  const ZeroShot words(dir(), predictor, {"a cat"}, templates);
  SharedDevice device(DeviceOptions{.device = "cpu"});
  const std::vector<std::string> texts = {"a cat", "many photos of a a cat, and of nothing else"};
  const std::vector<float> vectors = text_vectors(dir(), device, DType::kF32, texts);
  const size_t space = vectors.size() / 2;
  std::vector<double> sum(space);
  double squares = 0;
  for (size_t t = 0; t < 2; ++t) {
    double length = 0;
    for (size_t i = 0; i < space; ++i) length += std::pow(vectors[t * space + i], 2);
    for (size_t i = 0; i < space; ++i) sum[i] += vectors[t * space + i] / std::sqrt(length);
  }
  for (const double x : sum) squares += x * x;
  const TextSpec spec = resolve_text_tower(dir());
  for (size_t i = 0; i < space; ++i) {
    std::vector<float> axis(space);
    axis[i] = 1;
    EXPECT_NEAR(words.logits(axis).at(0), spec.scale * sum[i] / std::sqrt(squares) + spec.bias,
                1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, Words, testing::Values("clip", "siglip", "open_clip"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ZeroShot, ReadsLabels) {
  EXPECT_EQ(read_labels(" a cat, a dog ,"), (std::vector<std::string>{"a cat", "a dog"}));
  EXPECT_ERROR(read_labels(" , "), ErrorKind::kUsage, "expected labels");
  EXPECT_ERROR(read_labels("a,b,a"), ErrorKind::kUsage, "there twice");
  EXPECT_ERROR(read_labels("a\xFF"), ErrorKind::kUsage, "not UTF-8");
  EXPECT_ERROR(read_labels("@/nowhere/names.txt"), ErrorKind::kInput, "/nowhere/names.txt");
}

TEST(ZeroShot, RefusesWhatIsNotWhole) {
  const TempDir dir;
  const std::string model = dir / "model";
  const auto fresh = [&] {
    fs::remove_all(model);
    fs::copy(golden("clip"), model);
  };
  const auto change = [&](const std::string& from, const std::string& to) {
    fresh();
    std::string text = read_file(model + "/config.json");
    text.replace(text.find(from), from.size(), to);
    write_file_atomic(model + "/config.json", text);
  };
  SharedDevice device(DeviceOptions{.device = "cpu"});
  const auto open = [&] { TextEncoder(model, device, DType::kF32); };
  fresh();
  fs::remove(model + "/tokenizer.json");
  EXPECT_ERROR(open(), ErrorKind::kInput, "has no tokenizer");
  change("\"max_position_embeddings\": 12", "\"max_position_embeddings\": 13");
  EXPECT_ERROR(open(), ErrorKind::kInput,
               "position_embedding.weight is (12, 16), expected (13, 16)");
  change("\"max_position_embeddings\": 12", "\"max_position_embeddings\": 99999999");
  EXPECT_ERROR(open(), ErrorKind::kInput, "max_position_embeddings");
  change("\"model_type\": \"clip\"", "\"model_type\": \"vit\"");
  EXPECT_ERROR(open(), ErrorKind::kUsage, "has no words");
  fresh();
  const std::string vocabulary = read_file(model + "/tokenizer.json");
  const std::string word = "\"<|startoftext|>\":0";
  ASSERT_NE(vocabulary.find(word), vocabulary.npos);
  std::string larger = vocabulary;
  larger.replace(larger.find(word), word.size(), "\"<|startoftext|>\":70000");
  write_file_atomic(model + "/tokenizer.json", larger);
  EXPECT_ERROR(open(), ErrorKind::kInput, "numbers up to 70000");
}

}  // namespace
}  // namespace vitrum
