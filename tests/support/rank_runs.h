// Runs of the real binary on one process or several, in the folder of a TinyRun.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/process.h"
#include "tests/support/tiny_run.h"

namespace vitrum::test {

using Words = std::vector<std::string>;

// The other processes of a run, which are children of the first.
std::vector<pid_t> children_of(pid_t parent);
// Whether it has ended, also where nobody has asked for its exit code yet.
bool has_ended(pid_t process);

class RankRuns : public testing::Test {
 protected:
  // The words of a run that starts in folder `out`, and of one that goes on there. No --ranks with
  // 0: a launcher takes its place.
  Words first(const Recipe& recipe, const std::string& out, int ranks,
              const Words& more = {}) const;
  Words again(const std::string& out, int ranks, const Words& more = {}) const;
  // Whichever it is: a run that was killed before it had a recipe starts anew.
  Words next(const Recipe& recipe, const std::string& out, int ranks, const Words& more = {}) const;

  Finished run(const Words& words) const { return run_vitrum(words, tiny_ / "output"); }
  void expect_done(const Words& words) const;
  void expect_same(const std::string& out, const std::string& than) const;
  std::string said() const { return read_text(tiny_ / "stderr"); }

  // Everything that draws, sums or remembers; the last step has leaves without images.
  Recipe full() const;
  Recipe with_optimizer(OptimizerKind kind) const;

  TinyRun tiny_;
};

}  // namespace vitrum::test
