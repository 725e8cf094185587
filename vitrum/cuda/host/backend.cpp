#include "vitrum/cuda/host/backend.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>

#include "vitrum/core/error.h"
#include "vitrum/cuda/host/architectures.h"
#include "vitrum/cuda/host/plugin.h"
#include "vitrum/cuda/host/tensor_map.h"
#include "vitrum/cuda/linear/e4m3.h"
#if __has_include(<nvtx3/nvToolsExt.h>)  // a package of its own in some toolkits
#include <nvtx3/nvToolsExt.h>
#else
static void nvtxRangePushA(const char*) {}
static void nvtxRangePop() {}
#endif

namespace vitrum::cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears it, where it can be cleared
  if (status == cudaErrorMemoryAllocation)
    fail_exhausted(
        "the GPU is out of memory ({}); use a smaller batch size, or recompute = \"block\" when "
        "training",
        what);
  fail("CUDA: {} ({})", cudaGetErrorString(status), what);
}

bool supports_pdl() {
  constexpr int kCards = 64;
  static std::atomic<int8_t> known[kCards] = {};  // by card; 0: not asked yet
  int card = 0, major = 0;
  if (cudaGetDevice(&card) != cudaSuccess) return false;
  if (card < kCards && known[card] != 0) return known[card] > 0;
  const bool answer =
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, card) == cudaSuccess &&
      major >= 9;
  if (card < kCards) known[card] = answer ? 1 : -1;
  return answer;
}

// ---- uploads ----

Staging::Staging(cudaStream_t stream) : stream_(stream) {
  check(cudaStreamCreateWithFlags(&bus_, cudaStreamNonBlocking), "a stream");
}

Staging::~Staging() {
  const auto release = [](Slot& slot) {
    if (slot.done) cudaEventDestroy(slot.done), cudaEventDestroy(slot.arrived);
    cudaFreeHost(slot.host);
    cudaFree(slot.device);
  };
  std::for_each(std::begin(small_), std::end(small_), release);
  std::for_each(std::begin(large_), std::end(large_), release);
  cudaStreamDestroy(bus_);
}

void Staging::grow(Slot& slot, size_t bytes, bool large) {
  if (!slot.done) {
    check(cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming), "an event");
    check(cudaEventCreateWithFlags(&slot.arrived, cudaEventDisableTiming), "an event");
  }
  if (slot.bytes >= bytes) return;
  cudaFreeHost(std::exchange(slot.host, nullptr));
  cudaFree(std::exchange(slot.device, nullptr));
  slot.bytes = bytes;
  check(cudaMallocHost(&slot.host, bytes), "pinned memory for uploads");
  if (large) check(cudaMalloc(&slot.device, bytes), "memory for uploads");
}

void Staging::send(void* to, const void* from, size_t bytes) {
  constexpr size_t kSmall = 64 << 10;
  const bool large = bytes > kSmall;
  Slot& slot =
      large ? large_[next_large_++ % std::size(large_)] : small_[next_small_++ % std::size(small_)];
  if (slot.done) check(cudaEventSynchronize(slot.done), "waiting for an upload");
  grow(slot, large ? bytes : kSmall, large);
  std::memcpy(slot.host, from, bytes);
  if (large) {
    check(cudaMemcpyAsync(slot.device, slot.host, bytes, cudaMemcpyHostToDevice, bus_), "upload");
    check(cudaEventRecord(slot.arrived, bus_), "upload");
    check(cudaStreamWaitEvent(stream_, slot.arrived, 0), "upload");
  }
  check(cudaMemcpyAsync(to, large ? slot.device : slot.host, bytes, cudaMemcpyDefault, stream_),
        "upload");
  check(cudaEventRecord(slot.done, stream_), "upload");
}

// ---- the backend ----

namespace {

constexpr size_t kLaterBytes = 1 << 20;

bool tf32_wanted() {
  const char* text = std::getenv("VITRUM_TF32");
  return !text || std::strcmp(text, "0") != 0;
}

}  // namespace

// The current card is a thread's own, and a thread that has chosen none works on the first one.
void CudaBackend::bind_thread() { check(cudaSetDevice(device_), "choosing the card"); }

