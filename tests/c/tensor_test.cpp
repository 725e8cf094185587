// Tensors with DLPack's layout through the C interface.
#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <cstring>

#include "tests/c/c_api.h"

namespace vitrum {
namespace {

using testing::HasSubstr;

class CTensor : public test::CModel {
 protected:
  // Row by row; the shape is kept.
  vitrum_tensor tensor(void* data, std::vector<int64_t> shape, bool floats) {
    vitrum_tensor t = VITRUM_TENSOR_INIT;
    t.data = data, t.ndim = static_cast<int32_t>(shape.size());
    if (!floats) t.type_code = 1, t.type_bits = 8;
    t.shape = shapes_.emplace_back(std::move(shape)).data();
    return t;
  }
  vitrum_tensor images(std::vector<float>& values) {
    return tensor(values.data(), {static_cast<int64_t>(values.size() / kPixels), 3, 32, 32}, true);
  }
  void refused(vitrum_tensor in, vitrum_tensor out, const char* why) {
    EXPECT_EQ(vitrum_predict_tensor(model_, &in, nullptr, &out), VITRUM_USAGE) << why;
    EXPECT_THAT(vitrum_last_error(), HasSubstr(why));
  }

  static std::vector<float> ramp(size_t n) {
    std::vector<float> values(n);
    for (size_t i = 0; i < n; ++i) values[i] = std::sin(static_cast<float>(i) * 0.01f);
    return values;
  }

