// Internal to vitrum/cuda: what a lowering works with.
#pragma once
#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "vitrum/cuda/host/card_info.h"
#include "vitrum/cuda/host/gemm.h"
#include "vitrum/runtime/backend.h"

namespace vitrum::cuda {

// Throws what CUDA reports, saying what was being done; running out of memory is its own kind.
void check(cudaError_t status, const char* what);

// Pinned host memory in a ring: a slot is used again once the copy out of it is done.
class Staging {
 public:
  explicit Staging(cudaStream_t stream);
  ~Staging();
  // Copies `from` aside and sends it to `to` in stream order; returns without waiting for the card.
  // Large uploads cross the bus on a stream of their own, into card memory beside `to`, while the
  // card still works on what it was given before.
  void send(void* to, const void* from, size_t bytes);

 private:
  struct Slot {
    void *host = nullptr, *device = nullptr;
    size_t bytes = 0;
    cudaEvent_t arrived = nullptr, done = nullptr;
  };
  void grow(Slot& slot, size_t bytes, bool large);

  cudaStream_t stream_, bus_ = nullptr;
  Slot small_[16], large_[2];
  size_t next_small_ = 0, next_large_ = 0;
};

// Another stream, and the working memory of the kernels on it, of which one runs at a time.
struct Lane {
  cudaStream_t stream = nullptr;
  std::vector<Buffer> scratch = {};
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(int device);
  ~CudaBackend() override;

  std::string name() const override { return name_; }
  void bind_thread() override;
  Buffer allocate(size_t bytes) override;
  void upload(TensorView to, const void* from) override;
  void download(void* to, TensorView from) override;
  void download_later(void* to, TensorView from) override;
  void wait() override;
  int64_t peak_bytes() const override;
  int64_t bytes_held() const;  // now
  bool host_visible() const override { return false; }
  DType usual_precision() const override { return DType::kBF16; }
  bool multiplies_e4m3() const override { return card_.has_tma_wgmma; }
  std::unique_ptr<Kernel> lower(const Op& op, const Operands& io) override;
  size_t joins(std::span<const ChainNode> chain) const override;
  std::unique_ptr<Kernel> lower_joined(std::span<const ChainNode> joined) override;
  bool adds_columns(std::span<const ChainNode> joined) const override;
  std::unique_ptr<Sequence> prepare(Kernels kernels) override;
  std::shared_ptr<SideStream> side_stream() override;
  std::shared_ptr<Link> link(Communicator& comm) override;
  void share_choices(const std::string& known, bool more) override;
  std::string choices() const override;
  // Called now and then while the host waits for the card; it may throw.
  void set_watch(std::function<void()> watch) { watch_ = std::move(watch); }

  // Between two places in the card's memory, in order behind what was given to another stream.
  void copy(void* to, const void* from, size_t bytes, cudaStream_t theirs);
  // Of the kernels that are lowered now, or, outside of that, of what is launched.
  cudaStream_t stream() const { return side_ ? side_->stream : stream_; }
  const CardInfo& card() const { return card_; }
  int processors() const { return card_.processors; }
  bool tf32() const { return tf32_; }
  Gemms& gemms() { return *gemms_; }

  // Kernels that are lowered from now on run there, after what was given to the card; null: with
  // the rest, which waits for what has been launched there meanwhile.
  void move_to(Lane* lane, const GemmPlace* products);

  // Working memory that every kernel on the stream shares, since only one runs at a time; or of the
  // lane. Valid as long as that: a larger request leaves earlier blocks where they are.
  void* scratch(size_t bytes);
  template <class T>
  T* scratch_of(int64_t count) {
    return static_cast<T*>(scratch(static_cast<size_t>(count) * sizeof(T)));
  }

 private:
  struct Later {
    void* to;
    size_t slot, bytes;
  };
  void synchronize();
  void follow(cudaStream_t stream, cudaStream_t behind);

  int device_;
  std::string name_, card_id_;
  std::function<void()> watch_;
  cudaStream_t stream_ = nullptr;
  CardInfo card_;
  bool tf32_ = true;
  std::vector<Buffer> scratch_;
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<Gemms> gemms_;
  std::byte* later_memory_ = nullptr;  // pinned
  size_t later_used_ = 0;
  std::vector<Later> later_;
  Lane* side_ = nullptr;  // where kernels are lowered now; null: on the stream
  cudaEvent_t turn_ = nullptr;
};

// Operand `i` of a node; null where it is absent or the list is shorter.
inline TensorView operand(const std::vector<TensorView>& views, size_t i) {
  return i < views.size() ? views[i] : TensorView{};
}

using KernelPtr = std::unique_ptr<Kernel>;

// The kernel, with a name for traces.
KernelPtr named(std::string_view name, KernelPtr kernel);

// One overload per op; an op without one does not compile.
KernelPtr lower(CudaBackend& cuda, const Normalize& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const Mix& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const TakeImages& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const Patchify& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const Linear& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const QLinear& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const QAttention& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const ToE4M3& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const Activation& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const LayerNorm& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const AddLayerNorm& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const Attention& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const RelativeBias& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const Rotate& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const Gate& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const GatherTokens& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const AttentionProbs& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const Add& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const ChannelScale& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const Dropout& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const DropPath& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const KeepTokens& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const PlaceTokens& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const Tokens& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const Pool& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const AttendPool& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const AttendPoolBwd& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const Lookup& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const CrossEntropy& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const Argmax& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const LogSoftmax& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const TrainMetrics& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const LinearBwd& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const ActivationBwd& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const LayerNormBwd& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const AttentionBwd& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const RelativeBiasBwd& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const GateBwd& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const AttentionProbsGrad& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const ChannelScaleBwd& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const TokensBwd& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const PoolBwd& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const CrossEntropyBwd& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const ClearRange& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const ClipScale& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const BlockSquares& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const Fold& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const OptimizerStep& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const Conv2d& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const MaxPool& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const DepthwiseConv& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const ResponseNorm& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const UnitHeads& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const BatchNorm& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const FrozenBatchNorm& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const RunningStats& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const Conv2dBwd& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const MaxPoolBwd& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const DepthwiseConvBwd& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const ResponseNormBwd& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const UnitHeadsBwd& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const BatchNormBwd& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const Orthogonalize& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const Perturb& op, const Operands& io);
KernelPtr lower(CudaBackend& cuda, const Copy& op, const Operands& io);

// See Backend::adds_columns.
bool adds_columns(const LayerNormBwd& op, const Operands& io);
bool adds_columns(const CudaBackend& cuda, const AttentionBwd& op, const Operands& io);
// The kernel, then the column sums of its result added to `sums`, unless that is null.
KernelPtr with_column_sums(CudaBackend& cuda, KernelPtr kernel, const TensorView& result,
                           const TensorView& sums);

}  // namespace vitrum::cuda
