// `vitrum serve` with a file of settings, in a process of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

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
  std::string deep = "a";
  for (int i = 0; i < 300'000; ++i) deep += ".b";
  expect_failure(3, deep + " = 1", "nests deeper than 32 levels");
  expect_failure(3, "[" + deep + "]", "nests deeper than 32 levels");
  expect_failure(3, "timeout = 3\nlisten = 127.0.0.1:80\n", "serve.toml:2: ");
  expect_failure(3, "timeout = 3\nlisten = 127.0.0.1:80\n", "text needs quotes");
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
