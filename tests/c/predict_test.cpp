// Batches through the C interface: every kind of input, and every way to ask for nonsense.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/c/c_api.h"
#include "vitrum/core/files.h"
#include "vitrum/infer/predictor.h"

namespace vitrum {
namespace {

using testing::HasSubstr;
using CPredict = test::CModel;

std::vector<uint8_t> preprocessed(const Predictor& predictor, const Image& image) {
  Preprocessor preprocessor(preprocess_of(predictor.model()));
  std::vector<uint8_t> pixels(preprocessor.bytes());
  preprocessor.apply(image, pixels);
  return pixels;
}

std::vector<uint8_t> interleaved(const Image& image) {
  std::vector<uint8_t> out;
  for (size_t i = 0; i < image.plane_size(); ++i)
    for (int c = 0; c < image.channels; ++c) out.push_back(image.plane(c)[i]);
  return out;
}

TEST_F(CPredict, TakesEveryKindOfInputInOneCall) {
  Predictor predictor(dir_ / "model");
  const Image decoded = read_image(jpeg_);
  const std::vector<uint8_t> pixels = interleaved(decoded),
                             planes = preprocessed(predictor, decoded);
  const std::string encoded = read_file(jpeg_);
  vitrum_input of_pixels = {}, of_planes = {};
  of_pixels.source = VITRUM_FROM_PIXELS, of_pixels.data = pixels.data();
  of_pixels.width = 70, of_pixels.height = 50, of_pixels.channels = 3;
  of_planes.source = VITRUM_FROM_PLANES, of_planes.data = planes.data();
  of_planes.bytes = planes.size();
  const std::vector<vitrum_input> in = {file(jpeg_), bytes(encoded), of_pixels, of_planes,
                                        file(jpeg_)};
  std::vector<float> logits(5 * kClasses), features(5 * kWidth);
  std::vector<vitrum_status> each(5, VITRUM_FAILED);
  ASSERT_EQ(predict(in, logits.data(), features.data(), each.data()), VITRUM_OK)
      << vitrum_last_error();
  EXPECT_THAT(each, testing::Each(VITRUM_OK));
  const std::vector<float> expected = predictor.features(jpeg_);
  int32_t best = -1;
  float probability = 0;
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), features.begin() + i * kWidth)) << i;
    EXPECT_EQ(vitrum_top(&logits[i * kClasses], kClasses, 1, &best, &probability), 1);
    EXPECT_EQ(best, predictor.classify(jpeg_, 1)[0].index);
    EXPECT_EQ(probability, predictor.classify(jpeg_, 1)[0].probability);
    EXPECT_STREQ(vitrum_input_error(model_, i), "");
  }
}

// The model divides by 255, subtracts mean and divides by std itself; floats are as if it had.
TEST_F(CPredict, TakesFloatsThatAreNormalised) {
  Predictor predictor(dir_ / "model");
  const std::vector<uint8_t> planes = preprocessed(predictor, read_image(jpeg_));
  std::vector<float> floats(planes.size());
  std::transform(planes.begin(), planes.end(), floats.begin(),
                 [](uint8_t x) { return (static_cast<float>(x) / 255 - 0.5f) / 0.5f; });
  vitrum_input in = {};
  in.source = VITRUM_FROM_FLOATS, in.data = floats.data(), in.bytes = sizeof(float) * floats.size();
  std::vector<float> features(kWidth);
  ASSERT_EQ(predict({in}, nullptr, features.data(), nullptr), VITRUM_OK) << vitrum_last_error();
  const std::vector<float> expected = predictor.features(jpeg_);
  for (size_t i = 0; i < kWidth; ++i) EXPECT_NEAR(features[i], expected[i], 1e-5);

  in.bytes -= 4;
  vitrum_status each = VITRUM_OK;
  EXPECT_EQ(predict({in}, nullptr, features.data(), &each), VITRUM_USAGE);
  EXPECT_THAT(vitrum_last_error(), HasSubstr("12288: (3, 32, 32)"));
  in.bytes = 0, floats[77] = NAN;
  EXPECT_EQ(predict({in}, nullptr, features.data(), &each), VITRUM_INPUT);
  EXPECT_EQ(each, VITRUM_INPUT);
  EXPECT_TRUE(std::isnan(features[0]));
}

