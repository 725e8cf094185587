// `data pack`, and what is done with its shards, through the real binary.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <stdlib.h>

#include <nlohmann/json.hpp>

#include "tests/support/data_files.h"
#include "tests/support/process.h"
#include "tests/support/tiny_model.h"
#include "vitrum/core/files.h"
#include "vitrum/core/sha.h"
#include "vitrum/weights/npy.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::TempDir;
using testing::ElementsAre;
using testing::HasSubstr;

class Pack : public testing::Test {
 protected:
  void SetUp() override {
    setenv("VITRUM_CACHE", (dir_ / "cache").c_str(), 1);
    int n = 0;
    for (const char* split : {"train", "val"})
      for (const char* name : {"ant", "bee", "cat dog"})
        for (int i = 0; i < (split[0] == 't' ? 5 : 3); ++i, ++n) {
          const Image image = test::gradient(3, 30 + n, 50 - n);
          const bool png = n % 4 == 0;
          test::write_file(
              dir_ / fmt::format("in/{}/{}/photo.{}.{}", split, name, i, png ? "png" : "JPEG"),
              png ? test::encode_png(image) : test::encode_jpeg(image));
        }
  }
  void TearDown() override { unsetenv("VITRUM_CACHE"); }

  test::Finished run(const std::vector<std::string>& arguments) {
    return test::run_vitrum(arguments, dir_ / "run");
  }
  json pack(const std::string& to, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"data", "pack", source(), dir_ / to, "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const test::Finished done = run(arguments);
    EXPECT_EQ(done.code, 0) << done.err;
    return json::parse(done.out, nullptr, false);
  }
  std::string source() const { return "folder:" + (dir_ / "in"); }

  TempDir dir_;
};

std::map<std::string, std::string> files_below(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file())
      files[fs::relative(entry.path(), folder).string()] = sha256(read_file(entry.path().string()));
  return files;
}

TEST_F(Pack, KeepsImagesLabelsAndOrder) {
  const json said = pack("out", {"--copy", "--shards", "4"});
  EXPECT_EQ(said["images"], 24);
  EXPECT_EQ(said["shards"], 8);
  EXPECT_EQ(said["digest"].get<std::string>().size(), 64u);
  int64_t bytes = 0;
  for (const char* split : {"train", "val"})
    for (int i = 0; i < 4; ++i)
      bytes += static_cast<int64_t>(
          fs::file_size(dir_ / fmt::format("out/{0}/{0}-{1:06}.tar", split, i)));
  EXPECT_EQ(said["bytes"], bytes);
  EXPECT_EQ(read_file(dir_ / "out/val/classes.txt"), "ant\nbee\ncat dog\n");
  const DataSplits from = open_data(source()), to = open_data("shards:" + (dir_ / "out"));
  for (const auto& [a, b] : {std::pair(&from.train, &to.train), std::pair(&from.test, &to.test)}) {
    ASSERT_EQ((*a)->size(), (*b)->size());
    EXPECT_EQ((*a)->classes(), (*b)->classes());
    for (int64_t i = 0; i < (*a)->size(); ++i) {
      EXPECT_EQ((*a)->label(i), (*b)->label(i));
      EXPECT_EQ((*a)->file(i), (*b)->file(i));
    }
  }
  EXPECT_THAT(to.train->name(1), testing::EndsWith("train-000001.tar/00000001_photo_1.jpg"));
  // The verb that describes data, and checks it.
  const test::Finished shown = run({"data", "shards:" + (dir_ / "out"), "--json"});
  EXPECT_EQ(json::parse(shown.out)["train_counts"], (json{5, 5, 5})) << shown.err;
  EXPECT_EQ(run({"data", "shards:" + (dir_ / "out"), "--check"}).code, 0);
  // What other programs see: without our index the same classes, by number.
  fs::remove(dir_ / "out/val/shards.index");
  const auto plain = open_split("shards:" + (dir_ / "out"), "val");
  EXPECT_EQ(plain->size(), 9);
  EXPECT_EQ(plain->classes(), from.test->classes());
}

TEST_F(Pack, WritesTheSameBytesAlways) {
  const json first = pack("a", {"--threads", "1"}), second = pack("b", {"--threads", "3"});
  EXPECT_EQ(first["digest"], second["digest"]);
  EXPECT_EQ(files_below(dir_ / "a"), files_below(dir_ / "b"));
  // Packed again from the shards.
  const test::Finished again =
      run({"data", "pack", "shards:" + (dir_ / "a"), dir_ / "c", "--json"});
  EXPECT_EQ(json::parse(again.out)["digest"], first["digest"]) << again.err;
  EXPECT_NE(pack("d", {"--size", "16"})["digest"], first["digest"]);
}

