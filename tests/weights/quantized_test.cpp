// Models in eight bits: what is written, how it is read back, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/support/data_files.h"
#include "tests/support/expect_error.h"
#include "tests/support/tiny_logits.h"
#include "tests/support/tiny_model.h"
#include "vitrum/core/e4m3.h"
#include "vitrum/core/eight_bits.h"
#include "vitrum/graph/functional.h"
#include "vitrum/graph/passes.h"
#include "vitrum/infer/predictor.h"
#include "vitrum/weights/convert.h"
#include "vitrum/weights/convert_floats.h"
#include "vitrum/weights/open_tensors.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

using test::TempDir;

bool in_block_layer(const std::string& layer) {
  return layer.starts_with("blocks.") && layer.find("norm") == layer.npos;
}

class Quantized : public testing::Test {
 protected:
  Quantized() { test::write_tiny_model(dir_ / "model", test::tiny_rgb_model()); }

  static std::vector<float> logits(const std::string& model, const PredictorOptions& options = {}) {
    return test::tiny_logits(model, options);
  }
  static float value(const TensorSource& file, const std::string& name, size_t i) {
    return read_floats(file, file.at(name))[i];
  }

  TempDir dir_;
};

TEST_F(Quantized, AQuarterOfTheWeightsAndWithinHalfAStep) {
  const Converted done = convert_model(dir_ / "model", {}, dir_ / "int8", "timm", in_block_layer);
  ASSERT_EQ(done.layers.size(), 8u);
  const SafetensorsFile before(dir_ / "model/model.safetensors"),
      raw(dir_ / "int8/model.safetensors");
  const auto after = open_tensors(dir_ / "int8/model.safetensors");
  EXPECT_EQ(after->tensors().size(), before.tensors().size());
  for (const TensorInfo& t : before.tensors()) {
    const std::vector<float> x = read_floats(before, t), y = read_floats(*after, after->at(t.name));
    if (raw.at(t.name).dtype == DType::kF32) {
      EXPECT_EQ(x, y) << t.name;
      continue;
    }
    EXPECT_EQ(raw.at(t.name).dtype, DType::kI8);
    const std::vector<float> scales = read_floats(raw, raw.at(t.name + "_scale"));
    EXPECT_EQ(raw.at(t.name + "_scale").shape, (Shape{t.shape[0], 1}));
    const size_t width = x.size() / scales.size();
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_LE(std::abs(x[i] - y[i]), 0.5001f * scales[i / width]) << t.name;
  }
  for (const QuantizedLayer& layer : done.layers) {
    EXPECT_GT(layer.error, 1e-4);
    EXPECT_LT(layer.error, 0.02);
  }
}

// On load or from its own files, in either layout, on every unit: the same bits.
TEST_F(Quantized, TheSameBitsHoweverItCame) {
  const std::vector<float> on_load = logits(dir_ / "model", {.precision = DType::kI8});
  EXPECT_NE(on_load, logits(dir_ / "model", {.precision = DType::kF32}));
  for (const char* dialect : {"timm", "hf"}) {
    convert_model(dir_ / "model", {}, dir_ / dialect, dialect, in_block_layer);
    Predictor predictor(dir_ / dialect, {.device = "cpu"});
    EXPECT_EQ(predictor.precision(), DType::kI8) << "by itself";
    EXPECT_EQ(quantized_layers(dir_ / dialect, predictor.model()).size(), 8u);
  }
  EXPECT_EQ(logits(dir_ / "timm"), on_load);
  convert_model(dir_ / "model", {}, dir_ / "plain-hf", "hf");  // crops as transformers does
  EXPECT_EQ(logits(dir_ / "hf"), logits(dir_ / "plain-hf", {.precision = DType::kI8}));
  // Written once more as floats, and rounded again.
  convert_model(dir_ / "timm", {}, dir_ / "back", "timm");
  EXPECT_EQ(logits(dir_ / "back", {.precision = DType::kI8}), on_load);
  EXPECT_EQ(logits(dir_ / "back", {.precision = DType::kF32}),
            logits(dir_ / "timm", {.precision = DType::kF32}));
}

TEST_F(Quantized, LayersThatAreKeptStayFloats) {
  const auto some = [](const std::string& layer) {
    return in_block_layer(layer) && layer != "blocks.1.mlp.fc2";
  };
  convert_model(dir_ / "model", {}, dir_ / "int8", "timm", some);
  const PredictorOptions keeps{
      .precision = DType::kI8,
      .keeps_float = [](const std::string& layer) { return layer == "blocks.1.mlp.fc2"; }};
  EXPECT_EQ(logits(dir_ / "int8"), logits(dir_ / "model", keeps));
  EXPECT_NE(logits(dir_ / "int8"), logits(dir_ / "model", {.precision = DType::kI8}));
  const SafetensorsFile raw(dir_ / "int8/model.safetensors");
  EXPECT_EQ(raw.at("blocks.1.mlp.fc2.weight").dtype, DType::kF32);
}

