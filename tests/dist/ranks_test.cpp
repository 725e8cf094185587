// A run of several processes is the run of one, bit for bit; and one of them that dies, hangs or
// fails ends all, by name.
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "tests/support/rank_runs.h"
#include "vitrum/core/files.h"
#include "vitrum/train/lr_scan.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using test::eventually;
using test::Process;
using test::Words;
using testing::HasSubstr;

class Ranks : public test::RankRuns {
 protected:
  // The same files from any number of processes.
  void expect_same_bits(const Recipe& recipe, const std::vector<int>& numbers) const {
    expect_done(first(recipe, "alone", 1));
    for (const int ranks : numbers) {
      const std::string out = "on" + std::to_string(ranks);
      expect_done(first(recipe, out, ranks));
      expect_same(out, "alone");
    }
  }
};

TEST_F(Ranks, AnyNumberOfThemHasTheBitsOfOne) { expect_same_bits(full(), {2, 3, 4, 8}); }

// Gradients of a process's only slice stay where they are.
TEST_F(Ranks, OneForEachSlice) {
  Recipe r = full();
  r.slices = 4, r.accumulate = 1;
  expect_same_bits(r, {3, 4});
}

TEST_F(Ranks, OfEveryOptimiser) {
  using enum OptimizerKind;
  for (const OptimizerKind kind : {kSgd, kLion, kLamb, kMuon}) {
    SCOPED_TRACE(static_cast<int>(kind));
    const std::string name = "kind" + std::to_string(static_cast<int>(kind));
    expect_done(first(with_optimizer(kind), name, 1));
    expect_done(first(with_optimizer(kind), name + "b", 3));
    expect_same(name + "b", name);
  }
}

TEST_F(Ranks, WithSharpnessAwareMinimisation) {
  Recipe r = with_optimizer(OptimizerKind::kAdamW);
  r.sam = 0.05, r.slices = 4;
  expect_same_bits(r, {3});
}

TEST_F(Ranks, InBf16) {
  Recipe r = with_optimizer(OptimizerKind::kAdamW);
  r.precision = Precision::kBF16;
  expect_same_bits(r, {4});
}

// Masks and the loss on test images, too.
TEST_F(Ranks, WithoutLabels) {
  Recipe r = full();
  r.task = Task::kMae, r.mixup = 0;
  expect_same_bits(r, {3});
}

// Running statistics are those of the first leaf, for whoever evaluates.
TEST_F(Ranks, WithBatchNorm) {
  Recipe r = with_optimizer(OptimizerKind::kSgd);
  tiny_.use_batch_norm(r);
  r.epochs = 2, r.ema = 0;
  expect_same_bits(r, {3});
}

// The first tries them alone; one that diverges is no failure of the run.
TEST_F(Ranks, AfterAScanOfLearningRates) {
  Recipe r = with_optimizer(OptimizerKind::kAdamW);
  r.lr_scan = {1e-5, 3e-3, 1e6}, r.holdout = 0.2;
  expect_same_bits(r, {3});
  EXPECT_EQ(load_scan(tiny_ / "on3"), load_scan(tiny_ / "alone"));
  EXPECT_EQ(load_scan(tiny_ / "on3").size(), 3u);
}

TEST_F(Ranks, KernelByKernel) {
  expect_done(first(full(), "alone", 1));
  const test::Finished done = run(first(full(), "traced", 3, {"--trace"}));
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.err + done.out, HasSubstr("Linear"));
  expect_same("traced", "alone");
}

TEST_F(Ranks, WithATeacher) {
  expect_done(first(with_optimizer(OptimizerKind::kAdamW), "teacher", 1));
  Recipe r = with_optimizer(OptimizerKind::kAdamW);
  r.teacher = tiny_ / "teacher/best", r.distillation = Distillation::kSoft, r.mixup = 0.5;
  expect_same_bits(r, {3});
  r.mixup = 0, r.teacher_logits = tiny_ / "logits.safetensors";
  expect_done(first(r, "file", 3));
}

