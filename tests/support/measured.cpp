#include "tests/support/measured.h"

#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "vitrum/core/error.h"

// Where lines are counted (tools/dev/coverage.sh): what this process has reached, which _exit()
// would forget.
extern "C" __attribute__((weak)) void __gcov_dump();

namespace vitrum::test {
namespace {

int64_t peak_kb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

double seconds(const timeval& t) {
  return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
}

struct Report {
  int64_t grown_kb;
  char message[4096];  // less than a pipe holds
};

[[noreturn]] void run_child(const std::function<void()>& work, int out) {
  alarm(20);
  Report report{};
  const int64_t before = peak_kb();
  int code = 0;
  try {
    work();
  } catch (const Error& error) {
    code = static_cast<int>(error.kind());
    std::strncpy(report.message, error.what(), sizeof report.message - 1);
  } catch (const std::exception& error) {
    code = 99;
    std::strncpy(report.message, error.what(), sizeof report.message - 1);
  }
  report.grown_kb = peak_kb() - before;
  if (write(out, &report, sizeof report) != sizeof report) code = 98;
  if (__gcov_dump) __gcov_dump();
  _exit(code);
}

}  // namespace

Measured measure(const std::function<void()>& work) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  malloc_trim(0);  // free memory of ours that the child reused would not count as its own
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) run_child(work, ends[1]);
  close(ends[1]);
  Report report{};
  const bool reported = read(ends[0], &report, sizeof report) == sizeof report;
  close(ends[0]);
  int status = 0;
  rusage usage{};
  wait4(child, &status, 0, &usage);
  Measured result;
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  if (reported) result.message = report.message, result.grown_kb = report.grown_kb;
  return result;
}

}  // namespace vitrum::test
