#include "vitrum/cli/failure.h"

#include <new>
#include <system_error>

namespace vitrum {

Failure failure_of(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error)) return {own->kind(), own->what()};
  if (dynamic_cast<const std::bad_alloc*>(&error)) return {ErrorKind::kExhausted, "out of memory"};
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  // Such as a thread that finds no room for its stack.
  const bool exhausted = system && (system->code() == std::errc::not_enough_memory ||
                                    system->code() == std::errc::resource_unavailable_try_again ||
                                    system->code() == std::errc::no_space_on_device);
  if (!exhausted) return {ErrorKind::kFailed, error.what()};
  return {ErrorKind::kExhausted, std::string("out of memory, threads or disk: ") + error.what()};
}

}  // namespace vitrum
