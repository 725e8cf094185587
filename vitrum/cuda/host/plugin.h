// What the separately loaded CUDA library exports. The loader (runtime/backends.cpp) finds these
// four functions by name; nothing else of CUDA is visible to it.
#pragma once
#include "vitrum/runtime/backend.h"

namespace vitrum::cuda {

// Of Backend, Op and what they are made of: both sides must agree. The build gives it, a hash of
// their headers (cmake/Abi.cmake).
inline constexpr int kAbiVersion = VITRUM_ABI_VERSION;
inline constexpr const char* kLibraryName = "libvitrum_cuda.so";
inline constexpr const char* kAbiSymbol = "vitrum_cuda_abi_version";
inline constexpr const char* kCreateSymbol = "vitrum_cuda_create";
inline constexpr const char* kProbeSymbol = "vitrum_cuda_probe";
inline constexpr const char* kCopySymbol = "vitrum_cuda_copy";

using AbiVersion = int();
// A backend on card `device`. Throws vitrum::Error with what is missing: driver, card or library.
using Create = Backend*(int device);
// Whether a card can be used, and in `detail` (of `size` bytes) which, or why not. Cheap: opens the
// driver only.
using Probe = bool(char* detail, size_t size);
// Of a backend that Create made: see runtime/device_copy.h.
using Copy = void(Backend* backend, void* to, const void* from, size_t bytes, void* stream);

}  // namespace vitrum::cuda
