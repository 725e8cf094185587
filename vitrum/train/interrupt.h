// Ctrl-C (or SIGUSR1), SIGTERM and a terminal that closes, asked for politely: the first one is a
// request that a loop polls, a second Ctrl-C or SIGTERM ends the process.
#pragma once
#include <signal.h>

#include <array>

namespace vitrum {

// While one lives, the first such signal is only remembered. One may live inside another, which
// then knows of its signal.
class InterruptGuard {
 public:
  enum class Notice : bool { kSilent, kSaid };
  // kSaid: a signal is answered on stderr at once, since what is under way may take a while to end.
  explicit InterruptGuard(Notice notice = Notice::kSilent);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  int signal() const;  // SIGINT, SIGTERM, SIGHUP, or 0 while none came

 private:
  std::array<struct sigaction, 4> previous_;
  const char* notice_before_;
};

}  // namespace vitrum