TEST_F(Quantized, WeightsThatAreNotFiniteAreNamed) {
  const SafetensorsFile file(dir_ / "model/model.safetensors");
  std::vector<std::vector<float>> values;
  std::vector<NamedTensor> tensors;
  for (const TensorInfo& t : file.tensors()) {
    std::vector<float>& own = values.emplace_back(read_floats(file, t));
    if (t.name == "blocks.1.mlp.fc1.weight") own[5] = std::numeric_limits<float>::quiet_NaN();
    tensors.push_back({t.name, {own.data(), t.shape, DType::kF32}});
  }
  test::write_tiny_model(dir_ / "nan", test::tiny_rgb_model());
  write_safetensors(dir_ / "nan/model.safetensors", tensors);
  EXPECT_ERROR(logits(dir_ / "nan", {.precision = DType::kI8}), ErrorKind::kInput,
               "blocks.1.mlp.fc1.weight holds NaN");
}

// ---- files of others ----

struct Case {
  DType weights = DType::kI8, scales = DType::kF32;
  Shape shape = {2, 3}, scale_shape = {2, 1};
  std::vector<float> scale = {0.5f, 2};
  bool has_scale = true;
  int zero_point = -1;  // -1: none
  bool input_scale = false;
};

class ByteFile {
 public:
  explicit ByteFile(const Case& c) {
    bytes_ = {1, -2, 3, -128, 127, 0};
    add("a.weight", c.shape, c.weights, bytes_.data());
    if (c.has_scale) {
      for (const float x : c.scale) narrow_.push_back(to_bf16(x));
      scale_ = c.scale;
      add("a.weight_scale", c.scale_shape, c.scales,
          c.scales == DType::kBF16 ? static_cast<const void*>(narrow_.data()) : scale_.data());
    }
    if (c.zero_point >= 0) {
      zeros_.assign(2, static_cast<int8_t>(c.zero_point));
      add("a.weight_zero_point", {2, 1}, DType::kI8, zeros_.data());
    }
    if (c.input_scale) add("a.input_scale", {1}, DType::kF32, &kOne);
    write_safetensors(path(), tensors_);
  }
  std::string path() const { return dir_ / "f.safetensors"; }

 private:
  void add(const std::string& name, const Shape& shape, DType dtype, const void* data) {
    tensors_.push_back({name, {const_cast<void*>(data), shape, dtype}});
  }
  static constexpr float kOne = 1;
  TempDir dir_;
  std::vector<int8_t> bytes_, zeros_;
  std::vector<float> scale_;
  std::vector<uint16_t> narrow_;
  std::vector<NamedTensor> tensors_;
};

TEST(QuantizedFile, IsReadAsTheNumbersItStandsFor) {
  const std::vector<float> rows = {0.5f, -1, 1.5f, -256, 254, 0};
  for (const Case& c :
       {Case{}, Case{.scales = DType::kBF16}, Case{.scale_shape = {2}}, Case{.zero_point = 0}}) {
    const ByteFile file(c);
    const auto tensors = open_tensors(file.path());
    ASSERT_EQ(tensors->tensors().size(), 1u);
    EXPECT_EQ(tensors->at("a.weight").dtype, DType::kF32);
    EXPECT_EQ(read_floats(*tensors, tensors->at("a.weight")), rows);
    tensors->release(tensors->at("a.weight"));
    EXPECT_EQ(read_floats(*tensors, tensors->at("a.weight")), rows) << "again";
  }
  const ByteFile one(Case{.scale_shape = {1}, .scale = {2}});
  const auto tensors = open_tensors(one.path());
  EXPECT_EQ(read_floats(*tensors, tensors->at("a.weight"))[4], 254);
}

TEST(QuantizedFile, AndSoAreNumbersOfE4M3) {
  for (const Case& c :
       {Case{.weights = DType::kE4M3},
        Case{.weights = DType::kE4M3, .scales = DType::kBF16, .input_scale = true}}) {
    const ByteFile file(c);
    const auto tensors = open_tensors(file.path());
    ASSERT_EQ(tensors->tensors().size(), 1u) << "scales of activations are our own affair";
    const std::vector<float> x = read_floats(*tensors, tensors->at("a.weight"));
    const int bytes[] = {1, -2, 3, -128, 127, 0};
    for (size_t i = 0; i < 6; ++i) {
      const float expected = from_e4m3(static_cast<uint8_t>(bytes[i])) * (i < 3 ? 0.5f : 2);
      EXPECT_TRUE(x[i] == expected || (std::isnan(x[i]) && bytes[i] == 127)) << i;
    }
    EXPECT_EQ(tensors->quantized(tensors->at("a.weight")).dtype, DType::kE4M3);
  }
}

