#include "vitrum/runtime/backends.h"

#include "vitrum/core/error.h"
#include "vitrum/core/nearest.h"
#include "vitrum/core/parallel.h"
#include "vitrum/core/shared_library.h"
#include "vitrum/cuda/host/plugin.h"
#include "vitrum/reference/reference.h"
#include "vitrum/runtime/device_copy.h"
#if VITRUM_HAS_CPU_BACKEND
#include "vitrum/cpu/cpu.h"
#endif

namespace vitrum {
namespace {

// The CUDA backend lives in a library of its own, opened when a card is asked for or might be used:
// the rest runs on machines that have never heard of CUDA. It stays open until the process ends.
class CudaLibrary {
 public:
  CudaLibrary() {
    if (!library_) {
      problem_ = library_.why().empty()
                     ? "the CUDA backend is not installed (the package vitrum-cuda; make CUDA=1 "
                       "builds it)"
                     : fmt::format("the CUDA backend cannot be opened: {}", library_.why());
      return;
    }
    const auto version = symbol<cuda::AbiVersion>(cuda::kAbiSymbol);
    if (!version || version() != cuda::kAbiVersion) {
      problem_ = fmt::format("{} belongs to another version of vitrum; build it again",
                             cuda::kLibraryName);
      return;
    }
    char detail[256] = "";
    usable_ = symbol<cuda::Probe>(cuda::kProbeSymbol)(detail, sizeof detail);
    (usable_ ? card_ : problem_) = detail;
  }

  bool usable() const { return usable_; }
  const std::string& card() const { return card_; }
  const std::string& problem() const { return problem_; }
  std::unique_ptr<Backend> create(int device) const {
    return std::unique_ptr<Backend>(symbol<cuda::Create>(cuda::kCreateSymbol)(device));
  }
  cuda::Copy* copy() const { return symbol<cuda::Copy>(cuda::kCopySymbol); }

 private:
  template <class F>
  F* symbol(const char* name) const {
    F* function = nullptr;
    library_.find(name, function);
    return function;
  }

  SharedLibrary library_{own_library_places(cuda::kLibraryName, "VITRUM_CUDA_LIBRARY")};
  bool usable_ = false;
  std::string card_, problem_;
};

const CudaLibrary& cuda_library() {
  static const CudaLibrary library;
  return library;
}

int card_number(const std::string& device) {
  if (device == "cuda") return 0;
  const std::string text = device.substr(5);
  if (text.empty() || text.size() > 3 || text.find_first_not_of("0123456789") != std::string::npos)
    fail_usage("device '{}': expected cuda or cuda:N", device);
  return std::stoi(text);
}

}  // namespace

std::unique_ptr<Backend> make_backend(const DeviceOptions& options) {
  const std::string& device = options.device;
  if (device == "reference") return make_reference_backend();
  if (device == "cuda" || device.starts_with("cuda:")) {
    const int card = card_number(device);
    if (!cuda_library().usable())
      fail_usage("device '{}': {}; use --device cpu", device, cuda_library().problem());
    return cuda_library().create(card);
  }
  if (device == "auto" && cuda_library().usable()) return cuda_library().create(0);
  if (device == "cpu" || device == "auto") {
#if VITRUM_HAS_CPU_BACKEND
    return make_cpu_backend({.threads = options.threads});
#else
    return make_reference_backend();
#endif
  }
  const std::vector<std::string> known = {"auto", "cpu", "reference", "cuda"};
  constexpr OtherName kOthers[] = {
      {"gpu", "cuda"}, {"nvidia", "cuda"}, {"0", "cuda"}, {"mps", "cpu"}, {"xpu", "cpu"}};
  fail_usage("unknown device '{}'{}", device, did_you_mean(device, known, kOthers));
}

std::vector<std::unique_ptr<Backend>> make_lanes([[maybe_unused]] Backend& backend) {
#if VITRUM_HAS_CPU_BACKEND
  return make_cpu_lanes(backend);
#else
  return {};
#endif
}

void copy_on_device(Backend& backend, void* to, const void* from, size_t bytes, void* stream) {
  if (backend.host_visible())
    fail_usage("a tensor is in a card's memory, but the model runs on {}; copy it to the CPU first",
               backend.name());
  cuda::Copy* const copy = cuda_library().copy();
  if (!copy) fail("{} has no {}; build it again", cuda::kLibraryName, cuda::kCopySymbol);
  copy(&backend, to, from, bytes, stream);
}

std::vector<BackendStatus> backend_statuses() {
  std::vector<BackendStatus> all;
#if VITRUM_HAS_CPU_BACKEND
  all.push_back(
      {"cpu", true, describe(cpu_features()), bf16_products(), int8_products(), vector_isa()});
#else
  all.push_back({"cpu", false, "not built for this processor; the reference backend stands in",
                 "emulated", "baseline"});
#endif
  const CudaLibrary& cuda = cuda_library();
  all.push_back({"cuda", cuda.usable(), cuda.usable() ? cuda.card() : cuda.problem()});
  all.push_back({"reference", true, "plain loops in double precision: exact, slow"});
  return all;
}

}  // namespace vitrum
