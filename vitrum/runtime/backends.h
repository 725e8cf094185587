// Chooses a backend at run time: the one place that knows which of them this build has.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "vitrum/runtime/backend.h"

namespace vitrum {

struct DeviceOptions {
  std::string device = "auto";  // auto, cpu, reference, cuda[:N]
  int threads = 0;              // 0: every core this process may use
};

// An unknown device, or one this machine or build lacks, is a usage error that says what there is.
std::unique_ptr<Backend> make_backend(const DeviceOptions& options);

// For each thread of a CPU backend another one that computes the same bits on the thread that calls
// it, so that programs may run beside each other; none where that makes no sense.
std::vector<std::unique_ptr<Backend>> make_lanes(Backend& backend);

struct BackendStatus {
  std::string name;
  bool available = false;
  std::string detail;     // instruction set and threads, or why it is not available
  std::string bf16 = {};  // how it multiplies bf16, where that is worth telling
  std::string int8 = {};  // and bytes
  std::string isa = {};   // whose vector instructions it uses, where there is a choice
};
std::vector<BackendStatus> backend_statuses();

}  // namespace vitrum
