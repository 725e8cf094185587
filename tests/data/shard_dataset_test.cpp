// `shards:DIR` as a data set.
#include "vitrum/data/shard_dataset.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include "tests/support/data_files.h"
#include "tests/support/tar_files.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/data/shard_index.h"
#include "vitrum/data/shard_scan.h"
#include "vitrum/data/shards.h"

namespace vitrum::test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

std::string png(int height) {
  const Bytes bytes = encode_png(gradient(3, height, 9));
  return {bytes.begin(), bytes.end()};
}
TarPart text(const std::string& name, const std::string& data) { return {name, data}; }

class Shards : public testing::Test {
 protected:
  void SetUp() override { setenv("VITRUM_CACHE", (dir_ / "cache").c_str(), 1); }
  void TearDown() override { unsetenv("VITRUM_CACHE"); }

  void put(const std::string& name, const std::vector<TarPart>& parts) const {
    const std::string bytes = tar_of(parts);
    write_file(dir_ / ("d/" + name), Bytes(bytes.begin(), bytes.end()));
  }
  void put_text(const std::string& name, const std::string& text) const {
    write_file(dir_ / ("d/" + name), Bytes(text.begin(), text.end()));
  }
  std::string spec() const { return "shards:" + (dir_ / "d"); }
  std::string error() const {
    return input_error([&] { open_split(spec()); });
  }
  size_t cached() const {
    std::error_code ignored;
    const fs::directory_iterator all(dir_ / "cache/shards", ignored);
    return ignored ? 0 : static_cast<size_t>(std::distance(begin(all), end(all)));
  }

  TempDir dir_;
};

std::vector<int> labels_of(const Dataset& data) {
  std::vector<int> labels;
  for (int64_t i = 0; i < data.size(); ++i) labels.push_back(data.label(i));
  return labels;
}

TEST_F(Shards, GiveTheImagesOfTheirFiles) {
  put("b.tar", {text("3.png", png(6)), text("3.cls", "cat")});
  put("a.tar",
      {text("1.png", png(4)), text("1.cls", "dog"), text("2.png", png(5)), text("2.cls", "cat")});
  const auto data = open_split(spec());
  ASSERT_EQ(data->size(), 3);
  EXPECT_THAT(data->classes(), ElementsAre("cat", "dog"));
  EXPECT_THAT(labels_of(*data), ElementsAre(1, 0, 0));
  EXPECT_EQ(data->image_size(), (ImageSize{3, 0, 0}));
  EXPECT_EQ(data->name(2), dir_.path() + "/d/b.tar/3.png");
  for (const auto& [i, height] : {std::pair(0, 4), std::pair(1, 5), std::pair(2, 6)}) {
    const Image image = data->read(i);
    EXPECT_EQ(image.height, height);
    EXPECT_EQ(image.pixels, gradient(3, height, 9).pixels);
  }
  EXPECT_EQ(data->file(0).size(), png(4).size());
  EXPECT_FALSE(has_splits(spec()));
  EXPECT_THAT(input_error([&] { open_data(spec()); }), HasSubstr("holdout"));
  EXPECT_EQ(open_data(spec(), /*test_needed=*/false).train->size(), 3);
}

TEST_F(Shards, HaveSplitsAsFolders) {
  put("train/0.tar", {text("1.png", png(4)), text("1.cls", "cat"), text("2.png", png(4)),
                      text("2.cls", "dog"), text("3.png", png(4)), text("3.cls", "eel")});
  put("test/0.tar", {text("4.png", png(5)), text("4.cls", "eel")});
  put("val/0.tar", {text("5.png", png(6)), text("5.cls", "dog")});
  const DataSplits data = open_data(spec());
  EXPECT_EQ(data.train->size(), 3);
  EXPECT_THAT(data.test->classes(), ElementsAre("cat", "dog", "eel"));
  EXPECT_THAT(labels_of(*data.test), ElementsAre(1));
  EXPECT_THAT(labels_of(*open_split(spec(), "test")), ElementsAre(2));
  EXPECT_THAT(distinct_splits(spec()), ElementsAre("train", "val", "test"));
  put("val/0.tar", {text("5.png", png(6)), text("5.cls", "dgo")});
  EXPECT_THAT(error(), HasSubstr("no such class as 'dgo'"));
}

