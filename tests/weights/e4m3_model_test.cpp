// Models of fp8: what is written, how it is read back, and how near it comes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "tests/support/data_files.h"
#include "tests/support/expect_error.h"
#include "tests/support/tiny_logits.h"
#include "tests/support/tiny_model.h"
#include "vitrum/core/e4m3.h"
#include "vitrum/core/files.h"
#include "vitrum/infer/model_program.h"
#include "vitrum/infer/predictor.h"
#include "vitrum/weights/convert.h"
#include "vitrum/weights/convert_floats.h"
#include "vitrum/weights/open_tensors.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

using test::TempDir;

ModelSpec wide_model() {
  ModelSpec spec = test::tiny_rgb_model();
  ViTConfig& config = *spec.config.as<ViTConfig>();
  config.width = 64, config.heads = 1, config.mlp_width = 128;
  return spec;
}

bool is_rounded(const std::string& layer) {
  static const std::vector<std::string> layers = e4m3_layers(wide_model(), "wide");
  return std::ranges::find(layers, layer) != layers.end();
}

class Fp8Model : public testing::Test {
 protected:
  Fp8Model() {
    test::write_tiny_model(dir_ / "model", wide_model());
    convert_model(dir_ / "model", {}, dir_ / "fp8", "timm", is_rounded,
                  {.eight_bits = DType::kE4M3});
  }
  static std::vector<float> logits(const std::string& model, const PredictorOptions& options = {}) {
    return test::tiny_logits(model, options);
  }
  static double difference(const std::vector<float>& a, const std::vector<float>& b) {
    double squares = 0, off = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const double x = a[i], d = x - static_cast<double>(b[i]);
      squares += x * x, off += d * d;
    }
    return std::sqrt(off / squares);
  }
  TempDir dir_;
};

TEST_F(Fp8Model, ItsFileHasAQuarterOfTheWeights) {
  const SafetensorsFile before(dir_ / "model/model.safetensors"),
      raw(dir_ / "fp8/model.safetensors");
  const auto after = open_tensors(dir_ / "fp8/model.safetensors");
  EXPECT_EQ(after->tensors().size(), before.tensors().size());
  int rounded = 0;
  for (const TensorInfo& t : before.tensors()) {
    const std::vector<float> x = read_floats(before, t), y = read_floats(*after, after->at(t.name));
    if (raw.at(t.name).dtype == DType::kF32) {
      EXPECT_EQ(x, y) << t.name;
      continue;
    }
    ++rounded;
    EXPECT_EQ(raw.at(t.name).dtype, DType::kE4M3);
    EXPECT_EQ(raw.at(t.name + "_scale").shape, (Shape{t.shape[0], 1}));
    const std::vector<float> scales = read_floats(raw, raw.at(t.name + "_scale"));
    const size_t width = x.size() / scales.size();
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_LE(std::abs(x[i] - y[i]), std::abs(x[i]) / 15.9f + scales[i / width] * 0x1p-10f)
          << t.name;
  }
  EXPECT_EQ(rounded, 5) << "of eight: three see only the class token";
  const std::string config = read_file(dir_ / "fp8/config.json", 1 << 20);
  EXPECT_NE(config.find("\"float-quantized\""), config.npos);
  EXPECT_NE(config.find("\"type\": \"float\""), config.npos);
}

// On load or from its own file: the same bits, and near to what it was.
TEST_F(Fp8Model, TheSameBitsHoweverItCame) {
  const PredictorOptions fp8{.precision = DType::kE4M3};
  const std::vector<float> plain = logits(dir_ / "model"), on_load = logits(dir_ / "model", fp8);
  EXPECT_EQ(logits(dir_ / "fp8", fp8), on_load);
  EXPECT_NE(on_load, plain);
  EXPECT_LT(difference(plain, on_load), 0.12);
  convert_model(dir_ / "fp8", {}, dir_ / "back", "timm");
  EXPECT_EQ(logits(dir_ / "back", fp8), on_load) << "written once more as floats";
  convert_model(dir_ / "model", {}, dir_ / "hf", "hf", is_rounded, {.eight_bits = DType::kE4M3});
  convert_model(dir_ / "model", {}, dir_ / "plain-hf", "hf");  // crops as transformers does
  EXPECT_EQ(logits(dir_ / "hf", fp8), logits(dir_ / "plain-hf", fp8));
}

