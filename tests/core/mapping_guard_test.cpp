// Files that shrink while they are mapped. Each case runs in a child: without the guard it dies.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "tests/support/measured.h"
#include "tests/support/temp_dir.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"

namespace vitrum {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr size_t kPage = 4096, kSize = 16 * kPage;

// Signals that reached a handler of the program itself.
volatile sig_atomic_t seen = 0;
void count_and_map(int, siginfo_t* info, void*) {
  seen = seen + 1;
  const auto page = reinterpret_cast<uintptr_t>(info->si_addr) & ~(kPage - 1);
  mmap(reinterpret_cast<void*>(page), kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
       0);
}

void handle(void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

class Shrinking : public testing::Test {
 protected:
  Shrinking() { write_file_atomic(path_, std::string(kSize, 'x')); }

  void shrink(size_t to) const { ASSERT_EQ(truncate(path_.c_str(), static_cast<off_t>(to)), 0); }
  static int sum(const MappedFile& file) {
    const volatile std::byte* bytes = file.bytes().data();  // read, whether the sum is used or not
    int n = 0;
    for (size_t i = 0; i < file.size(); ++i) n += bytes[i] == std::byte{'x'};
    return n;
  }
  // Memory that somebody else mapped, and lost.
  const char* foreign() const {
    const std::string path = dir_ / "foreign";
    write_file_atomic(path, std::string(kPage, 'y'));
    const int fd = open(path.c_str(), O_RDONLY);
    const void* memory = mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE, fd, 0);
    EXPECT_EQ(truncate(path.c_str(), 0), 0);
    return static_cast<const char*>(memory);
  }
  static void expect_lost(const test::Measured& result, const std::string& path) {
    EXPECT_EQ(result.code, static_cast<int>(ErrorKind::kInput)) << result.message;
    EXPECT_THAT(result.message, AllOf(HasSubstr(path), HasSubstr("shrank"), Not(HasSubstr("\n"))));
  }

  TempDir dir_;
  std::string path_ = dir_ / "weights";
};

TEST_F(Shrinking, WhatIsLostReadsAsZerosAndIsReported) {
  for (const size_t left : {size_t{0}, size_t{1}, 3 * kPage, kSize - kPage, kSize - 1}) {
    SCOPED_TRACE(left);
    write_file_atomic(path_, std::string(kSize, 'x'));
    expect_lost(test::measure([&] {
                  const MappedFile file(path_);
                  file.check_intact();
                  shrink(left);
                  if (sum(file) != static_cast<int>(left)) fail("other bytes than are left");
                  file.check_intact();
                }),
                path_);
  }
}

TEST_F(Shrinking, WhileThreadsRead) {
  expect_lost(test::measure([&] {
                const MappedFile file(path_);
                std::vector<std::thread> readers;
                for (int i = 0; i < 4; ++i)
                  readers.emplace_back([&] {
                    while (sum(file) == static_cast<int>(kSize)) continue;
                  });
                shrink(5 * kPage);
                for (std::thread& reader : readers) reader.join();
                file.check_intact();
              }),
              path_);
}

TEST_F(Shrinking, AnotherMapOfTheSameProcessIsWhole) {
  const test::Measured result = test::measure([&] {
    write_file_atomic(dir_ / "other", std::string(kSize, 'x'));
    const MappedFile other(dir_ / "other");
    {
      MappedFile moved(path_);
      const MappedFile file(std::move(moved));
      shrink(0);
      sum(file);
    }
    MappedFile again(dir_ / "other");  // in the place that is free now
    if (sum(other) + sum(again) != 2 * static_cast<int>(kSize)) fail("not whole");
    other.check_intact(), again.check_intact();
  });
  EXPECT_EQ(result.code, 0) << result.message;
}

TEST_F(Shrinking, AReplacedFileIsNotALostOne) {
  const MappedFile file(path_);
  write_file_atomic(path_, "short");
  EXPECT_EQ(sum(file), static_cast<int>(kSize));
  EXPECT_NO_THROW(file.check_intact());
}

// The kernel reads for write(), and answers with an error in place of a signal.
TEST_F(Shrinking, WhileItIsCopied) {
  expect_lost(test::measure([&] {
                const MappedFile file(path_);
                AtomicFile copy(dir_ / "copy");
                shrink(2 * kPage + 5);
                copy.write(file.bytes());
                file.check_intact();
                copy.commit();
              }),
              path_);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "copy"));
}

TEST_F(Shrinking, FaultsElsewhereAreForTheHandlerBefore) {
  const test::Measured result = test::measure([&] {
    handle(count_and_map);
    const char* other = foreign();
    {
      const MappedFile file(path_);
      if (*static_cast<const volatile char*>(other) != 0 || seen != 1) fail("not passed on");
      shrink(0);
      sum(file);
      if (seen != 1) fail("ours was passed on");
    }
    struct sigaction now {};
    sigaction(SIGBUS, nullptr, &now);
    if (now.sa_sigaction != count_and_map) fail("the handler before is not back");
  });
  EXPECT_EQ(result.code, 0) << result.message;
}

TEST_F(Shrinking, FaultsElsewhereStillEndTheProcess) {
  for (void (*before)(int) : {SIG_DFL, SIG_IGN}) {
    const test::Measured result = test::measure([&] {
      signal(SIGBUS, before);
      const MappedFile file(path_);
      static_cast<void>(*static_cast<const volatile char*>(foreign()));
    });
    EXPECT_EQ(result.code, 128 + SIGBUS);
  }
  const test::Measured sent = test::measure([&] {
    signal(SIGBUS, SIG_IGN);
    const MappedFile file(path_);
    raise(SIGBUS);  // ignored, as the program wants it
  });
  EXPECT_EQ(sent.code, 0) << sent.message;
}

// A program that puts its own handler on top keeps it, and may pass faults on to ours.
struct sigaction ours;
void count_and_pass_on(int number, siginfo_t* info, void* context) {
  seen = seen + 1;
  ours.sa_sigaction(number, info, context);
}
TEST_F(Shrinking, AHandlerOnTopStays) {
  const test::Measured result = test::measure([&] {
    {
      const MappedFile file(path_);
      sigaction(SIGBUS, nullptr, &ours);
      handle(count_and_pass_on);
    }
    const MappedFile file(path_);  // must not follow the one that follows us
    shrink(0);
    sum(file);
    if (seen != 1) fail("seen {} signals", int{seen});
    struct sigaction now {};
    sigaction(SIGBUS, nullptr, &now);
    if (now.sa_sigaction != count_and_pass_on) fail("it was replaced");
    file.check_intact();
  });
  expect_lost(result, path_);
}

}  // namespace
}  // namespace vitrum
