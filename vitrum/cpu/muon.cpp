// Muon's direction in f32: one matrix after the other, every product on all threads.
#include <cmath>

#include "vitrum/core/ceil_div.h"
#include "vitrum/cpu/gemm.h"

namespace vitrum::cpu {
namespace {

constexpr int64_t kRange = 16 * 1024;  // elements of one sum of squares

// to (columns, rows) = factor * from^T (rows, columns), in blocks that fit a cache line each way.
void transpose(CpuBackend& cpu, const float* from, int64_t rows, int64_t columns, float factor,
               float* to) {
  constexpr int64_t kBlock = 16;
  cpu.pool().run(ceil_div(rows, kBlock), [&](int64_t task, int) {
    const int64_t first = task * kBlock, last = std::min(rows, first + kBlock);
    for (int64_t c = 0; c < columns; c += kBlock)
      for (int64_t j = c; j < std::min(columns, c + kBlock); ++j)
        for (int64_t i = first; i < last; ++i) to[j * rows + i] = factor * from[i * columns + j];
  });
}

class OrthogonalizeKernel final : public Kernel {
 public:
  OrthogonalizeKernel(CpuBackend& cpu, const Orthogonalize& op, const Operands& io)
      : cpu_(cpu), matrices_(op.matrices), clip_(f32_only(operand(io.in, Orthogonalize::kClip))) {
    args_.nesterov = op.nesterov;
    args_.beta1 = static_cast<float>(op.momentum);
    args_.rest1 = static_cast<float>(1 - op.momentum);
    args_.gradient = f32_only(io.out[Orthogonalize::kGradients]),
    args_.first = f32_only(io.out[Orthogonalize::kMomentum]);
    for (const MatrixSegment& m : matrices_) {
      const int64_t small = std::min(m.rows, m.columns), large = std::max(m.rows, m.columns);
      square_ = std::max(square_, small * small), whole_ = std::max(whole_, small * large);
      // The right operands of the three products.
      for (const PackedB& b : {PackedB{large, small}, PackedB{small, small}, PackedB{small, large}})
        packed_ = std::max(packed_, static_cast<int64_t>(b.bytes() / sizeof(float)));
    }
    cpu.reserve_shared(static_cast<size_t>(whole_ + 2 * square_ + packed_) * sizeof(float) +
                       static_cast<size_t>(sums()) * sizeof(double));
  }

  void launch() override {
    args_.clip = clip_ ? clip_[1] : 1.0f;
    for (const MatrixSegment& m : matrices_) orthogonalize(m);
  }

 private:
  void orthogonalize(const MatrixSegment& m) {
    auto* sums = reinterpret_cast<double*>(cpu_.shared_scratch());
    x_ = reinterpret_cast<float*>(sums + this->sums());
    gram_ = x_ + whole_, factor_ = gram_ + square_, to_ = factor_ + square_;
    const float scale = 1.0f / std::max(momentum(m, sums), 1e-7f);
    float* gradient = args_.gradient + m.offset;
    const bool tall = m.rows > m.columns;
    if (tall)
      transpose(cpu_, gradient, m.rows, m.columns, scale, x_);
    else
      scaled(gradient, m.rows * m.columns, scale, x_);
    for (int step = 0; step < 5; ++step)
      iterate(std::min(m.rows, m.columns), std::max(m.rows, m.columns));
    if (tall)
      transpose(cpu_, x_, m.columns, m.rows, m.scale, gradient);
    else
      scaled(x_, m.rows * m.columns, m.scale, gradient);
  }

  int64_t sums() const { return (whole_ / kRange + 8) / 8 * 8; }  // a cache line is eight

  // Leaves the (Nesterov) momentum in place of the gradient; returns its norm.
  float momentum(const MatrixSegment& m, double* sums) {
    const Chunks chunks{m.rows * m.columns, kRange};
    for_chunks(cpu_, chunks, [&](int64_t first, int64_t last, int64_t chunk, int) {
      sums[chunk] = cpu_.simd().optimizer->momentum(args_, m.offset + first, m.offset + last);
    });
    double total = 0;
    for (int64_t i = 0; i < chunks.count(); ++i) total += sums[i];
    return static_cast<float>(std::sqrt(total));
  }

  // x (m, n) <- (c A A + b A + a 1) x with A = x x^T: see the reference. Multiples of a matrix are
  // folded into the diagonal of the factor before it.
  void iterate(int64_t m, int64_t n) {
    constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;
    const auto add_to_diagonal = [&](float* square, float value) {
      for (int64_t i = 0; i < m; ++i) square[i * m + i] += value;
    };
    multiply(x_, x_, /*transposed=*/true, m, n, m, gram_);
    scaled(gram_, m * m, kC, factor_);
    add_to_diagonal(factor_, kB);
    multiply(factor_, gram_, false, m, m, m, gram_);
    add_to_diagonal(gram_, kA);
    multiply(gram_, x_, false, m, m, n, x_);
  }

  void scaled(float* x, int64_t count, float factor, float* y) {
    for_chunks(cpu_, {count, kRange}, [&](int64_t first, int64_t last, int64_t, int) {
      cpu_.simd().elementwise->scale({x, DType::kF32}, {y, DType::kF32}, factor, first, last);
    });
  }

  // c (m, n) = a (m, k) b (k, n), or a b^T. As b is packed first, c may take its place.
  void multiply(const float* a, float* b, bool transposed, int64_t m, int64_t k, int64_t n,
                float* c) {
    const PackedB packed{k, n};
    const Shape shape = transposed ? Shape{n, k} : Shape{k, n};
    pack(cpu_, packed, {b, shape, DType::kF32}, transposed, to_);
    const Chunks blocks{m, kRowBlock / 2};
    cpu_.pool().run(blocks.count() * packed.panels(), [&](int64_t task, int) {
      const int64_t row = blocks.first(task / packed.panels()),
                    rows = blocks.last(task / packed.panels()) - row, p = task % packed.panels();
      cpu_.simd().gemm->panel(a + row * k, k, packed.panel(to_, p), kPanel,
                              c + row * n + p * kPanel, n, rows, k,
                              std::min(kPanel, n - p * kPanel), /*accumulate=*/false);
    });
  }

  CpuBackend& cpu_;
  std::vector<MatrixSegment> matrices_;
  const float* clip_;
  OptimizerArgs args_{};
  int64_t whole_ = 0, square_ = 0, packed_ = 0;  // floats of the largest
  float *x_ = nullptr, *gram_ = nullptr, *factor_ = nullptr, *to_ = nullptr;  // in shared scratch
};

}  // namespace

KernelPtr lower(CpuBackend& cpu, const Orthogonalize& op, const Operands& io) {
  [[maybe_unused]] const auto& [momentum, nesterov, bf16, matrices] = op;
  return std::make_unique<OrthogonalizeKernel>(cpu, op, io);
}

}  // namespace vitrum::cpu
