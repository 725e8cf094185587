// Files and names that no one should have to expect: each is one clear line, and nothing waits or
// grows without end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/data_files.h"
#include "tests/support/process.h"
#include "tests/support/tiny_model.h"
#include "vitrum/core/files.h"
#include "vitrum/data/optional_codecs.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

class HostileFilesCli : public testing::Test {
 protected:
  HostileFilesCli() { test::write_tiny_model(dir_ / "model", test::tiny_rgb_model()); }

  test::Finished run(const Words& words) { return test::run_vitrum(words, scratch_ / "x"); }
  // A script of the shell in which "$@" is the call.
  test::Finished shell(const std::string& script, const Words& words) {
    Words command = {"bash", "-c", script, "bash"};
    for (const std::string& word : test::vitrum_command(words)) command.push_back(word);
    const int code = test::Process(command, scratch_ / "out", scratch_ / "err").wait();
    return {code, read_file(scratch_ / "out"), read_file(scratch_ / "err")};
  }
  void expect_failure(int code, const std::string& part, const test::Finished& o) {
    EXPECT_EQ(o.code, code) << o.err;
    EXPECT_THAT(o.err, HasSubstr(part));
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  }
  void write_photo(const std::string& name) {
    test::write_file(dir_ / name, test::encode_png(test::gradient(3, 32, 32)));
  }
  void make_pipe(const std::string& name) {
    fs::create_directories(fs::path(dir_ / name).parent_path());
    ASSERT_EQ(mkfifo((dir_ / name).c_str(), 0600), 0);
  }

  test::TempDir dir_, scratch_;
};

constexpr const char* kInTime = "exec timeout 20 \"$@\"";

// ---- pipes and devices ----

TEST_F(HostileFilesCli, PipesAreNotWaitedFor) {
  make_pipe("pipe"), make_pipe("m/config.json"), make_pipe("p.safetensors"), make_pipe("p.jpg");
  const std::string pipe = dir_ / "pipe";
  expect_failure(3, "no process writes to", shell(kInTime, {"train", "--recipe", pipe}));
  expect_failure(3, "config.json: not a regular file", shell(kInTime, {"summary", dir_ / "m"}));
  expect_failure(3, "p.safetensors",
                 shell(kInTime, {"forward", "--model", dir_ / "p.safetensors", "--arch",
                                 "vit_mnist", "--input", pipe, "--output", dir_ / "y.npy"}));
  expect_failure(3, "is a pipe", shell(kInTime, {"data", "csv:" + pipe}));
  expect_failure(3, "is a pipe",
                 shell(kInTime, {"classify", dir_ / "p.jpg", "--model", dir_ / "model"}));
}

TEST_F(HostileFilesCli, PipesBesideDataAreNotWaitedFor) {
  test::write_file(dir_ / "c/test_batch.bin", test::Bytes(3073));
  test::write_file(dir_ / "c/data_batch_1.bin", test::Bytes(3073));
  make_pipe("c/batches.meta.txt");
  expect_failure(3, "batches.meta.txt", shell(kInTime, {"data", "cifar10:" + (dir_ / "c")}));
}

// Recipes come out of a shell's <(..) as they did.
TEST_F(HostileFilesCli, RecipesMayComeThroughAPipe) {
  write_file_atomic(dir_ / "r.toml", "epohcs = 1\n");
  const std::string file = "'" + (dir_ / "r.toml") + "'";
  expect_failure(2, "'epohcs'", shell("\"$@\" --recipe <(cat " + file + ")", {"train"}));
  expect_failure(2, "'epohcs'", shell("cat " + file + " | \"$@\" --recipe /dev/stdin", {"train"}));
  expect_failure(2, "'epohcs'", shell("\"$@\" --recipe /dev/stdin < " + file, {"train"}));
}

TEST_F(HostileFilesCli, DevicesAreNotRead) {
  fs::create_directories(dir_ / "run");
  write_file_atomic(dir_ / "run/config.toml", "epochs = 1\n");
  fs::create_symlink("/dev/zero", dir_ / "run/metrics.csv");
  fs::create_symlink("/dev/zero", dir_ / "zero.toml");
  const std::string limited = "ulimit -v 4000000; exec timeout 20 \"$@\"";
  expect_failure(3, "metrics.csv': it is a device", shell(limited, {"report", dir_ / "run"}));
  expect_failure(3, "zero.toml': it is a device",
                 shell(limited, {"train", "--recipe", dir_ / "zero.toml"}));
  expect_failure(
      3, "expected a list of files",
      shell("exec timeout 20 \"$@\" < /dev/zero", {"classify", "-", "--model", dir_ / "model"}));
}

// Some of the libraries that decode would say on stderr themselves what is wrong.
TEST_F(HostileFilesCli, DecodersHoldTheirTongue) {
  for (const CodecStatus& codec : optional_codecs())
    if (codec.name == "HEIC, AVIF" && !codec.available) GTEST_SKIP() << codec.detail;
  for (const char* name : {"photo.avif", "photo.heic"}) {
    std::string bytes = read_file(std::string(VITRUM_SOURCE_DIR "/tests/golden/images/") + name);
    for (size_t at = bytes.find("mdat") + 8; at < bytes.size(); ++at)
      bytes[at] = static_cast<char>(bytes[at] ^ 0x5a);
    write_file_atomic(dir_ / name, bytes);
    expect_failure(3, "broken HEIC or AVIF",
                   run({"classify", dir_ / name, "--model", dir_ / "model"}));
  }
}

