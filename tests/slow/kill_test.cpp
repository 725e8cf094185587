// SIGKILL at random moments, inside a save too: the run that is resumed ends as the one that was
// left alone.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/rank_runs.h"
#include "vitrum/core/philox.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using test::Process;

class Kill : public test::RankRuns {
 protected:
  Kill() {
    recipe_.model = tiny_.recipe().model, recipe_.data = tiny_.recipe().data;
    recipe_.epochs = 60, recipe_.batch_size = 2, recipe_.accumulate = 2, recipe_.ema = 0.9;
    recipe_.checkpoint_every = 1;
    expect_done(first(recipe_, "whole", 1));
  }
  // The same run in another way, to be compared with "whole".
  void begin(const std::string& verb) {
    verb_ = verb;
    std::filesystem::remove_all(tiny_ / "whole");
    test::Words words = first(recipe_, "whole", 1);
    words[0] = verb_;
    expect_done(words);
  }
  // Starts and kills `process` after process until one comes to its end. `wait` chooses the moment.
  template <class Wait>
  int kill_again_and_again(const std::string& out, const Wait& wait) {
    for (int kills = 0; kills < 200; ++kills) {
      test::Words words = next(recipe_, out, 1, {"-q"});
      words[0] = verb_;
      Process process(test::vitrum_command(words), "/dev/null", tiny_ / "stderr");
      wait(process);
      const bool ended = !process.running();
      process.signal(SIGKILL);
      const int code = process.wait();
      if (ended) {
        EXPECT_EQ(code, 0) << said();
        return kills;
      }
    }
    ADD_FAILURE() << "never came to an end";
    return 0;
  }
  void expect_same_at_random_moments();

  Recipe recipe_;
  std::string verb_ = "train";
};

void Kill::expect_same_at_random_moments() {
  PhiloxStream random(static_cast<uint64_t>(getpid()), 0, 0);
  uint32_t patience = 60;  // milliseconds; it grows, so that slow machines come to an end too
  const int kills = kill_again_and_again("run", [&](Process& process) {
    const auto limit = std::chrono::steady_clock::now() +
                       std::chrono::milliseconds(5 + random.below(patience += 10));
    while (process.running() && std::chrono::steady_clock::now() < limit) usleep(200);
  });
  EXPECT_GT(kills, 2);
  expect_same("run", "whole");
}

TEST_F(Kill, AtRandomMoments) { expect_same_at_random_moments(); }

TEST_F(Kill, AtRandomMomentsInBf16) {
  recipe_.precision = Precision::kBF16;
  begin("train");
  expect_same_at_random_moments();
}

TEST_F(Kill, WhilePretraining) {
  recipe_.task = Task::kMae;
  begin("pretrain");
  expect_same_at_random_moments();
}

bool has_temporary(const std::string& directory) {
  std::error_code ignored;
  for (fs::directory_iterator at(directory, ignored), end; at != end; at.increment(ignored))
    if (at->path().string().ends_with(".vitrum-tmp")) return true;
  return false;
}

// The n-th time that a half-written file is seen, in each folder that has such files.
TEST_F(Kill, InsideASave) {
  PhiloxStream random(static_cast<uint64_t>(getpid()), 1, 0);
  for (const std::string folder : {"state", "best", "last"}) {
    SCOPED_TRACE(folder);
    uint32_t patience = 0;  // saves
    const int kills = kill_again_and_again(folder, [&](Process& process) {
      for (uint32_t saves = 1 + random.below(patience += 1); saves > 0 && process.running();
           --saves) {
        while (process.running() && !has_temporary(tiny_ / (folder + "/" + folder))) {
        }
        if (saves > 1)
          while (process.running() && has_temporary(tiny_ / (folder + "/" + folder))) {
          }
      }
    });
    EXPECT_GT(kills, 0);
    expect_same(folder, "whole");
  }
}

}  // namespace
}  // namespace vitrum
