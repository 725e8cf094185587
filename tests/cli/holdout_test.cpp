// Evaluating on what a run held out, skipping what cannot be read, and checking data.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/data_files.h"
#include "tests/support/process.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_run.h"
#include "vitrum/core/files.h"

namespace vitrum {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// Two classes of photos, most of them different.
class Photos : public testing::Test {
 protected:
  Photos() {
    test::write_tiny_model(dir_ / "model", test::tiny_rgb_model());
    for (int i = 0; i < 12; ++i)
      for (const char* name : {"ash", "birch"})
        write(fmt::format("photos/{}/{:02}.png", name, i), 3 + i + (*name == 'b' ? 20 : 0));
  }
  void write(const std::string& name, int width) {
    test::write_file(dir_ / name, test::encode_png(test::gradient(3, 16, width)));
  }
  test::Finished run(std::vector<std::string> arguments) const {
    return test::run_vitrum(arguments, dir_ / "output");
  }
  test::Finished train(const std::string& out, std::vector<std::string> more) const {
    more.insert(more.begin(), {"train", "--model", dir_ / "model", "--data", data(), "--batch-size",
                               "4", "--epochs", "2", "--lr", "0.01", "--out", dir_ / out});
    return run(more);
  }
  test::Finished eval(const std::string& model, std::vector<std::string> more) const {
    more.insert(more.begin(), {"eval", "--model", dir_ / model, "--data", data(), "-q"});
    return run(more);
  }
  std::string data() const { return "folder:" + (dir_ / "photos"); }
  std::vector<json> lines(const std::string& text) const {
    std::vector<json> all;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) all.push_back(json::parse(line));
    return all;
  }
  test::TempDir dir_;
};

TEST_F(Photos, TheHeldOutPartIsFoundAgain) {
  const test::Finished done = train("run", {"--set", "holdout=0.3", "--seed", "5", "--json"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("--split holdout"));
  const json last = lines(done.out).back();
  const test::Finished again = eval("run/last", {"--split", "holdout", "--json"});
  ASSERT_EQ(again.code, 0) << again.err;
  const json found = json::parse(again.out);
  EXPECT_EQ(found["images"], 7);
  EXPECT_EQ(found["top1"], last["test_acc"]);
  EXPECT_NEAR(found["loss"].get<double>(), last["test_loss"].get<double>(), 1e-6);

  const test::Finished all = run({"eval", "--model", dir_ / "run/last", "--data", data()});
  EXPECT_EQ(all.code, 0);
  EXPECT_THAT(all.err, HasSubstr("images that the model was trained with are among"));
  write("photos/ash/more.png", 60);
  const test::Finished other = eval("run/last", {"--split", "holdout"});
  EXPECT_EQ(other.code, 3);
  EXPECT_THAT(other.err, HasSubstr("25 now, 24 then"));
}

TEST_F(Photos, ASplitThatIsNotThereIsRefused) {
  for (const char* split : {"val", "test", "train"}) {
    const test::Finished done = eval("model", {"--split", split});
    EXPECT_EQ(done.code, 3);
    EXPECT_THAT(done.err, AllOf(HasSubstr("has no splits"), HasSubstr("leave out --split")));
  }
  const test::Finished none = eval("model", {"--split", "holdout"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("does not say that its run held anything out"));
  std::filesystem::create_directories(dir_ / "split");
  std::filesystem::rename(dir_ / "photos", dir_ / "split/train");
  const test::Finished only =
      run({"eval", "--model", dir_ / "model", "--data", "folder:" + (dir_ / "split")});
  EXPECT_EQ(only.code, 3);
  EXPECT_THAT(only.err, HasSubstr("has no val/, only train/"));
}

// Bad images are left out before anything is drawn: the run is that of the good ones alone.
TEST_F(Photos, BadImagesAreSkippedWhereAsked) {
  ASSERT_EQ(train("good", {"--set", "holdout=0.3"}).code, 0);
  test::write_file(dir_ / "photos/ash/000.png", {});
  test::write_file(dir_ / "photos/birch/07x.jpg", {0xff, 0xd8, 0xff, 0xe0});
  const test::Finished stopped = train("stopped", {"--set", "holdout=0.3"});
  EXPECT_EQ(stopped.code, 3);
  const std::vector<std::string> skip = {"--set", "holdout=0.3", "--set", "on_bad_image=skip"};
  auto one = skip;
  one.insert(one.end(), {"--threads", "1"});
  const test::Finished done = train("skipped", one);
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("skipped 2 images that cannot be read: " +
                                  (dir_ / "skipped/skipped.jsonl") + "\n"));
  const std::vector<json> list = lines(read_file(dir_ / "skipped/skipped.jsonl"));
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0]["image"], dir_ / "photos/ash/000.png");
  EXPECT_THAT(list[1]["error"].get<std::string>(), HasSubstr("07x.jpg"));
  const auto weights = [&](const std::string& run) {
    return read_file(dir_ / (run + "/last/model.safetensors"));
  };
  EXPECT_EQ(weights("skipped"), weights("good"));

  // A run that was killed before its first save starts again, with the images it had: repaired
  // meanwhile, they would make it another run.
  write("photos/ash/000.png", 50);
  std::filesystem::remove_all(dir_ / "skipped/state");
  ASSERT_EQ(run({"train", "--resume", dir_ / "skipped", "-q", "--threads", "2"}).code, 0);
  EXPECT_EQ(weights("skipped"), weights("good"));
}