CudaBackend::CudaBackend(int device) : device_(device), tf32_(tf32_wanted()) {
  bind_thread();
  cudaDeviceProp card;
  check(cudaGetDeviceProperties(&card, device), "asking for the card's properties");
  name_ = fmt::format("cuda ({})", card.name);
  for (const char byte : card.uuid.bytes)
    card_id_ += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  const int capability = 10 * card.major + card.minor;
  card_ = {.capability = capability,
           .processors = card.multiProcessorCount,
           .shared_memory = card.sharedMemPerBlockOptin,
           .has_tma_wgmma = has_tma_wgmma(capability)};
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
  check(cudaEventCreateWithFlags(&turn_, cudaEventDisableTiming), "an event");
  check(cudaMallocHost(reinterpret_cast<void**>(&later_memory_), kLaterBytes), "pinned memory");
  staging_ = std::make_unique<Staging>(stream_);
  gemms_ = std::make_unique<Gemms>(stream_, tf32_, card.name);
}

CudaBackend::~CudaBackend() {
  cudaStreamSynchronize(stream_);
  gemms_.reset(), staging_.reset(), scratch_.clear();
  cudaFreeHost(later_memory_);
  cudaEventDestroy(turn_);
  cudaStreamDestroy(stream_);
}

// Buffers release themselves knowing nothing of their backend, so the count is the process's.
static std::atomic<int64_t> bytes_in_use, peak_in_use;

int64_t CudaBackend::peak_bytes() const { return peak_in_use; }
int64_t CudaBackend::bytes_held() const { return bytes_in_use; }

Buffer CudaBackend::allocate(size_t bytes) {
  if (bytes == 0) return {};
  void* data = nullptr;
  const std::string what =
      fmt::format("allocating {:.1f} MiB", static_cast<double>(bytes) / 0x1p20);
  check(cudaMalloc(&data, bytes), what.c_str());
  Buffer buffer(data, bytes, [](void* p, size_t size) {
    cudaFree(p);
    bytes_in_use -= static_cast<int64_t>(size);
  });
  const int64_t now = bytes_in_use += static_cast<int64_t>(bytes);
  peak_in_use = std::max<int64_t>(peak_in_use, now);
  check(cudaMemsetAsync(data, 0, bytes, stream_), "clearing memory");
  follow(stream(), stream_);
  return buffer;
}

void CudaBackend::follow(cudaStream_t stream, cudaStream_t behind) {
  if (stream == behind) return;
  cudaEventRecord(turn_, behind);  // a card that fails here fails at whatever comes next
  cudaStreamWaitEvent(stream, turn_, 0);
}

void CudaBackend::move_to(Lane* lane, const GemmPlace* products) {
  const cudaStream_t before = stream();
  side_ = lane;
  follow(stream(), before);
  gemms_->move_to(products);
}

void CudaBackend::upload(TensorView to, const void* from) {
  if (to.bytes() > 0) staging_->send(to.data, from, to.bytes());
}

void CudaBackend::download(void* to, TensorView from) {
  if (from.bytes() > 0)
    check(cudaMemcpyAsync(to, from.data, from.bytes(), cudaMemcpyDeviceToHost, stream_),
          "download");
  synchronize();
}

void CudaBackend::download_later(void* to, TensorView from) {
  const size_t bytes = from.bytes();
  if (later_used_ + bytes > kLaterBytes) wait();
  if (bytes > kLaterBytes) return download(to, from);
  check(cudaMemcpyAsync(later_memory_ + later_used_, from.data, bytes, cudaMemcpyDeviceToHost,
                        stream_),
        "download");
  later_.push_back({to, later_used_, bytes});
  later_used_ += (bytes + 15) / 16 * 16;
}

void CudaBackend::synchronize() {
  constexpr int kNap = 50, kCheckEvery = 1000;  // microseconds; naps
  for (int naps = 1; watch_ && cudaStreamQuery(stream_) == cudaErrorNotReady; ++naps) {
    if (naps % kCheckEvery == 0) watch_();
    usleep(kNap);
  }
  if (watch_) cudaGetLastError();  // that the card was not ready
  check(cudaStreamSynchronize(stream_), "waiting for the card");
}

void CudaBackend::wait() {
  synchronize();
  for (const Later& later : later_) std::memcpy(later.to, later_memory_ + later.slot, later.bytes);
  later_.clear(), later_used_ = 0;
}

void CudaBackend::share_choices(const std::string& known, bool more) {
  gemms_->share_choices(known, more);
}
std::string CudaBackend::choices() const { return gemms_->choices(); }

