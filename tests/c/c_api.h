// A tiny model behind the C interface, and a photo for it.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/data_files.h"
#include "tests/support/tiny_model.h"
#include "vitrum/vitrum.h"

namespace vitrum::test {

class CModel : public testing::Test {
 protected:
  static constexpr size_t kClasses = 7, kWidth = 48, kPixels = 3 * 32 * 32;

  CModel() {
    write_tiny_model(dir_ / "model", tiny_rgb_model());
    write_file(dir_ / "a.jpg", encode_jpeg(photo_));
    vitrum_load((dir_ / "model").c_str(), nullptr, &model_);
  }
  ~CModel() override { vitrum_free(model_); }

  static vitrum_input file(const std::string& path) {
    vitrum_input in = {};
    in.source = VITRUM_FROM_FILE, in.data = path.c_str();
    return in;
  }
  static vitrum_input bytes(const std::string& all) {
    vitrum_input in = {};
    in.source = VITRUM_FROM_BYTES, in.data = all.data(), in.bytes = all.size();
    return in;
  }
  vitrum_status predict(const std::vector<vitrum_input>& in, float* logits, float* features,
                        vitrum_status* each) {
    return vitrum_predict(model_, in.data(), sizeof in[0], in.size(), logits, features, each);
  }

  TempDir dir_;
  Image photo_ = gradient(3, 50, 70);
  std::string jpeg_ = dir_ / "a.jpg";
  vitrum_model* model_ = nullptr;
};

}  // namespace vitrum::test
