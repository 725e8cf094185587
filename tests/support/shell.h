// An interactive shell on a terminal of its own: what a user sees who presses Tab.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace vitrum::test {

class Shell {
 public:
  // Starts it in `directory`, the tested binary first on its PATH, and runs `setup`.
  Shell(const std::vector<std::string>& command, const std::string& directory,
        const std::string& setup);
  ~Shell();
  Shell(const Shell&) = delete;
  Shell& operator=(const Shell&) = delete;

  // The words of `line` after Tab at its end, each in brackets: "<vitrum><train>".
  std::string completed(const std::string& line);

 private:
  void type(const std::string& keys);
  std::string read_until(const std::string& mark);  // what comes before it; throws when none comes

  int terminal_ = -1;
  pid_t pid_ = -1;
  std::string unread_;
};

}  // namespace vitrum::test
