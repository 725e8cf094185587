// Tensors of other libraries in the card's memory: no byte of them passes through the host.
#include <fmt/format.h>

#include "vitrum/core/error.h"
#include "vitrum/cuda/host/backend.h"
#include "vitrum/cuda/host/plugin.h"

namespace vitrum::cuda {
namespace {

void require_on_card(const void* pointer, int card) {
  cudaPointerAttributes where = {};
  const cudaError_t status = cudaPointerGetAttributes(&where, pointer);
  cudaGetLastError();  // what does not belong to CUDA is told by an error, which is ours alone
  const bool there = status == cudaSuccess && where.device == card &&
                     (where.type == cudaMemoryTypeDevice || where.type == cudaMemoryTypeManaged);
  if (!there)
    fail_usage("a tensor is not in the memory of card {}, where the model is; copy it there first",
               card);
}

}  // namespace

void CudaBackend::copy(void* to, const void* from, size_t bytes, cudaStream_t theirs) {
  if (bytes == 0) return;
  require_on_card(to, device_);
  require_on_card(from, device_);
  cudaEvent_t reached = nullptr;
  check(cudaEventCreateWithFlags(&reached, cudaEventDisableTiming), "an event");
  const cudaError_t recorded = cudaEventRecord(reached, theirs ? theirs : cudaStreamLegacy);
  const cudaError_t waits =
      recorded == cudaSuccess ? cudaStreamWaitEvent(stream_, reached, 0) : recorded;
  cudaEventDestroy(reached);
  check(waits, "waiting for another library's stream");
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copying a tensor");
}

}  // namespace vitrum::cuda

extern "C" __attribute__((visibility("default"))) void vitrum_cuda_copy(vitrum::Backend* backend,
                                                                        void* to, const void* from,
                                                                        size_t bytes,
                                                                        void* stream) {
  static_cast<vitrum::cuda::CudaBackend*>(backend)->copy(to, from, bytes,
                                                         static_cast<cudaStream_t>(stream));
}
