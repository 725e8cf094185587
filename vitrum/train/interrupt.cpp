#include "vitrum/train/interrupt.h"

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace vitrum {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
// A handler can reach nothing else.
volatile sig_atomic_t received = 0;
const char* volatile notice = nullptr;  // or null
int guards = 0;

// Only what a handler may call: write() and _exit().
void remember(int signal) {
  if (signal == SIGUSR1) signal = SIGINT;  // what Slurm and mpirun pass on when time is up
  if (received == 0) {
    received = signal;
    const int error = errno;  // of whatever was interrupted
    const char* text = notice;
    if (text) [[maybe_unused]]
      const ssize_t lost = write(STDERR_FILENO, text, std::strlen(text));
    errno = error;
  } else if (signal != SIGHUP) {  // shell and terminal both send one when they close
    _exit(128 + signal);
  }
}

// On a terminal "^C" stands behind the progress bar.
const char* notice_text() {
  return isatty(STDERR_FILENO) ? "\nfinishing; Ctrl-C again stops now\n"
                               : "finishing; Ctrl-C again stops now\n";
}

}  // namespace

InterruptGuard::InterruptGuard(Notice wanted) : notice_before_(notice) {
  if (guards++ == 0) received = 0;
  notice = wanted == Notice::kSaid ? notice_text() : nullptr;
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;  // a write under way is finished, not failed
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &action, &previous_[i]);
    const bool nohup = kSignals[i] == SIGHUP && previous_[i].sa_handler == SIG_IGN;
    if (nohup) sigaction(SIGHUP, &previous_[i], nullptr);
  }
}

InterruptGuard::~InterruptGuard() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous_[i], nullptr);
  notice = notice_before_;
  --guards;
}

int InterruptGuard::signal() const { return received; }

}  // namespace vitrum