// A processor has no products of e4m3: unless it is asked to, it takes the numbers as they are.
TEST_F(Fp8Model, ProcessorsComputeWithTheNumbersItStandsFor) {
  Predictor predictor(dir_ / "fp8", {.device = "cpu"});
  EXPECT_EQ(predictor.precision(), DType::kF32);
  EXPECT_EQ(quantized_layers(dir_ / "fp8", predictor.model(), DType::kE4M3).size(), 5u);
  EXPECT_EQ(quantized_layers(dir_ / "fp8", predictor.model(), DType::kI8).size(), 0u);
  convert_model(dir_ / "fp8", {}, dir_ / "back", "timm");
  EXPECT_EQ(logits(dir_ / "fp8"), logits(dir_ / "back", {.precision = DType::kF32}));
  // int8 of it is rounded once more, from these numbers.
  EXPECT_EQ(logits(dir_ / "fp8", {.precision = DType::kI8}),
            logits(dir_ / "back", {.precision = DType::kI8}));
}

TEST_F(Fp8Model, AgreesWithTheReference) {
  const std::vector<float> cpu = logits(dir_ / "fp8", {.precision = DType::kE4M3}),
                           reference = logits(dir_ / "fp8",
                                              {.device = "reference", .precision = DType::kE4M3});
  // A number that is rounded the other way makes others be, too.
  EXPECT_LT(difference(reference, cpu), 0.05);
}

TEST_F(Fp8Model, LayersThatAreKeptStayFloats) {
  const auto some = [](const std::string& layer) {
    return is_rounded(layer) && layer != "blocks.0.mlp.fc2";
  };
  convert_model(dir_ / "model", {}, dir_ / "some", "timm", some, {.eight_bits = DType::kE4M3});
  const PredictorOptions fp8{.precision = DType::kE4M3},
      keeps{.precision = DType::kE4M3,
            .keeps_float = [](const std::string&layer) { return layer == "blocks.0.mlp.fc2"; }};
  EXPECT_EQ(logits(dir_ / "some", fp8), logits(dir_ / "model", keeps));
  EXPECT_NE(logits(dir_ / "some", fp8), logits(dir_ / "model", fp8));
}

// Queries in eight bits, keys in floats: such a layer is computed in floats.
TEST_F(Fp8Model, PartsOfALayerMayBeFloats) {
  for (const DType bits : {DType::kE4M3, DType::kI8}) {
    const std::string whole = dir_ / std::string(name_of(bits)), mixed = whole + "-mixed";
    convert_model(dir_ / "model", {}, whole, "hf", is_rounded, {.eight_bits = bits});
    convert_model(dir_ / "model", {}, mixed, "hf", is_rounded, {.eight_bits = bits});
    const SafetensorsFile raw(whole + "/model.safetensors");
    const auto numbers = open_tensors(whole + "/model.safetensors");
    std::deque<std::vector<float>> floats;
    std::vector<NamedTensor> tensors;
    for (const TensorInfo& t : raw.tensors()) {
      if (t.name.ends_with("key.weight_scale")) continue;
      if (t.name.ends_with("key.weight")) {
        floats.push_back(read_floats(*numbers, numbers->at(t.name)));
        tensors.push_back({t.name, {floats.back().data(), t.shape, DType::kF32}});
        continue;
      }
      tensors.push_back({t.name, {const_cast<std::byte*>(raw.bytes(t).data()), t.shape, t.dtype}});
    }
    ASSERT_EQ(floats.size(), 2u);
    write_safetensors(mixed + "/model.safetensors", tensors);
    Predictor predictor(mixed, {.device = "cpu"});
    EXPECT_EQ(quantized_layers(mixed, predictor.model(), bits).size(), 3u);
    EXPECT_LT(
        difference(logits(whole, {.precision = DType::kF32}), logits(mixed, {.precision = bits})),
        0.15);
  }
}

TEST_F(Fp8Model, ModelsWithoutSuchLayersAreRefused) {
  test::write_tiny_model(dir_ / "narrow", test::tiny_rgb_model());  // 48 wide
  EXPECT_ERROR(logits(dir_ / "narrow", {.precision = DType::kE4M3}), ErrorKind::kUsage,
               "no layers that fp8 could round");
}

}  // namespace
}  // namespace vitrum