// Killed while four work on it, gone on with by two, one and eight.
TEST_F(Ranks, MayBecomeMoreOrFewer) {
  Recipe r = full();
  r.epochs = 4;
  expect_done(first(r, "alone", 1));
  const std::string out = tiny_ / "killed";
  Words words = first(r, "killed", 4);
  for (const int next : {2, 1, 8, 3}) {
    const auto before = fs::exists(checkpoint_path(out)) ? fs::last_write_time(checkpoint_path(out))
                                                         : fs::file_time_type::min();
    Process process(test::vitrum_command(words), "/dev/null", tiny_ / "stderr");
    EXPECT_TRUE(eventually([&] {
      return !process.running() || (fs::exists(checkpoint_path(out)) &&
                                    fs::last_write_time(checkpoint_path(out)) > before);
    }));
    process.signal(SIGKILL);
    process.wait();
    words = again("killed", next);
  }
  expect_done(words);
  expect_same("killed", "alone");
}

// A run that goes on until something happens to it.
class RanksUnderWay : public Ranks {
 protected:
  RanksUnderWay() {
    recipe_ = full();
    recipe_.epochs = 1000;
  }
  void start(const Words& more = {}) {
    process_.emplace(test::vitrum_command(first(recipe_, "run", 4, more)), "/dev/null",
                     tiny_ / "stderr");
    ASSERT_TRUE(eventually([&] { return has_checkpoint(tiny_ / "run"); })) << said();
    others_ = test::children_of(process_->id());
    ASSERT_EQ(others_.size(), 3u);
  }
  // Seconds until it has ended.
  double end(int expected) {
    const auto from = std::chrono::steady_clock::now();
    EXPECT_EQ(process_->wait(), expected) << said();
    for (const pid_t other : others_) EXPECT_TRUE(test::has_ended(other)) << "one is left over";
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
  }
  // What is there can be gone on with, by another number of processes.
  void expect_resumes() {
    const int64_t step = step_of();
    Process process(test::vitrum_command(again("run", 2)), "/dev/null", tiny_ / "stderr");
    EXPECT_TRUE(eventually([&] { return !process.running() || step_of() > step; }));
    EXPECT_TRUE(process.running()) << said();
    process.signal(SIGTERM);
    EXPECT_EQ(process.wait(), 143) << said();
  }
  int64_t step_of() const {
    try {
      const SafetensorsFile file(checkpoint_path(tiny_ / "run"));
      return std::stoll(file.metadata().at("step"));
    } catch (const Error&) {
      return 0;  // it is being replaced
    }
  }

  Recipe recipe_;
  std::optional<Process> process_;
  std::vector<pid_t> others_;
};

TEST_F(RanksUnderWay, ADeadOneIsNamed) {
  start();
  kill(others_[1], SIGKILL);
  EXPECT_LT(end(75), 5);
  EXPECT_THAT(said(), HasSubstr("rank 2 ("));
  EXPECT_THAT(said(), HasSubstr("died at step"));
  EXPECT_THAT(said(), HasSubstr("go on with: "));
  expect_resumes();
}

// Ctrl-Z, or a machine that was asleep: nobody was silent when all were.
TEST_F(RanksUnderWay, APauseOfAllIsNoSilence) {
  start({"--rank-timeout", "2"});
  const auto tell_all = [&](int signal) {
    kill(process_->id(), signal);
    for (const pid_t other : others_) kill(other, signal);
  };
  tell_all(SIGSTOP);
  usleep(3'600'000);
  const int64_t step = step_of();
  tell_all(SIGCONT);
  EXPECT_TRUE(eventually([&] { return !process_->running() || step_of() > step + 1; }));
  EXPECT_TRUE(process_->running()) << said();
  process_->signal(SIGTERM);
  end(143);
}

TEST_F(RanksUnderWay, ASilentOneIsNamed) {
  start({"--rank-timeout", "4"});
  kill(others_[2], SIGSTOP);
  EXPECT_GT(end(75), 1.5);
  EXPECT_THAT(said(), HasSubstr("rank 3 ("));
  EXPECT_THAT(said(), HasSubstr("has not answered for 4 s"));
  expect_resumes();
}

TEST_F(RanksUnderWay, TheFirstOneTakesTheOthersAlong) {
  start();
  kill(process_->id(), SIGKILL);
  process_->wait();
  EXPECT_TRUE(eventually([&] { return std::ranges::all_of(others_, test::has_ended); }));
  EXPECT_THAT(said(), HasSubstr("rank 0 ("));
  expect_resumes();
}

