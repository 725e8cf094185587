// Work done in a child process, with what it cost.
#pragma once
#include <functional>
#include <string>

namespace vitrum::test {

struct Measured {
  int code = -1;         // 0: it returned; else the kind of the Error it threw, or 128 + a signal
  std::string message;   // of the Error
  double seconds = 0;    // of processor time: other processes do not count
  int64_t grown_kb = 0;  // resident memory at its peak, over what there was before
};
// Killed after 20 s.
Measured measure(const std::function<void()>& work);

}  // namespace vitrum::test
