// The backward passes of an MLP's two linear layers as one kernel, dx of the second being dy of the
// first: (M, K2) -> (M, N) -> (M, K1). A task owns some columns of what is between them: it makes
// them for a chunk of rows and uses them for both layers' dw while they are in its cache. Only dx,
// which sums over all columns in their order, is left to the next loop.
#include "vitrum/cpu/linear_bwd.h"

namespace vitrum::cpu {
namespace {

class LinearPairBwdKernel final : public Kernel {
 public:
  LinearPairBwdKernel(CpuBackend& cpu, const LinearBwd& second, const Operands& of_second,
                      const LinearBwd& first, const Operands& of_first)
      : cpu_(cpu),
        first_(first, of_first),
        second_(second, of_second),
        x_(of_first.in[LinearBwd::kX]),
        w1_(of_first.in[LinearBwd::kWeight]),
        between_(of_second.in[LinearBwd::kX]),
        w2_(of_second.in[LinearBwd::kWeight]),
        dx_(of_first.out[LinearBwd::kDx]),
        dw1_(of_first.out[LinearBwd::kDweight].f32()),
        dbias1_(of_first.out[LinearBwd::kDbias].f32()),
        dw2_(of_second.out[LinearBwd::kDweight].f32()),
        dbias2_(of_second.out[LinearBwd::kDbias].f32()),
        n_(w1_.shape[0]),
        packed1_{n_, w1_.shape[1]},
        packed2_{w2_.shape[0], n_},
        groups_{packed2_.panels(), std::clamp<int64_t>(packed2_.panels() / 4, 1, kMostPanels)},
        chunks_{x_.shape.rows(), kRows} {
    const int64_t k1 = packed1_.columns, k2 = packed2_.depth;
    packed2_at_ = packed1_.panels() * kPanel * n_;
    dpre_at_ = packed2_at_ + packed2_.panels() * kPanel * k2;
    x_at_ = dpre_at_ + 2 * chunks_.size * n_;
    dy_at_ = x_at_ + (k1 == kPanel ? 0 : 2 * chunks_.size * packed1_.panels() * kPanel);
    const int64_t end = dy_at_ + (second_.direct ? 0 : chunks_.total * k2);
    cpu.reserve_shared(static_cast<size_t>(end) * sizeof(float));
    cpu.reserve_per_thread(static_cast<size_t>(std::max(chunks_.size * kPanel + n_, k2) + 16) *
                           sizeof(float));
  }
  void launch() override;

 private:
  static constexpr int64_t kRows = 240;      // of a chunk
  static constexpr int64_t kMostPanels = 3;  // of columns that a task owns
  static constexpr int64_t kBlockRows = 48;  // of a product before what follows it

  int64_t size(int64_t c) const {
    return c < 0 || c >= chunks_.count() ? 0 : chunks_.last(c) - chunks_.first(c);
  }
  // The gradient behind the second layer from row `row` on.
  const float* dy(int64_t row) const {
    return (second_.direct ? second_.dy.f32() : shared_ + dy_at_) + row * packed2_.depth;
  }
  // What a group of columns has in chunk c, (rows, columns) on its own.
  float* dpre(int64_t c, int64_t group) const {
    return shared_ + dpre_at_ + (c % 2) * chunks_.size * n_ +
           groups_.first(group) * kPanel * size(c);
  }
  int64_t columns_of(int64_t group) const {
    return std::min(n_, groups_.last(group) * kPanel) - groups_.first(group) * kPanel;
  }
  const float* x_panel(int64_t c, int64_t p) const {
    if (packed1_.columns == kPanel) return x_.f32() + chunks_.first(c) * kPanel;
    return shared_ + x_at_ + ((c % 2) * chunks_.size * packed1_.panels() + p * size(c)) * kPanel;
  }

  auto pack_weights() {
    return TaskPart{packed1_.panels() + packed2_.panels(), [this](int64_t t, int) {
                      const bool one = t < packed1_.panels();
                      const int64_t p = one ? t : t - packed1_.panels();
                      const PackedB& b = one ? packed1_ : packed2_;
                      pack_panel((one ? w1_ : w2_).f32(), b.columns, b.depth, p,
                                 shared_ + (one ? 0 : packed2_at_) + p * kPanel * b.depth);
                    }};
  }
  auto make_dy(const LinearGradArgs& args) {
    const int64_t width = packed2_.depth;
    const Chunks blocks{second_.direct ? 0 : chunks_.total, std::max<int64_t>(1, 16384 / width)};
    return TaskPart{blocks.count(), [this, &args, blocks, width](int64_t t, int thread) {
                      const int64_t first = blocks.first(t);
                      cpu_.simd().linear->gradient(args, first, blocks.last(t) - first,
                                                   {shared_ + dy_at_ + first * width, DType::kF32},
                                                   scratch(thread));
                    }};
  }
  auto sum_dy() {
    const Chunks blocks{dbias2_ ? packed2_.depth : 0, 96};
    return TaskPart{blocks.count(), [this, blocks](int64_t t, int) {
                      column_sums(dy(0), packed2_.depth, chunks_.total, blocks.first(t),
                                  blocks.last(t) - blocks.first(t), dbias2_ + blocks.first(t));
                    }};
  }
  auto pack_x(int64_t c) {
    return TaskPart{size(c) > 0 && packed1_.columns != kPanel ? packed1_.panels() : 0,
                    [this, c](int64_t p, int) {
                      pack_panel(x_.f32() + chunks_.first(c) * packed1_.columns, packed1_.columns,
                                 size(c), p, const_cast<float*>(x_panel(c, p)));
                    }};
  }
  auto groups(int64_t c) {
    return TaskPart{size(c) > 0 ? groups_.count() : 0, [this, c](int64_t group, int thread) {
                      make_dpre(c, group, thread);
                      weight_gradients(c, group, thread);
                    }};
  }
  auto inputs(int64_t c) {
    const Chunks blocks{dx_ ? size(c) : 0, kBlockRows};
    return TaskPart{blocks.count(), [this, c, blocks](int64_t t, int) {
                      input_gradient(c, blocks.first(t), blocks.last(t) - blocks.first(t));
                    }};
  }

