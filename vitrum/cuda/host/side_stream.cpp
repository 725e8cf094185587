// Work on a stream of its own, beside the one that computes: events order them, in a captured graph
// as well, where it becomes a branch.
#include <cstdlib>
#include <string_view>

#include "vitrum/core/error.h"
#include "vitrum/cuda/host/backend.h"

namespace vitrum::cuda {
namespace {

class CudaSideStream final : public SideStream {
 public:
  explicit CudaSideStream(CudaBackend& cuda)
      : cuda_(cuda), workspace_(cuda.allocate(kGemmWorkspace)) {
    check(cudaStreamCreateWithFlags(&lane_.stream, cudaStreamNonBlocking), "a stream");
    check(cudaEventCreateWithFlags(&ready_, cudaEventDisableTiming), "an event");
    check(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "an event");
  }
  ~CudaSideStream() override {
    cudaStreamSynchronize(lane_.stream);
    cudaEventDestroy(ready_), cudaEventDestroy(done_);
    cudaStreamDestroy(lane_.stream);
  }

  void enter() override {
    const GemmPlace products{.stream = lane_.stream, .workspace = workspace_.data()};
    cuda_.move_to(&lane_, &products);
  }
  void leave() override { cuda_.move_to(nullptr, nullptr); }

  std::shared_ptr<Kernel> start() override {
    return named("side stream", make_kernel([this] {
                   check(cudaEventRecord(ready_, cuda_.stream()), "starting a side stream");
                   check(cudaStreamWaitEvent(lane_.stream, ready_, 0), "starting a side stream");
                 }));
  }
  std::shared_ptr<Kernel> end() override {
    return named("end of a side stream", make_kernel([this] {
                   check(cudaEventRecord(done_, lane_.stream), "ending a side stream");
                   check(cudaStreamWaitEvent(cuda_.stream(), done_, 0), "ending a side stream");
                 }));
  }

 private:
  CudaBackend& cuda_;
  Lane lane_;
  Buffer workspace_;
  cudaEvent_t ready_ = nullptr, done_ = nullptr;
};

bool one_after_the_other() {
  const char* const text = std::getenv("VITRUM_SIDE_STREAM");
  const std::string_view wish = text ? text : "1";
  if (wish != "0" && wish != "1") fail_usage("VITRUM_SIDE_STREAM={}: expected 0 or 1", wish);
  return wish == "0";
}

}  // namespace

std::shared_ptr<SideStream> CudaBackend::side_stream() {
  if (one_after_the_other()) return {};
  return std::make_shared<CudaSideStream>(*this);
}

}  // namespace vitrum::cuda