TEST_F(Pack, MakesImagesSmaller) {
  pack("small", {"--size", "24", "--quality", "90"});
  const auto from = open_split(source(), "train"),
             to = open_split("shards:" + (dir_ / "small"), "train");
  for (int64_t i = 0; i < from->size(); ++i) {
    const Image before = from->read(i), after = to->read(i);
    EXPECT_EQ(std::min(after.height, after.width), std::min({before.height, before.width, 24}));
    EXPECT_EQ(to->label(i), from->label(i));
    EXPECT_EQ(to->file(i)[0], 0xff);  // JPEG, all of them
  }
}

// The same order and the same pixels: the same weights, bit for bit.
TEST_F(Pack, TrainsToTheSameBits) {
  pack("out", {"--shards", "3"});
  test::write_tiny_model(dir_ / "model", test::tiny_rgb_model());
  const auto train = [&](const std::string& data, const std::string& out) {
    const test::Finished done =
        run({"train", "--model", dir_ / "model", "--data", data, "--epochs", "2", "--batch-size",
             "4", "--out", dir_ / out, "--seed", "3", "--set", "augment=resized-crop-flip", "--set",
             "num_classes=3", "-q"});
    EXPECT_EQ(done.code, 0) << done.err;
    return read_file(dir_ / (out + "/last/model.safetensors"));
  };
  EXPECT_EQ(train(source(), "runs/folder"), train("shards:" + (dir_ / "out"), "runs/shards"));
}

TEST_F(Pack, LeavesNothingHalfDone) {
  // A broken image, found only when it is decoded.
  test::write_file(dir_ / "in/val/bee/photo.9.jpg", test::Bytes{0xff, 0xd8, 0xff, 0xe0, 0});
  const test::Finished broken = run({"data", "pack", source(), dir_ / "x/out", "--size", "16"});
  EXPECT_EQ(broken.code, 3);
  EXPECT_THAT(broken.err, HasSubstr("photo.9.jpg"));
  EXPECT_TRUE(fs::is_empty(dir_.path() + "/x")) << broken.err;
  // Killed: nothing of that name, and the next one cleans up.
  for (int i = 0; i < 300; ++i)
    test::write_file(dir_ / fmt::format("many/a/{}.png", i),
                     test::encode_png(test::gradient(3, 400, 400)));
  for (const int signal : {SIGINT, SIGKILL}) {
    test::Process process(test::vitrum_command({"data", "pack", "folder:" + (dir_ / "many"),
                                                dir_ / "y/out", "--size", "256", "--shards", "2"}),
                          dir_ / "out", dir_ / "err");
    ASSERT_TRUE(test::eventually([&] { return fs::exists(dir_ / "y/.out.new.vitrum-pack"); }));
    process.signal(signal);
    EXPECT_EQ(process.wait(), signal == SIGINT ? 130 : 137);
    EXPECT_FALSE(fs::exists(fs::path(dir_ / "y/out")));
  }
  EXPECT_EQ(run({"data", "pack", "folder:" + (dir_ / "many"), dir_ / "y/out", "-q"}).code, 0);
  EXPECT_FALSE(fs::exists(dir_ / "y/.out.new.vitrum-pack"));
  EXPECT_EQ(open_split("shards:" + (dir_ / "y/out"))->size(), 300);
}

TEST_F(Pack, WritesOverNothingOfOthers) {
  const auto refused = [&](const std::vector<std::string>& arguments) {
    const test::Finished done = run(arguments);
    EXPECT_EQ(done.code, 2) << done.out;
    return done.err;
  };
  EXPECT_THAT(refused({"data", "pack", source(), dir_ / "in/train/out"}), HasSubstr("lies in"));
  EXPECT_THAT(refused({"data", "pack", source(), dir_ / "in", "--force"}), HasSubstr("lies in it"));
  EXPECT_THAT(refused({"data", "pack", source(), dir_ / "", "--force"}), HasSubstr("lies in it"));
  test::write_file(dir_ / "mine/letter.txt", {1});
  EXPECT_THAT(refused({"data", "pack", source(), dir_ / "mine", "--force"}),
              HasSubstr("holds other files"));
  pack("out");
  const auto before = files_below(dir_ / "out");
  EXPECT_THAT(refused({"data", "pack", source(), dir_ / "out"}), HasSubstr("--force"));
  EXPECT_THAT(refused({"data", "pack", "shards:" + (dir_ / "out"), dir_ / "out", "--force"}),
              HasSubstr("which is read"));
  EXPECT_EQ(files_below(dir_ / "out"), before);
  pack("out", {"--force", "--shards", "2"});
  EXPECT_NE(files_below(dir_ / "out"), before);
  EXPECT_THAT(refused({"data", "pack", source()}), HasSubstr("needs SRC"));
  EXPECT_THAT(refused({"data", "pack", source(), dir_ / "z", "--copy", "--size", "9"}),
              HasSubstr("--copy"));
  EXPECT_THAT(refused({"data", "pack", source(), dir_ / "z", "--quality", "9"}),
              HasSubstr("--size"));
  EXPECT_THAT(refused({"data", "pack", source(), dir_ / "z", "--shards", "99"}),
              HasSubstr("only 15 images"));
  EXPECT_THAT(refused({"data", source(), "--copy"}), HasSubstr("data pack"));
  EXPECT_FALSE(fs::exists(fs::path(dir_ / "z")));
}