  void make_dpre(int64_t c, int64_t group, int thread) {
    const int64_t column = groups_.first(group) * kPanel, columns = columns_of(group),
                  k = packed2_.depth;
    float* to = dpre(c, group);
    for (int64_t r = 0, rows; r < size(c); r += rows) {
      rows = std::min(kBlockRows, size(c) - r);
      const int64_t row = chunks_.first(c) + r;
      for (int64_t j = 0; j < columns; j += kPanel)
        cpu_.simd().gemm->panel(dy(row), k, shared_ + packed2_at_ + (column + j) * k, kPanel,
                                to + r * columns + j, columns, rows, k,
                                std::min(kPanel, columns - j), false);
      if (!first_.direct)
        cpu_.simd().linear->gradient_block(args_, to + r * columns, columns, row, rows, column,
                                           columns, scratch(thread));
    }
  }

  void weight_gradients(int64_t c, int64_t group, int thread) {
    const GemmKernels& gemm = *cpu_.simd().gemm;
    const int64_t column = groups_.first(group) * kPanel, columns = columns_of(group),
                  rows = size(c), row = chunks_.first(c), k1 = packed1_.columns,
                  k2 = packed2_.depth;
    const float* d = dpre(c, group);
    if (dbias1_) column_sums(d, columns, rows, 0, columns, dbias1_ + column);
    for (int64_t p = 0; dw1_ && p < packed1_.panels(); ++p)
      gemm.columns(d, columns, x_panel(c, p), kPanel, dw1_ + column * k1 + p * kPanel, k1, columns,
                   rows, std::min(kPanel, k1 - p * kPanel), /*accumulate=*/true);
    for (int64_t j = column; dw2_ && j < column + columns; j += kPanel) {
      pack_panel(between_.f32() + row * n_, n_, rows, j / kPanel, scratch(thread));
      gemm.columns(dy(row), k2, scratch(thread), kPanel, dw2_ + j, n_, k2, rows,
                   std::min(kPanel, n_ - j), /*accumulate=*/true);
    }
  }

  void input_gradient(int64_t c, int64_t first, int64_t rows) {
    const int64_t k = packed1_.columns;
    float* dx = dx_.f32() + (chunks_.first(c) + first) * k;
    for (int64_t p = 0; p < packed1_.panels(); ++p)
      for (int64_t g = 0; g < groups_.count(); ++g)
        cpu_.simd().gemm->panel(dpre(c, g) + first * columns_of(g), columns_of(g),
                                shared_ + p * kPanel * n_ + groups_.first(g) * kPanel * kPanel,
                                kPanel, dx + p * kPanel, k, rows, columns_of(g),
                                std::min(kPanel, k - p * kPanel), g > 0);
  }

  // Panel p of a row-major (depth, columns) matrix.
  void pack_panel(const float* from, int64_t columns, int64_t depth, int64_t p, float* to) const {
    cpu_.simd().gemm->pack_panel(from + p * kPanel, /*bf16=*/false, columns, /*transposed=*/false,
                                 depth, std::min(kPanel, columns - p * kPanel), to, kPanel);
  }
  void column_sums(const float* d, int64_t stride, int64_t rows, int64_t first, int64_t count,
                   float* sums) const {
    cpu_.simd().linear->column_sums({const_cast<float*>(d), DType::kF32}, first, stride, rows,
                                    count, sums);
  }
  float* scratch(int thread) const { return reinterpret_cast<float*>(cpu_.thread_scratch(thread)); }

  CpuBackend& cpu_;
  PreActivationGradient first_, second_;
  TensorView x_, w1_, between_, w2_, dx_;
  float *dw1_, *dbias1_, *dw2_, *dbias2_;
  int64_t n_;
  PackedB packed1_, packed2_;  // the right operands of dx and of what is between
  Chunks groups_, chunks_;     // of panels; of rows
  int64_t packed2_at_ = 0, dpre_at_ = 0, x_at_ = 0, dy_at_ = 0;  // in shared scratch, in floats
  LinearGradArgs args_{};
  float* shared_ = nullptr;
};

void LinearPairBwdKernel::launch() {
  shared_ = reinterpret_cast<float*>(cpu_.shared_scratch());
  args_ = first_.args(n_);
  const LinearGradArgs of_second = second_.args(packed2_.depth);
  run_parts(cpu_, pack_weights(), make_dy(of_second), pack_x(0));
  run_parts(cpu_, groups(0), sum_dy(), pack_x(1));
  for (int64_t c = 0; c < chunks_.count(); ++c)
    run_parts(cpu_, groups(c + 1), inputs(c), pack_x(c + 2));
}

}  // namespace

KernelPtr lower_joined_bwd(CpuBackend& cpu, const LinearBwd& behind, const Operands& of_behind,
                           const LinearBwd& op, const Operands& io) {
  return std::make_unique<LinearPairBwdKernel>(cpu, behind, of_behind, op, io);
}

}  // namespace vitrum::cpu
