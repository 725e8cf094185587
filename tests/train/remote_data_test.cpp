// Training on shards that a server sends: stopped, resumed with an empty cache and a server in
// trouble, it is the run that was never stopped; and it is the run on the folder.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <filesystem>

#include "tests/support/packed_photos.h"
#include "tests/support/tiny_run.h"
#include "vitrum/core/files.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using test::outcome;

class RemoteData : public testing::Test {
 protected:
  Recipe recipe(const std::string& data) const {
    Recipe recipe = tiny_.recipe();
    recipe.data = data, recipe.batch_size = 8, recipe.repeat = 2, recipe.mixup = 0.8;
    recipe.augment = "crop-flip+trivial-m0.5", recipe.checkpoint_every = 1;
    return recipe;
  }

  test::TinyRun tiny_;
  test::PackedPhotos packed_{tiny_.path()};
  // Every third file is not sent.
  std::atomic<int> answers_ = 0;
  test::HttpServer server_{[this](const test::Request& request) {
    const test::Reply good = packed_.reply(request);
    return good.status == 200 && ++answers_ % 3 == 0 ? test::Reply{.status = 503} : good;
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
  Trainer(recipe("shards:" + packed_.path()), tiny_.options("local")).run();
  EXPECT_EQ(read_file(tiny_ / "local/last/model.safetensors"),
            read_file(tiny_ / "whole/last/model.safetensors"));
}

}  // namespace
}  // namespace vitrum
