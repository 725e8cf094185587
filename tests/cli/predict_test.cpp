// classify, embed and eval through the real binary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/data_files.h"
#include "tests/support/process.h"
#include "tests/support/tiny_model.h"
#include "vitrum/core/files.h"
#include "vitrum/infer/predictor.h"
#include "vitrum/weights/npy.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class PredictCli : public testing::Test {
 protected:
  PredictCli() {
    test::write_tiny_model(dir_ / "model", test::tiny_rgb_model());
    for (const char* name : {"goldfish/b.jpg", "goldfish/a.png", "pizza/deep/c.jpg"}) {
      const Image photo = test::gradient(3, 40 + name[0] % 7, 60);
      const bool png = std::string_view(name).ends_with(".png");
      test::write_file(dir_ / ("photos/" + std::string(name)),
                       png ? test::encode_png(photo) : test::encode_jpeg(photo));
    }
  }
  test::Finished run(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--model", dir_ / "model"});
    return test::run_vitrum(arguments, dir_ / "run");
  }
  static std::vector<json> lines(const std::string& text) {
    std::vector<json> all;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) all.push_back(json::parse(line));
    return all;
  }
  test::TempDir dir_;
};

TEST_F(PredictCli, ClassifyFolder) {
  const test::Finished o = run({"classify", dir_ / "photos", "--json", "--top-k", "2"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.err, "");
  const std::vector<json> all = lines(o.out);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0]["image"], dir_ / "photos/goldfish/a.png");
  EXPECT_EQ(all[1]["image"], dir_ / "photos/goldfish/b.jpg");
  EXPECT_EQ(all[2]["image"], dir_ / "photos/pizza/deep/c.jpg");
  Predictor predictor(dir_ / "model");
  for (const json& line : all) {
    const auto expected = predictor.classify(line["image"].get<std::string>(), 2);
    ASSERT_EQ(line["predictions"].size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(line["predictions"][i]["label"], expected[i].label);
      EXPECT_EQ(line["predictions"][i]["index"], expected[i].index);
      EXPECT_EQ(line["predictions"][i]["probability"].get<float>(), expected[i].probability);
    }
  }
  const test::Finished text = run({"classify", dir_ / "photos/goldfish/a.png"});
  EXPECT_THAT(text.out, HasSubstr(" %  "));
  EXPECT_EQ(std::count(text.out.begin(), text.out.end(), '\n'), 6);
}

TEST_F(PredictCli, NamesComeFromStandardInput) {
  const std::string a = dir_ / "photos/goldfish/a.png", b = dir_ / "photos/goldfish/b.jpg";
  for (const std::string end : {"\\n", "\\r\\n", "\\0"}) {
    const std::string command = "printf '" + a + end + b + end + "' | " + VITRUM_BINARY +
                                " classify - --json --model " + (dir_ / "model") + " > " +
                                (dir_ / "out");
    EXPECT_EQ(std::system(command.c_str()), 0);
    const std::vector<json> all = lines(read_file(dir_ / "out"));
    ASSERT_EQ(all.size(), 2u) << end;
    EXPECT_EQ(all[0]["image"], a);
    EXPECT_EQ(all[1]["image"], b);
  }
}

TEST_F(PredictCli, AnotherImageSize) {
  Predictor predictor(dir_ / "model", {.image_size = InputSize{48, 24}});
  const std::string photo = dir_ / "photos/goldfish/a.png";
  const test::Finished o = run({"classify", photo, "--json", "--image-size", "48x24"});
  ASSERT_EQ(o.code, 0) << o.err;
  const auto expected = predictor.classify(photo, 1)[0];
  EXPECT_EQ(lines(o.out)[0]["predictions"][0]["probability"].get<float>(), expected.probability);
  ASSERT_EQ(run({"embed", photo, "--image-size", "48x24", "--output", dir_ / "s.npy", "-q"}).code,
            0);
  EXPECT_EQ(read_npy(dir_ / "s.npy").values, predictor.features(photo));
  EXPECT_EQ(run({"eval", "--data", "folder:" + (dir_ / "photos"), "--image-size", "16", "-q"}).code,
            0);
  EXPECT_EQ(run({"explain", photo, "--image-size", "16", "--output", dir_ / "ex", "-q"}).code, 0);
  for (const char* wrong : {"0", "48x", "x48", "48x0", "48x24x3", "-16", "99999", "a"}) {
    const test::Finished bad = run({"classify", photo, "--image-size", wrong});
    EXPECT_EQ(bad.code, 2) << wrong;
    EXPECT_THAT(bad.err, HasSubstr("--image-size: expected N or HxW, each from 1 to 16384"));
  }
  EXPECT_THAT(run({"classify", photo, "--image-size", "30"}).err, HasSubstr("not divisible"));
  const test::Finished huge = run({"classify", photo, "--image-size", "16384"});
  EXPECT_EQ(huge.code, 3);
  EXPECT_THAT(huge.err, HasSubstr("too large to be meant"));
}

