// Structs of callers that were compiled against another version of the header.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "vitrum/core/error.h"

namespace vitrum::c {

// Copies the `size` bytes that a caller has of a struct over `to`, which has defaults. A newer
// caller's further members must be zero: what they ask for cannot be done here.
template <class T>
void adopt(T& to, const void* from, size_t size, size_t least, const char* name) {
  if (size < least || size > 4096)
    fail_usage("the size of a {} is {}; expected {}: sizeof, as the caller was compiled", name,
               size, sizeof(T));
  std::memcpy(static_cast<void*>(&to), from, std::min(sizeof(T), size));
  const auto* bytes = static_cast<const std::byte*>(from);
  if (size > sizeof(T) &&
      std::any_of(bytes + sizeof(T), bytes + size, [](std::byte b) { return b != std::byte{0}; }))
    fail_usage("a {} sets something that this version (" VITRUM_VERSION ") does not know", name);
}

}  // namespace vitrum::c
