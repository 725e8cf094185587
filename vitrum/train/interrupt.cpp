#include "vitrum/train/interrupt.h"

#include <unistd.h>

#include <cstddef>

namespace vitrum {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};
volatile sig_atomic_t received = 0;  // a handler can reach nothing else

void remember(int signal) {
  if (received == 0)
    received = signal;
  else if (signal != SIGHUP)  // shell and terminal both send one when they close
    _exit(128 + signal);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  received = 0;
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
}

int InterruptGuard::signal() const { return received; }

}  // namespace vitrum