TEST_F(PredictCli, ClassifyGoesOnAfterAnUnreadableImage) {
  write_file_atomic(dir_ / "broken.jpg", "\xff\xd8\xff nothing");
  const test::Finished o = run({"classify", dir_ / "broken.jpg", dir_ / "photos/goldfish/a.png",
                                dir_ / "missing.png", "--json"});
  EXPECT_EQ(o.code, 3);
  const std::vector<json> all = lines(o.out);
  ASSERT_EQ(all.size(), 3u) << "one that cannot be read has a line too";
  EXPECT_EQ(all[0]["image"], dir_ / "broken.jpg");
  EXPECT_THAT(all[0]["error"].get<std::string>(), HasSubstr("broken JPEG"));
  EXPECT_EQ(all[0]["predictions"], json::array());
  EXPECT_FALSE(all[1].contains("error"));
  EXPECT_EQ(all[2]["image"], dir_ / "missing.png");
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 3);
  EXPECT_THAT(o.err, HasSubstr("2 of 3 images could not be read\n"));
  EXPECT_THAT(o.err, HasSubstr("broken.jpg: broken JPEG"));
  EXPECT_THAT(o.err, HasSubstr("missing.png: cannot be opened"));
  std::filesystem::create_directories(dir_ / "empty");
  EXPECT_EQ(run({"classify", dir_ / "empty"}).code, 3);
  EXPECT_EQ(run({"classify"}).code, 2);
}

TEST_F(PredictCli, EmbedWritesThreeFormats) {
  write_file_atomic(dir_ / "photos/goldfish/z.jpg", "junk");
  Predictor predictor(dir_ / "model");
  const std::vector<float> first = predictor.features(dir_ / "photos/goldfish/a.png");

  const test::Finished npy =
      run({"embed", dir_ / "photos", "--output", dir_ / "f.npy", "--json", "-q"});
  EXPECT_EQ(npy.code, 3);
  EXPECT_THAT(npy.err, HasSubstr("z.jpg: not a JPEG"));
  EXPECT_EQ(json::parse(npy.out), json::parse(R"({"images":4,"dimension":48,"output":")" +
                                              (dir_ / "f.npy") + R"(","unreadable":1})"));
  const NpyArray array = read_npy(dir_ / "f.npy");
  EXPECT_EQ(array.shape, (Shape{4, 48}));
  EXPECT_TRUE(std::equal(first.begin(), first.end(), array.values.begin()));
  EXPECT_TRUE(std::isnan(array.values[2 * 48]));
  std::filesystem::remove(dir_ / "photos/goldfish/z.jpg");

  EXPECT_EQ(run({"embed", "--data", "folder:" + (dir_ / "photos"), "--output",
                 dir_ / "f.safetensors", "-q"})
                .code,
            0);
  const SafetensorsFile file(dir_ / "f.safetensors");
  EXPECT_EQ(file.at("features").shape, (Shape{3, 48}));
  std::vector<int32_t> labels(3);
  file.copy_to(file.at("labels"), {labels.data(), {3}, DType::kI32});
  EXPECT_EQ(labels, (std::vector<int32_t>{0, 0, 1}));
  EXPECT_EQ(json::parse(file.metadata().at("images"))[2], dir_ / "photos/pizza/deep/c.jpg");

  EXPECT_EQ(run({"embed", dir_ / "photos/goldfish/a.png", "--output", dir_ / "f.csv", "-q"}).code,
            0);
  const std::string csv = read_file(dir_ / "f.csv");
  EXPECT_EQ(csv.find("image,f0,f1,"), 0u);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), ','), 2 * 48);
  const size_t comma = csv.find(',', csv.find('\n'));
  EXPECT_EQ(std::stof(csv.substr(comma + 1)), first[0]);
  EXPECT_EQ(run({"embed", dir_ / "photos", "--output", dir_ / "f.txt"}).code, 2);
  EXPECT_EQ(run({"embed", "--output", dir_ / "f.npy"}).code, 2);
}

TEST_F(PredictCli, EvalMatchesFolderNamesWithLabels) {
  const std::string data = "folder:" + (dir_ / "photos");
  const test::Finished o = run({"eval", "--data", data, "--json", "-q"});
  ASSERT_EQ(o.code, 0) << o.err;
  const json all = json::parse(o.out);
  EXPECT_EQ(all["images"], 3);
  Predictor predictor(dir_ / "model");
  int right = 0;
  for (const auto& [image, label] : std::map<std::string, int>{
           {"goldfish/a.png", 1}, {"goldfish/b.jpg", 1}, {"pizza/deep/c.jpg", 6}}) {
    const int guess = predictor.classify(dir_ / ("photos/" + image), 1)[0].index;
    right += guess == label;
    EXPECT_GE(all["confusion"][static_cast<size_t>(label)][static_cast<size_t>(guess)], 1);
  }
  EXPECT_NEAR(all["top1"].get<double>(), right / 3.0, 1e-12);
  EXPECT_EQ(all["confusion"].size(), 7u);
  EXPECT_EQ(all["classes"], json(predictor.model().labels));
  EXPECT_TRUE(all["per_class"][0].is_null());

  test::write_file(dir_ / "photos/steak/a.png", test::encode_png(test::gradient(3, 9, 9)));
  const test::Finished unmatched = run({"eval", "--data", data, "-q"});
  EXPECT_EQ(unmatched.code, 3);
  EXPECT_THAT(unmatched.err, HasSubstr("\"steak\""));
}

}  // namespace
}  // namespace vitrum