  std::vector<std::vector<int64_t>> shapes_ = [] {
    std::vector<std::vector<int64_t>> s;
    s.reserve(100);
    return s;
  }();
};

// The members from `data` to `byte_offset` are those of dlpack.h 1.0.
TEST_F(CTensor, HasTheLayoutOfDlpack) {
  struct DLTensor {
    void* data;
    struct {
      int32_t type, id;
    } device;
    int32_t ndim;
    struct {
      uint8_t code, bits;
      uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
  };
  constexpr size_t kBase = offsetof(vitrum_tensor, data);
  EXPECT_EQ(offsetof(vitrum_tensor, device_type) - kBase, offsetof(DLTensor, device));
  EXPECT_EQ(offsetof(vitrum_tensor, ndim) - kBase, offsetof(DLTensor, ndim));
  EXPECT_EQ(offsetof(vitrum_tensor, type_code) - kBase, offsetof(DLTensor, dtype));
  EXPECT_EQ(offsetof(vitrum_tensor, shape) - kBase, offsetof(DLTensor, shape));
  EXPECT_EQ(offsetof(vitrum_tensor, strides) - kBase, offsetof(DLTensor, strides));
  EXPECT_EQ(offsetof(vitrum_tensor, byte_offset) - kBase, offsetof(DLTensor, byte_offset));
  EXPECT_EQ(offsetof(vitrum_tensor, stream) - kBase, sizeof(DLTensor));
}

TEST_F(CTensor, AnswersAsForSingleImages) {
  constexpr size_t kCount = 5;
  std::vector<float> values = ramp(kCount * kPixels), logits(kCount * kClasses),
                     features(kCount * kWidth);
  vitrum_tensor in = images(values), to_logits = tensor(logits.data(), {5, 7}, true),
                to_features = tensor(features.data(), {5, 48}, true);
  ASSERT_EQ(vitrum_predict_tensor(model_, &in, &to_logits, &to_features), VITRUM_OK)
      << vitrum_last_error();
  for (size_t i = 0; i < kCount; ++i) {
    vitrum_input one = {};
    one.source = VITRUM_FROM_FLOATS, one.data = &values[i * kPixels];
    std::vector<float> row(kClasses), wide(kWidth);
    ASSERT_EQ(predict({one}, row.data(), wide.data(), nullptr), VITRUM_OK);
    EXPECT_TRUE(std::equal(row.begin(), row.end(), logits.begin() + i * kClasses)) << i;
    EXPECT_TRUE(std::equal(wide.begin(), wide.end(), features.begin() + i * kWidth)) << i;
  }
  std::vector<float> again(kWidth);
  in = images(values), in.byte_offset = 4 * kPixels * sizeof(float);
  shapes_.back()[0] = 1;
  to_features = tensor(again.data(), {1, 48}, true);
  ASSERT_EQ(vitrum_predict_tensor(model_, &in, nullptr, &to_features), VITRUM_OK);
  EXPECT_TRUE(std::equal(again.begin(), again.end(), features.begin() + 4 * kWidth));
}

TEST_F(CTensor, TakesStridesOfEveryKind) {
  std::vector<uint8_t> planes(2 * kPixels), channels_last(2 * kPixels);
  for (size_t i = 0; i < planes.size(); ++i) planes[i] = static_cast<uint8_t>(i * 7 + i / 100);
  for (size_t n = 0; n < 2; ++n)
    for (size_t c = 0; c < 3; ++c)
      for (size_t i = 0; i < 1024; ++i)
        channels_last[n * kPixels + i * 3 + c] = planes[n * kPixels + c * 1024 + i];
  std::vector<float> expected(2 * kWidth), found(2 * kWidth);
  vitrum_tensor in = tensor(planes.data(), {2, 3, 32, 32}, false),
                out = tensor(expected.data(), {2, 48}, true);
  ASSERT_EQ(vitrum_predict_tensor(model_, &in, nullptr, &out), VITRUM_OK) << vitrum_last_error();
  const std::array<int64_t, 4> strides = {3072, 1, 96, 3};
  in.data = channels_last.data(), in.strides = strides.data(), out.data = found.data();
  ASSERT_EQ(vitrum_predict_tensor(model_, &in, nullptr, &out), VITRUM_OK) << vitrum_last_error();
  EXPECT_EQ(found, expected);
  // One row for all: a stride of zero.
  const std::array<int64_t, 4> repeated = {0, 1024, 32, 1};
  in.data = planes.data(), in.strides = repeated.data();
  ASSERT_EQ(vitrum_predict_tensor(model_, &in, nullptr, &out), VITRUM_OK);
  EXPECT_TRUE(std::equal(found.begin(), found.begin() + kWidth, found.begin() + kWidth));
}

TEST_F(CTensor, RefusesWhatMakesNoSense) {
  std::vector<float> values = ramp(2 * kPixels), out(2 * kWidth);
  const vitrum_tensor in = images(values), to = tensor(out.data(), {2, 48}, true);
  const auto with = [](vitrum_tensor t, const auto& change) {
    change(t);
    return t;
  };
  vitrum_tensor a = in, b = to;
  EXPECT_EQ(vitrum_predict_tensor(nullptr, &a, nullptr, &b), VITRUM_USAGE);
  EXPECT_EQ(vitrum_predict_tensor(model_, nullptr, nullptr, &b), VITRUM_USAGE);
  EXPECT_EQ(vitrum_predict_tensor(model_, &a, nullptr, nullptr), VITRUM_OK);
  refused(with(in, [](auto& t) { t.size = 0; }), to, "size of a vitrum_tensor");
  refused(with(in, [](auto& t) { t.size = SIZE_MAX; }), to, "size of a vitrum_tensor");
  refused(with(in, [](auto& t) { t.data = nullptr; }), to, "images: data is NULL");
  refused(with(in, [](auto& t) { t.shape = nullptr; }), to, "images: shape is NULL");
  refused(with(in, [](auto& t) { t.ndim = 0; }), to, "ndim is 0");
  refused(with(in, [](auto& t) { t.ndim = INT32_MAX; }), to, "ndim is");
  refused(with(in, [](auto& t) { t.ndim = 3; }), to, "expected (2, 3, 32, 32)");
  refused(with(in, [](auto& t) { t.type_bits = 16; }), to, "float16; expected float32");
  refused(with(in, [](auto& t) { t.type_code = 200; }), to, "expected float32");
  refused(with(in, [](auto& t) { t.type_lanes = 4; }), to, "float32x4");
  refused(with(in, [](auto& t) { t.device_type = 7; }), to, "device_type is 7");
  refused(with(in, [](auto& t) { t.device_type = 2; }), to, "the model runs on cpu");
  refused(in, with(to, [](auto& t) { t.device_type = 2; }), "the model runs on cpu");
  refused(in, with(to, [](auto& t) { t.type_code = 1, t.type_bits = 8; }),
          "features of type uint8");
  refused(in, with(to, [](auto& t) { t.data = nullptr; }), "features: data is NULL");
  refused(in, tensor(out.data(), {2, 47}, true), "features of shape (2, 47); expected (2, 48)");
  refused(in, tensor(out.data(), {1, 48}, true), "expected (2, 48)");
  refused(tensor(values.data(), {-1, 3, 32, 32}, true), to, "expected 0 to");
  refused(tensor(values.data(), {INT64_MAX, 3, 32, 32}, true), to, "expected 0 to");
  const std::array<int64_t, 4> back = {3072, 1024, -32, 1}, far = {INT64_MAX, 1024, 32, 1};
  refused(with(in, [&](auto& t) { t.strides = back.data(); }), to, "a stride of -32");
  refused(with(in, [&](auto& t) { t.strides = far.data(); }), to, "strides that leave memory");
  refused(with(in, [](auto& t) { t.byte_offset = UINT64_MAX - 3; }), to, "leaves memory");
  const std::array<int64_t, 2> wide = {96, 2};
  refused(in, with(to, [&](auto& t) { t.strides = wide.data(); }), "features: strides");

  a = tensor(nullptr, {0, 3, 32, 32}, true), b = tensor(nullptr, {0, 48}, true);
  EXPECT_EQ(vitrum_predict_tensor(model_, &a, nullptr, &b), VITRUM_OK) << vitrum_last_error();
  values[5] = INFINITY;
  a = in, b = to;
  EXPECT_EQ(vitrum_predict_tensor(model_, &a, nullptr, &b), VITRUM_INPUT);
}

}  // namespace
}  // namespace vitrum
