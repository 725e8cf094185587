#include "tests/support/shell.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>

namespace vitrum::test {

Shell::Shell(const std::vector<std::string>& command, const std::string& directory,
             const std::string& setup) {
  const std::string binary = std::filesystem::absolute(VITRUM_BINARY).lexically_normal();
  const std::string path =
      std::filesystem::path(binary).parent_path().string() + ":" + std::string(std::getenv("PATH"));
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  winsize size{.ws_row = 50, .ws_col = 500, .ws_xpixel = 0, .ws_ypixel = 0};
  pid_ = forkpty(&terminal_, nullptr, nullptr, &size);
  if (pid_ < 0) throw std::runtime_error("no pseudo-terminal here");
  if (pid_ == 0) {
    setenv("PATH", path.c_str(), 1), setenv("HOME", directory.c_str(), 1);
    setenv("TERM", "dumb", 1), setenv("LC_ALL", "C", 1);
    if (chdir(directory.c_str()) == 0) execvp(words[0], words.data());
    _exit(127);
  }
  type(setup + "; printf '<%s>' ready\n");
  read_until("<ready>");
}

Shell::~Shell() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  close(terminal_);
}

// Then the line becomes the arguments of printf.
std::string Shell::completed(const std::string& line) {
  constexpr const char *kTab = "\t", *kLineStart = "\x01", *kLineEnd = "\x05";
  type(line + kTab + kLineStart + "printf '<%s>' " + kLineEnd + " end\n");
  const std::string seen = read_until("<end>");
  const size_t begin = seen.rfind("<vitrum>");
  return begin == seen.npos ? seen : seen.substr(begin);
}

void Shell::type(const std::string& keys) {
  if (write(terminal_, keys.data(), keys.size()) != static_cast<ssize_t>(keys.size()))
    throw std::runtime_error("cannot type");
}

std::string Shell::read_until(const std::string& mark) {
  constexpr int kPatience = 30'000;  // milliseconds without a word
  size_t at;
  while ((at = unread_.find(mark)) == unread_.npos) {
    pollfd ready{.fd = terminal_, .events = POLLIN, .revents = 0};
    char block[4096];
    const ssize_t n =
        poll(&ready, 1, kPatience) == 1 ? read(terminal_, block, sizeof block) : ssize_t{-1};
    if (n <= 0) throw std::runtime_error("the shell did not answer; so far: " + unread_);
    unread_.append(block, static_cast<size_t>(n));
  }
  const std::string before = unread_.substr(0, at);
  unread_.erase(0, at + mark.size());
  return before;
}

}  // namespace vitrum::test
