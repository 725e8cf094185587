// Training on shards that a server sends: stopped, resumed with an empty cache and a server in
// trouble, it is the run that was never stopped; and it is the run on the folder.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>

#include "tests/support/data_files.h"
#include "tests/support/http_server.h"
#include "tests/support/tiny_run.h"
#include "vitrum/core/files.h"
#include "vitrum/data/pack.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using test::outcome;

class RemoteData : public testing::Test {
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
    Recipe recipe = tiny_.recipe();
    recipe.data = data, recipe.batch_size = 8, recipe.repeat = 2, recipe.mixup = 0.8;
    recipe.augment = "crop-flip+trivial-m0.5", recipe.checkpoint_every = 1;
    return recipe;
  }

  test::TinyRun tiny_;
  // Every third answer is no good; the others are the files.
  std::atomic<int> answers_ = 0;
  test::HttpServer server_{[this](const test::Request& request) {
    const std::string path = packed() + request.path;
    if (!fs::is_regular_file(path)) return test::Reply{.status = 404};
    if (++answers_ % 3 == 0) return test::Reply{.status = 503};
    return test::Reply{.body = read_file(path)};
  }};
};

TEST_F(RemoteData, ResumedIsTheUninterruptedRun) {
  const std::string url = "shards:" + server_.url();
  Trainer whole(recipe(url), tiny_.options("whole"));
  whole.run();
  const auto expected = outcome(tiny_ / "whole");
  for (const int64_t stop : {2, 5}) {  // the first and the second epoch
    SCOPED_TRACE(stop);
    const std::string out = fmt::format("cut{}", stop);
    const auto hook = [&](int64_t step, double) {
      if (step == stop) raise(SIGINT);
    };
    EXPECT_EQ(Trainer(recipe(url), tiny_.options(out)).run({.step = hook}).signal, SIGINT);
    fs::remove_all(tiny_ / "cache");
    Trainer rest = tiny_.resumed(out, 3);
    EXPECT_EQ(rest.position().step, stop);
    rest.run();
    test::expect_same(outcome(tiny_ / out), expected);
  }
  // And that on the same shards on this machine.
  Trainer(recipe("shards:" + packed()), tiny_.options("local")).run();
  EXPECT_EQ(read_file(tiny_ / "local/last/model.safetensors"),
            read_file(tiny_ / "whole/last/model.safetensors"));
}

}  // namespace
}  // namespace vitrum