TEST_F(RanksUnderWay, ASignalToAnyStopsAllAtTheSameStep) {
  for (const int which : {0, 1}) {
    start();
    kill(which == 0 ? process_->id() : others_[1], SIGTERM);
    end(143);
    EXPECT_THAT(said(), HasSubstr("stopped after step"));
    const int64_t step = step_of();
    EXPECT_GT(step, 0);
    Recipe plain = recipe_;
    plain.max_steps = step;  // the run of one process that ends there
    plain.epochs = 1000;
    fs::remove_all(tiny_ / "alone");
    expect_done(first(plain, "alone", 1));
    const SafetensorsFile got(checkpoint_path(tiny_ / "run")),
        expected(checkpoint_path(tiny_ / "alone"));
    for (const TensorInfo& tensor : expected.tensors())
      if (tensor.name.starts_with("weights/") || tensor.name.starts_with("moment")) {
        const auto a = got.bytes(got.at(tensor.name)), b = expected.bytes(tensor);
        EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << tensor.name;
      }
    fs::remove_all(tiny_ / "run");
  }
}

// Inodes of the sockets of a process that are in /proc/net/tcp* as listening.
TEST_F(RanksUnderWay, NothingListens) {
  start();
  std::string listening;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string word, line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream words(line);
      Words columns{std::istream_iterator<std::string>(words), {}};
      if (columns.size() > 9 && columns[3] == "0A") listening += " [" + columns[9] + "]";
    }
  }
  others_.push_back(process_->id());
  for (const pid_t pid : others_)
    for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
      std::error_code ignored;
      const std::string target = fs::read_symlink(entry.path(), ignored);
      if (!target.starts_with("socket:")) continue;
      EXPECT_THAT(listening, testing::Not(HasSubstr(target.substr(7)))) << target;
    }
  others_.pop_back();
  process_->signal(SIGINT);
  end(130);
}

// Processes that a launcher has started, as torchrun does.
class LaunchedRanks : public Ranks {
 protected:
  LaunchedRanks() : port_(free_port()) {}

  // The exit codes of all.
  std::vector<int> run_all(const std::vector<Words>& words, const Words& secrets = {},
                           const Words& directories = {}) {
    std::vector<std::unique_ptr<Process>> all;
    for (size_t r = 0; r < words.size(); ++r) {
      const std::string rank = std::to_string(r), size = std::to_string(words.size());
      Words command = {"env",
                       "RANK=" + rank,
                       "WORLD_SIZE=" + size,
                       "LOCAL_RANK=" + rank,
                       "LOCAL_WORLD_SIZE=" + size,
                       "MASTER_ADDR=elsewhere",
                       "MASTER_PORT=" + port_};
      if (!secrets.empty()) command.push_back("VITRUM_SECRET=" + secrets[r]);
      if (!directories.empty()) command.insert(command.begin() + 1, {"-C", directories[r]});
      Words vitrum = test::vitrum_command(words[r]);
      if (r + 1 == words.size() && !last_program_.empty()) vitrum[0] = last_program_;
      command.insert(command.end(), vitrum.begin(), vitrum.end());
      all.push_back(std::make_unique<Process>(command, "/dev/null", error_file(r)));
    }
    std::vector<int> codes;
    for (const auto& process : all) codes.push_back(process->wait());
    return codes;
  }
  void use_for_the_last(const std::string& program) { last_program_ = program; }
  const std::string& port() const { return port_; }
  std::string error_file(size_t rank) const { return tiny_ / ("stderr" + std::to_string(rank)); }
  std::string said(size_t rank) const { return read_file(error_file(rank)); }
  Words words(const Recipe& recipe, const std::string& out) const { return first(recipe, out, 0); }

 private:
  static std::string free_port() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    bind(fd, reinterpret_cast<sockaddr*>(&address), length);
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
    close(fd);
    return std::to_string(ntohs(address.sin_port));
  }

  std::string port_, last_program_;
};

TEST_F(LaunchedRanks, HaveTheBitsOfOne) {
  expect_done(first(full(), "alone", 1));
  const auto command = words(full(), "launched");
  const std::string secret = "0123456789abcdef";
  EXPECT_THAT(run_all({command, command, command}, {secret, secret, secret}), testing::Each(0))
      << said(0) << said(1) << said(2);
  expect_same("launched", "alone");
}

TEST_F(LaunchedRanks, DifferFromEachOtherInVain) {
  Recipe other = full();
  other.lr = 1e-5;
  EXPECT_THAT(run_all({words(full(), "a"), words(other, "b")}), testing::Each(2)) << said(0);
  EXPECT_THAT(said(0), HasSubstr("rank 1 ("));
  EXPECT_THAT(said(0), HasSubstr("has another recipe than rank 0"));
  EXPECT_THAT(run_all({first(full(), "e", 2), first(full(), "f", 2)}), testing::Each(2)) << said(0);
  EXPECT_THAT(said(0), HasSubstr("leave out --ranks"));
}

