// Several processes on shards that a server sends, well or badly: the bits of one process on the
// same images here, or an end with the shard's name.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>

#include "tests/support/data_files.h"
#include "tests/support/http_server.h"
#include "tests/support/rank_runs.h"
#include "vitrum/core/files.h"
#include "vitrum/data/pack.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using test::Reply;
using test::Request;
using testing::HasSubstr;

class RemoteRanks : public test::RankRuns {
 protected:
  void SetUp() override {
    setenv("VITRUM_CACHE", (tiny_ / "cache").c_str(), 1);
    test::TempDir photos;
    for (const char* split : {"train", "val"})
      for (int i = 0; i < 30; ++i)
        test::write_file(photos / fmt::format("{}/{}/{}.png", split, i % 3, i),
                         test::encode_png(test::gradient(3, 9 + i % 7, 8 + i)));
    for (const std::string split : {"train", "val"}) {
      fs::create_directories(packed() + "/" + split);
      pack_split(*open_split("folder:" + photos.path(), split), packed() + "/" + split, split,
                 {.shards = 5});
    }
  }
  void TearDown() override { unsetenv("VITRUM_CACHE"); }
  std::string packed() const { return tiny_ / "packed"; }
  Recipe recipe(const std::string& data) const {
    Recipe recipe = full();
    recipe.data = data;
    return recipe;
  }
  Reply file_reply(const Request& request) const {
    const std::string path = packed() + request.path;
    return fs::is_regular_file(path) ? Reply{.body = read_file(path)} : Reply{.status = 404};
  }
};

// Every third answer is no good, each time in another way.
TEST_F(RemoteRanks, HaveTheBitsOfOneWhateverTheServerDoes) {
  std::atomic<int> answers = 0;
  const test::HttpServer server([&](const Request& request) -> Reply {
    const Reply good = file_reply(request);
    const int n = ++answers;
    if (good.status != 200 || n % 3 != 0) return good;
    switch (n / 3 % 4) {
      case 0: return {.status = 503};
      case 1: return {.body = good.body.substr(0, good.body.size() / 2)};
      case 2: return {.body = good.body, .cut_after = 600};
      default: return {.status = 206, .body = "xx", .headers = {"Content-Range: bytes 7-8/9"}};
    }
  });
  Recipe here = recipe("shards:" + packed());
  expect_done(first(here, "here", 1));
  expect_done(first(recipe("shards:" + server.url()), "there", 3));
  EXPECT_EQ(read_file(tiny_ / "there/last/model.safetensors"),
            read_file(tiny_ / "here/last/model.safetensors"));
  EXPECT_GT(answers, 10);
}

TEST_F(RemoteRanks, NameAShardThatIsMissingAtOnce) {
  fs::remove(packed() + "/train/train-000002.tar");
  const test::HttpServer server([&](const Request& request) { return file_reply(request); });
  const test::Finished done = run(first(recipe("shards:" + server.url()), "run", 3, {"-q"}));
  EXPECT_EQ(done.code, 1) << done.err;
  EXPECT_THAT(done.err, HasSubstr("train-000002.tar: there is no such file (404)"));
  EXPECT_EQ(std::ranges::count(done.err, '\n'), 1) << done.err;
  EXPECT_LE(server.count("/train/train-000002.tar"), 6u);  // twice by each of three
}

}  // namespace
}  // namespace vitrum