TEST_F(Shards, HaveSplitsByName) {
  put("in-train-0.tar",
      {text("1.png", png(4)), text("1.cls", "0"), text("2.png", png(4)), text("2.cls", "2")});
  put("in-validation_1.tar", {text("4.png", png(5)), text("4.cls", "2")});
  const DataSplits data = open_data(spec());
  EXPECT_EQ(data.train->size(), 2);
  EXPECT_THAT(data.train->classes(), ElementsAre("0", "1", "2"));
  EXPECT_THAT(labels_of(*data.test), ElementsAre(2));
  EXPECT_THAT(distinct_splits(spec()), ElementsAre("train", "val"));
  fs::remove(dir_ / "d/in-validation_1.tar");
  EXPECT_THAT(input_error([&] { open_data(spec()); }), HasSubstr("only of train"));
}

TEST_F(Shards, TakeNamesFromAList) {
  put("a.tar",
      {text("1.png", png(4)), text("1.cls", "1"), text("2.png", png(4)), text("2.cls", "0")});
  put_text("classes.txt", "zebra\nant\r\nbee\n");
  EXPECT_THAT(open_split(spec())->classes(), ElementsAre("zebra", "ant", "bee"));
  EXPECT_THAT(labels_of(*open_split(spec())), ElementsAre(1, 0));
  put_text("classes.txt", "zebra\n");
  EXPECT_THAT(error(), HasSubstr("lists 1 classes, and '1' is none"));
  put_text("classes.txt", "zebra\n\nant\n");
  EXPECT_THAT(error(), HasSubstr("classes.txt:2: expected the name of a class"));
  put("a.tar", {text("1.png", png(4)), text("1.cls", "bee")});
  put_text("classes.txt", "zebra\nant\nbee\n");
  EXPECT_THAT(labels_of(*open_split(spec())), ElementsAre(2));
}

TEST_F(Shards, WithoutLabelsAreImagesOnly) {
  put("a.tar", {text("1.png", png(4)), text("2.png", png(5)), text("2.cls", "0")});
  EXPECT_THAT(error(), HasSubstr("a.tar/1.png: has no label"));
  const auto images = open_unlabelled_shards(dir_ / "d");
  EXPECT_EQ(images->size(), 2);
  EXPECT_TRUE(images->classes().empty());
}

TEST_F(Shards, AreScannedOnceAndAgainWhenTheyDiffer) {
  put("a.tar", {text("1.png", png(4)), text("1.cls", "0")});
  EXPECT_EQ(open_split(spec())->size(), 1);
  EXPECT_EQ(cached(), 1u);
  const std::string kept = fs::directory_iterator(dir_ / "cache/shards")->path().string();
  const std::string before = read_file(kept);
  EXPECT_EQ(open_split(spec())->size(), 1);
  EXPECT_EQ(read_file(kept), before);
  write_file_atomic(kept, "damaged");
  EXPECT_EQ(open_split(spec())->size(), 1);
  EXPECT_EQ(read_file(kept), before);
  put("a.tar",
      {text("1.png", png(4)), text("1.cls", "0"), text("2.png", png(4)), text("2.cls", "0")});
  EXPECT_EQ(open_split(spec())->size(), 2);
  put("b.tar", {text("3.png", png(4)), text("3.cls", "0")});
  EXPECT_EQ(open_split(spec())->size(), 3);
}

TEST_F(Shards, NeedNoCache) {
  put("a.tar", {text("1.png", png(4)), text("1.cls", "0")});
  setenv("VITRUM_CACHE", "/proc/nowhere", 1);
  EXPECT_EQ(open_split(spec())->size(), 1);
}

