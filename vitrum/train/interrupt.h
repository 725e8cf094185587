// Ctrl-C and SIGTERM, asked for politely: the first one is a request that a loop polls, the second
// ends the process.
#pragma once
#include <signal.h>

#include <array>

namespace vitrum {

// While one lives, the first SIGINT or SIGTERM is only remembered. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  int signal() const;  // SIGINT, SIGTERM, or 0 while none came

 private:
  std::array<struct sigaction, 2> previous_;
};

}  // namespace vitrum
