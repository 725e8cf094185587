// classify, eval and embed with words, through the real binary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/data_files.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "vitrum/core/files.h"
#include "vitrum/weights/npy.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kWords = VITRUM_SOURCE_DIR "/tests/golden/words/";

class WordsCli : public testing::Test {
 protected:
  WordsCli() {
    for (const char* folder : {"photos/cat", "photos/red_dog"}) ensure_directory(dir_ / folder);
    for (const char* name : {"photos/cat/a.png", "photos/red_dog/b.png"})
      test::write_file(dir_ / name, test::encode_png(test::gradient(3, 40 + name[7] % 7, 30)));
    setenv("VITRUM_CACHE", (dir_ / "cache").c_str(), 1);
  }
  ~WordsCli() override { unsetenv("VITRUM_CACHE"); }
  test::Finished run(std::vector<std::string> arguments) {
    return test::run_vitrum(arguments, dir_ / "run");
  }
  void expect_refusal(std::vector<std::string> arguments, int code, const std::string& part) {
    const test::Finished o = run(std::move(arguments));
    EXPECT_EQ(o.code, code) << o.err;
    EXPECT_THAT(o.err, HasSubstr(part));
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
    EXPECT_EQ(o.out, "");
  }
  TempDir dir_;
};

TEST_F(WordsCli, ClassifyByLabels) {
  for (const std::string model : {"clip", "siglip"}) {
    double sum = 0;
    const std::vector<std::string> command = {"classify",     dir_ / "photos", "--model",
                                              kWords + model, "--labels",      "a cat, a dog",
                                              "--template",   "a photo of {}", "--json"};
    const test::Finished o = run(command);
    ASSERT_EQ(o.code, 0) << o.err;
    EXPECT_EQ(run(command).out, o.out);  // from the cache
    std::istringstream lines(o.out);
    for (std::string line; std::getline(lines, line); sum = 0) {
      const json answer = json::parse(line);
      ASSERT_EQ(answer["predictions"].size(), 2u);
      for (const json& p : answer["predictions"]) {
        EXPECT_EQ(p["label"], p["index"] == 0 ? "a cat" : "a dog");
        sum += p["probability"].get<double>();
      }
      if (model == "clip") {
        EXPECT_NEAR(sum, 1, 1e-5);
      }
    }
  }
}

TEST_F(WordsCli, EvalByClassNames) {
  write_file_atomic(dir_ / "names.txt", "red dog\ncat\n");
  for (const std::string labels : {"", "@names.txt"}) {
    std::vector<std::string> command = {
        "eval", "--model", kWords + "clip", "--data", "folder:" + (dir_ / "photos"), "--json"};
    if (!labels.empty()) command.insert(command.end(), {"--labels", "@" + (dir_ / "names.txt")});
    const test::Finished o = run(command);
    ASSERT_EQ(o.code, 0) << o.err;
    const json answer = json::parse(o.out);
    EXPECT_EQ(answer["images"], 2);
    EXPECT_EQ(answer["classes"][0], labels.empty() ? "cat" : "red dog");
  }
}

TEST_F(WordsCli, EmbedsTextsAndImagesIntoOneSpace) {
  const std::string model = kWords + "clip";
  const test::Finished texts = run({"embed", "--text", "a cat", "--text", "a dog", "--model", model,
                                    "--output", dir_ / "t.npy", "--json"});
  ASSERT_EQ(texts.code, 0) << texts.err;
  EXPECT_EQ(json::parse(texts.out)["texts"], 2);
  const test::Finished images =
      run({"embed", dir_ / "photos", "--model", model, "--output", dir_ / "i.npy", "--json"});
  ASSERT_EQ(images.code, 0) << images.err;
  EXPECT_EQ(read_npy(dir_ / "t.npy").shape, (Shape{2, 8}));
  EXPECT_EQ(read_npy(dir_ / "i.npy").shape, (Shape{2, 8}));
}

TEST_F(WordsCli, RefusesInOneLine) {
  test::write_tiny_model(dir_ / "plain", test::tiny_rgb_model());
  const std::string photos = dir_ / "photos", clip = kWords + "clip", plain = dir_ / "plain";
  expect_refusal({"classify", photos, "--model", clip}, 2,
                 "--model " + clip + " --labels \"a cat,a dog\"`");
  expect_refusal({"classify", photos, "--model", plain, "--labels", "a,b"}, 2, "has no words");
  expect_refusal({"classify", photos, "--model", clip, "--labels", " ,"}, 2, "expected labels");
  expect_refusal({"classify", photos, "--model", clip, "--labels", "a", "--template", "a"}, 2,
                 "expected one {}");
  expect_refusal({"classify", photos, "--model", plain, "--template", "a {}"}, 2,
                 "--template goes with --labels");
  expect_refusal({"classify", photos, "--model", clip, "--labels", "@" + (dir_ / "none.txt")}, 3,
                 "none.txt");
  expect_refusal({"eval", "--model", plain, "--data", "folder:" + photos, "--labels", "a,b"}, 2,
                 "has no words");
  expect_refusal({"embed", "--text", "a", "--model", plain, "--output", dir_ / "x.npy"}, 2,
                 "has no words");
  expect_refusal({"embed", "--text", "a", photos, "--model", clip, "--output", dir_ / "x.npy"}, 2,
                 "--text embeds texts alone");
}

// What makes vectors of texts useless is named as it is for images.
TEST_F(WordsCli, NamesTextWeightsThatAreNotFinite) {
  const std::string model = dir_ / "nan";
  std::filesystem::copy(kWords + "clip", model);
  std::string bytes = read_file(model + "/model.safetensors");
  const TensorInfo table = SafetensorsFile(model + "/model.safetensors")
                               .at("text_model.embeddings.token_embedding.weight");
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int64_t i = 0; i < table.shape.numel(); ++i)
    std::memcpy(
        bytes.data() + sizeof header + header + table.offset + sizeof nan * static_cast<size_t>(i),
        &nan, sizeof nan);
  write_file_atomic(model + "/model.safetensors", bytes);
  const std::string named = model +
                            ": the text tower gives numbers that are not finite; so are "
                            "weights of text.token_embedding.weight";
  expect_refusal({"classify", dir_ / "photos", "--model", model, "--labels", "a,b"}, 3, named);
  expect_refusal({"embed", "--text", "a", "--model", model, "--output", dir_ / "x.npy"}, 3, named);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "x.npy"));
}

}  // namespace
}  // namespace vitrum