TEST_F(Shards, FitTheIndexThatCameWithThem) {
  put("a.tar", {text("1.png", png(4)), text("1.cls", "0"), text("2.png", png(5))});
  const auto size = static_cast<int64_t>(fs::file_size(dir_ / "d/a.tar"));
  const int64_t second = size - 1024 - 512;  // the block before the end is the second image's
  const auto bytes = static_cast<int64_t>(png(5).size());
  ASSERT_LE(bytes, 512);
  const auto write = [&](const std::vector<ShardFile>& shards) {
    put_text(
        "shards.index",
        to_text(
            {.classes = {"cat", "dog"},
             .shards = shards,
             .samples = {{.shard = 0, .label = 1, .at = second, .size = bytes, .name = "2.png"}}}));
  };
  write({{.name = "a.tar", .size = size}});
  const auto data = open_split(spec());
  EXPECT_THAT(data->classes(), ElementsAre("cat", "dog"));
  EXPECT_EQ(data->read(0).height, 5);
  EXPECT_EQ(cached(), 0u);
  write({{.name = "a.tar", .size = size + 512}});
  EXPECT_THAT(error(), HasSubstr("it is damaged or not complete"));
  write({{.name = "a.tar", .size = size}, {.name = "b.tar", .size = 1024}});
  EXPECT_THAT(error(), HasSubstr("b.tar: this shard of shards.index is missing"));
  write({{.name = "a.tar", .size = size}});
  put("c.tar", {text("3.png", png(4))});
  EXPECT_THAT(error(), HasSubstr("c.tar: shards.index has no such shard"));
  // The same size, other contents.
  fs::remove(dir_ / "d/c.tar");
  put("a.tar", {text("1.png", png(4)), text("1.cls", "0"), text("2.png", std::string(300, 'x'))});
  ASSERT_EQ(static_cast<int64_t>(fs::file_size(dir_ / "d/a.tar")), size);
  EXPECT_THAT(input_error([&] { open_split(spec())->read(0); }),
              HasSubstr("has changed since its index was made"));
}

// Fetched from far away, a shard may be gone again before it is opened: another process makes room
// in the cache.
TEST_F(Shards, ThatAreGoneAreAskedForAgain) {
  struct Vanishing final : ShardFiles {
    std::string path_of(int32_t) const override { return ++asked < there ? "/no/such.tar" : path; }
    std::string path;
    int there = 0;
    mutable int asked = 0;
  };
  put("a.tar", {text("1.png", png(4)), text("1.cls", "0")});
  const auto files = std::make_shared<Vanishing>();
  files->path = dir_ / "d/a.tar";
  const ShardDataset data("far", scan_shards(dir_ / "d", {"a.tar"}), files, {});
  files->there = 3;
  EXPECT_EQ(data.read(0).height, 4);
  EXPECT_EQ(files->asked, 3);
  files->there = 1000, files->asked = 0;
  EXPECT_THAT(input_error([&] { data.read(0); }), HasSubstr("/no/such.tar: cannot be opened"));
  EXPECT_EQ(files->asked, 5);
}

TEST_F(Shards, OfNothingAreRefused) {
  fs::create_directories(dir_ / "d/x");
  EXPECT_THAT(error(), HasSubstr("holds no shards"));
  put_text("a.tar.gz", "x");
  EXPECT_THAT(error(), HasSubstr("a.tar.gz: a compressed shard"));
  put("a.tar", {text("readme", "x")});
  EXPECT_THAT(error(), HasSubstr("hold no image"));
  EXPECT_THAT(input_error([] { open_split("shards:/no/such/place"); }), HasSubstr("no such file"));
}

TEST_F(Shards, MayBeOneFile) {
  put("a.tar", {text("1.png", png(4)), text("1.cls", "0")});
  put("b.tar", {text("2.png", png(4)), text("2.cls", "0")});
  put_text(".b.tar", "of whoever copies it here at this moment");
  EXPECT_EQ(open_split("shards:" + (dir_ / "d/a.tar"))->size(), 1);
  EXPECT_EQ(open_split(spec())->size(), 2);
}

}  // namespace
}  // namespace vitrum::test