// The parts of --shard together are the whole.
TEST_F(Pack, ShardsDivideTheWork) {
  pack("out");
  ModelSpec model = test::tiny_rgb_model();
  model.labels = {"ant", "bee", "cat dog", "d", "e", "f", "g"};
  test::write_tiny_model(dir_ / "model", model);
  const std::string shards = "shards:" + (dir_ / "out");
  const auto work = [&](std::vector<std::string> arguments, const std::string& shard) {
    arguments.insert(arguments.end(), {"--model", dir_ / "model"});
    if (!shard.empty()) arguments.insert(arguments.end(), {"--shard", shard});
    const test::Finished done = run(arguments);
    EXPECT_EQ(done.code, 0) << done.err;
    return done.out;
  };
  const std::vector<std::string> parts = {"1/4", "2/4", "3/4", "4/4"};
  std::string classified, embedded;
  int64_t images = 0;
  double right = 0;
  const auto embed = [&](const std::string& shard) {
    work({"embed", "--data", shards, "--split", "train", "--output", dir_ / "f.csv"}, shard);
    const std::string table = read_file(dir_ / "f.csv");
    return table.substr(table.find('\n') + 1);
  };
  const std::vector<std::string> eval = {"eval", "--data", shards, "--split", "train", "--json"};
  for (const std::string& part : parts) {
    classified += work({"classify", shards + "/train", "--json"}, part);
    embedded += embed(part);
    const json said = json::parse(work(eval, part));
    images += said["images"].get<int64_t>();
    right += said["top1"].get<double>() * said["images"].get<double>();
  }
  EXPECT_EQ(classified, work({"classify", shards + "/train", "--json"}, ""));
  EXPECT_EQ(embedded, embed(""));
  const json whole = json::parse(work(eval, ""));
  EXPECT_EQ(images, whole["images"]);
  EXPECT_NEAR(right, whole["top1"].get<double>() * 15, 1e-9);
  for (const char* bad : {"0/4", "5/4", "1", "a/b", "1/4x", "-1/4"})
    EXPECT_EQ(run({"classify", shards, "--model", dir_ / "model", "--shard", bad}).code, 2) << bad;
  EXPECT_EQ(run({"classify", shards, "--model", dir_ / "model", "--shard", "16/99"}).code, 2);
}

TEST_F(Pack, BenchMeasuresTheLoader) {
  const test::Finished done =
      run({"bench", "--model", "vit_tiny_patch16_224", "--mode", "data", "--data", source(),
           "--batch", "4", "--steps", "2", "--warmup", "1", "--json"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_GT(json::parse(done.out)["images_per_second_per_core"].get<double>(), 0);
  EXPECT_EQ(run({"bench", "--model", "vit_tiny_patch16_224", "--data", source()}).code, 2);
}

// In a folder that others write to, too, somebody may have put a link where the new shards are
// gathered: what it leads to is not ours to remove.
TEST_F(Pack, FollowsNoLinkOfSomebodyElse) {
  test::write_file(dir_ / "home/letter.txt", {'d', 'e', 'a', 'r'});
  fs::create_directory_symlink(dir_ / "home", dir_ / ".out.new.vitrum-pack");
  const test::Finished done = run({"data", "pack", source(), dir_ / "out"});
  EXPECT_EQ(done.code, 3) << done.err;
  EXPECT_THAT(done.err, HasSubstr(".out.new.vitrum-pack"));
  EXPECT_EQ(read_file(dir_ / "home/letter.txt"), "dear");
  EXPECT_FALSE(fs::exists(dir_ / "out"));
}

// Known before everything is packed: neither can be replaced by renaming.
TEST_F(Pack, ThePlaceCanBeReplaced) {
  for (const std::string& place :
       {std::string("."), std::string("./"), fs::current_path().string()}) {
    const test::Finished done = run({"data", "pack", source(), place, "--force"});
    EXPECT_EQ(done.code, 2) << place << done.err;
    EXPECT_THAT(done.err, HasSubstr("the folder that you are in"));
  }
  const test::Finished mount = run({"data", "pack", source(), "/proc", "--force"});
  EXPECT_EQ(mount.code, 2) << mount.err;
  EXPECT_THAT(mount.err, HasSubstr("where a disk is mounted"));
}

}  // namespace
}  // namespace vitrum
