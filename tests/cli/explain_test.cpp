// explain and embed --tap through the real binary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/data_files.h"
#include "tests/support/process.h"
#include "tests/support/tiny_model.h"
#include "vitrum/core/files.h"
#include "vitrum/data/decode.h"
#include "vitrum/weights/npy.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

class ExplainCli : public testing::Test {
 protected:
  ExplainCli() {
    test::write_tiny_model(dir_ / "model", test::tiny_rgb_model());
    test::write_file(dir_ / "cat.jpg", test::encode_jpeg(test::gradient(3, 40, 60)));
  }
  test::Finished run(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--model", dir_ / "model"});
    return test::run_vitrum(arguments, dir_ / "run");
  }
  // The names of the files that a call says it wrote; each must be there.
  std::vector<std::string> files(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "explain");
    arguments.insert(arguments.end(), {"--output", dir_ / "out", "--json", "-q"});
    const test::Finished o = run(arguments);
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_EQ(o.err, "");
    std::vector<std::string> names;
    const json out = json::parse(o.out);
    for (const std::string path : out["files"]) {
      if (path.ends_with(".png")) read_image(path);
      EXPECT_TRUE(std::filesystem::file_size(path) > 0) << path;
      names.push_back(std::filesystem::path(path).filename().string());
    }
    return names;
  }
  void expect_error(std::vector<std::string> arguments, int code, const std::string& text) {
    arguments.insert(arguments.begin(), "explain");
    const test::Finished o = run(arguments);
    EXPECT_EQ(o.code, code) << o.err;
    EXPECT_THAT(o.err, HasSubstr(text));
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  }
  test::TempDir dir_;
};

