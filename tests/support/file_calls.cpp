#include "tests/support/file_calls.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <mutex>

namespace vitrum::test {
namespace {

std::atomic<bool> recording = false;
std::mutex mutex;
std::vector<std::string> calls;
std::function<void(const std::string&)> on_rename;

void record(std::string call) {
  const std::lock_guard lock(mutex);
  calls.push_back(std::move(call));
}

std::string name_of(const std::filesystem::path& path) { return path.filename().string(); }

void record_sync(int fd) {
  std::error_code ignored;
  struct stat status {};
  fstat(fd, &status);
  const std::string name =
      name_of(std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd), ignored));
  record(S_ISDIR(status.st_mode) ? "sync directory " + name
                                 : fmt::format("sync {}, {} bytes", name, status.st_size));
}

}  // namespace

FileCalls::FileCalls(std::function<void(const std::string&)> before_rename) {
  calls.clear();
  on_rename = std::move(before_rename);
  recording = true;
}

FileCalls::~FileCalls() {
  recording = false;
  on_rename = nullptr;
}

std::vector<std::string> FileCalls::made() const {
  const std::lock_guard lock(mutex);
  return calls;
}

}  // namespace vitrum::test

extern "C" int fsync(int fd) {
  if (vitrum::test::recording) vitrum::test::record_sync(fd);
  return static_cast<int>(syscall(SYS_fsync, fd));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  using namespace vitrum::test;
  if (recording && on_rename) on_rename(name_of(to));
  if (recording) record("rename " + name_of(from) + " to " + name_of(to));
  return static_cast<int>(syscall(SYS_rename, from, to));
}
