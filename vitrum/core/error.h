// One exception type for everything a user can cause. The kind decides the exit code; only cli/
// catches.
#pragma once
#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace vitrum {

enum class ErrorKind {
  kFailed = 1,     // the run itself failed (loss became NaN, ...)
  kUsage = 2,      // wrong option, unknown key, impossible combination
  kInput = 3,      // a file, model or data set that cannot be used
  kExhausted = 4,  // memory or disk ran out
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& what) : std::runtime_error(what), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::kFailed, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
[[noreturn]] void fail_usage(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::kUsage, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
[[noreturn]] void fail_input(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::kInput, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
[[noreturn]] void fail_exhausted(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::kExhausted, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace vitrum