void* CudaBackend::scratch(size_t bytes) {
  std::vector<Buffer>& blocks = side_ ? side_->scratch : scratch_;
  if (blocks.empty() || blocks.back().size() < bytes) blocks.push_back(allocate(bytes));
  return blocks.back().data();
}

namespace {

// What lower() gives, with the op for profilers.
class OpKernel final : public Kernel {
 public:
  OpKernel(std::string_view op, KernelPtr kernel) : op_(op), kernel_(std::move(kernel)) {}
  void launch() override { kernel_->launch(); }
  std::string_view name() const override { return kernel_->name(); }
  const char* op() const { return op_.c_str(); }

 private:
  std::string op_;
  KernelPtr kernel_;
};

class NamedKernel final : public Kernel {
 public:
  NamedKernel(std::string_view name, KernelPtr kernel) : name_(name), kernel_(std::move(kernel)) {}
  void launch() override { kernel_->launch(); }
  std::string_view name() const override { return name_; }

 private:
  std::string name_;
  KernelPtr kernel_;
};

}  // namespace

KernelPtr named(std::string_view name, KernelPtr kernel) {
  return std::make_unique<NamedKernel>(name, std::move(kernel));
}

std::unique_ptr<Kernel> CudaBackend::lower(const Op& op, const Operands& io) {
  KernelPtr kernel = std::visit([&](const auto& o) { return cuda::lower(*this, o, io); }, op);
  return std::make_unique<OpKernel>(name_of(op), std::move(kernel));
}

// ---- a program as one graph ----

namespace {

// Shows up in Nsight and the like; costs a test of a pointer where nothing listens.
class ProfilerRange {
 public:
  explicit ProfilerRange(const char* name) { nvtxRangePushA(name); }
  ~ProfilerRange() { nvtxRangePop(); }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

// Kernels in a row as one graph, captured at the first run, when all of the program's scratch is
// known.
class CapturedKernels {
 public:
  CapturedKernels(std::span<const std::shared_ptr<Kernel>> kernels, cudaStream_t stream)
      : kernels_(kernels), stream_(stream) {}
  CapturedKernels(CapturedKernels&& other) noexcept
      : kernels_(other.kernels_),
        stream_(other.stream_),
        captured_(other.captured_),
        graph_(std::exchange(other.graph_, nullptr)) {}
  ~CapturedKernels() {
    if (graph_) cudaGraphExecDestroy(graph_);
  }

  void run() {
    if (!std::exchange(captured_, true)) capture();
    if (graph_) check(cudaGraphLaunch(graph_, stream_), "launching a program");
  }

 private:
  void capture() {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing");
    for (const auto& kernel : kernels_) kernel->launch();
    cudaGraph_t recorded = nullptr;
    const cudaError_t launched = cudaGetLastError();
    const cudaError_t ended = cudaStreamEndCapture(stream_, &recorded);
    check(launched, "recording a kernel");
    check(ended, "capturing a program");
    size_t nodes = 0;
    cudaGraphGetNodes(recorded, nullptr, &nodes);
    const cudaError_t made = nodes > 0 ? cudaGraphInstantiate(&graph_, recorded, 0) : cudaSuccess;
    cudaGraphDestroy(recorded);
    check(made, "preparing a program");
  }

  std::span<const std::shared_ptr<Kernel>> kernels_;
  cudaStream_t stream_;
  bool captured_ = false;
  cudaGraphExec_t graph_ = nullptr;
};

class CapturedSequence final : public Sequence {
 public:
  CapturedSequence(Kernels kernels, cudaStream_t stream)
      : Sequence(std::move(kernels)), stream_(stream) {
    const std::span all(std::as_const(kernels_));
    size_t first = 0;
    for (size_t i = 0; i <= all.size(); ++i) {
      if (i < all.size() && !all[i]->on_host()) continue;
      parts_.push_back({CapturedKernels(all.subspan(first, i - first), stream),
                        i < all.size() ? all[i].get() : nullptr});
      first = i + 1;
    }
  }

