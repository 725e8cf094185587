// What an exception tells people, and which exit code says it to programs.
#pragma once
#include <exception>
#include <string>

#include "vitrum/core/error.h"

namespace vitrum {

struct Failure {
  ErrorKind kind = ErrorKind::kFailed;
  std::string message;
};
Failure failure_of(const std::exception& error);

}  // namespace vitrum
