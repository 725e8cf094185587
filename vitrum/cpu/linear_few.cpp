// A linear layer of few rows: one image or two at inference. There the weights are more than all
// the rest, so they are read where they lie, once, as the left operand; x is packed instead, and
// the product comes out transposed. Each element is the same chain of multiply-adds as in
// linear.cpp, so results do not depend on which of the two ran.
#include "vitrum/cpu/gemm.h"
#include "vitrum/cpu/linear.h"

namespace vitrum::cpu {
namespace {

constexpr int64_t kOutputs = 96;  // rows of w in a task: they stay in the second-level cache
static_assert(kOutputs % 8 == 0 && kOutputs % kStrip == 0);

class FewRowsKernel final : public LinearForward {
 public:
  FewRowsKernel(CpuBackend& cpu, const Linear& op, const Operands& io)
      : LinearForward(cpu, op, io),
        depth_(w_.shape[1]),
        cut_{x_.shape.rows()},
        blocks_{w_.shape[0], kOutputs} {
    const size_t columns = static_cast<size_t>(cut_.count() * kPanel + kLastPanel - kPanel);
    cpu.reserve_shared(columns * static_cast<size_t>(depth_) * sizeof(float));
    cpu.reserve_per_thread(static_cast<size_t>(end()) * sizeof(float));
  }

  void launch() override {
    auto* packed = reinterpret_cast<float*>(cpu_.shared_scratch());
    pack_rows_of_x(packed);
    const LinearEpilogueArgs& epilogue = this->epilogue();
    for_chunks(cpu_, blocks_, [&](int64_t first, int64_t last, int64_t, int thread) {
      block(epilogue, packed, first, last - first, thread);
    });
  }

 private:
  void pack_rows_of_x(float* packed) {
    const bool bf16 = x_.dtype == DType::kBF16;
    const int64_t row_bytes = depth_ * static_cast<int64_t>(size_of(x_.dtype));
    cpu_.pool().run(cut_.count(), [&](int64_t p, int) {
      cpu_.simd().gemm->pack_panel(
          static_cast<const std::byte*>(x_.data) + cut_.first(p) * row_bytes, bf16, depth_,
          /*transposed=*/true, depth_, cut_.width(p), packed + cut_.first(p) * depth_,
          cut_.stride(p));
    });
  }

  // Per thread: a block of the product, the same transposed, dropout factors, rows of bf16 weights
  // widened.
  static constexpr int64_t kTransposed = kOutputs * kLastPanel,
                           kFactors = kTransposed + kLastPanel * kOutputs,
                           kWeights = kFactors + kOutputs + 16;
  int64_t end() const { return kWeights + (w_.dtype == DType::kBF16 ? kOutputs * depth_ : 0); }

  void block(const LinearEpilogueArgs& epilogue, const float* packed, int64_t first, int64_t count,
             int thread) {
    auto* scratch = reinterpret_cast<float*>(cpu_.thread_scratch(thread));
    const GemmKernels& gemm = *cpu_.simd().gemm;
    const float* weights = scratch + kWeights;
    if (w_.dtype == DType::kBF16)
      gemm.widen(w_.bf16() + first * depth_, count * depth_, scratch + kWeights);
    else
      weights = w_.f32() + first * depth_;
    for (int64_t p = 0; p < cut_.count(); ++p) {
      const int64_t row = cut_.first(p), rows = cut_.width(p);
      // Whole vectors: the panel has zeros behind the last row, and the scratch has room for them.
      gemm.panel(weights, depth_, packed + row * depth_, cut_.stride(p), scratch, kLastPanel, count,
                 depth_, (rows + 15) / 16 * 16, false);
      gemm.pack_panel(scratch, /*bf16=*/false, kLastPanel, /*transposed=*/true, rows, count,
                      scratch + kTransposed, kOutputs);
      cpu_.simd().linear->epilogue(epilogue, scratch + kTransposed, kOutputs, row, rows, first,
                                   count, scratch + kFactors);
    }
  }

  int64_t depth_;
  PanelCut cut_;  // of the rows of x, which are the columns of its transpose
  Chunks blocks_;
};

}  // namespace

bool has_few_rows(const Operands& io) {
  const int64_t rows = io.in[0].shape.rows(), n = io.in[1].shape[0], k = io.in[1].shape[1];
  return rows * (n + k) < n * k;  // what is packed and transposed, here and there
}

KernelPtr lower_few_rows(CpuBackend& cpu, const Linear& op, const Operands& io) {
  return std::make_unique<FewRowsKernel>(cpu, op, io);
}

}  // namespace vitrum::cpu