// What is wrong with one image concerns that one; what is wrong with the folder ends the call.
TEST_F(ExplainCli, ImagesAndFoldersThatFail) {
  test::write_file(dir_ / "thin.png", test::encode_png(test::gradient(3, 1, 200'000)));
  const test::Finished thin = run({"explain", dir_ / "thin.png", dir_ / "cat.jpg", "--method",
                                   "rollout", "--output", dir_ / "out"});
  EXPECT_EQ(thin.code, 3);
  EXPECT_THAT(thin.err,
              HasSubstr("thin.png: 200000 x 1 pixels are more than the limit of 65535 on a side"));
  EXPECT_THAT(thin.out, HasSubstr("cat-rollout.png"));
  std::filesystem::create_directories(dir_ / "taken/cat-rollout.png");
  const test::Finished taken = run({"explain", dir_ / "cat.jpg", dir_ / "cat.jpg", "--method",
                                    "rollout", "--output", dir_ / "taken"});
  EXPECT_EQ(taken.code, 3);
  EXPECT_EQ(std::count(taken.err.begin(), taken.err.end(), '\n'), 1) << taken.err;
  EXPECT_THAT(taken.err, HasSubstr("cat-rollout.png': it is a directory"));
}

TEST_F(ExplainCli, WritesEveryKindOfPicture) {
  EXPECT_THAT(files({dir_ / "cat.jpg"}),
              ElementsAre("cat-attention-layers.png", "cat-attention-heads.png", "cat-rollout.png",
                          "cat-gradient.png", "distance.png", "distance.csv", "distance.npy"));
  EXPECT_EQ(read_npy(dir_ / "out/distance.npy").shape, (Shape{2, 3}));
  EXPECT_THAT(read_file(dir_ / "out/distance.csv"),
              testing::StartsWith("layer,head,distance\n0,0,"));
  EXPECT_THAT(files({dir_ / "cat.jpg", "--method", "attention", "--layer", "1"}),
              ElementsAre("cat-attention-01.png", "cat-attention-01-heads.png"));
  EXPECT_THAT(
      files({dir_ / "cat.jpg", "--method", "attention", "--layer", "1", "--head", "2", "--npy"}),
      ElementsAre("cat-attention-01-02.png", "cat-attention-01-02.npy"));
  EXPECT_THAT(files({dir_ / "cat.jpg", "--method", "rollout", "--fusion", "max", "--discard", "0.5",
                     "--size", "100"}),
              ElementsAre("cat-rollout.png"));
  EXPECT_THAT(files({"--weights"}),
              ElementsAre("positions.png", "positions-centre.png", "filters.png", "positions.npy",
                          "positions-centre.npy", "filters.npy"));
  EXPECT_EQ(read_npy(dir_ / "out/positions.npy").shape, (Shape{4, 4, 4, 4}));
  EXPECT_EQ(read_npy(dir_ / "out/filters.npy").shape, (Shape{28, 3, 8, 8}));
}

TEST_F(ExplainCli, GradientIsAboutTheChosenClass) {
  const auto map = [&](const std::string& name) {
    files({dir_ / "cat.jpg", "--method", "gradient", "--npy", "--class", name});
    return read_npy(dir_ / "out/cat-gradient.npy").values;
  };
  EXPECT_EQ(map("Tinca tinca"), map("0"));
  EXPECT_NE(map("goldfish"), map("0"));
}

TEST_F(ExplainCli, TheAskedClassHasItsProbability) {
  const auto asked = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"explain", dir_ / "cat.jpg", "--method", "rollout", "--output",
                               dir_ / "out", "--json", "-q"});
    return json::parse(run(more).out)["images"][0];
  };
  const json plain = asked({});
  const Image title = read_image(dir_ / "out/cat-rollout.png");
  EXPECT_EQ(plain["asked_index"], plain["index"]);
  EXPECT_EQ(plain["asked_probability"], plain["probability"]);
  const std::string other = plain["label"] == "goldfish" ? "Tinca tinca" : "goldfish";
  const json answer = asked({"--class", other});
  EXPECT_EQ(answer["label"], plain["label"]);
  EXPECT_NE(answer["asked_index"], plain["index"]);
  EXPECT_LE(answer["asked_probability"].get<double>(), plain["probability"].get<double>());
  EXPECT_GT(answer["asked_probability"].get<double>(), 0);
  const json all =
      json::parse(run({"classify", dir_ / "cat.jpg", "--top-k", "1000", "--json"}).out);
  EXPECT_THAT(all.dump(), HasSubstr(answer["asked_probability"].dump()));
  EXPECT_NE(read_image(dir_ / "out/cat-rollout.png").pixels, title.pixels) << "the title says it";
}

TEST_F(ExplainCli, SeveralImagesAndTheirTurn) {
  std::filesystem::create_directories(dir_ / "photos/more");
  // A JPEG of 40 x 60 held sideways: orientation 6 in a minimal EXIF segment.
  test::Bytes turned = test::encode_jpeg(test::gradient(3, 40, 60));
  const std::string exif(
      "\xff\xe1\x00\x22"
      "Exif\0\0"
      "II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0",
      36);
  turned.insert(turned.begin() + 2, exif.begin(), exif.end());
  test::write_file(dir_ / "photos/cat.jpg", turned);
  test::write_file(dir_ / "photos/more/cat.jpg", turned);
  write_file_atomic(dir_ / "photos/bad.jpg", "junk");
  const test::Finished o = run({"explain", dir_ / "photos", "--output", dir_ / "out", "--json",
                                "-q", "--method", "rollout", "--npy"});
  EXPECT_EQ(o.code, 3);
  EXPECT_THAT(o.err, HasSubstr("bad.jpg: not a JPEG"));
  const json out = json::parse(o.out);
  EXPECT_EQ(out["unreadable"], 1);
  EXPECT_EQ(out["images"].size(), 2u);
  EXPECT_EQ(out["files"][2], dir_ / "out/cat-2-rollout.png");
  const Image upright = read_image(dir_ / "out/cat-rollout.png");
  EXPECT_GT(upright.height, upright.width);  // the title is on top of a picture of 60 x 40
  // The model saw the photo as it is stored unless told otherwise, as classify does.
  files({dir_ / "photos/cat.jpg", "--method", "rollout", "--npy"});
  const auto stored = read_npy(dir_ / "out/cat-rollout.npy").values;
  files({dir_ / "photos/cat.jpg", "--method", "rollout", "--npy", "--exif-orientation"});
  EXPECT_NE(read_npy(dir_ / "out/cat-rollout.npy").values, stored);
}

