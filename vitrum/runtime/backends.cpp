#include "vitrum/runtime/backends.h"

#include "vitrum/core/error.h"
#include "vitrum/core/nearest.h"
#include "vitrum/core/parallel.h"
#include "vitrum/reference/reference.h"
#if VITRUM_HAS_CPU_BACKEND
#include "vitrum/cpu/cpu.h"
#endif

namespace vitrum {

std::unique_ptr<Backend> make_backend(const DeviceOptions& options) {
  const std::string& device = options.device;
  if (device == "reference") return make_reference_backend();
  if (device == "cpu" || device == "auto") {
#if VITRUM_HAS_CPU_BACKEND
    return make_cpu_backend({.threads = options.threads});
#else
    return make_reference_backend();
#endif
  }
  if (device == "cuda" || device.starts_with("cuda:"))
    fail_usage("device '{}': this build has no CUDA backend; use --device cpu", device);
  const std::vector<std::string> known = {"auto", "cpu", "reference", "cuda"};
  fail_usage("unknown device '{}'{}", device, did_you_mean(device, known));
}

std::vector<BackendStatus> backend_statuses() {
  std::vector<BackendStatus> all;
#if VITRUM_HAS_CPU_BACKEND
  all.push_back({"cpu", true, describe(cpu_features())});
#else
  all.push_back({"cpu", false, "not built for this processor; the reference backend stands in"});
#endif
  all.push_back({"cuda", false, "this build has no CUDA backend"});
  all.push_back({"reference", true, "plain loops in double precision: exact, slow"});
  return all;
}

}  // namespace vitrum
