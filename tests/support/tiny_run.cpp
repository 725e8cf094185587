#include "tests/support/tiny_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "tests/support/data_files.h"
#include "vitrum/core/files.h"
#include "vitrum/core/philox.h"
#include "vitrum/train/event.pb.h"
#include "vitrum/weights/model_config.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum::test {
namespace fs = std::filesystem;
namespace {

constexpr int kSide = 8;

// A bright bar whose place is the class, in noise.
Bytes images(int64_t count, uint64_t seed) {
  Bytes bytes = idx_images(0, kSide, kSide);
  bytes[7] = static_cast<uint8_t>(count);
  PhiloxStream noise(seed, 99, 0);
  for (int64_t i = 0; i < count; ++i)
    for (int at = 0; at < kSide * kSide; ++at)
      bytes.push_back(static_cast<uint8_t>(noise.below(100) + (at / 6 == i % 10 ? 150 : 0)));
  return bytes;
}

ModelSpec tiny_model() {
  ModelSpec model{.architecture = "vit_small28"};
  model.config = ViTConfig{.image_h = kSide,
                           .image_w = kSide,
                           .patch_h = 4,
                           .patch_w = 4,
                           .channels = 1,
                           .width = 16,
                           .depth = 2,
                           .heads = 2,
                           .mlp_width = 32,
                           .classes = 10,
                           .drop_act = 0.1f,
                           .drop_mlp = 0.1f};
  model.preprocess.height = model.preprocess.width = kSide;
  return model;
}

// metrics.csv without its last two columns, which are times; the same of metrics.jsonl.
std::string without_times(const std::string& text, std::string_view from) {
  std::string kept;
  for (size_t at = 0, end; at < text.size(); at = end + 1) {
    end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    if (from.empty())
      for (int column = 0; column < 2; ++column) line.resize(line.rfind(','));
    else
      line.resize(line.find(from));
    kept += line + "\n";
  }
  return kept;
}

// Tag, step and value of every scalar, in order of tag and step; wall time and the files they are
// in do not count.
std::string scalars(const std::string& run) {
  std::map<std::pair<std::string, int64_t>, std::string> found;
  for (const auto& entry : fs::directory_iterator(run)) {
    if (!entry.path().filename().string().starts_with("events.")) continue;
    const std::string text = read_text(entry.path());
    for (size_t at = 0; at + 12 < text.size();) {
      uint64_t length;
      std::memcpy(&length, text.data() + at, sizeof length);
      proto::Event event;
      EXPECT_TRUE(event.ParseFromArray(text.data() + at + 12, static_cast<int>(length)));
      for (const auto& value : event.summary().value())
        found[{value.tag(), event.step()}] += fmt::format(" {:a}", value.simple_value());
      at += length + 16;
    }
  }
  std::string all;
  for (const auto& [key, values] : found)
    if (key.first != "images per second")
      all += fmt::format("{} {}{}\n", key.first, key.second, values);
  return all;
}

// The state without the seconds of the epoch under way.
std::string state_text(const std::string& path) {
  const SafetensorsFile file(path);
  std::string all;
  for (const auto& [key, value] : file.metadata())
    if (key != "seconds") all += key + "=" + value + "\n";
  for (const TensorInfo& tensor : file.tensors()) {
    const auto bytes = file.bytes(tensor);
    all += tensor.name + "=" +
           std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) + "\n";
  }
  return all;
}

}  // namespace

std::string read_text(const std::string& path) { return read_file(path); }

TinyRun::TinyRun() {
  const auto write = [&](const std::string& name, const Bytes& bytes) {
    write_file(dir_ / name, bytes);
  };
  write("train-images-idx3-ubyte", images(kTrain, 1));
  write("train-labels-idx1-ubyte", idx_labels(kTrain));
  write("t10k-images-idx3-ubyte", images(kTest, 2));
  write("t10k-labels-idx1-ubyte", idx_labels(kTest));
  ensure_directory(dir_ / "model");
  write_file_atomic(dir_ / "model/config.json", model_config_text(tiny_model()));
}

Recipe TinyRun::recipe() const {
  Recipe recipe;
  recipe.model = dir_ / "model", recipe.data = "mnist:" + dir_.path();
  recipe.epochs = 3, recipe.batch_size = 16, recipe.lr = 3e-3,
  recipe.schedule = ScheduleKind::kConstant;
  recipe.precision = Precision::kF32;
  return recipe;
}

RunOptions TinyRun::options(const std::string& out, int threads) const {
  return {.out = dir_ / out, .device = {.device = "cpu", .threads = threads}, .quiet = true};
}

Trainer TinyRun::resumed(const std::string& out, int threads) const {
  RunOptions options = this->options(out, threads);
  options.resume = true;
  return Trainer(recipe_of_run(dir_ / out), options);
}

void TinyRun::use_batch_norm(Recipe& recipe) const {
  ModelSpec model{.architecture = "resnet18_cifar"};
  model.config = ResNetConfig{.image_h = kSide,
                              .image_w = kSide,
                              .channels = 1,
                              .classes = 10,
                              .depths = {1, 1, 1, 1},
                              .width = 4,
                              .small_stem = true};
  model.preprocess.height = model.preprocess.width = kSide;
  ensure_directory(dir_ / "resnet");
  write_file_atomic(dir_ / "resnet/config.json", model_config_text(model));
  recipe.model = dir_ / "resnet";
}

void expect_same(const Outcome& got, const Outcome& expected) {
  for (const auto& [name, text] : expected) {
    const auto found = got.find(name);
    EXPECT_TRUE(found != got.end() && found->second == text) << name << " differs";
  }
}

Outcome outcome(const std::string& run) {
  Outcome files;
  for (const char* name : {"config.toml", "best/model.safetensors", "best/config.json",
                           "last/model.safetensors", "last/config.json", "best/decoder.safetensors",
                           "last/decoder.safetensors", "confusion.svg", "predictions.csv"}) {
    const std::string path = run + "/" + name;
    files[name] = fs::exists(path) ? read_text(path) : "";  // not every run has answers to draw
  }
  files["metrics.csv"] = without_times(read_text(run + "/metrics.csv"), "");
  files["metrics.jsonl"] =
      without_times(read_text(run + "/metrics.jsonl"), ",\"images_per_second\"");
  files["events"] = scalars(run);
  files["state"] = state_text(checkpoint_path(run));
  return files;
}

}  // namespace vitrum::test
