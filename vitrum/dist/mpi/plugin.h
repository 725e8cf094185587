// What the separately loaded MPI library exports; use_mpi.cpp finds these three functions by name.
#pragma once
#include "vitrum/dist/transport.h"

namespace vitrum::mpi {

inline constexpr int kAbiVersion = VITRUM_ABI_VERSION;  // cmake/Abi.cmake
inline constexpr const char* kLibraryName = "libvitrum_mpi.so";
inline constexpr const char* kAbiSymbol = "vitrum_mpi_abi_version";
inline constexpr const char* kVariableSymbol = "vitrum_mpi_variable";
inline constexpr const char* kCreateSymbol = "vitrum_mpi_create";

using AbiVersion = int();
// What the launcher of the MPI that this was built with sets; without it MPI would not start.
using Variable = const char*();
// Starts MPI, together with all other processes. Null, and in `problem` (of `bytes` bytes) why,
// where it does not know the process by this rank.
using Create = Transport*(int rank, int size, char* problem, size_t bytes);

}  // namespace vitrum::mpi
