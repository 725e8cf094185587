// Weights that somebody cuts short while they are loaded or in use: one line and exit code 3, never
// a signal, and a process that serves several models goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "tests/support/data_files.h"
#include "tests/support/measured.h"
#include "tests/support/process.h"
#include "tests/support/tiny_model.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/infer/predictor.h"
#include "vitrum/weights/convert.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using namespace test;

class ShrinkingWeights : public testing::Test {
 protected:
  ShrinkingWeights() {
    ModelSpec wide = tiny_rgb_model();
    ViTConfig& config = *wide.config.as<ViTConfig>();
    config.width = 96, config.mlp_width = 384, config.depth = 4;
    write_tiny_model(model_, wide);
    good_ = read_file(weights_);
  }
  void cut() const { fs::resize_file(weights_, good_.size() / 3); }
  void expect_lost(const Measured& result) const {
    EXPECT_EQ(result.code, static_cast<int>(ErrorKind::kInput)) << result.message;
    EXPECT_THAT(result.message, AllOf(HasSubstr(weights_), HasSubstr("shrank")));
  }

  TempDir dir_;
  std::string model_ = dir_ / "model", weights_ = model_ + "/model.safetensors", good_;
  Image photo_ = gradient(3, 40, 40);
};

TEST_F(ShrinkingWeights, EndAPredictionAndNotTheProcess) {
  write_tiny_model(dir_ / "other", tiny_rgb_model());
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    write_file_atomic(weights_, good_);
    expect_lost(measure([&] {
      Predictor other(dir_ / "other"), predictor(model_, {.precision = precision});
      predictor.features(photo_);
      cut();
      try {
        predictor.features(photo_);
        fail("no error");
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kInput) throw;
      }
      other.features(photo_);
      predictor.features(photo_);  // fails again
    }));
  }
}

TEST_F(ShrinkingWeights, WhilePredictionsRun) {
  for (int trial = 0; trial < 4; ++trial) {
    write_file_atomic(weights_, good_);
    expect_lost(measure([&] {
      Predictor predictor(model_, {.threads = 2});
      std::thread cutter([&] {
        usleep(static_cast<useconds_t>(500 + 1500 * trial));
        cut();
      });
      try {
        for (;;) predictor.features(photo_);
      } catch (...) {
        cutter.join();
        throw;
      }
    }));
  }
}

TEST_F(ShrinkingWeights, WhileTheyAreConverted) {
  for (const char* target : {"out.safetensors", "out.pth"})
    for (int trial = 0; trial < 3; ++trial) {
      write_file_atomic(weights_, good_);
      const std::string path = dir_ / target;
      const Measured result = measure([&] {
        std::thread cutter([&] {
          usleep(static_cast<useconds_t>(2000 * trial));
          cut();
        });
        cutter.detach();
        for (;;) {
          fs::remove(path);
          convert_model(model_, "", path, "timm");
        }
      });
      EXPECT_EQ(result.code, static_cast<int>(ErrorKind::kInput)) << result.message;
      EXPECT_THAT(result.message, HasSubstr(weights_));
      EXPECT_FALSE(fs::exists(path));
    }
}

TEST_F(ShrinkingWeights, WhileTheBinaryLoadsThem) {
  write_file(dir_ / "a.jpg", encode_jpeg(photo_));
  int refused = 0;
  for (int trial = 0; trial < 10; ++trial) {
    write_file_atomic(weights_, good_);
    Process child(vitrum_command({"classify", dir_ / "a.jpg", "--model", model_, "--quiet"}),
                  dir_ / "out", dir_ / "err");
    usleep(static_cast<useconds_t>(3000 * trial));
    cut();
    const int code = child.wait();
    const std::string err = read_file(dir_ / "err");
    EXPECT_TRUE(code == 0 || code == 3) << code << ": " << err;
    if (code != 3) continue;
    ++refused;
    EXPECT_THAT(err, HasSubstr(weights_));
    EXPECT_EQ(std::ranges::count(err, '\n'), 1) << err;
  }
  EXPECT_GT(refused, 0);  // the first are cut before they are opened
}

}  // namespace
}  // namespace vitrum
