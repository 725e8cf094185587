// Internal to vitrum/cpu: what a lowering works with.
#pragma once
#include <algorithm>
#include <cassert>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "vitrum/core/ceil_div.h"
#include "vitrum/core/parallel.h"
#include "vitrum/core/philox.h"
#include "vitrum/cpu/cpu.h"
#include "vitrum/cpu/simd/simd.h"
#include "vitrum/cpu/simd/tiles.h"
#include "vitrum/runtime/backend.h"

namespace vitrum::cpu {

// Working memory shared by every kernel of a backend, since only one runs at a time. Reserved while
// lowering; the pointers may move until the last reservation, so a kernel asks for them at launch.
class Scratch {
 public:
  explicit Scratch(int threads) : threads_(static_cast<size_t>(threads)) {}
  void reserve_per_thread(size_t bytes);
  void reserve_shared(size_t bytes);
  std::byte* of_thread(int thread) const {
    return per_thread_.data() + static_cast<size_t>(thread) * stride_;
  }
  std::byte* shared() const { return shared_.data(); }

 private:
  size_t threads_, stride_ = 0;
  Buffer per_thread_, shared_;
};

class CpuBackend final : public Backend {
 public:
  // tiles: may be null.
  CpuBackend(const SimdKernels& simd, const TileUnit* tiles, const ByteUnit& bytes, int threads);

  std::string name() const override;
  Buffer allocate(size_t bytes) override { return allocate_host(bytes); }
  void upload(TensorView to, const void* from) override;
  void download(void* to, TensorView from) override;
  bool host_visible() const override { return true; }
  bool packs_weights() const override { return tiles_ != nullptr; }
  int64_t enough_work(DType compute) const override;
  std::unique_ptr<Kernel> lower(const Op& op, const Operands& io) override;
  // The two linear layers of an MLP, forward and backward.
  size_t joins(std::span<const ChainNode> chain) const override;
  std::unique_ptr<Kernel> lower_joined(std::span<const ChainNode> joined) override;

  ThreadPool& pool() { return pool_; }
  const SimdKernels& simd() const { return *simd_; }
  // What multiplies bf16 operands; null where they are widened to f32.
  const TileUnit* tiles() const { return tiles_; }
  // What multiplies bytes; all units give the same sums.
  const ByteUnit& bytes() const { return *bytes_; }

  void reserve_per_thread(size_t bytes) { scratch_.reserve_per_thread(bytes); }
  void reserve_shared(size_t bytes) { scratch_.reserve_shared(bytes); }
  std::byte* thread_scratch(int thread) const { return scratch_.of_thread(thread); }
  std::byte* shared_scratch() const { return scratch_.shared(); }

 private:
  const SimdKernels* simd_;
  const TileUnit* tiles_;
  const ByteUnit* bytes_;
  ThreadPool pool_;
  Scratch scratch_;
};

// A range cut into chunks by its shape alone, never by the number of threads: results stay the same
// for any.
struct Chunks {
  int64_t total = 0, size = 1;
  int64_t count() const { return ceil_div(total, size); }
  int64_t first(int64_t chunk) const { return chunk * size; }
  int64_t last(int64_t chunk) const { return std::min(total, (chunk + 1) * size); }
};
// Rows of `row_elements` each: chunks of 16 Ki elements or more, at most `most` of them, in
// multiples of `multiple`.
Chunks chunk_rows(int64_t rows, int64_t row_elements, int64_t most = 128, int64_t multiple = 1);

// Whether a tensor of so many floats will have left the caches before it is read.
inline bool exceeds_caches(int64_t floats) { return floats >= int64_t{2} << 20; }

// Calls body(first, last, chunk, thread) for each chunk.
template <class Body>
void for_chunks(CpuBackend& cpu, const Chunks& chunks, const Body& body) {
  cpu.pool().run(chunks.count(),
                 [&](int64_t i, int thread) { body(chunks.first(i), chunks.last(i), i, thread); });
}

// Tasks of one kind that may run beside others; body(task, thread).
template <class Body>
struct TaskPart {
  int64_t tasks;
  Body body;
};
template <class Body>
TaskPart(int64_t, Body) -> TaskPart<Body>;

// Several kinds of tasks in one parallel loop, so that threads wait for each other once.
template <class... Bodies>
void run_parts(CpuBackend& cpu, const TaskPart<Bodies>&... parts) {
  cpu.pool().run((parts.tasks + ...), [&](int64_t task, int thread) {
    const auto take = [&](const auto& part) {
      if (task < part.tasks) return part.body(task, thread), true;
      return task -= part.tasks, false;
    };
    (void)(take(parts) || ...);
  });
}

// Whether all these operands are bf16 and the processor multiplies them as they are.
inline bool takes_tiles(const CpuBackend& cpu, std::initializer_list<TensorView> operands) {
  return cpu.tiles() && std::all_of(operands.begin(), operands.end(),
                                    [](const TensorView& v) { return v.dtype == DType::kBF16; });
}

// Operand `i` of a node; null where it is absent or the list is shorter.
inline TensorView operand(const std::vector<TensorView>& views, size_t i) {
  return i < views.size() ? views[i] : TensorView{};
}
// A view as the loops take it, after a check that they know its type.
Array floats(const TensorView& view);
Array pixels(const TensorView& view);     // u8 too
float* f32_only(const TensorView& view);  // parameters, statistics, gradients of parameters
inline const RandomState& random_state(const TensorView& rng) {
  return *static_cast<const RandomState*>(rng.data);
}
inline DropSite drop_site(const RandomState& rng, float drop, uint32_t site) {
  return {rng, site, keep_threshold(drop), keep_scale(drop)};
}

// One overload per op; an op without one does not compile.
using KernelPtr = std::unique_ptr<Kernel>;
KernelPtr lower(CpuBackend& cpu, const Normalize& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const Mix& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const TakeImages& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const Patchify& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const Linear& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const QLinear& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const QAttention& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const ToE4M3& op, const Operands& io);
KernelPtr lower_e4m3(CpuBackend& cpu, const QLinear& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const Activation& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const LayerNorm& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const AddLayerNorm& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const Attention& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const RelativeBias& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const Rotate& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const Gate& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const GatherTokens& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const AttentionProbs& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const Add& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const ChannelScale& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const Dropout& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const DropPath& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const KeepTokens& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const PlaceTokens& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const Tokens& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const Pool& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const AttendPool& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const AttendPoolBwd& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const Lookup& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const CrossEntropy& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const Argmax& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const LogSoftmax& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const TrainMetrics& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const LinearBwd& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const ActivationBwd& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const LayerNormBwd& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const AttentionBwd& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const RelativeBiasBwd& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const GateBwd& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const AttentionProbsGrad& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const ChannelScaleBwd& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const TokensBwd& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const PoolBwd& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const CrossEntropyBwd& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const ClearRange& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const ClipScale& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const BlockSquares& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const Fold& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const OptimizerStep& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const Conv2d& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const MaxPool& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const DepthwiseConv& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const ResponseNorm& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const UnitHeads& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const BatchNorm& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const FrozenBatchNorm& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const RunningStats& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const Conv2dBwd& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const MaxPoolBwd& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const DepthwiseConvBwd& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const ResponseNormBwd& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const UnitHeadsBwd& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const BatchNormBwd& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const Orthogonalize& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const Perturb& op, const Operands& io);
KernelPtr lower(CpuBackend& cpu, const Copy& op, const Operands& io);

}  // namespace vitrum::cpu
