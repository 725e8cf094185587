// ResNets on disk: every dialect, running statistics, configs from elsewhere, resumed runs.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "tests/support/expect_error.h"
#include "tests/support/tiny_run.h"
#include "vitrum/core/files.h"
#include "vitrum/core/philox.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/weights/convert.h"
#include "vitrum/weights/model_config.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum::test {
namespace {

ModelSpec tiny_resnet(bool bottleneck = true) {
  ModelSpec spec{.architecture = "resnet18"};
  spec.config = ResNetConfig{.image_h = 40,
                             .image_w = 40,
                             .classes = 5,
                             .depths = {1, 2, 1, 1},
                             .width = 4,
                             .bottleneck = bottleneck};
  spec.preprocess.height = spec.preprocess.width = 40;
  return spec;
}

// Every tensor, running statistics too, with numbers of its own.
struct Store {
  explicit Store(const ModelSpec& spec, bool filled = true) {
    const ModelConfig& c = spec.config;
    model(Scope(g), g.input("image", {1, c.channels(), c.image_h(), c.image_w()}), c);
    store.emplace(g, *backend);
    for (size_t i = 0; filled && i < store->specs().size(); ++i) {
      PhiloxStream draw(5, 0, i);
      std::vector<float> values(static_cast<size_t>(store->specs()[i].shape.numel()));
      for (float& v : values) v = static_cast<float>(draw.uniform());
      store->write(i, values);
    }
  }
  std::map<std::string, std::vector<float>> values() {
    std::map<std::string, std::vector<float>> all;
    for (size_t i = 0; i < store->specs().size(); ++i) all[store->specs()[i].name] = store->read(i);
    return all;
  }

  Graph g;
  std::unique_ptr<Backend> backend = make_backend({.device = "reference"});
  std::optional<ParamStore> store;
};

TEST(ResNetFiles, EveryDialectComesBack) {
  for (const bool bottleneck : {true, false}) {
    const TempDir dir;
    const ModelSpec spec = tiny_resnet(bottleneck);
    Store from(spec);
    save_model_dir(dir / "own", spec, *from.store);
    EXPECT_EQ(resolve_model(dir / "own"), spec);
    convert_model(dir / "own", "", dir / "timm", "timm");
    convert_model(dir / "own", "", dir / "hf", "hf");
    convert_model(dir / "hf", "", dir / "tv.pth", "torchvision");
    for (const char* name : {"own", "timm", "hf", "tv.pth"}) {
      Store to(spec, /*filled=*/false);
      load_weights(dir / name, spec, *to.store);
      EXPECT_EQ(to.values(), from.values()) << name;
    }
    EXPECT_EQ(resolve_model(dir / "hf").config, spec.config);
  }
}

TEST(ResNetFiles, NamesAreTorchvisionsAndTransformers) {
  const TempDir dir;
  const ModelSpec spec = tiny_resnet();
  Store from(spec);
  save_model_dir(dir / "own", spec, *from.store);
  convert_model(dir / "own", "", dir / "hf", "hf");
  const SafetensorsFile own(dir / "own/model.safetensors"), hf(dir / "hf/model.safetensors");
  for (const char* name :
       {"conv1.weight", "bn1.running_var", "layer2.1.conv3.weight", "layer2.0.downsample.0.weight",
        "layer4.0.downsample.1.running_mean", "fc.bias"})
    EXPECT_TRUE(own.find(name)) << name;
  for (const char* name :
       {"resnet.embedder.embedder.convolution.weight",
        "resnet.encoder.stages.1.layers.1.layer.2.normalization.running_mean",
        "resnet.encoder.stages.3.layers.0.shortcut.convolution.weight", "classifier.1.weight"})
    EXPECT_TRUE(hf.find(name)) << name;
}

// PyTorch counts the updates of every batch norm in an integer that nothing reads.
TEST(ResNetFiles, CountersAreIgnored) {
  const TempDir dir;
  const ModelSpec spec = tiny_resnet();
  Store from(spec), to(spec, /*filled=*/false);
  auto values = from.values();
  std::vector<NamedTensor> tensors;
  for (const ParamSpec& p : from.store->specs())
    tensors.push_back({p.name, {values[p.name].data(), p.shape, DType::kF32}});
  int64_t updates = 7;
  tensors.push_back({"layer1.0.bn1.num_batches_tracked", {&updates, {}, DType::kI64}});
  write_safetensors(dir / "m.safetensors", tensors, {});
  EXPECT_EQ(load_weights(dir / "m.safetensors", spec, *to.store).dialect, "timm");
  EXPECT_EQ(to.values(), values);
}

TEST(ResNetFiles, OtherChannelsAndClasses) {
  const TempDir dir;
  ModelSpec spec = tiny_resnet();
  Store from(spec);
  save_model_dir(dir / "own", spec, *from.store);
  set_channels(spec, 1), set_classes(spec, 9);
  Store to(spec, /*filled=*/false);
  EXPECT_EQ(load_weights(dir / "own", spec, *to.store).adapted.size(), 2u);
  const std::vector<float> rgb = from.values()["conv1.weight"], grey = to.values()["conv1.weight"];
  EXPECT_FLOAT_EQ(grey[3], rgb[3] + rgb[49 + 3] + rgb[98 + 3]);
  EXPECT_EQ(to.values()["fc.weight"].size(), 9u * 128);
}

TEST(ResNetFiles, ConfigsOfTimm) {
  const auto parse = [](const std::string& text) {
    return parse_model_config(text, "config.json");
  };
  const ModelSpec spec =
      parse(R"({"architecture": "resnet50.a1_in1k", "num_classes": 10, "global_pool": "avg",
               "pretrained_cfg": {"input_size": [3, 288, 288], "crop_pct": 0.95}})");
  const ResNetConfig& c = *spec.config.as<ResNetConfig>();
  EXPECT_TRUE(c.bottleneck);
  EXPECT_EQ(c.classes, 10);
  EXPECT_EQ(c.image_h, 288);
  const auto refuse = [&](const std::string& args, const char* part) {
    EXPECT_ERROR(parse(R"({"architecture": "resnet18", "model_args": )" + args + "}"),
                 ErrorKind::kInput, part);
  };
  refuse(R"({"layers": [1, 2, 3]})", "4 numbers");
  refuse(R"({"layers": [1, 2, 3, 0]})", "layers");
  refuse(R"({"cardinality": 32})", "cardinality");
  refuse(R"({"stem_type": "deep"})", "stem_type");
  refuse(R"({"block_args": {}})", "block_args");
  refuse(R"({"in_chans": -3})", "in_chans");
}