TEST_F(CPredict, OneBadInputSpoilsItsOwnRowsOnly) {
  const std::string junk = "junk";
  vitrum_input unknown = file(jpeg_), empty = {};
  unknown.source = 99;
  const std::vector<vitrum_input> in = {file(jpeg_), bytes(junk), unknown, empty, file(jpeg_)};
  std::vector<float> logits(5 * kClasses, 0.f);
  std::vector<vitrum_status> each(5);
  EXPECT_EQ(predict(in, logits.data(), nullptr, each.data()), VITRUM_INPUT);
  EXPECT_THAT(each,
              testing::ElementsAre(VITRUM_OK, VITRUM_INPUT, VITRUM_USAGE, VITRUM_USAGE, VITRUM_OK));
  EXPECT_STREQ(vitrum_last_error(), vitrum_input_error(model_, 1));
  EXPECT_THAT(vitrum_input_error(model_, 1), HasSubstr("input 1"));
  EXPECT_THAT(vitrum_input_error(model_, 2), HasSubstr("source is 99"));
  EXPECT_THAT(vitrum_input_error(model_, 3), HasSubstr("data is NULL"));
  EXPECT_STREQ(vitrum_input_error(model_, 4), "");
  EXPECT_STREQ(vitrum_input_error(model_, SIZE_MAX), "");
  EXPECT_STREQ(vitrum_input_error(nullptr, 1), "");
  std::thread([&] { EXPECT_STREQ(vitrum_input_error(model_, 1), ""); }).join();
  EXPECT_TRUE(std::isnan(logits[kClasses]) && std::isnan(logits[4 * kClasses - 1]));
  for (size_t i = 0; i < kClasses; ++i) EXPECT_EQ(logits[i], logits[4 * kClasses + i]);
  // The next call of the thread forgets them.
  EXPECT_EQ(predict({file(jpeg_)}, nullptr, nullptr, nullptr), VITRUM_OK);
  EXPECT_STREQ(vitrum_input_error(model_, 1), "");
}

TEST_F(CPredict, RefusesWhatMakesNoSense) {
  const vitrum_input in = file(jpeg_);
  float out[kWidth];
  const auto refused = [](vitrum_status status, const char* why) {
    EXPECT_EQ(status, VITRUM_USAGE) << why;
    EXPECT_THAT(vitrum_last_error(), HasSubstr(why));
  };
  refused(vitrum_predict(nullptr, &in, sizeof in, 1, nullptr, out, nullptr), "model is NULL");
  refused(vitrum_predict(model_, nullptr, sizeof in, 1, nullptr, out, nullptr), "inputs is NULL");
  for (const size_t size : {size_t{0}, size_t{1}, sizeof in - 1, size_t{5000}, SIZE_MAX})
    refused(vitrum_predict(model_, &in, size, 1, nullptr, out, nullptr), "");
  for (const size_t count : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / sizeof in, SIZE_MAX / 8})
    refused(vitrum_predict(model_, &in, sizeof in, count, nullptr, out, nullptr), "count is");
  EXPECT_EQ(vitrum_predict(model_, nullptr, sizeof in, 0, nullptr, nullptr, nullptr), VITRUM_OK);
  EXPECT_EQ(vitrum_predict(model_, nullptr, 0, 0, nullptr, nullptr, nullptr), VITRUM_OK);

  int32_t index[3];
  const float logits[] = {1, 3, 2};
  EXPECT_EQ(vitrum_top(nullptr, 3, 1, index, nullptr), -1);
  EXPECT_EQ(vitrum_top(logits, -1, 1, index, nullptr), -1);
  EXPECT_EQ(vitrum_top(logits, 3, -1, index, nullptr), -1);
  EXPECT_EQ(vitrum_top(nullptr, 0, 5, nullptr, nullptr), 0);
  EXPECT_EQ(vitrum_top(logits, 3, 9, index, nullptr), 3);
  EXPECT_THAT(index, testing::ElementsAre(1, 2, 0));
}

// A newer caller's array has larger elements; zeros in what is not known here are its defaults.
TEST_F(CPredict, TakesInputsOfANewerHeader) {
  struct Newer {
    vitrum_input known;
    int64_t more[2];
  } in[2] = {{file(jpeg_), {0, 0}}, {file(jpeg_), {0, 0}}};
  float out[2 * kWidth];
  EXPECT_EQ(vitrum_predict(model_, &in[0].known, sizeof in[0], 2, nullptr, out, nullptr),
            VITRUM_OK);
  EXPECT_EQ(out[0], out[kWidth]);
  in[0].more[1] = 1;
  EXPECT_EQ(vitrum_predict(model_, &in[0].known, sizeof in[0], 2, nullptr, out, nullptr),
            VITRUM_USAGE);
  EXPECT_THAT(vitrum_last_error(), HasSubstr("does not know"));
}