TEST_F(ExplainCli, BadInputIsOneClearLine) {
  expect_error({}, 2, "explain needs images, or --weight-pictures instead");
  expect_error({dir_ / "cat.jpg", "--weights"}, 2,
               "explain needs images, or --weight-pictures instead");
  expect_error({dir_ / "cat.jpg", "--head", "1"}, 2, "--head 1 needs --layer");
  expect_error({dir_ / "cat.jpg", "--layer", "2", "--output", dir_ / "o"}, 2,
               "layer 2 does not exist; the model has layers 0 to 1");
  expect_error({dir_ / "cat.jpg", "--layer", "0", "--head", "3", "--output", dir_ / "o"}, 2,
               "head 3 does not exist; blocks.0.attn has heads 0 to 2");
  expect_error({dir_ / "cat.jpg", "--class", "goldfsh", "--output", dir_ / "o"}, 2,
               "did you mean 'goldfish'?");
  expect_error({dir_ / "cat.jpg", "--class", "crane", "--output", dir_ / "o"}, 2,
               "not one output but 2 and 4");
  expect_error({dir_ / "cat.jpg", "--discard", "1"}, 2, "expected a share");
  expect_error({dir_ / "cat.jpg", "--method", "rolout"}, 2, "rollout");
  expect_error({dir_ / "none.jpg", "--output", dir_ / "o"}, 3, "none.jpg: cannot be opened");
  expect_error({dir_ / "cat.jpg", "--output", dir_ / "cat.jpg"}, 2, "cat.jpg', which is read");
  // The header of a PNG that claims a billion pixels.
  test::Bytes huge = test::encode_png(test::gradient(3, 4, 4));
  huge[16] = huge[20] = 0, huge[17] = huge[21] = 0, huge[18] = huge[22] = 0x7f;
  test::write_file(dir_ / "huge.png", huge);
  expect_error({dir_ / "huge.png", "--output", dir_ / "o"}, 3, "huge.png");
}

TEST_F(ExplainCli, EmbedWritesTaps) {
  const std::string photo = dir_ / "cat.jpg";
  test::Finished o = run({"embed", photo, "--tap", "blocks.1", "--tap", "blocks.0.attn.probs",
                          "--output", dir_ / "t.safetensors", "--json", "-q"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(json::parse(o.out)["taps"][1],
            json::parse(R"({"name":"blocks.0.attn.probs","shape":[1,3,17,17]})"));
  const SafetensorsFile file(dir_ / "t.safetensors");
  EXPECT_EQ(file.at("blocks.1").shape, (Shape{1, 17, 48}));
  EXPECT_EQ(file.at("features").shape, (Shape{1, 48}));

  EXPECT_EQ(run({"embed", photo, "--tap", "norm", "--output", dir_ / "n.npy", "-q"}).code, 0);
  EXPECT_EQ(read_npy(dir_ / "n.npy").shape, (Shape{1, 17, 48}));
  o = run({"embed", photo, photo, "--tap", "norm", "--tap", "head", "--output", dir_ / "m.npy",
           "--json", "-q"});
  EXPECT_EQ(json::parse(o.out)["taps"][1]["output"], dir_ / "m.head.npy");
  EXPECT_EQ(read_npy(dir_ / "m.head.npy").shape, (Shape{2, 7}));

  o = run({"embed", photo, "--tap", "blocks.1.attn.prob", "--output", dir_ / "n.npy"});
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, HasSubstr("did you mean 'blocks.1.attn.probs'?"));
  EXPECT_EQ(run({"embed", photo, "--tap", "norm", "--output", dir_ / "n.csv"}).code, 2);
}

}  // namespace
}  // namespace vitrum