  void run() override {
    const ProfilerRange range("program");
    for (Part& part : parts_) {
      part.kernels.run();
      if (part.then) part.then->launch();
    }
  }
  double run_one(size_t i) override {
    cudaEvent_t start = nullptr, stop = nullptr;
    check(cudaEventCreate(&start), "an event"), check(cudaEventCreate(&stop), "an event");
    check(cudaStreamSynchronize(stream_), "waiting for the card");
    const auto* of_op = dynamic_cast<const OpKernel*>(kernels_[i].get());
    const ProfilerRange range(of_op ? of_op->op() : "joined");
    check(cudaEventRecord(start, stream_), "an event");
    kernels_[i]->launch();
    check(cudaGetLastError(), "launching a kernel");
    check(cudaEventRecord(stop, stream_), "an event");
    check(cudaStreamSynchronize(stream_), "running a kernel");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start, stop), "an event");
    cudaEventDestroy(start), cudaEventDestroy(stop);
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  struct Part {
    CapturedKernels kernels;
    Kernel* then;  // one in which the host has a part; null after the last
  };

  cudaStream_t stream_;
  std::vector<Part> parts_;
};

}  // namespace

std::unique_ptr<Sequence> CudaBackend::prepare(Kernels kernels) {
  return std::make_unique<CapturedSequence>(std::move(kernels), stream_);
}

// ---- what the library exports ----

namespace {

// Why this library cannot use a card; "" where it can.
std::string no_code_for(int device) {
  cudaDeviceProp card;
  if (const cudaError_t status = cudaGetDeviceProperties(&card, device); status != cudaSuccess)
    return cudaGetErrorString(status);
  const int capability = 10 * card.major + card.minor;
  if (runs_on(VITRUM_CUDA_ARCHITECTURES, capability)) return "";
  return fmt::format(
      "{} has compute capability {}.{}, and the CUDA backend was built for {} (make CUDA=1 "
      "CUDA_ARCHS={}-real builds it for this card)",
      card.name, card.major, card.minor, VITRUM_CUDA_ARCHITECTURES, capability);
}

// The first reason why no card can be used; "" where one can.
std::string missing(int device) {
  int version = 0, cards = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0)
    return "no NVIDIA driver is installed";
  if (const cudaError_t status = cudaGetDeviceCount(&cards); status != cudaSuccess)
    return cudaGetErrorString(status);
  if (cards == 0) return "no NVIDIA card is visible";
  if (device >= cards)
    return fmt::format("there {} {} card{}", cards == 1 ? "is" : "are", cards,
                       cards == 1 ? ", cuda:0" : "s");
  return no_code_for(device);
}

}  // namespace
// A row's range is known only when all of it is: eight bits on cards are fp8, with a scale a
// tensor.
[[noreturn]] void refuse_bytes() {
  fail_usage("--precision int8 computes on CPUs; with --device cuda take fp8 or bf16");
}
KernelPtr lower(CudaBackend& cuda, const QLinear& op, const Operands& io) {
  const auto& [act, scale] = op;
  if (scale == 0) refuse_bytes();
  if (!cuda.multiplies_e4m3())
    fail_usage(
        "{} does not multiply fp8: that takes compute capability 9.0 (H100, H200) and a library "
        "built for it; take --precision bf16",
        cuda.name());
  return lower_e4m3(cuda, op, io);
}
KernelPtr lower(CudaBackend&, const QAttention& op, const Operands&) {
  [[maybe_unused]] const auto& [heads] = op;
  refuse_bytes();
}

}  // namespace vitrum::cuda

extern "C" {

__attribute__((visibility("default"))) int vitrum_cuda_abi_version() {
  return vitrum::cuda::kAbiVersion;
}

__attribute__((visibility("default"))) bool vitrum_cuda_probe(char* detail, size_t size) {
  using namespace vitrum::cuda;
  const std::string reason = missing(0);
  std::string text = reason;
  cudaDeviceProp card;
  if (reason.empty() && cudaGetDeviceProperties(&card, 0) == cudaSuccess)
    text = fmt::format("{}, {:.0f} GiB, compute capability {}.{}", card.name,
                       static_cast<double>(card.totalGlobalMem) / 0x1p30, card.major, card.minor);
  std::snprintf(detail, size, "%s", text.c_str());
  return reason.empty();
}

__attribute__((visibility("default"))) vitrum::Backend* vitrum_cuda_create(int device) {
  using namespace vitrum;
  if (const std::string reason = cuda::missing(device); !reason.empty())
    fail_usage("--device cuda:{}: {}", device, reason);
  return new cuda::CudaBackend(device);
}
}