TEST_F(LaunchedRanks, OfAnotherBuildAreRefused) {
  const fs::path other = tiny_ / "other";
  fs::copy_file(VITRUM_BINARY, other);
  std::ofstream(other, std::ios::app) << "x";
  use_for_the_last(other);
  const Words command = words(full(), "x");
  EXPECT_THAT(run_all({command, command}), testing::Each(2)) << said(0);
  EXPECT_THAT(said(0), HasSubstr("rank 1 ("));
  EXPECT_THAT(said(0), HasSubstr("has another build of vitrum than rank 0"));
}

TEST_F(LaunchedRanks, WithOtherImagesAreRefused) {
  Recipe r = full();
  r.data = "mnist:data";
  for (const char* place : {"a", "b"}) {
    ensure_directory(tiny_ / place);
    ensure_directory(tiny_ / (place + std::string("/data")));
    for (const char* name : {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                             "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}) {
      std::string bytes = read_file(tiny_ / name);
      if (*place == 'b' && name == std::string("train-images-idx3-ubyte")) bytes.back() ^= 1;
      write_file_atomic(tiny_ / (place + std::string("/data/") + name), bytes);
    }
  }
  EXPECT_THAT(run_all({words(r, "x"), words(r, "x")}, {}, {tiny_ / "a", tiny_ / "b"}),
              testing::Each(2))
      << said(0);
  EXPECT_THAT(said(0), HasSubstr("rank 1 ("));
  EXPECT_THAT(said(0), HasSubstr("has another set of training images than"));
}

// It has room for the stack of one thread, the one that says that it is there, and no more.
TEST_F(LaunchedRanks, WithoutRoomForThreadsExitWithFour) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs all the address space there is";
#endif
  const fs::path small = tiny_ / "small";
  write_file_atomic(small, "#!/bin/sh\nulimit -Ss 8000000; ulimit -v 10000000\nexec " +
                               fs::absolute(VITRUM_BINARY).string() + " \"$@\"\n");
  fs::permissions(small, fs::perms::owner_all);
  use_for_the_last(small);
  const Words command = words(full(), "x");
  EXPECT_THAT(run_all({command, command}), testing::Each(4)) << said(0) << said(1);
  EXPECT_THAT(said(0), HasSubstr("rank 1 ("));
  EXPECT_THAT(said(0), HasSubstr("out of memory, threads or disk"));
}

TEST_F(LaunchedRanks, ProveThatTheyBelongTogether) {
  const auto command = words(full(), "x");
  // The one with another secret is turned away; the first waits for the right one.
  Words base = {"env", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "LOCAL_RANK=0",
                "MASTER_PORT=" + port()};
  const auto process = [&](const char* rank, const char* secret, size_t errors) {
    Words all = base;
    all.push_back(std::string("RANK=") + rank);
    all.push_back(std::string("VITRUM_SECRET=") + secret);
    const auto vitrum = test::vitrum_command(command);
    all.insert(all.end(), vitrum.begin(), vitrum.end());
    return std::make_unique<Process>(all, "/dev/null", error_file(errors));
  };
  const auto zero = process("0", "one-secret-of-us", 0);
  EXPECT_EQ(process("1", "another-secret-x", 1)->wait(), 2);
  EXPECT_THAT(said(1), HasSubstr("VITRUM_SECRET"));
  EXPECT_TRUE(zero->running());
  EXPECT_EQ(process("1", "one-secret-of-us", 1)->wait(), 0) << said(1);
  EXPECT_EQ(zero->wait(), 0) << said(0);
}

TEST_F(Ranks, WhatCannotWorkIsSaidOnce) {
  const auto refused = [&](const Words& words, int code, const char* why) {
    const test::Finished done = run(words);
    EXPECT_EQ(done.code, code) << done.err;
    EXPECT_THAT(done.err, HasSubstr(why));
    EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
  };
  Recipe r = full();
  refused(first(r, "many", 9, {"-q"}), 2, "set slices = 16");
  r = full();
  r.data = "mnist:/nowhere";
  refused(first(r, "data", 2, {"-q"}), 3, "/nowhere");
}

}  // namespace
}  // namespace vitrum
