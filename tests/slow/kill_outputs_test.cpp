// SIGKILL while a verb replaces what it wrote before: afterwards the old is there, or nothing, or
// the new, never parts of both; and the next that comes to its end leaves nothing else.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <map>

#include "tests/support/data_files.h"
#include "tests/support/process.h"
#include "tests/support/tiny_model.h"
#include "vitrum/core/files.h"
#include "vitrum/core/philox.h"
#include "vitrum/core/sha.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using test::Process;
using Words = std::vector<std::string>;
using Files = std::map<std::string, std::string>;

class KillOutputs : public testing::Test {
 protected:
  static constexpr int kKills = 60;

  KillOutputs() {
    ModelSpec spec = test::tiny_rgb_model();
    test::write_tiny_model(dir_ / "model0", spec);
    spec.labels.front() = "other", spec.preprocess.mean = {0.25f, 0.25f, 0.25f};
    test::write_tiny_model(dir_ / "model1", spec, DType::kBF16);
    for (int set = 0; set < 2; ++set)
      for (int i = 0; i < 40; ++i)
        test::write_file(dir_ / fmt::format("data{}/{}/{}.jpg", set, i % 2 ? "ant" : "bee", i),
                         test::encode_jpeg(test::gradient(3, 90 + i, 120 + set)));
  }

  // Every file by its place, hidden ones too; "out" and what begins with it.
  Files files() const {
    Files all;
    for (const auto& entry : fs::recursive_directory_iterator(dir_ / "place"))
      if (entry.is_regular_file())
        all[fs::relative(entry.path(), dir_ / "place")] = sha256(read_file(entry.path()));
    return all;
  }
  static Files shown(Files files) {
    std::erase_if(files, [](const auto& f) {
      return f.first.starts_with('.') || f.first.find("/.") != std::string::npos;
    });
    return files;
  }
  int run(const Words& words) {
    Process process(test::vitrum_command(words), "/dev/null", dir_ / "stderr");
    return process.wait();
  }

  // `words(i)` write the i-th of two things to the same place. `usable`: whether what is there
  // would be taken for a whole one.
  template <class Make, class Usable>
  void expect_whole(const Make& words, const Usable& usable) {
    fs::create_directories(dir_ / "place");
    Files whole[2];
    double seconds = 0;
    for (const int i : {0, 1}) {
      const auto start = std::chrono::steady_clock::now();
      ASSERT_EQ(run(words(i)), 0) << read_file(dir_ / "stderr");
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      whole[i] = files();
      ASSERT_EQ(whole[i], shown(whole[i]));
    }
    ASSERT_NE(whole[0], whole[1]);
    PhiloxStream random(static_cast<uint64_t>(getpid()), 2, 0);
    int killed = 0;
    for (int i = 0; killed < kKills; ++i) {
      ASSERT_LT(i, 100 * kKills) << "it always ends before it is killed";
      Process process(test::vitrum_command(words(i % 2)), "/dev/null", dir_ / "stderr");
      usleep(random.below(static_cast<uint32_t>(1e6 * 1.1 * seconds) + 1));
      process.signal(SIGKILL);
      const int code = process.wait();
      ASSERT_TRUE(code == 0 || code == 128 + SIGKILL) << read_file(dir_ / "stderr");
      killed += code != 0;
      const Files now = shown(files());
      ASSERT_TRUE(!usable() || now == whole[0] || now == whole[1]) << "kill " << killed;
    }
    for (const int i : {0, 1}) {
      ASSERT_EQ(run(words(i)), 0) << read_file(dir_ / "stderr");
      EXPECT_EQ(files(), whole[i]) << "something is left";
    }
  }
  std::string out() const { return dir_ / "place/out"; }
  std::string model(int i) const { return dir_ / fmt::format("model{}", i); }

  test::TempDir dir_;
};

TEST_F(KillOutputs, Convert) {
  expect_whole(
      [&](int i) {
        return Words{"convert", model(i), out(), "--to", "hf"};
      },
      [&] { return fs::exists(out() + "/config.json"); });
}

TEST_F(KillOutputs, ConvertToAFile) {
  expect_whole(
      [&](int i) {
        return Words{"convert", model(i), out() + ".pth", "--to", "timm"};
      },
      [&] { return fs::exists(out() + ".pth"); });
}

TEST_F(KillOutputs, Quantize) {
  expect_whole(
      [&](int i) {
        return Words{"quantize", model(i), out(), "-q"};
      },
      [&] { return fs::exists(out() + "/config.json"); });
}

TEST_F(KillOutputs, Export) {
  expect_whole(
      [&](int i) {
        return Words{"export", "--model", model(i), "--external", "--output", out() + ".onnx"};
      },
      [&] { return fs::exists(out() + ".onnx") && fs::file_size(out() + ".onnx") > 0; });
}

TEST_F(KillOutputs, Pack) {
  expect_whole(
      [&](int i) {
        return Words{"data", "pack",   "folder:" + (dir_ / fmt::format("data{}", i)),
                     out(),  "--size", "64",
                     "-q",   "--force"};
      },
      [&] { return fs::exists(out()); });
}

}  // namespace
}  // namespace vitrum