TEST(QuantizedFile, RefusesWhatCannotBeMeant) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::pair<Case, const char*> cases[] = {
      {{.has_scale = false}, "there is no \"a.weight_scale\""},
      {{.scale = {0.5f, 0}}, "a scale is a positive number"},
      {{.scale = {-1, 1}}, "a scale is a positive number"},
      {{.scale = {1, kInfinity}}, "a scale is a positive number"},
      {{.scale = {1, std::nanf("")}}, "a scale is a positive number"},
      {{.scale_shape = {3}, .scale = {1, 1, 1}}, "expected a number for each of the 2 rows"},
      {{.scale_shape = {1, 2}}, "expected a number for each of the 2 rows"},
      {{.scales = DType::kI32}, "expected floating-point numbers"},
      {{.shape = {6}}, "only matrices may be"},
      {{.shape = {1, 2, 3}}, "only matrices may be"},
      {{.zero_point = 3}, "only symmetric weights are read"},
  };
  for (auto [c, part] : cases)
    for (const DType weights : {DType::kI8, DType::kE4M3}) {
      c.weights = weights;
      const ByteFile file(c);
      EXPECT_ERROR(open_tensors(file.path()), ErrorKind::kInput, part);
    }
}

// ---- which layers ----

// Deeper sums of bytes do not fit into 32 bits.
TEST(QuantizePass, LeavesLayersThatAreTooDeep) {
  for (const int64_t depth : {kMostByteDepth, kMostByteDepth + 1}) {
    Graph g(Mode::kInference);
    linear(Scope(g) / "blocks" / 0 / "fc", g.input("x", {1, 2, depth}), 4);
    EXPECT_EQ(quantize(g).size(), depth > kMostByteDepth ? 0u : 1u) << depth;
  }
}

TEST(QuantizePass, TakesTheLinearLayersOfBlocksAlone) {
  const ModelSpec spec = test::tiny_rgb_model();
  Graph g(Mode::kInference);
  trace(g, spec, 1);
  fuse(g);
  const std::vector<std::string> layers = quantize(g);
  EXPECT_EQ(layers,
            (std::vector<std::string>{"blocks.0.attn.qkv", "blocks.0.attn.proj", "blocks.0.mlp.fc1",
                                      "blocks.0.mlp.fc2", "blocks.1.attn.qkv", "blocks.1.attn.proj",
                                      "blocks.1.mlp.fc1", "blocks.1.mlp.fc2"}));
  for (const Node& node : g.nodes)
    if (const auto* linear = std::get_if<QLinear>(&node.op)) {
      EXPECT_EQ(linear->act, node.name.ends_with("fc1") ? Act::kGelu : Act::kNone);
    }
}

// What hangs on parameters alone is computed once, in floats; convolutions are none.
TEST(QuantizePass, OtherFamilies) {
  const auto layers_of = [](const char* preset) {
    Graph g(Mode::kInference);
    trace(g, resolve_model(preset), 1);
    fuse(g);
    return quantize(g);
  };
  for (const std::string& layer : layers_of("swinv2_tiny_window8_256"))
    EXPECT_EQ(layer.find("cpb_mlp"), layer.npos) << layer;
  EXPECT_EQ(layers_of("swinv2_tiny_window8_256").size(), 48u);
  EXPECT_EQ(layers_of("convnext_tiny").size(), 36u);
  EXPECT_EQ(layers_of("resnet50").size(), 0u);
}

// Attention goes with the layer that makes its queries, whatever stands between: rotary positions,
// cosine attention, windows. Heads of a lane or less stay as they are.
TEST(QuantizePass, AttentionGoesWithItsQueries) {
  const auto count = [](const char* preset, const KeepsFloat& keeps = {}) {
    Graph g(Mode::kInference);
    trace(g, resolve_model(preset), 1);
    fuse(g);
    quantize(g, keeps);
    int64_t bytes = 0, floats = 0;
    for (const Node& node : g.nodes) {
      bytes += std::holds_alternative<QAttention>(node.op);
      floats += std::holds_alternative<Attention>(node.op);
    }
    return std::pair{bytes, floats};
  };
  using Counts = std::pair<int64_t, int64_t>;
  EXPECT_EQ(count("vit_tiny_patch16_224"), (Counts{12, 0}));
  EXPECT_EQ(count("swin_tiny_patch4_window7_224"), (Counts{12, 0}));
  EXPECT_EQ(count("swinv2_tiny_window8_256"), (Counts{12, 0}));
  EXPECT_EQ(count("eva02_tiny_patch14_224"), (Counts{12, 0}));
  EXPECT_EQ(count("vit_mnist"), (Counts{0, 3}));
  EXPECT_EQ(count("vit_tiny_patch16_224",
                  [](const std::string& layer) { return layer == "blocks.3.attn.qkv"; }),
            (Counts{11, 1}));
  EXPECT_EQ(count("vit_tiny_patch16_224",
                  [](const std::string& layer) { return layer.ends_with("proj"); }),
            (Counts{12, 0}));
}

}  // namespace
}  // namespace vitrum
