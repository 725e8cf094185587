// What people type who come from elsewhere, and what they are told; errors as JSON.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/data_files.h"
#include "tests/support/process.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_run.h"
#include "vitrum/core/files.h"

namespace vitrum {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class Names : public testing::Test {
 protected:
  test::Finished run(const std::vector<std::string>& arguments) const {
    return test::run_vitrum(arguments, dir_.path());
  }
  void expect(int code, const std::vector<std::string>& arguments, const std::string& part) const {
    const test::Finished done = run(arguments);
    EXPECT_EQ(done.code, code) << done.err;
    EXPECT_THAT(done.err, HasSubstr(part));
    EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
  }
  // Four images of 28 x 28 pixels each to train and to test with.
  std::string digits() const {
    for (const char* split : {"train", "t10k"}) {
      const auto write = [&](const char* kind, const test::Bytes& bytes) {
        test::write_file(dir_ / fmt::format("{}-{}-ubyte", split, kind), bytes);
      };
      write("images-idx3", test::idx_images(4, 28, 28)), write("labels-idx1", test::idx_labels(4));
    }
    return dir_.path();
  }
  test::TempDir dir_;
};

TEST_F(Names, OfVerbsElsewhere) {
  expect(2, {"predict", "x.jpg"}, "unknown verb 'predict'; did you mean 'classify'?");
  expect(2, {"infer", "x.jpg"}, "did you mean 'classify'?");
  expect(2, {"val"}, "did you mean 'eval'?");
  expect(2, {"test"}, "did you mean 'eval'?");
  expect(2, {"fit"}, "did you mean 'train'?");
  expect(2, {"fine-tune"}, "did you mean 'finetune'?");
}

TEST_F(Names, OfOptionsElsewhere) {
  expect(2, {"train", "--learning-rate", "1"}, "did you mean '--lr'?");
  expect(2, {"train", "--learning_rate", "1"}, "did you mean '--lr'?");
  expect(2, {"train", "--wd", "0.1"}, "did you mean '--set weight_decay=VALUE'?");
  expect(2, {"train", "--label-smoothing", "0.1"}, "did you mean '--set label_smoothing=VALUE'?");
  expect(2, {"finetune", "--ckpt", "x"}, "did you mean '--weights'?");
  expect(2, {"classify", "a.jpg", "--ckpt", "x"}, "did you mean '--model'?");
  expect(2, {"classify", "a.jpg", "--imgsz", "3"}, "did you mean '--image-size'?");
  expect(2, {"models", "--precision", "fp16"}, "not 'fp16'; did you mean 'bf16'?");
  expect(2, {"bench", "--model", "vit_mnist", "--device", "gpu"}, "did you mean 'cuda'?");
  EXPECT_THAT(run({"models", "--batch", "3"}).err, Not(HasSubstr("did you mean")));
}

TEST_F(Names, OfRecipeKeysElsewhere) {
  expect(2, {"train", "--set", "learning_rate=1"}, "did you mean 'lr'?");
  expect(2, {"train", "--set", "batch=1"}, "did you mean 'batch_size'?");
  expect(2, {"train", "--set", "wd=1"}, "did you mean 'weight_decay'?");
  expect(2, {"train", "--set", "img_size=1"}, "did you mean 'image_size'?");
  for (const auto& [line, meant] : {std::pair("model = vit_tiny  # a name", "model = \"vit_tiny\""),
                                    std::pair("optimizer = adamw", "optimizer = \"adamw\""),
                                    std::pair("freeze = blocks.*", "freeze = [\"blocks.*\"]")}) {
    write_file_atomic(dir_ / "r.toml", fmt::format("epochs = 1\n{}\n", line));
    expect(2, {"train", "--recipe", dir_ / "r.toml"},
           fmt::format("r.toml:2: text needs quotes: {}", meant));
  }
}

TEST_F(Names, SpellingsThatEveryVerbTakes) {
  EXPECT_EQ(run({"summary", "vit_small28", "--batch-size", "2", "--json"}).out,
            run({"summary", "vit_small28", "--batch", "2", "--json"}).out);
  test::write_tiny_model(dir_ / "model", test::tiny_rgb_model());
  for (const char* option : {"--output", "--out", "--to"})
    EXPECT_EQ(run({"export", "--model", dir_ / "model", option, dir_ / "m.onnx"}).code, 0);
  for (const char* option : {"--output", "--out"})
    EXPECT_EQ(run({"convert", dir_ / "model", option, dir_ / option, "--to", "hf"}).code, 0);
  // Before it was --weight-pictures, and another verb's --weights is a file.
  for (const char* option : {"--weight-pictures", "--weights"})
    EXPECT_EQ(run({"explain", option, "--model", dir_ / "model", "--output", dir_ / "e"}).code, 0);
  const test::Finished help = run({"explain", "--help"});
  EXPECT_THAT(help.out, HasSubstr("--weight-pictures"));
  EXPECT_THAT(help.out, Not(HasSubstr("--weights")));
}

TEST_F(Names, TrainingTakesArchForModel) {
  const test::TinyRun tiny;
  const auto train = [&](const std::vector<std::string>& out) {
    std::vector<std::string> all = {
        "train",    "--arch", tiny / "model", "--data", "mnist:" + (tiny / ""),
        "--epochs", "1",      "--batch",      "16",     "-q"};
    all.insert(all.end(), out.begin(), out.end());
    return test::run_vitrum(all, tiny / "output");
  };
  const test::Finished done = train({"--output", tiny / "run"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(std::filesystem::exists(tiny / "run/best/config.json"));
}

TEST_F(Names, ErrorsAreJsonWhereThatIsAskedFor) {
  const auto error = [&](std::vector<std::string> arguments) {
    arguments.push_back("--json");
    const test::Finished done = run(arguments);
    EXPECT_THAT(done.err, testing::StartsWith("vitrum: "));
    const json object = json::parse(done.out);
    EXPECT_EQ(object["error"]["code"], done.code);
    EXPECT_EQ("vitrum: " + object["error"]["message"].get<std::string>() + "\n", done.err);
    return done.code;
  };
  EXPECT_EQ(error({"summary"}), 2);
  EXPECT_EQ(error({"sumary"}), 2);
  EXPECT_EQ(error({"summary", "vit_minst"}), 3);
  EXPECT_EQ(error({"data", "mnits:x"}), 3);
  EXPECT_EQ(error({"eval", "--model", dir_ / "none", "--data", "mnist:x"}), 3);
  EXPECT_EQ(run({"summary"}).out, "");
  EXPECT_EQ(run({"summary", "--", "--json"}).out, "");
}

TEST_F(Names, WhatToDoForWeights) {
  const std::string preset = "vit_tiny_patch16_224";
  const std::string id = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k";
  const std::vector<std::string> classify = {"classify", "x.jpg", "--model"};
  const auto with = [&](const std::string& model) {
    std::vector<std::string> all = classify;
    all.push_back(model);
    return all;
  };
  expect(2, with(preset), "preset without weights; `vitrum download " + id + "` fetches it");
  expect(2, with("google/vit-base-patch16-224"), "`vitrum download google/vit-base-patch16-224`");
  expect(2, with("vit_tiny_patch16_224.dino"), "`vitrum download timm/vit_tiny_patch16_224.dino`");
  expect(3, with("timm/vit_giant.clip"),
         "`vitrum download timm/vit_giant.clip` fetches it; then give vit_giant.clip");
  expect(3, with("./nothing/here"), "neither a model directory nor a model's name");
  expect(2, with("vit_mnist"), "give a model directory, such as the best/ of a run");
  expect(3, {"finetune", "--weights", id, "--data", "mnist:x"}, "no such file or folder");
  const test::TinyRun tiny;
  expect(3, {"finetune", "--weights", id, "--data", "mnist:" + (tiny / "")},
         "weights '" + id + "': no such file or directory; `vitrum download " + id + "`");
  expect(3, {"finetune", "--weights", preset, "--data", "mnist:" + (tiny / "")},
         "`vitrum download " + id + "`");
}

TEST_F(Names, AFileOfAnotherArchitectureIsNamed) {
  const std::string file = VITRUM_SOURCE_DIR "/tests/golden/dialects/timm/model.safetensors";
  // Of no preset at all.
  expect(3, {"summary", file, "--arch", "vit_tiny_patch16_224"}, "does not fit the model");
  // The weights of one preset under the name of another.
  ASSERT_EQ(run({"train", "--model", "vit_small28", "--data", "mnist:" + digits(), "--epochs", "1",
                 "--out", dir_ / "run", "-q"})
                .code,
            0);
  const std::string weights = dir_ / "run/best/model.safetensors";
  EXPECT_EQ(run({"summary", weights, "--arch", "vit_small28"}).code, 0);
  expect(3, {"summary", weights, "--arch", "vit_lite_cifar"},
         "is not of vit_lite_cifar: its tensors are those of vit_small28");
  expect(3, {"summary", weights, "--arch", "resnet18"}, "its tensors are those of vit_small28");
}

}  // namespace
}  // namespace vitrum
