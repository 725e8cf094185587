// The card of this machine, for tests that need one.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "vitrum/runtime/backends.h"

namespace vitrum::test {

// The library lies beside the binary, not beside the tests.
inline bool has_cuda() {
  const auto beside = std::filesystem::path(VITRUM_BINARY).parent_path() / "libvitrum_cuda.so";
  setenv("VITRUM_CUDA_LIBRARY", beside.c_str(), /*overwrite=*/0);
  for (const BackendStatus& status : backend_statuses())
    if (status.name == "cuda") return status.available;
  return false;
}

// Null where there is no card. `exact`: f32 products in f32, not in TF32.
inline std::unique_ptr<Backend> cuda(bool exact) {
  if (!has_cuda()) return nullptr;
  setenv("VITRUM_TF32", exact ? "0" : "1", /*overwrite=*/1);
  return make_backend({.device = "cuda"});
}

}  // namespace vitrum::test

#define SKIP_WITHOUT_CUDA() \
  if (!::vitrum::test::has_cuda()) GTEST_SKIP() << "there is no CUDA card here"