TEST_F(Photos, CheckFindsWhatIsWrong) {
  const test::Finished clean = run({"data", data(), "--check"});
  EXPECT_EQ(clean.code, 0) << clean.err;
  EXPECT_THAT(clean.out,
              AllOf(HasSubstr("images         24 train"), HasSubstr("no image is a problem")));
  std::filesystem::create_directories(dir_ / "split/val");
  std::filesystem::rename(dir_ / "photos", dir_ / "split/train");
  write("split/val/ash/a.png", 40), write("split/val/birch/b.png", 3);  // = train/ash/00.png
  write("split/train/birch/z.png", 4);                                  // = train/ash/01.png
  test::write_file(dir_ / "split/train/ash/e.png", {});
  test::write_file(dir_ / "split/val/ash/f.jpg", {0xff, 0xd8, 0xff, 0xe0});
  for (const char* threads : {"1", "3"}) {
    const test::Finished done =
        run({"data", "folder:" + (dir_ / "split"), "--check", "--json", "--threads", threads});
    EXPECT_EQ(done.code, 1) << done.err;
    const json found = json::parse(done.out);
    EXPECT_FALSE(found["clean"]);
    ASSERT_EQ(found["broken"].size(), 1u);
    EXPECT_EQ(found["broken"][0]["image"], dir_ / "split/val/ash/f.jpg");
    EXPECT_EQ(found["broken"][0]["split"], "test");
    ASSERT_EQ(found["empty"].size(), 1u);
    EXPECT_EQ(found["empty"][0]["image"], dir_ / "split/train/ash/e.png");
    ASSERT_EQ(found["duplicates"].size(), 1u);
    EXPECT_EQ(found["duplicates"][0][0]["image"], dir_ / "split/train/ash/01.png");
    EXPECT_EQ(found["duplicates"][0][1]["class"], "birch");
    ASSERT_EQ(found["leaks"].size(), 1u);
    EXPECT_EQ(found["leaks"][0][1]["image"], dir_ / "split/val/birch/b.png");
    EXPECT_EQ(found["class_counts"], json({{"ash", 12}, {"birch", 13}}));
  }
  const test::Finished text = run({"data", "folder:" + (dir_ / "split"), "--check", "-q"});
  EXPECT_THAT(text.out, AllOf(HasSubstr("broken         1\n"), HasSubstr("(of different classes)"),
                              HasSubstr("12 to 13 training images")));
}

}  // namespace
}  // namespace vitrum
