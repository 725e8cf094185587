// Runs that mpirun has started, their bytes moved by MPI: the bits of one process. Skipped where
// there is no mpirun, or libvitrum_mpi.so was not built.
#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>

#include "tests/support/rank_runs.h"
#include "vitrum/train/checkpoint.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using test::eventually;
using test::Process;
using test::Words;
using testing::HasSubstr;

class Mpi : public test::RankRuns {
 protected:
  void SetUp() override {
    if (Process({"mpirun", "--version"}, "/dev/null", "/dev/null").wait() != 0)
      GTEST_SKIP() << "there is no mpirun here (package openmpi-bin)";
    if (!fs::exists(fs::path(VITRUM_BINARY).parent_path() / "libvitrum_mpi.so"))
      GTEST_SKIP() << "libvitrum_mpi.so was not built (package libopenmpi-dev)";
  }
  // With so many processes; root and few cores must be allowed. `settings` are of the environment.
  static Words mpirun(int ranks, const Words& settings, const Words& words) {
    Words all = {"mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"};
    add(all, process(ranks, settings, words));
    return all;
  }
  static Words process(int ranks, const Words& settings, const Words& words) {
    Words all = {"-n", std::to_string(ranks), "env"};
    add(all, settings);
    add(all, test::vitrum_command(words));
    return all;
  }
  static void add(Words& to, const Words& more) { to.insert(to.end(), more.begin(), more.end()); }
  int code_of(const Words& command) const {
    return Process(command, "/dev/null", tiny_ / "stderr").wait();
  }
};

TEST_F(Mpi, HasTheBitsOfOneProcess) {
  expect_done(first(full(), "alone", 1));
  for (const int ranks : {2, 3, 4}) {
    const std::string out = "on" + std::to_string(ranks);
    EXPECT_EQ(code_of(mpirun(ranks, {"VITRUM_MPI=1"}, first(full(), out, 0))), 0) << said();
    expect_same(out, "alone");
  }
}

// Without the library in one of them, all keep to sockets; none waits in MPI for the other.
TEST_F(Mpi, IsNotNeeded) {
  expect_done(first(full(), "alone", 1));
  const Words words = first(full(), "some", 0);
  Words some = mpirun(1, {}, words);
  some.push_back(":");
  add(some, process(1, {"VITRUM_MPI_LIBRARY=/nowhere"}, words));
  EXPECT_EQ(code_of(some), 0) << said();
  expect_same("some", "alone");
  EXPECT_EQ(code_of(mpirun(2, {"VITRUM_MPI=0"}, first(full(), "off", 0))), 0) << said();
  expect_same("off", "alone");
}

TEST_F(Mpi, IsInsistedOnInVain) {
  const Words words = first(full(), "run", 0);
  Words some = mpirun(1, {"VITRUM_MPI=1"}, words);
  some.push_back(":");
  add(some, process(1, {"VITRUM_MPI=1", "VITRUM_MPI_LIBRARY=/nowhere"}, words));
  EXPECT_EQ(code_of(some), 2) << said();
  EXPECT_THAT(said(), HasSubstr("libvitrum_mpi.so of rank 1 ("));
  // Forked processes are not MPI's.
  EXPECT_EQ(code_of(mpirun(1, {"VITRUM_MPI=1"}, first(full(), "run", 2))), 2) << said();
  EXPECT_THAT(said(), HasSubstr("is for processes that MPI has started"));
}

// mpirun passes SIGUSR1 on, and a process that is killed ends all.
TEST_F(Mpi, StopsTogetherAndIsGoneOnWith) {
  Recipe recipe = full();
  recipe.epochs = 30;
  expect_done(first(recipe, "alone", 1));
  for (const int number : {SIGUSR1, SIGKILL}) {
    const std::string out = "stopped" + std::to_string(number);
    Process process(mpirun(3, {"VITRUM_MPI=1"}, first(recipe, out, 0)), "/dev/null",
                    tiny_ / "stderr");
    ASSERT_TRUE(eventually([&] { return has_checkpoint(tiny_ / out); })) << said();
    const std::vector<pid_t> ranks = test::children_of(process.id());
    ASSERT_EQ(ranks.size(), 3u);
    if (number == SIGUSR1)
      process.signal(SIGUSR1);
    else
      kill(ranks[1], SIGKILL);
    EXPECT_EQ(process.wait(), number == SIGUSR1 ? 130 : 137) << said();
    for (const pid_t rank : ranks)
      EXPECT_TRUE(eventually([&] { return test::has_ended(rank); })) << "a process is left over";
    EXPECT_EQ(code_of(mpirun(2, {"VITRUM_MPI=1"}, again(out, 0))), 0) << said();
    expect_same(out, "alone");
  }
}

}  // namespace
}  // namespace vitrum