TEST_F(CPredict, OptionsReachTheModel) {
  const auto loaded = [&](const vitrum_options& options) {
    vitrum_model* model = nullptr;
    EXPECT_EQ(vitrum_load((dir_ / "model").c_str(), &options, &model), VITRUM_OK)
        << vitrum_last_error();
    const nlohmann::json info = nlohmann::json::parse(vitrum_info(model));
    vitrum_free(model);
    return info;
  };
  vitrum_options options = VITRUM_OPTIONS_INIT;
  EXPECT_EQ(options.precision, VITRUM_AUTO);
  nlohmann::json info = loaded(options);
  EXPECT_EQ(info["classes"], 7);
  EXPECT_EQ(info["height"], 32);
  EXPECT_EQ(info["labels"][1], "goldfish");
  EXPECT_EQ(info["mean"][0], 0.5);
  EXPECT_EQ(info["path"], (dir_ / "model"));
  options.precision = VITRUM_BF16, options.threads = 1, options.device = "cpu";
  options.image_height = options.image_width = 64, options.max_batch = 3;
  info = loaded(options);
  EXPECT_EQ(info["precision"], "bf16");
  EXPECT_EQ(info["threads"], 1);
  EXPECT_EQ(info["width"], 64);
  EXPECT_EQ(info["max_batch"], 3);
  EXPECT_EQ(vitrum_info(nullptr), nullptr);
  // What a caller compiled before had: 40 bytes, the last four of them padding with anything in it.
  options = VITRUM_OPTIONS_INIT, options.size = 40, options.reserved = -1;
  EXPECT_EQ(loaded(options)["width"], 32);
}

TEST_F(CPredict, RefusesOptionsThatMakeNoSense) {
  const auto refused = [&](const auto& change, const char* why) {
    vitrum_options options = VITRUM_OPTIONS_INIT;
    change(options);
    vitrum_model* model = nullptr;
    EXPECT_EQ(vitrum_load((dir_ / "model").c_str(), &options, &model), VITRUM_USAGE) << why;
    EXPECT_THAT(vitrum_last_error(), HasSubstr(why));
    EXPECT_EQ(model, nullptr);
  };
  refused([](vitrum_options& o) { o.size = 0; }, "size of a vitrum_options is 0");
  refused([](vitrum_options& o) { o.size = SIZE_MAX; }, "size of a vitrum_options");
  refused([](vitrum_options& o) { o.image_height = 64; }, "give both or neither");
  refused([](vitrum_options& o) { o.image_height = o.image_width = -1; }, "image_height is -1");
  refused([](vitrum_options& o) { o.max_batch = -1; }, "max_batch is -1");
  refused([](vitrum_options& o) { o.max_batch = INT32_MAX; }, "max_batch is");
  refused([](vitrum_options& o) { o.max_pixels = -1; }, "max_pixels is -1");
  refused([](vitrum_options& o) { o.max_pixels = INT64_MAX; }, "max_pixels is");
  refused([](vitrum_options& o) { o.threads = INT32_MAX; }, "threads is");
  refused([](vitrum_options& o) { o.device = "abacus"; }, "unknown device");
}

TEST_F(CPredict, RefusesPhotosOfMorePixelsThanAskedFor) {
  vitrum_options options = VITRUM_OPTIONS_INIT;
  options.max_pixels = 50 * 70 - 1;
  vitrum_free(model_);
  ASSERT_EQ(vitrum_load((dir_ / "model").c_str(), &options, &model_), VITRUM_OK);
  const std::vector<uint8_t> pixels(50 * 70 * 3, 9);
  vitrum_input raw = {};
  raw.source = VITRUM_FROM_PIXELS, raw.data = pixels.data();
  raw.width = 70, raw.height = 50, raw.channels = 3;
  vitrum_status each[2];
  EXPECT_EQ(predict({file(jpeg_), raw}, nullptr, nullptr, each), VITRUM_INPUT);
  EXPECT_EQ(each[0], VITRUM_INPUT);
  EXPECT_EQ(each[1], VITRUM_USAGE);
}

TEST_F(CPredict, CallsThatOverlapHaveTheSameBits) {
  std::vector<float> expected(kClasses + kWidth);
  ASSERT_EQ(predict({file(jpeg_)}, expected.data(), &expected[kClasses], nullptr), VITRUM_OK);
  for (const int coalesce : {0, 1}) {
    vitrum_options options = VITRUM_OPTIONS_INIT;
    options.coalesce = coalesce;
    vitrum_model* shared = nullptr;
    ASSERT_EQ(vitrum_load((dir_ / "model").c_str(), &options, &shared), VITRUM_OK);
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        const std::vector<vitrum_input> in(t < 6 ? 1 : 3, file(jpeg_));
        std::vector<float> logits(3 * kClasses), features(3 * kWidth);
        for (int i = 0; i < 20; ++i) {
          wrong += vitrum_predict(shared, in.data(), sizeof in[0], in.size(), logits.data(),
                                  features.data(), nullptr) != VITRUM_OK;
          wrong += !std::equal(logits.begin(), logits.begin() + kClasses, expected.begin());
          wrong += !std::equal(features.begin(), features.begin() + kWidth, &expected[kClasses]);
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
    vitrum_free(shared);
  }
}

TEST_F(CPredict, RefusesToRunBehindAFork) {
  ASSERT_EQ(predict({file(jpeg_)}, nullptr, nullptr, nullptr), VITRUM_OK);
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = predict({file(jpeg_)}, nullptr, nullptr, nullptr) == VITRUM_USAGE &&
                         std::string(vitrum_last_error()).find("fork()") != std::string::npos;
    vitrum_free(model_);  // does not wait for threads that are not there
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace vitrum