TEST(ResNetFiles, HostileConfigs) {
  ModelSpec spec = tiny_resnet();
  const std::string text = model_config_text(spec);
  const auto refuse = [&](const std::string& from, const std::string& to, const char* part) {
    std::string changed = text;
    const size_t at = changed.rfind(from);
    ASSERT_NE(at, changed.npos) << from;
    EXPECT_ERROR(parse_model_config(changed.replace(at, from.size(), to), "config.json"),
                 ErrorKind::kInput, part);
  };
  refuse("\"depth3\": 1", "\"depth3\": 1025", "depth3");
  refuse("\"depth3\": 1", "\"depth3\": -1", "depth3");
  refuse("\"width\": 4", "\"width\": 4e9", "width");
  refuse("\"momentum\": 0.1", "\"momentum\": 7", "momentum");
  refuse("\"eps\": 1e-05", "\"eps\": 0", "eps");
  refuse("\"family\": \"resnet\"", "\"family\": \"resnext\"", "resnet");
}

TEST(ResNetFiles, ConfigsOfTransformers) {
  const auto parse = [](const std::string& more) {
    return parse_hf_config(
        {R"({"model_type": "resnet", "num_labels": 4)" + more + "}", "config.json"},
        {R"({"crop_pct": 0.875, "size": 224, "resample": 3})", "p.json"});
  };
  const ModelSpec spec = parse("");
  EXPECT_EQ(spec.architecture, "resnet50");
  EXPECT_EQ(spec.preprocess.resize, 256);
  EXPECT_EQ(spec.config.classes(), 4);
  EXPECT_ERROR(parse(R"(, "hidden_sizes": [256, 512, 1024, 2049])"), ErrorKind::kInput,
               "hidden_sizes");
  EXPECT_ERROR(parse(R"(, "depths": [3])"), ErrorKind::kInput, "depths");
  EXPECT_ERROR(parse(R"(, "layer_type": "inverted")"), ErrorKind::kInput, "layer_type");
  EXPECT_ERROR(parse(R"(, "downsample_in_bottleneck": true)"), ErrorKind::kInput,
               "downsample_in_bottleneck");
}

// The running statistics are part of what a run resumes with.
TEST(ResNetFiles, ResumedRunIsTheUninterruptedOne) {
  const TinyRun tiny;
  ModelSpec spec{.architecture = "resnet18_cifar"};
  spec.config = ResNetConfig{
      .image_h = 8, .image_w = 8, .channels = 1, .classes = 10, .width = 2, .small_stem = true};
  spec.preprocess.height = spec.preprocess.width = 8;
  write_file_atomic(tiny / "model/config.json", model_config_text(spec));
  Recipe recipe = tiny.recipe();
  recipe.optimizer = OptimizerKind::kSgd, recipe.ema = 0.9, recipe.epochs = 2;
  Trainer(recipe, tiny.options("whole")).run();
  const TrainHooks stop = {.step = [](int64_t step, double) {
    if (step == 7) raise(SIGINT);
  }};
  EXPECT_EQ(Trainer(recipe, tiny.options("cut", 2)).run(stop).signal, SIGINT);
  tiny.resumed("cut", 3).run();
  const auto whole = outcome(tiny / "whole"), cut = outcome(tiny / "cut");
  for (const auto& [name, text] : whole) EXPECT_TRUE(cut.at(name) == text) << name << " differs";
}

}  // namespace
}  // namespace vitrum::test
