// `quantize`, and models of eight bits through other verbs, by the real binary.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/data_files.h"
#include "tests/support/process.h"
#include "tests/support/tiny_model.h"
#include "vitrum/core/files.h"
#include "vitrum/infer/model_program.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

using nlohmann::json;
using testing::HasSubstr;
namespace fs = std::filesystem;

class QuantizeCli : public testing::Test {
 protected:
  QuantizeCli() {
    test::write_tiny_model(dir_ / "model", test::tiny_rgb_model());
    for (int i = 0; i < 6; ++i)
      test::write_file(dir_ / fmt::format("photos/{}/{}.png", i % 2 ? "goldfish" : "pizza", i),
                       test::encode_png(test::gradient(3, 40 + 5 * i, 60 - 3 * i)));
  }
  test::Finished run(std::vector<std::string> arguments) {
    return test::run_vitrum(arguments, dir_ / "run");
  }
  test::TempDir dir_;
};

TEST_F(QuantizeCli, SaysWhatItCosts) {
  const test::Finished o =
      run({"quantize", dir_ / "model", dir_ / "small", "--data", "folder:" + (dir_ / "photos"),
           "--json", "-q", "--max-change", "100"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.err, "");
  const json j = json::parse(o.out);
  EXPECT_EQ(j["layers"].size(), 8u);
  EXPECT_EQ(j["images"], 6);
  EXPECT_GE(j["agreement"].get<double>(), 0.5);
  EXPECT_GT(j["logits_error"].get<double>(), 0);
  EXPECT_LT(j["bytes"].get<int64_t>(), j["bytes_before"].get<int64_t>() * 2 / 3);
  EXPECT_GT(j["speedup"].get<double>(), 0);
  EXPECT_EQ(j["speeds"].size(), 2u);
  // The model that was measured is the one that was written.
  const auto answers = [&](const std::string& model, const char* precision) {
    return run({"classify", dir_ / "photos", "--json", "--model", model, "--precision", precision})
        .out;
  };
  EXPECT_EQ(answers(dir_ / "small", "auto"), answers(dir_ / "model", "int8"));
  EXPECT_NE(answers(dir_ / "small", "auto"), answers(dir_ / "model", "f32"));
  const json e = json::parse(run({"eval", "--model", dir_ / "small", "--data",
                                  "folder:" + (dir_ / "photos"), "--json", "-q"})
                                 .out);
  EXPECT_DOUBLE_EQ(e["top1"].get<double>(), j["top1"].get<double>());
}

TEST_F(QuantizeCli, KeepsLayers) {
  const test::Finished o = run({"quantize", dir_ / "model", dir_ / "small", "--keep", "blocks.0.*",
                                "--keep", "*.fc2", "--json", "-q"});
  ASSERT_EQ(o.code, 0) << o.err;
  const json j = json::parse(o.out);
  ASSERT_EQ(j["layers"].size(), 3u);
  EXPECT_EQ(j["layers"][0]["name"], "blocks.1.attn.qkv");
  EXPECT_TRUE(j["agreement"].is_null()) << "without data";
}

TEST_F(QuantizeCli, RefusesWhatItShould) {
  const auto refused = [&](std::vector<std::string> more, int code, const std::string& part) {
    std::vector<std::string> arguments = {"quantize", dir_ / "model"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const test::Finished o = run(arguments);
    EXPECT_EQ(o.code, code) << o.err;
    EXPECT_THAT(o.err, HasSubstr(part));
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  };
  const std::string before = read_file(dir_ / "model/model.safetensors", 1 << 24);
  refused({dir_ / "model"}, 2, "which is read");
  refused({dir_ / "model/small"}, 2, "it lies in");
  refused({dir_ / "photos"}, 2, "--force");
  refused({dir_ / "small", "--keep", "block.*"}, 2, "no layer fits");
  refused({dir_ / "small", "--keep", "*"}, 2, "leaves no layer");
  refused({dir_ / "small", "--format", "int4"}, 2, "int8");
  refused({dir_ / "small", "--device", "cuda"}, 2, "CPUs");
  EXPECT_EQ(read_file(dir_ / "model/model.safetensors", 1 << 24), before);
  EXPECT_FALSE(fs::exists(dir_ / "small"));
}

// Weights that int8 cannot hold: in every row one that outweighs all others, and meets nothing but
// zeros. As floats the model does not notice.
void spoil(const std::string& path) {
  const SafetensorsFile file(path);
  std::vector<std::vector<float>> values;
  std::vector<NamedTensor> tensors;
  for (const TensorInfo& t : file.tensors()) {
    std::vector<float>& own = values.emplace_back(static_cast<size_t>(t.shape.numel()));
    file.copy_to(t, {own.data(), t.shape, DType::kF32});
    if (t.name.find("blocks.") == 0 && t.name.find(".norm") != t.name.npos) own[3] = 0;
    if (t.name.ends_with("qkv.weight") || t.name.ends_with("fc1.weight"))
      for (int64_t row = 0; row < t.shape[0]; ++row)
        own[static_cast<size_t>(row * t.shape[1] + 3)] = 1e6f;
    tensors.push_back({t.name, {own.data(), t.shape, DType::kF32}});
  }
  write_safetensors(path, tensors);
}

// More labels change than may: nothing is written, but with --force.
TEST_F(QuantizeCli, NotWorseThanAllowed) {
  spoil(dir_ / "model/model.safetensors");
  for (int i = 0; i < 40; ++i) {
    Image photo = test::gradient(3, 32, 32);
    for (size_t k = 0; k < photo.pixels.size(); ++k)
      photo.pixels[k] = static_cast<uint8_t>(photo.pixels[k] * (i + 3) + 37 * i * (k % 3));
    test::write_file(dir_ / fmt::format("photos/pizza/n{}.png", i), test::encode_png(photo));
  }
  std::vector<std::string> arguments = {
      "quantize", dir_ / "model", dir_ / "small", "--data", "folder:" + (dir_ / "photos"), "-q"};
  const test::Finished o = run(arguments);
  EXPECT_EQ(o.code, 1) << o.out << o.err;
  EXPECT_THAT(o.err,
              HasSubstr("of 46 images, more than --max-change 2 allows: nothing was written"));
  EXPECT_FALSE(fs::exists(dir_ / "small"));
  arguments.push_back("--force");
  EXPECT_EQ(run(arguments).code, 0);
  EXPECT_TRUE(fs::exists(dir_ / "small/model.safetensors"));
}

TEST_F(QuantizeCli, Export) {
  const test::Finished o = run({"export", "--model", dir_ / "model", "--output", dir_ / "m.onnx",
                                "--precision", "int8", "--json"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(read_file(dir_ / "m.onnx", 1 << 24), HasSubstr("MatMulInteger"));
  EXPECT_THAT(run({"export", "--model", dir_ / "model", "--output", dir_ / "f.onnx"}).err,
              HasSubstr("nodes"));
  EXPECT_THAT(read_file(dir_ / "f.onnx", 1 << 24), testing::Not(HasSubstr("MatMulInteger")));
}

// fp8 is for cards: a processor says what it costs, and computes with what the bytes stand for.
TEST_F(QuantizeCli, Fp8OnAProcessor) {
  ModelSpec spec = test::tiny_rgb_model();
  ViTConfig& config = *spec.config.as<ViTConfig>();
  config.width = 64, config.heads = 1, config.mlp_width = 128;
  test::write_tiny_model(dir_ / "wide", spec);
  const test::Finished o =
      run({"quantize", dir_ / "wide", dir_ / "fp8", "--format", "fp8", "--device", "cpu", "--data",
           "folder:" + (dir_ / "photos"), "--json", "-q", "--max-change", "100"});
  ASSERT_EQ(o.code, 0) << o.err;
  const json j = json::parse(o.out);
  EXPECT_EQ(j["format"], "fp8");
  EXPECT_EQ(j["layers"].size(), 5u);
  EXPECT_LT(j["logits_error"].get<double>(), 0.2);
  EXPECT_TRUE(j["speedup"].is_null());
  EXPECT_TRUE(j["speeds"].empty());
  const auto answers = [&](const std::string& model, const char* precision) {
    return run({"classify", dir_ / "photos", "--json", "--device", "cpu", "--model", model,
                "--precision", precision})
        .out;
  };
  EXPECT_EQ(answers(dir_ / "fp8", "fp8"), answers(dir_ / "wide", "fp8"));
  EXPECT_EQ(answers(dir_ / "fp8", "auto"), answers(dir_ / "fp8", "f32"));
  EXPECT_NE(answers(dir_ / "fp8", "auto"), answers(dir_ / "wide", "f32"));
  // Weights are floats to other frameworks' formats.
  EXPECT_EQ(run({"export", "--model", dir_ / "fp8", "--output", dir_ / "fp8.onnx"}).code, 0);
  const test::Finished onnx =
      run({"export", "--model", dir_ / "wide", "--output", dir_ / "no.onnx", "--precision", "fp8"});
  EXPECT_EQ(onnx.code, 2);
  EXPECT_THAT(onnx.err, HasSubstr("f32 or int8"));
  const test::Finished narrow =
      run({"quantize", dir_ / "model", dir_ / "no", "--format", "fp8", "--device", "cpu"});
  EXPECT_EQ(narrow.code, 2) << "48 wide";
  EXPECT_THAT(narrow.err, HasSubstr("no layers that fp8 could round"));
}

TEST_F(QuantizeCli, TakesNoOtherPrecision) {
  const test::Finished o =
      run({"quantize", dir_ / "model", dir_ / "small", "--precision", "bf16", "-q"});
  EXPECT_EQ(o.code, 2) << o.err;
  EXPECT_THAT(o.err, HasSubstr("leave --precision bf16 out"));
  EXPECT_FALSE(fs::exists(dir_ / "small"));
}

TEST_F(QuantizeCli, SaysWhereThereIsNothingToRound) {
  ModelSpec spec = test::tiny_rgb_model();
  spec.architecture = "resnet18_cifar";
  spec.config = ResNetConfig{.image_h = 32,
                             .image_w = 32,
                             .classes = 7,
                             .depths = {1, 1, 1, 1},
                             .width = 4,
                             .small_stem = true};
  Graph g(Mode::kInference);
  trace(g, spec, 1);
  const auto backend = make_backend({.device = "reference"});
  ParamStore store(g, *backend);
  store.initialize(7);
  const std::string model = dir_ / "resnet";
  save_model_dir(model, spec, store);
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"quantize", model, dir_ / "small"},
           {"export", "--model", model, "--output", dir_ / "m.onnx", "--precision", "int8"},
           {"classify", dir_ / "photos", "--model", model, "--precision", "int8"}}) {
    const test::Finished o = run(words);
    EXPECT_EQ(o.code, 2) << words[0] << o.err;
    EXPECT_THAT(o.err, HasSubstr("has no blocks with linear layers: int8 has nothing to round"))
        << words[0];
  }
}

TEST_F(QuantizeCli, TrainingRefusesIt) {
  const test::Finished o = run(
      {"train", "--model", "vit_mnist", "--data", "mnist:" + (dir_ / "no"), "--precision", "int8"});
  EXPECT_EQ(o.code, 2) << o.err;
  EXPECT_THAT(o.err, HasSubstr("int8"));
}

}  // namespace
}  // namespace vitrum