// ---- names ----

TEST_F(HostileFilesCli, ClassFoldersHaveUtf8Names) {
  write_photo("data/train/h\xFCndin/a.png");
  write_photo("data/val/h\xFCndin/a.png");
  const std::string spec = "folder:" + (dir_ / "data");
  const std::string part = "train/h\\xfcndin: the name of this class folder is not UTF-8; rename";
  expect_failure(3, part, run({"data", spec}));
  expect_failure(3, part, run({"eval", "--model", dir_ / "model", "--data", spec}));
  expect_failure(3, part,
                 run({"train", "--model", dir_ / "model", "--data", spec, "--out", dir_ / "out"}));
}

// The recipe that a run keeps names its data: one that cannot be written down cannot be resumed.
TEST_F(HostileFilesCli, DataOfARunHasAUtf8Name) {
  write_photo("d\xFC/train/a/a.png");
  write_photo("d\xFC/val/a/a.png");
  expect_failure(2, "d\\xfc' is not UTF-8",
                 run({"train", "--model", dir_ / "model", "--data", "folder:" + (dir_ / "d\xFC"),
                      "--out", dir_ / "out"}));
}

TEST_F(HostileFilesCli, ClassesOfAListAreUtf8) {
  write_photo("a.png");
  write_file_atomic(dir_ / "list.csv", "a.png,h\xFCndin\n");
  expect_failure(3, "list.csv:1: the class 'h\\xfcndin' is not UTF-8",
                 run({"data", "csv:" + (dir_ / "list.csv")}));
}

// A name that would clear the screen, in what every verb says.
TEST_F(HostileFilesCli, NamesDoNotReachTheTerminalAsCommands) {
  const std::string evil =
      "\033[2J\xC2\x9B"
      "31m\n";
  write_photo("data/train/" + evil + "/" + evil + ".png");
  write_photo("data/val/" + evil + "/" + evil + ".png");
  write_file_atomic(dir_ / ("bad" + evil + ".jpg"), "junk");
  const std::string photo = dir_ / ("data/train/" + evil + "/" + evil + ".png");
  const std::string spec = "folder:" + (dir_ / "data"), out = dir_ / ("out" + evil);
  const Words model = {"--model", dir_ / "model"};
  const std::vector<Words> calls = {
      {"classify", photo},
      {"classify", dir_ / ("bad" + evil + ".jpg")},
      {"eval", "--data", spec},
      {"embed", photo, "--output", out + ".npy"},
      {"export", "--output", out + ".onnx"},
      {"explain", photo, "--method", "rollout", "--output", out},
      {"embed", photo, "--output", dir_ / ("nowhere" + evil + "/x.npy")}};
  for (Words words : calls) {
    words.insert(words.end(), model.begin(), model.end());
    const test::Finished o = run(words);
    EXPECT_THAT(o.out + o.err, AllOf(Not(HasSubstr("\033")), Not(HasSubstr("\xC2\x9B"))))
        << words[0];
    EXPECT_THAT(o.out + o.err, testing::AnyOf(HasSubstr("\\x1b[2J"), HasSubstr("?[2J")))
        << words[0];
  }
  for (const Words& words :
       {Words{"data", spec}, Words{"data", spec, "--output", out + ".png"},
        Words{"data", spec, "--check"}, Words{"train", "--recipe", evil}, Words{"summary", evil},
        Words{evil}, Words{"convert", dir_ / "model", out + "/t", "--to", "timm"}}) {
    const test::Finished o = run(words);
    EXPECT_THAT(o.out + o.err, AllOf(Not(HasSubstr("\033")), Not(HasSubstr("\xC2\x9B"))))
        << words[0];
  }
  // Who asks for JSON gets the name itself.
  const test::Finished exact = run({"classify", photo, "--model", dir_ / "model", "--json"});
  EXPECT_EQ(json::parse(exact.out)["image"], photo);
}

// ---- no memory, no disk ----

TEST_F(HostileFilesCli, OutOfMemoryIsExitCode4) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs all the address space there is";
#endif
  std::ofstream(dir_ / "large.csv").close();
  fs::resize_file(dir_ / "large.csv", uintmax_t{1} << 30);  // which takes no place on the disk
  expect_failure(4, "out of memory",
                 shell("ulimit -v 500000; exec \"$@\"", {"data", "csv:" + (dir_ / "large.csv")}));
}

// Nothing but the address space is short: there is no room for the stack of a thread.
TEST_F(HostileFilesCli, NoRoomForThreadsIsExitCode4) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs all the address space there is";
#endif
  write_photo("a.png");
  expect_failure(4, "out of memory, threads or disk: ",
                 shell("ulimit -Ss 8000000; ulimit -v 4000000; exec \"$@\"",
                       {"classify", dir_ / "a.png", "--model", dir_ / "model", "--threads", "4"}));
}

TEST_F(HostileFilesCli, FullDiskIsExitCode4AndKeepsTheOldFile) {
  const Words words = {"export", "--model", dir_ / "model", "--output", dir_ / "m.onnx"};
  ASSERT_EQ(run(words).code, 0);
  const std::string before = read_file(dir_ / "m.onnx");
  expect_failure(4, "m.onnx': File too large; free some space",
                 shell("ulimit -f 1; exec \"$@\"", words));
  EXPECT_EQ(read_file(dir_ / "m.onnx"), before);
  EXPECT_FALSE(fs::exists(dir_ / ".m.onnx.0.vitrum-tmp"));
}

}  // namespace
}  // namespace vitrum
