// What happens to the first process alone, which writes for all: a full disk, a disk that may only
// be read; and a process that is another program.
#include <gmock/gmock.h>

#include <filesystem>

#include "tests/support/rank_runs.h"
#include "vitrum/core/files.h"
#include "vitrum/train/checkpoint.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using test::Process;
using test::Words;
using testing::HasSubstr;

// A disk of our own, at "disk"; needs the right to mount one.
class RanksOnADisk : public test::RankRuns {
 protected:
  void SetUp() override {
    fs::create_directory(tiny_ / "disk");
    if (shell(mount()) != 0) GTEST_SKIP() << "cannot mount a file system here";
  }
  std::string mount() const { return "mount -t tmpfs -o size=2m none '" + tiny_ / "disk" + "'"; }
  // In a name space of its own; `words` are "$@" there. A process that hangs is not waited for.
  int shell(const std::string& script, const Words& words = {}) const {
    Words command = {"timeout", "60", "unshare", "-rm", "sh", "-c", script, "sh"};
    if (!words.empty()) {
      const Words own = test::vitrum_command(words);
      command.insert(command.end(), own.begin(), own.end());
    }
    return Process(command, "/dev/null", tiny_ / "stderr").wait();
  }
  void expect_one_line(const std::string& part) const {
    EXPECT_EQ(std::ranges::count(said(), '\n'), 1) << said();
    EXPECT_THAT(said(), HasSubstr(part));
  }
};

// It fills up while they train; what was saved before is there, and is gone on with by others.
TEST_F(RanksOnADisk, ThatIsFullEndsAllAndLosesNothing) {
  Recipe recipe = full();
  recipe.epochs = 40;
  expect_done(first(recipe, "alone", 1));
  const std::string disk = tiny_ / "disk";
  const std::string script = mount() + " && cd '" + disk + R"(' || exit 1
    "$@" & run=$!
    while [ ! -e run/state/state.safetensors ] && kill -0 $run 2>/dev/null; do :; done
    dd if=/dev/zero of=filler bs=4k 2>/dev/null
    wait $run
    code=$?
    rm filler
    cp -r run ../gone
    exit $code)";
  Words words = first(recipe, "run", 3, {"-q"});
  words[4] = disk + "/run";
  EXPECT_EQ(shell(script, words), 4) << said();
  expect_one_line("No space left on device");
  ASSERT_TRUE(has_checkpoint(tiny_ / "gone"));
  expect_done(again("gone", 2));
  expect_same("gone", "alone");
}

TEST_F(RanksOnADisk, ThatMayOnlyBeReadIsNamed) {
  const std::string disk = tiny_ / "disk", remount = "mount -o remount,ro '" + disk + "'";
  Words words = first(full(), "run", 3, {"-q"});
  words[4] = disk + "/run";
  EXPECT_EQ(shell(mount() + " && " + remount + " && exec \"$@\"", words), 3) << said();
  expect_one_line("Read-only file system");
  // One that was writable when it began.
  expect_done(first(full(), "begun", 2));
  const std::string before = read_file(checkpoint_path(tiny_ / "begun"));
  words = again("disk/begun", 3, {"-q", "--epochs", "4"});
  const std::string copy = " && cp -r '" + (tiny_ / "begun") + "' '" + disk + "' && ";
  EXPECT_EQ(shell(mount() + copy + remount + " && exec \"$@\"", words), 3) << said();
  expect_one_line("Read-only file system");
  EXPECT_EQ(read_file(checkpoint_path(tiny_ / "begun")), before);
}

}  // namespace
}  // namespace vitrum
