#include "vitrum/weights/sharded.h"

#include <cstring>
#include <filesystem>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "vitrum/core/files.h"
#include "vitrum/weights/open_tensors.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

class Sharded : public testing::Test {
 protected:
  Sharded() {
    shard("one.safetensors", {{"a", 1.f}, {"b", 2.f}});
    shard("two.safetensors", {{"c", 3.f}});
  }

  void shard(const std::string& name, std::vector<std::pair<std::string, float>> values) {
    std::vector<NamedTensor> tensors;
    for (auto& [key, value] : values) tensors.push_back({key, {&value, {1}, DType::kF32}});
    write_safetensors(dir_ / name, tensors);
  }
  std::string index(const std::string& text) {
    write_file_atomic(dir_ / "model.safetensors.index.json", text);
    return dir_ / "model.safetensors.index.json";
  }
  static float value(const TensorSource& source, const std::string& name) {
    float x = 0;
    source.copy_to(source.at(name), {&x, {1}, DType::kF32});
    return x;
  }

  TempDir dir_;
};

TEST_F(Sharded, GathersTheTensorsOfAllFiles) {
  const std::string path = index(R"( {"metadata": {"total_size": 12, "x": [1, {"y": null}]},
    "weight_map": {"c": "two.safetensors", "a": "one.safetensors", "b": "one.safetensors"}})");
  const auto source = open_tensors(path);
  ASSERT_EQ(source->tensors().size(), 3u);
  EXPECT_EQ(source->path(), path);
  EXPECT_EQ(value(*source, "a"), 1);
  EXPECT_EQ(value(*source, "b"), 2);
  EXPECT_EQ(value(*source, "c"), 3);
  source->release(source->at("c"));  // its pages are read again
  EXPECT_EQ(value(*source, "c"), 3);
  EXPECT_NO_THROW(source->check_intact());
}

TEST_F(Sharded, ListsAllThatDiffers) {
  const std::string path =
      index(R"({"weight_map": {"c": "one.safetensors", "a": "one.safetensors"}})");
  EXPECT_ERROR(open_tensors(path), ErrorKind::kInput,
               R"(differ: "c" is not in one.safetensors; "b" of one.safetensors is not in)");
  std::string map = R"("a": "one.safetensors", "b": "one.safetensors")";
  for (int i = 0; i < 20; ++i) map += fmt::format(R"(, "x{}": "one.safetensors")", i);
  EXPECT_ERROR(open_tensors(index("{\"weight_map\": {" + map + "}}")), ErrorKind::kInput,
               R"("x11" is not in one.safetensors; and 8 more)");
}

TEST_F(Sharded, AreNotMoreThanAreMeant) {
  const auto map = [&](size_t count, auto line) {
    std::string all;
    for (size_t i = 0; i < count; ++i) all += (i ? "," : "") + line(i);
    return index("{\"metadata\": {\"total_size\": -1}, \"weight_map\": {" + all + "}}");
  };
  const auto tensors = [](size_t i) { return fmt::format(R"("t{}":"one.safetensors")", i); };
  EXPECT_ERROR(open_tensors(map(ShardedFile::kMaxTensors + 1, tensors)), ErrorKind::kInput,
               "more than 65536 tensors");
  for (size_t i = 0; i < ShardedFile::kMaxShards; ++i)
    std::filesystem::create_symlink("one.safetensors", dir_ / fmt::format("{}.safetensors", i));
  const auto files = [](size_t i) { return fmt::format(R"("t{}":"{}.safetensors")", i, i); };
  EXPECT_ERROR(open_tensors(map(ShardedFile::kMaxShards + 1, files)), ErrorKind::kInput,
               "more than 1024 files");
}

TEST_F(Sharded, ATensorHasOnePlace) {
  shard("two.safetensors", {{"b", 7.f}, {"c", 3.f}});
  const std::string map =
      R"("a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors")";
  EXPECT_ERROR(open_tensors(index("{\"weight_map\": {" + map + "}}")), ErrorKind::kInput,
               R"("b" is in one.safetensors and in two.safetensors)");
  EXPECT_ERROR(open_tensors(index("{\"weight_map\": {" + map + R"(, "b": "two.safetensors"}})")),
               ErrorKind::kInput, R"("b" twice: in "one.safetensors" and in "two.safetensors")");
}

// What the index does not name is no part of the model, as in transformers.
TEST_F(Sharded, OtherFilesAreNotOpened) {
  write_file_atomic(dir_ / "three.safetensors", "no tensors at all");
  const auto source =
      open_tensors(index(R"({"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}})"));
  EXPECT_EQ(source->tensors().size(), 2u);
}

TEST_F(Sharded, OpensOnlyFilesBesideTheIndex) {
  for (const char* name : {"/etc/passwd", "../one.safetensors", "..", "", "sub/one", "a\\\\b",
                           "one.safetensors\\u0000/../../x"}) {
    const std::string path = index(fmt::format(R"({{"weight_map": {{"a": "{}"}}}})", name));
    EXPECT_ERROR(open_tensors(path), ErrorKind::kInput, "a shard is a plain file name");
  }
  EXPECT_ERROR(open_tensors(index(R"({"weight_map": {"a": "model.safetensors.index.json"}})")),
               ErrorKind::kInput, "expected a file of tensors");
  EXPECT_ERROR(open_tensors(index(R"({"weight_map": {"a": "gone.safetensors"}})")),
               ErrorKind::kInput, "gone.safetensors': No such file");
}

TEST_F(Sharded, RefusesWhatIsNoIndex) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{}", "no \"weight_map\""},
      {"{\"weight_map\": 3}", "is no object"},
      {"{\"weight_map\": [\"a\"]}", "is no object"},
      {"{\"weight_map\": {\"a\": 1}}", "tensor \"a\" is no string"},
      {"{\"weight_map\": {\"a\": {}}}", "tensor \"a\" is no string"},
      {"{\"weight_map\": {}, \"weight_map\": {}}", "twice"},
      {"{\"weight_map\": {", "not valid JSON at byte"},
      {R"({"weight_map": {"a": "one.safetensors", "a": "one.safetensors"}})", "\"a\" twice"}};
  for (const auto& [text, why] : cases)
    EXPECT_ERROR(open_tensors(index(text)), ErrorKind::kInput, why);
}

TEST(OpenTensors, SaysWhatIsAccepted) {
  const TempDir dir;
  for (const char* bytes : {"", "GIF89a", "hello world, no weights"}) {
    write_file_atomic(dir / "x", bytes);
    EXPECT_ERROR(open_tensors(dir / "x"), ErrorKind::kInput, "accepted are safetensors");
  }
  EXPECT_ERROR(open_tensors(dir.path()), ErrorKind::kInput, "a directory");
  EXPECT_ERROR(open_tensors(dir / "gone"), ErrorKind::kInput, "No such file");
}

}  // namespace
}  // namespace vitrum
