// Any process of a run may be killed or hang at any moment: the others end, by themselves and soon,
// and the run goes on with another number of them. At its end it is the run that nobody disturbed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "tests/support/rank_runs.h"
#include "vitrum/core/philox.h"

namespace vitrum {
namespace {

using test::Process;

class KillRanks : public test::RankRuns {
 protected:
  static constexpr int kFaults = 50;

  KillRanks() {
    recipe_ = full();
    recipe_.epochs = 100;
    expect_done(first(recipe_, "alone", 1));
  }
  int among(std::initializer_list<int> choices) {
    return choices.begin()[random_.below(static_cast<uint32_t>(choices.size()))];
  }
  void pause(uint32_t most) { usleep(1000 * (1 + random_.below(most))); }

  // One part of the run, with a fault if it comes to that. False: it came to its end first.
  bool disturb(const std::string& out, uint32_t patience) {
    const int ranks = among({2, 3, 4, 8});
    Process process(test::vitrum_command(next(recipe_, out, ranks, {"-q", "--rank-timeout", "2"})),
                    "/dev/null", tiny_ / "stderr");
    pause(patience);
    std::vector<pid_t> all = test::children_of(process.id());
    all.insert(all.begin(), process.id());
    if (all.size() < static_cast<size_t>(ranks) && process.running()) {  // it only begins
      process.signal(SIGKILL);
      process.wait();
      EXPECT_TRUE(none_left(all)) << said();
      return true;
    }
    if (!process.running()) return end(process);
    const size_t victim = random_.below(static_cast<uint32_t>(all.size()));
    const int number = among({SIGKILL, SIGSTOP});
    kill(all[victim], number);
    SCOPED_TRACE(fmt::format("signal {} to rank {} of {}", number, victim, ranks));
    std::vector<pid_t> others = all;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(victim));
    if (victim == 0) {  // the others do not wait for it
      EXPECT_TRUE(none_left(others)) << said();
      process.signal(SIGKILL);
      process.wait();
      return true;
    }
    const int code = process.wait();
    if (code == 0) return false;  // it was done before
    EXPECT_EQ(code, 75) << said();
    EXPECT_THAT(said(), testing::HasSubstr(fmt::format("rank {} (", victim)));
    EXPECT_TRUE(none_left(all)) << said();
    return true;
  }
  bool end(Process& process) {
    EXPECT_EQ(process.wait(), 0) << said();
    return false;
  }
  static bool none_left(const std::vector<pid_t>& all) {
    return test::eventually([&] { return std::ranges::all_of(all, test::has_ended); });
  }

  Recipe recipe_;
  PhiloxStream random_{static_cast<uint64_t>(getpid()), 0, 0};
};

TEST_F(KillRanks, FiftyTimes) {
  int faults = 0;
  uint32_t patience = 300;  // milliseconds; it grows, so that slow machines come to an end too
  for (int runs = 0; faults < kFaults && !HasFailure(); ++runs) {
    const std::string out = "run" + std::to_string(runs);
    while (disturb(out, patience) && !HasFailure()) ++faults, patience += 20;
    if (!HasFailure()) expect_same(out, "alone");
    std::filesystem::remove_all(tiny_ / out);
  }
  EXPECT_GE(faults, kFaults);
}

}  // namespace
}  // namespace vitrum
