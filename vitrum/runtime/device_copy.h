// Tensors of other libraries in the memory of the device that a backend works on.
#pragma once
#include <cstddef>

#include "vitrum/runtime/backend.h"

namespace vitrum {

// Copies on the device, behind what `stream` (null: the device's default one) was given before.
// Does not wait: Backend::wait() does. Fails where the backend's device has no memory of its own,
// or one of the two is elsewhere.
void copy_on_device(Backend& backend, void* to, const void* from, size_t bytes, void* stream);

}  // namespace vitrum
