// The card of this machine, for tests that need one.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "vitrum/runtime/backends.h"

namespace vitrum::test {

// The library lies beside the binary, not beside the tests.
inline std::optional<BackendStatus> cuda_status() {
  const auto beside = std::filesystem::path(VITRUM_BINARY).parent_path() / "libvitrum_cuda.so";
  setenv("VITRUM_CUDA_LIBRARY", beside.c_str(), /*overwrite=*/0);
  for (const BackendStatus& status : backend_statuses())
    if (status.name == "cuda" && status.available) return status;
  return {};
}
inline bool has_cuda() { return cuda_status().has_value(); }

// Null where there is no card. `exact`: f32 products in f32, not in TF32.
inline std::unique_ptr<Backend> cuda(bool exact) {
  if (!has_cuda()) return nullptr;
  setenv("VITRUM_TF32", exact ? "0" : "1", /*overwrite=*/1);
  return make_backend({.device = "cuda"});
}

// Where kernels of our own must take the place of others.
inline bool has_hopper() {
  const auto status = cuda_status();
  return status && status->detail.find("compute capability 9.0") != std::string::npos;
}

}  // namespace vitrum::test

#define SKIP_WITHOUT_CUDA() \
  if (!::vitrum::test::has_cuda()) GTEST_SKIP() << "there is no CUDA card here"
#define SKIP_WITHOUT_HOPPER() \
  if (!::vitrum::test::has_hopper()) GTEST_SKIP() << "only a Hopper card has the kernel"
