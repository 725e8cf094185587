// ConvNeXt, ConvNeXt V2 and Swin V2 against the frameworks they come from
// (tools/golden/conv_families_golden.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/dialect_model.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training_graph.h"
#include "vitrum/infer/predictor.h"
#include "vitrum/models/registry.h"
#include "vitrum/runtime/summary.h"
#include "vitrum/weights/convert.h"
#include "vitrum/weights/model_config.h"

namespace vitrum {
namespace {

using test::largest_difference;
using test::LoadedModel;

std::string golden(const std::string& name) {
  return VITRUM_SOURCE_DIR "/tests/golden/conv_families/" + name;
}
const TensorSource& expected_file() {
  static const auto file = open_tensors(golden("expected.safetensors"));
  return *file;
}
std::vector<float> expected(const std::string& name) {
  return read_floats(expected_file(), expected_file().at(name));
}
std::vector<float> image(int side) { return expected("image." + std::to_string(side)); }

struct Source {
  const char* weights;    // a directory, or a bare file
  const char* described;  // the directory that says what is in it
  const char* dialect;
  const char* answers;  // whose
};
ModelSpec spec_of(const Source& source, int side) {
  ModelSpec spec = resolve_model(golden(source.described));
  if (auto* swin = spec.config.as<SwinV2Config>();
      swin && source.dialect == std::string("torchvision"))
    swin->pad_first = true, swin->shrink_windows = false;
  set_image_size(spec, side, side);
  return spec;
}

class ConvFamilies : public testing::TestWithParam<Source> {};

TEST_P(ConvFamilies, AnswerAsTheirFrameworkDoes) {
  for (const int side : {32, 44}) {
    const ModelSpec spec = spec_of(GetParam(), side);
    LoadedModel model(spec);
    EXPECT_EQ(load_weights(golden(GetParam().weights), spec, model.store).dialect,
              GetParam().dialect);
    const std::string answers = std::string(GetParam().answers) + "." + std::to_string(side);
    EXPECT_LT(largest_difference(model.forward(image(side)), expected(answers)), 2e-5f) << side;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Golden, ConvFamilies,
    testing::Values(Source{"convnext", "convnext", "timm", "convnext"},
                    Source{"convnext-meta.pth", "convnext", "meta", "convnext"},
                    Source{"convnext-hf", "convnext-hf", "hf", "convnext-hf"},
                    Source{"convnext-torchvision.safetensors", "convnext", "torchvision",
                           "convnext-torchvision"},
                    Source{"convnextv2", "convnextv2", "timm", "convnextv2"},
                    Source{"convnextv2-meta.pth", "convnextv2", "meta", "convnextv2"},
                    Source{"convnextv2-hf", "convnextv2-hf", "hf", "convnextv2-hf"},
                    Source{"swinv2", "swinv2", "timm", "swinv2"},
                    Source{"swinv2-pretrained", "swinv2-pretrained", "timm", "swinv2-pretrained"},
                    Source{"swinv2-microsoft.pth", "swinv2", "microsoft", "swinv2"},
                    Source{"swinv2-hf", "swinv2-hf", "hf", "swinv2-hf"},
                    Source{"swinv2-torchvision.safetensors", "swinv2", "torchvision",
                           "swinv2-torchvision"}),
    [](const auto& info) {
      std::string name = info.param.weights;
      for (char& c : name) c = c == '-' || c == '.' ? '_' : c;
      return name;
    });

// A gradient under our name and in our order, of what timm has.
std::vector<float> gradient(const std::string& folder, const ParamSpec& param) {
  const std::string start = "grad." + folder + ".";
  const auto third = static_cast<size_t>(param.shape.numel() / 3);
  if (param.held.count > 0) {
    const std::string block = start + param.name.substr(0, param.name.rfind("qkv.bias"));
    std::vector<float> all = expected(block + "q_bias"), v = expected(block + "v_bias");
    all.resize(2 * third, 0.f);
    all.insert(all.end(), v.begin(), v.end());
    return all;
  }
  std::vector<float> theirs = expected(start + param.name);
  if (!param.name.ends_with("downsample.1.weight")) return theirs;
  std::vector<float> ours(theirs.size());
  const auto columns = static_cast<size_t>(param.shape[1]), channels = columns / 4;
  for (size_t i = 0; i < ours.size(); ++i) {
    const size_t column = i % columns;
    ours[i] = theirs[i - column + column % channels * 4 + column / channels];
  }
  return ours;
}

class ConvFamilyGradients : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(ConvFamilyGradients, AreTimms) {
  const auto [folder, device] = GetParam();
  ModelSpec spec = resolve_model(golden(folder));
  set_image_size(spec, 32, 32);
  spec.config.set_drop_path(0);
  const auto backend = make_backend({.device = device, .threads = 2});
  test::TrainingGraph graph(spec.config, 2);
  ParamStore store(graph.g, *backend);
  load_weights(golden(folder), spec, store);
  Program program = graph.compile(store);
  program.upload(graph.image, image(32).data());
  const std::array<int32_t, 2> labels = {2, 0};
  const std::array<float, 2> weights = {0.5f, 0.5f};
  program.upload(graph.target, labels.data());
  program.upload(graph.weight, weights.data());
  program.run();
  double sum = 0;
  for (size_t i = 0; i < store.specs().size(); ++i)
    sum += std::pow(test::norm_of(gradient(folder, store.specs()[i])), 2);
  for (size_t i = 0; i < store.specs().size(); ++i) {
    const ParamSpec& param = store.specs()[i];
    std::vector<float> ours = store.read(i, Arena::kGrad);
    // What is held has none.
    std::fill_n(ours.begin() + param.held.first, param.held.count, 0.f);
    test::expect_close(ours, gradient(folder, param), 1e-2 * std::sqrt(sum), param.name);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, ConvFamilyGradients,
                         testing::Combine(testing::Values("convnext", "convnextv2", "swinv2",
                                                          "swinv2-pretrained"),
                                          testing::Values("reference", "cpu")),
                         [](const auto& info) {
                           std::string name =
                               std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

std::vector<std::vector<float>> weights_of(const std::string& path, const std::string& described) {
  const ModelSpec spec = resolve_model(golden(described));
  LoadedModel model(spec);
  load_weights(path, spec, model.store);
  return model.all_values();
}

TEST(ConvFamilyFiles, EveryWayKeepsTheBits) {
  for (const std::string name : {"convnext", "convnextv2", "swinv2"}) {
    const TempDir dir;
    const auto all = weights_of(golden(name), name);
    convert_model(golden(name), "", dir / "hf", "hf");
    convert_model(dir / "hf", "", dir / "timm", "timm");
    convert_model(dir / "timm", "", dir / "own.pth", "original");
    EXPECT_EQ(weights_of(dir / "hf", name), all) << name;
    EXPECT_EQ(weights_of(dir / "timm", name), all) << name;
    EXPECT_EQ(weights_of(dir / "own.pth", name), all) << name;
    if (name == "convnextv2") continue;
    convert_model(golden(name), "", dir / "tv.safetensors", "torchvision");
    EXPECT_EQ(weights_of(dir / "tv.safetensors", name), all) << name;
  }
}

TEST(ConvFamilyFiles, SayWhatATargetHasNot) {
  const TempDir dir;
  EXPECT_ERROR(convert_model(golden("convnextv2"), "", dir / "x.safetensors", "torchvision"),
               ErrorKind::kInput, "no ConvNeXt with response norms");
  EXPECT_ERROR(convert_model(golden("swinv2-pretrained"), "", dir / "y.safetensors", "torchvision"),
               ErrorKind::kInput, "no Swin V2 whose windows are smaller");
}

TEST(ConvFamilyFiles, ConfigsAreWrittenAndReadAgain) {
  for (const char* name : {"convnext", "convnextv2", "swinv2", "swinv2-pretrained", "convnext-hf",
                           "convnextv2-hf", "swinv2-hf"}) {
    const ModelSpec spec = resolve_model(golden(name));
    EXPECT_EQ(parse_model_config(model_config_text(spec), "c").config, spec.config) << name;
  }
  for (const char* name : {"convnext-hf", "convnextv2-hf", "swinv2-hf"}) {
    const ModelSpec spec = resolve_model(golden(name));
    const ModelSpec again =
        parse_hf_config({hf_config_text(spec), "c"}, {hf_preprocessor_text(spec), "p"});
    EXPECT_EQ(again.config, spec.config) << name;
  }
}

// Windows of no size say that nothing was trained before.
TEST(ConvFamilyFiles, WindowsOfPretrainingMaySayNothing) {
  const ModelSpec spec = parse_model_config(
      R"({"architecture": "swinv2_tiny_window8_256",
          "model_args": {"pretrained_window_sizes": [0, 0, 0, 0]}})",
      "c");
  EXPECT_TRUE(spec.config.as<SwinV2Config>()->pretrained_windows.empty());
}

// timm's ConvNeXt has one epsilon for all its norms.
TEST(ConvFamilyFiles, TimmIsNotOfferedTwoEpsilons) {
  ModelSpec spec = resolve_model("convnext_tiny");
  EXPECT_EQ(model_config_text(spec).find("vitrum_convnext"), std::string::npos);
  spec.config.as<ConvNeXtConfig>()->head_eps = 1e-5f;
  EXPECT_NE(model_config_text(spec).find("vitrum_convnext"), std::string::npos);
}

TEST(ConvFamilyFiles, HostileConfigsAreNamed) {
  const auto timm = [](const std::string& name, const std::string& more, const char* part) {
    const std::string text = R"({"architecture": ")" + name + R"(", "model_args": {)" + more + "}}";
    EXPECT_ERROR(parse_model_config(text, "d/config.json"), ErrorKind::kInput, part);
  };
  timm("convnext_tiny", R"("depths": [])", "0 depths");
  timm("convnext_tiny", R"("dims": [96, 192])", "2 widths");
  timm("convnext_tiny", R"("kernel_sizes": 4)", "odd number");
  timm("convnext_tiny", R"("kernel_sizes": [7, 7, 5, 3])", "kernel_sizes");
  timm("convnext_tiny", R"("stem_type": "overlap")", "stem_type");
  timm("convnext_tiny", R"("head_norm_first": true)", "head_norm_first");
  timm("convnext_tiny", R"("dims": [65536, 65536, 65536, 65536])", "too large to be meant");
  timm("convnext_tiny", R"("norm_eps": 0)", "eps 0");
  timm("swinv2_tiny_window8_256", R"("pretrained_window_sizes": [1, 2])", "windows of pretraining");
  timm("swinv2_tiny_window8_256", R"("window_size": 16384)", "too large to be meant");
  timm("swinv2_tiny_window8_256", R"("always_partition": true)", "always_partition");
  const auto hf = [](const std::string& more, const char* part) {
    EXPECT_ERROR(parse_hf_config({"{" + more + "}", "d/config.json"}, {"{}", "d/p.json"}),
                 ErrorKind::kInput, part);
  };
  hf(R"("model_type": "convnext", "depths": [])", "0 depths");
  hf(R"("model_type": "convnextv2", "hidden_sizes": [1e9, 1, 1, 1])", "hidden_sizes");
  hf(R"("model_type": "swinv2", "use_absolute_embeddings": true)", "use_absolute_embeddings");
  hf(R"("model_type": "swinv2", "depths": [])", "0 depths");
}

// timm's own numbers, of models made on its meta device.
TEST(ConvFamilyPresets, Counts) {
  const std::pair<const char*, int64_t> counts[] = {
      {"convnext_atto", 3695520},
      {"convnext_tiny", 28589128},
      {"convnext_small", 50223688},
      {"convnext_base", 88591464},
      {"convnext_large", 197767336},
      {"convnext_xlarge", 350196968},
      {"convnextv2_atto", 3708400},
      {"convnextv2_femto", 5233240},
      {"convnextv2_pico", 9066280},
      {"convnextv2_nano", 15623800},
      {"convnextv2_tiny", 28635496},
      {"convnextv2_base", 88717800},
      {"convnextv2_large", 197956840},
      {"convnextv2_huge", 660289640},
      {"swinv2_tiny_window8_256", 28347154},
      {"swinv2_tiny_window16_256", 28347154},
      {"swinv2_small_window8_256", 49728418},
      {"swinv2_small_window16_256", 49728418},
      {"swinv2_base_window8_256", 87918816},
      {"swinv2_base_window16_256", 87918816},
      {"swinv2_base_window12_192", 109280841},
      {"swinv2_base_window12to16_192to256", 87918816},
      {"swinv2_base_window12to24_192to384", 87918816},
      {"swinv2_large_window12_192", 228772549},
      {"swinv2_large_window12to16_192to256", 196739932},
      {"swinv2_large_window12to24_192to384", 196739932}};
  for (const auto& [name, count] : counts) {
    const ModelConfig& c = find_preset(name).config;
    Graph g;
    model(Scope(g), g.input("image", {1, c.channels(), c.image_h(), c.image_w()}), c);
    EXPECT_EQ(count_parameters(g).all, count) << name;
  }
}

struct Answer {
  std::vector<float> logits;
  size_t kernels;
};
Answer answer(const char* name, int threads, int64_t batch, bool frozen = true) {
  const auto backend = make_backend({.device = "cpu", .threads = threads});
  ModelSpec spec = resolve_model(golden(name));
  set_image_size(spec, 44, 44);
  Graph g;
  const Value in = g.input("image", {batch, 3, 44, 44});
  const Value logits = model(Scope(g), in, spec.config);
  fuse(g);
  ParamStore store(g, *backend);
  load_weights(golden(name), spec, store);
  if (frozen) store.freeze();
  Program program(g, std::span(&logits, 1), store);
  program.upload(in, image(44).data());
  program.run();
  Answer answer{std::vector<float>(static_cast<size_t>(logits.shape().numel())), program.kernels()};
  program.download(answer.logits.data(), logits);
  return answer;
}

// Of one image alone, of several, and by any number of threads.
TEST(ConvFamilyBits, DependOnNeitherThreadsNorBatch) {
  for (const char* name : {"convnext", "convnextv2", "swinv2"}) {
    const std::vector<float> all = answer(name, 1, 2).logits;
    for (const int threads : {2, 3, 5}) EXPECT_EQ(answer(name, threads, 2).logits, all) << name;
    const std::vector<float> one = answer(name, 2, 1).logits;
    EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin())) << name;
  }
}

// What hangs on parameters alone is no part of a program whose parameters never change.
TEST(ConvFamilyBits, AreThoseOfBiasesComputedOnce) {
  const Answer once = answer("swinv2", 2, 2), always = answer("swinv2", 2, 2, /*frozen=*/false);
  EXPECT_EQ(once.logits, always.logits);
  EXPECT_EQ(once.kernels + 4 * 4, always.kernels);  // of 4 blocks two layers, factor and bias
  EXPECT_EQ(answer("convnext", 2, 2).kernels, answer("convnext", 2, 2, false).kernels);
}

// Stochastic depth grows from nothing in the first block to its all in the last.
TEST(ConvFamilyDepth, LaterBlocksAreDroppedMoreOften) {
  const auto drops = [](const auto& model) {
    Graph g(Mode::kTraining);
    model(g);
    std::vector<float> all;
    for (const Node& node : g.nodes)
      if (const auto* drop = std::get_if<DropPath>(&node.op)) all.push_back(drop->drop);
    return all;
  };
  const std::vector<float> convnext_drops = drops([](Graph& g) {
    ConvNeXtConfig c;
    c.depths = {1, 2, 1, 1}, c.widths = {8, 8, 8, 8};
    c.image_h = c.image_w = 64, c.classes = 2, c.drop_path = 0.4f;
    convnext(Scope(g), g.input("image", {1, 3, 64, 64}), c);
  });
  EXPECT_THAT(convnext_drops, testing::Pointwise(testing::FloatEq(), {0.1f, 0.2f, 0.3f, 0.4f}));
}

}  // namespace
}  // namespace vitrum
