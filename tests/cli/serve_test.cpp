// `vitrum serve` with a file of settings, in a process of its own.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "tests/support/process.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_run.h"
#include "vitrum/core/files.h"

namespace vitrum {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace test;

class ServeCli : public testing::Test {
 protected:
  ServeCli() { write_tiny_model(dir_ / "tiny", tiny_rgb_model()); }
  void write_config(const std::string& text) { write_file_atomic(config_, text); }
  void expect_failure(int code, const std::string& config, const std::string& part) {
    write_config(config);
    const Finished f = run_vitrum({"serve", "--config", config_}, dir_ / "scratch");
    EXPECT_EQ(f.code, code) << config;
    EXPECT_THAT(f.err, AllOf(HasSubstr("serve.toml"), HasSubstr(part)));
  }

  TempDir dir_;
  std::string config_ = dir_ / "serve.toml";
};

TEST_F(ServeCli, SaysWhatIsWrongWithItsSettings) {
  expect_failure(3, "max_bach = 3", "did you mean '--max-batch'?");
  expect_failure(2, "max_batch = \"many\"", "max_batch: expected a whole number");
  expect_failure(3, "max_batch = [[1]]", "max_batch: expected a text, a number");
  expect_failure(3, "max_batch = = 1", "serve.toml:1:");
  expect_failure(3, "config = \"other.toml\"", "unknown key 'config'");
  for (const char* time : {"timeout", "header_timeout", "body_timeout", "write_timeout",
                           "idle_timeout", "max_wait", "drain_delay", "max_delay"})
    for (const char* value : {"-1", "1e300", "nan", "inf"})
      expect_failure(2, fmt::format("{} = {}", time, value), time);
  std::string deep = "a";
  for (int i = 0; i < 300'000; ++i) deep += ".b";
  expect_failure(3, deep + " = 1", "nests deeper than 32 levels");
  expect_failure(3, "[" + deep + "]", "nests deeper than 32 levels");
  expect_failure(3, "timeout = 3\nlisten = 127.0.0.1:80\n", "serve.toml:2: ");
  expect_failure(3, "timeout = 3\nlisten = 127.0.0.1:80\n", "text needs quotes");
}

TEST_F(ServeCli, NothingWorksWithoutTime) {
  for (const char* time :
       {"--timeout", "--header-timeout", "--body-timeout", "--write-timeout", "--idle-timeout"}) {
    const Finished f =
        run_vitrum({"serve", "--model", dir_ / "tiny", "--listen", "127.0.0.1:0", time, "0"},
                   dir_ / "scratch");
    EXPECT_EQ(f.code, 2) << f.err;
    EXPECT_THAT(f.err, AllOf(HasSubstr(time), HasSubstr("expected seconds")));
  }
}

// A socket file is cleared away when nobody listens; one of another kind is somebody's.
TEST_F(ServeCli, LeavesSocketsOfOthersAlone) {
  for (const int kind : {SOCK_DGRAM, SOCK_STREAM}) {
    const std::string path = dir_ / "socket";
    const int other = socket(AF_UNIX, kind, 0);
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    ASSERT_EQ(bind(other, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    if (kind == SOCK_STREAM) {
      ASSERT_EQ(listen(other, 1), 0);
    }
    const Finished f = run_vitrum({"serve", "--model", dir_ / "tiny", "--listen", "unix:" + path},
                                  dir_ / "scratch");
    EXPECT_EQ(f.code, 3) << f.err;
    EXPECT_TRUE(std::filesystem::is_socket(path)) << kind;
    close(other), std::filesystem::remove(path);
  }
}

TEST_F(ServeCli, TakesItsSettingsFromAFileAndReadsItAgain) {
  const std::string models = "[model]\na = \"" + (dir_ / "tiny") + "\"\n";
  write_config("json = true\nthreads = 1\nlisten = \"unix:" + (dir_ / "none") + "\"\n" + models);
  const std::string out = dir_ / "out", err = dir_ / "err";
  // What the command line says counts.
  Process server(vitrum_command({"serve", "--config", config_, "--listen", "127.0.0.1:0"}), out,
                 err);
  const auto contains = [](const std::string& path, const std::string& part) {
    return read_text(path).find(part) != std::string::npos;
  };
  ASSERT_TRUE(eventually([&] { return contains(out, "listening"); })) << read_text(err);
  EXPECT_TRUE(contains(out, "http://127.0.0.1:"));
  write_config(models + "b = \"" + (dir_ / "missing") + "\"\n");
  server.signal(SIGHUP);
  EXPECT_TRUE(eventually([&] { return contains(err, "b: "); })) << read_text(err);
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
}

}  // namespace
}  // namespace vitrum
