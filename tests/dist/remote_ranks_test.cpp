// Several processes on shards that a server sends, well or badly: the bits of one process on the
// same images here, or an end with the shard's name.
#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>

#include "tests/support/packed_photos.h"
#include "tests/support/rank_runs.h"
#include "vitrum/core/files.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using test::Reply;
using test::Request;
using testing::HasSubstr;

class RemoteRanks : public test::RankRuns {
 protected:
  Recipe recipe(const std::string& data) const {
    Recipe recipe = full();
    recipe.data = data;
    return recipe;
  }

  test::PackedPhotos packed_{tiny_.path()};
};

// Every third answer is no good, each time in another way.
TEST_F(RemoteRanks, HaveTheBitsOfOneWhateverTheServerDoes) {
  std::atomic<int> answers = 0;
  const test::HttpServer server([&](const Request& request) -> Reply {
    const Reply good = packed_.reply(request);
    const int n = ++answers;
    if (good.status != 200 || n % 3 != 0) return good;
    switch (n / 3 % 4) {
      case 0: return {.status = 503};
      case 1: return {.body = good.body.substr(0, good.body.size() / 2)};
      case 2: return {.body = good.body, .cut_after = 600};
      default: return {.status = 206, .body = "xx", .headers = {"Content-Range: bytes 7-8/9"}};
    }
  });
  Recipe here = recipe("shards:" + packed_.path());
  expect_done(first(here, "here", 1));
  expect_done(first(recipe("shards:" + server.url()), "there", 3));
  EXPECT_EQ(read_file(tiny_ / "there/last/model.safetensors"),
            read_file(tiny_ / "here/last/model.safetensors"));
  EXPECT_GT(answers, 10);
}

TEST_F(RemoteRanks, NameAShardThatIsMissingAtOnce) {
  fs::remove(packed_.path() + "/train/train-000002.tar");
  const test::HttpServer server([&](const Request& request) { return packed_.reply(request); });
  const test::Finished done = run(first(recipe("shards:" + server.url()), "run", 3, {"-q"}));
  EXPECT_EQ(done.code, 1) << done.err;
  EXPECT_THAT(done.err, HasSubstr("train-000002.tar: there is no such file (404)"));
  EXPECT_EQ(std::ranges::count(done.err, '\n'), 1) << done.err;
  EXPECT_LE(server.count("/train/train-000002.tar"), 6u);  // twice by each of three
}

}  // namespace
}  // namespace vitrum
