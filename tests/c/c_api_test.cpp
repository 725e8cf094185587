// The C interface, through the shared library; and the two examples, as their users run them.
#include "tests/c/c_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "tests/support/process.h"
#include "vitrum/core/files.h"
#include "vitrum/infer/predictor.h"
#include "vitrum/vitrum.h"

namespace vitrum {
namespace {

using testing::HasSubstr;

using CApi = test::CModel;

TEST_F(CApi, DoesWhatThePredictorDoes) {
  ASSERT_NE(model_, nullptr) << vitrum_last_error();
  EXPECT_EQ(vitrum_classes(model_), 7);
  EXPECT_EQ(vitrum_dimension(model_), 48);
  EXPECT_STREQ(vitrum_label(model_, 1), "goldfish");
  EXPECT_EQ(vitrum_label(model_, 7), nullptr);
  EXPECT_STRNE(vitrum_version(), "");

  Predictor predictor(dir_ / "model");
  const auto expected = predictor.classify(dir_ / "a.jpg", 3);
  const std::string bytes = read_file(dir_ / "a.jpg");
  for (const bool from_file : {true, false}) {
    vitrum_prediction best[3];
    size_t count = 0;
    const vitrum_status status =
        from_file ? vitrum_classify_file(model_, (dir_ / "a.jpg").c_str(), best, 3, &count)
                  : vitrum_classify_bytes(model_, bytes.data(), bytes.size(), best, 3, &count);
    ASSERT_EQ(status, VITRUM_OK) << vitrum_last_error();
    ASSERT_EQ(count, 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(best[i].index, expected[i].index);
      EXPECT_EQ(best[i].probability, expected[i].probability);
      EXPECT_EQ(best[i].label, expected[i].label);
    }
  }
  std::vector<float> from_file(48), from_bytes(48);
  EXPECT_EQ(vitrum_features_file(model_, (dir_ / "a.jpg").c_str(), from_file.data()), VITRUM_OK);
  EXPECT_EQ(vitrum_features_bytes(model_, bytes.data(), bytes.size(), from_bytes.data()),
            VITRUM_OK);
  EXPECT_EQ(from_file, predictor.features(dir_ / "a.jpg"));
  EXPECT_EQ(from_bytes, from_file);
}

TEST_F(CApi, TakesPixelsWithPaddingAndAlpha) {
  const std::vector<float> expected = Predictor(dir_ / "model").features(photo_);
  for (const int channels : {3, 4}) {
    const size_t stride = 70 * static_cast<size_t>(channels) + 5;
    std::vector<uint8_t> pixels(50 * stride, 99);
    for (size_t y = 0; y < 50; ++y)
      for (size_t x = 0; x < 70; ++x)
        for (size_t c = 0; c < 3; ++c)
          pixels[y * stride + x * static_cast<size_t>(channels) + c] =
              photo_.plane(static_cast<int>(c))[y * 70 + x];
    const vitrum_image image = {pixels.data(), 70, 50, channels, stride};
    std::vector<float> found(48);
    EXPECT_EQ(vitrum_features_image(model_, &image, found.data()), VITRUM_OK);
    EXPECT_EQ(found, expected);
  }
}

TEST_F(CApi, ReportsErrorsOfItsOwnThread) {
  vitrum_prediction best[1];
  size_t count = 0;
  EXPECT_EQ(vitrum_classify_file(model_, "no-such.jpg", best, 1, &count), VITRUM_INPUT);
  EXPECT_THAT(vitrum_last_error(), HasSubstr("no-such.jpg"));
  std::thread([] { EXPECT_STREQ(vitrum_last_error(), ""); }).join();
  EXPECT_EQ(vitrum_classify_bytes(model_, "junk", 4, best, 1, &count), VITRUM_INPUT);
  EXPECT_EQ(vitrum_classify_file(model_, nullptr, best, 1, &count), VITRUM_USAGE);
  EXPECT_EQ(vitrum_classify_file(nullptr, "a", best, 1, &count), VITRUM_USAGE);
  EXPECT_THAT(vitrum_last_error(), HasSubstr("model is NULL"));
  const vitrum_image thin = {reinterpret_cast<const uint8_t*>("x"), 10, 10, 3, 12};
  EXPECT_EQ(vitrum_classify_image(model_, &thin, best, 1, &count), VITRUM_USAGE);
  EXPECT_THAT(vitrum_last_error(), HasSubstr("stride"));

  vitrum_options options = VITRUM_OPTIONS_INIT;
  vitrum_model* none = model_;
  EXPECT_EQ(vitrum_load((dir_ / "nowhere").c_str(), &options, &none), VITRUM_INPUT);
  EXPECT_EQ(none, nullptr);
  options.precision = 7;
  EXPECT_EQ(vitrum_load((dir_ / "model").c_str(), &options, &none), VITRUM_USAGE);
}

TEST_F(CApi, RefusesEveryNullPointer) {
  const std::string path = dir_ / "a.jpg", bytes = read_file(path);
  const std::vector<uint8_t> pixels(12, 9);
  const vitrum_image image = {pixels.data(), 2, 2, 3, 0}, empty = {nullptr, 2, 2, 3, 0};
  vitrum_prediction best[1];
  size_t count = 0;
  std::vector<float> out(48);
  vitrum_model* none = nullptr;
  const auto refused = [](vitrum_status status, const char* name) {
    EXPECT_EQ(status, VITRUM_USAGE) << name;
    EXPECT_THAT(vitrum_last_error(), HasSubstr(std::string(name) + " is NULL"));
  };
  refused(vitrum_load(nullptr, nullptr, &none), "path");
  refused(vitrum_load("x", nullptr, nullptr), "model");
  vitrum_free(nullptr);
  EXPECT_EQ(vitrum_classes(nullptr), 0);
  EXPECT_EQ(vitrum_dimension(nullptr), 0);
  EXPECT_EQ(vitrum_label(nullptr, 0), nullptr);

  refused(vitrum_classify_file(nullptr, path.c_str(), best, 1, &count), "model");
  refused(vitrum_classify_file(model_, nullptr, best, 1, &count), "path");
  refused(vitrum_classify_file(model_, path.c_str(), nullptr, 1, &count), "predictions");
  refused(vitrum_classify_file(model_, path.c_str(), best, 1, nullptr), "count");
  EXPECT_EQ(vitrum_classify_file(model_, path.c_str(), nullptr, 0, &count), VITRUM_OK);

  refused(vitrum_classify_bytes(nullptr, bytes.data(), bytes.size(), best, 1, &count), "model");
  refused(vitrum_classify_bytes(model_, nullptr, bytes.size(), best, 1, &count), "data");
  refused(vitrum_classify_bytes(model_, bytes.data(), bytes.size(), nullptr, 1, &count),
          "predictions");
  refused(vitrum_classify_bytes(model_, bytes.data(), bytes.size(), best, 1, nullptr), "count");
  EXPECT_EQ(vitrum_classify_bytes(model_, nullptr, 0, best, 1, &count), VITRUM_INPUT);

  refused(vitrum_classify_image(nullptr, &image, best, 1, &count), "model");
  refused(vitrum_classify_image(model_, nullptr, best, 1, &count), "image");
  refused(vitrum_classify_image(model_, &empty, best, 1, &count), "image->pixels");
  refused(vitrum_classify_image(model_, &image, nullptr, 1, &count), "predictions");
  refused(vitrum_classify_image(model_, &image, best, 1, nullptr), "count");

  refused(vitrum_features_file(nullptr, path.c_str(), out.data()), "model");
  refused(vitrum_features_file(model_, nullptr, out.data()), "path");
  refused(vitrum_features_file(model_, path.c_str(), nullptr), "features");
  refused(vitrum_features_bytes(nullptr, bytes.data(), bytes.size(), out.data()), "model");
  refused(vitrum_features_bytes(model_, nullptr, bytes.size(), out.data()), "data");
  refused(vitrum_features_bytes(model_, bytes.data(), bytes.size(), nullptr), "features");
  refused(vitrum_features_image(nullptr, &image, out.data()), "model");
  refused(vitrum_features_image(model_, nullptr, out.data()), "image");
  refused(vitrum_features_image(model_, &empty, out.data()), "image->pixels");
  refused(vitrum_features_image(model_, &image, nullptr), "features");
}

// The last row of such an image would begin before the first, or nowhere.
TEST_F(CApi, RefusesStridesThatLeaveMemory) {
  const std::vector<uint8_t> pixels(1 << 16, 9);
  std::vector<float> out(48);
  for (const size_t stride : {SIZE_MAX, SIZE_MAX - 5, SIZE_MAX / 2, SIZE_MAX / 49, SIZE_MAX / 98}) {
    const vitrum_image image = {pixels.data() + 3000, 10, 50, 3, stride};
    EXPECT_EQ(vitrum_features_image(model_, &image, out.data()), VITRUM_USAGE) << stride;
    EXPECT_THAT(vitrum_last_error(), HasSubstr("stride"));
  }
  const vitrum_image one_row = {pixels.data(), 10, 1, 3, SIZE_MAX / 2};  // no second row to reach
  EXPECT_EQ(vitrum_features_image(model_, &one_row, out.data()), VITRUM_OK) << vitrum_last_error();
}

TEST_F(CApi, ErrorsAreOnePrintableLine) {
  std::vector<float> out(48);
  const std::string name = "no\nsuch\033[2J\r" + std::string(100'000, 'x') + ".jpg";
  EXPECT_EQ(vitrum_features_file(model_, name.c_str(), out.data()), VITRUM_INPUT);
  const std::string error = vitrum_last_error();
  EXPECT_TRUE(std::ranges::none_of(error, [](unsigned char c) { return c < ' ' || c == 127; }));
  EXPECT_LT(error.size(), 5000u);
}

// A file that is cut short ends the call in an error, and the process goes on.
TEST_F(CApi, OutlivesWeightsThatShrink) {
  struct sigaction before {
  }, after{};
  vitrum_free(std::exchange(model_, nullptr));
  sigaction(SIGBUS, nullptr, &before);
  test::write_tiny_model(dir_ / "other", test::tiny_rgb_model());
  vitrum_model* other = nullptr;
  ASSERT_EQ(vitrum_load((dir_ / "other").c_str(), nullptr, &other), VITRUM_OK);
  ASSERT_EQ(vitrum_load((dir_ / "model").c_str(), nullptr, &model_), VITRUM_OK);
  std::vector<float> out(48);
  const std::string photo = dir_ / "a.jpg";
  ASSERT_EQ(vitrum_features_file(model_, photo.c_str(), out.data()), VITRUM_OK);
  std::filesystem::resize_file(dir_ / "model/model.safetensors", 5000);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(vitrum_features_file(model_, photo.c_str(), out.data()), VITRUM_INPUT);
    EXPECT_THAT(vitrum_last_error(), HasSubstr("model/model.safetensors' shrank"));
  }
  EXPECT_EQ(vitrum_features_file(other, photo.c_str(), out.data()), VITRUM_OK);
  vitrum_free(other), vitrum_free(std::exchange(model_, nullptr));
  sigaction(SIGBUS, nullptr, &after);
  EXPECT_EQ(after.sa_sigaction, before.sa_sigaction);
}

TEST_F(CApi, BytesMayNotBeNull) {
  size_t count = 0;
  vitrum_prediction best[1];
  EXPECT_NE(vitrum_classify_bytes(model_, nullptr, 10, best, 1, &count), VITRUM_OK);
  EXPECT_THAT(vitrum_last_error(), HasSubstr("data is NULL"));
}

// An older caller's struct is shorter; what it lacks has its default.
TEST_F(CApi, AcceptsOlderOptions) {
  vitrum_options options = VITRUM_OPTIONS_INIT;
  options.size = offsetof(vitrum_options, threads);
  options.threads = -1;
  vitrum_model* model = nullptr;
  EXPECT_EQ(vitrum_load((dir_ / "model").c_str(), &options, &model), VITRUM_OK);
  vitrum_free(model);
}

TEST_F(CApi, ServesSeveralThreadsAtOnce) {
  std::vector<float> expected(48);
  ASSERT_EQ(vitrum_features_file(model_, (dir_ / "a.jpg").c_str(), expected.data()), VITRUM_OK);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      std::vector<float> found(48);
      for (int i = 0; i < 20; ++i) {
        wrong += vitrum_features_file(model_, (dir_ / "a.jpg").c_str(), found.data()) != VITRUM_OK;
        wrong += found != expected;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(CApi, ExamplesRun) {
  const auto run = [&](const std::string& program, const std::string& image) {
    const std::vector<std::string> command = {VITRUM_EXAMPLES "/" + program, dir_ / "model", image};
    const int code = test::Process(command, dir_ / "out", dir_ / "err").wait();
    return test::Finished{code, read_file(dir_ / "out"), read_file(dir_ / "err")};
  };
  const test::Finished cpp = run("example_classify", dir_ / "a.jpg"),
                       c = run("example_classify_c", dir_ / "a.jpg");
  EXPECT_EQ(cpp.code, 0) << cpp.err;
  EXPECT_EQ(c.code, 0) << c.err;
  EXPECT_EQ(c.out, cpp.out);
  EXPECT_EQ(std::count(c.out.begin(), c.out.end(), '\n'), 4);
  const test::Finished bad = run("example_classify_c", "nope.jpg");
  EXPECT_EQ(bad.code, 3);
  EXPECT_THAT(bad.err, HasSubstr("nope.jpg"));
}

}  // namespace
}  // namespace vitrum
