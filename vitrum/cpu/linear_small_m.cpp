// A linear layer of few rows: one image or two at inference. There the weights are more than all
// the rest, so they are read once, where they lie: a task has one panel of outputs and all rows,
// and packs of its weights no more than the first-level cache holds at a time. Each element is the
// same chain of multiply-adds as in linear.cpp, so results do not depend on which of the two ran.
#include "vitrum/cpu/gemm.h"
#include "vitrum/cpu/linear.h"

namespace vitrum::cpu {
namespace {

class SmallMKernel final : public LinearForward {
 public:
  SmallMKernel(CpuBackend& cpu, const Linear& op, const Operands& io)
      : LinearForward(cpu, op, io), rows_(x_.shape.rows()), n_(w_.shape[0]), k_(w_.shape[1]) {
    if (x_.dtype == DType::kBF16)
      cpu.reserve_shared(static_cast<size_t>(rows_ * k_) * sizeof(float));
    cpu.reserve_per_thread(static_cast<size_t>(kProduct + rows_ * kPanel) * sizeof(float));
  }

  void launch() override {
    const float* x = x_.dtype == DType::kBF16 ? widened() : x_.f32();
    const LinearEpilogueArgs& epilogue = this->epilogue();
    for_chunks(cpu_, {n_, kPanel}, [&](int64_t first, int64_t last, int64_t, int thread) {
      block(epilogue, x, first, last - first, thread);
    });
  }

 private:
  // Per thread: a slice of weights, dropout factors, a block of the product. That is not computed
  // in y, whose rows may lie a multiple of 4 KiB apart and would not stay in the cache.
  static constexpr int64_t kFactors = kSliceFloats, kProduct = kFactors + kPanel + 16;

  const float* widened() {
    auto* x = reinterpret_cast<float*>(cpu_.shared_scratch());
    for_chunks(cpu_, chunk_rows(rows_, k_), [&](int64_t first, int64_t last, int64_t, int) {
      cpu_.simd().gemm->widen(x_.bf16() + first * k_, (last - first) * k_, x + first * k_);
    });
    return x;
  }

  void block(const LinearEpilogueArgs& epilogue, const float* x, int64_t first, int64_t count,
             int thread) {
    auto* scratch = reinterpret_cast<float*>(cpu_.thread_scratch(thread));
    const auto* w = static_cast<const std::byte*>(w_.data) +
                    first * k_ * static_cast<int64_t>(size_of(w_.dtype));
    cpu_.simd().gemm->turned(x, k_, w, w_.dtype == DType::kBF16, k_, scratch + kProduct, kPanel,
                             rows_, k_, count, scratch);
    cpu_.simd().linear->epilogue(epilogue, scratch + kProduct, kPanel, 0, rows_, first, count,
                                 scratch + kFactors);
  }

  int64_t rows_, n_, k_;
};

}  // namespace

bool has_small_m(const Operands& io) {
  const int64_t rows = io.in[Linear::kX].shape.rows(), n = io.in[Linear::kWeight].shape[0],
                k = io.in[Linear::kWeight].shape[1];
  return rows * (n + k) < n * k;
}

KernelPtr lower_small_m(CpuBackend& cpu, const Linear& op, const Operands& io) {
  [[maybe_unused]] const auto& [act, drop, site] = op;
  return std::make_unique<SmallMKernel>(cpu, op, io);
}

}  // namespace vitrum::cpu
