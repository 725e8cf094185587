#include "tests/support/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>

#include "vitrum/core/files.h"

namespace vitrum::test {

Process::Process(const std::vector<std::string>& command, const std::string& stdout_path,
                 const std::string& stderr_path)
    : pid_(0) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
  const int out = open(stdout_path.c_str(), kFlags, 0600),
            err = open(stderr_path.c_str(), kFlags, 0600);
  pid_ = fork();
  if (pid_ < 0 || out < 0 || err < 0) throw std::runtime_error("cannot start a process");
  if (pid_ == 0) {
    dup2(out, STDOUT_FILENO), dup2(err, STDERR_FILENO);
    // Under nohup or in the background of a script these are ignored, and stay so.
    for (const int number : {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(number, SIG_DFL);
    execvp(words[0], words.data());
    _exit(127);
  }
  close(out), close(err);
}

Process::~Process() {
  if (ended_) return;
  signal(SIGKILL);
  wait();
}

void Process::signal(int number) {
  if (running()) kill(pid_, number);  // its number may be somebody else's by now otherwise
}

bool Process::running() {
  int status = 0;
  if (!ended_ && waitpid(pid_, &status, WNOHANG) == pid_) {
    ended_ = true;
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return !ended_;
}

int Process::wait() {
  while (running()) usleep(1000);
  return code_;
}

std::vector<std::string> vitrum_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {std::filesystem::absolute(VITRUM_BINARY).string()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

Finished run_vitrum(const std::vector<std::string>& arguments, const std::string& scratch) {
  const std::string out = scratch + ".stdout", err = scratch + ".stderr";
  const int code = Process(vitrum_command(arguments), out, err).wait();
  return {code, read_file(out), read_file(err)};
}

}  // namespace vitrum::test
