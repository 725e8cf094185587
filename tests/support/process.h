// The real binary in a child process.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace vitrum::test {

// Starts at once, its output going to files that the constructor is given; the destructor kills
// what still runs.
class Process {
 public:
  Process(const std::vector<std::string>& command, const std::string& stdout_path,
          const std::string& stderr_path);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number);
  pid_t id() const { return pid_; }
  bool running();
  int wait();  // the exit code, or 128 + the signal that ended it

 private:
  pid_t pid_;
  bool ended_ = false;
  int code_ = 0;
};

struct Finished {
  int code = 0;
  std::string out, err;
};
// `vitrum` with these arguments, to its end; files go to `scratch`.
Finished run_vitrum(const std::vector<std::string>& arguments, const std::string& scratch);
std::vector<std::string> vitrum_command(const std::vector<std::string>& arguments);

// Polls until `condition` holds; false after ten seconds.
template <class Condition>
bool eventually(const Condition& condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition())
    if (std::chrono::steady_clock::now() > limit) return false;
  return true;
}

}  // namespace vitrum::test
