#include "vitrum/cpu/simd/linear.h"

#include "vitrum/cpu/gemm.h"

namespace vitrum::cpu {
namespace {

constexpr size_t kFloat = sizeof(float);

// The rows of a (rows, width) operand as f32: in place, or widened into `scratch`.
const float* rows_as_f32(const CpuBackend& cpu, const TensorView& x, int64_t row, int64_t rows, float* scratch) {
  const int64_t width = x.shape[-1];
  if (x.dtype == DType::kF32) return x.f32() + row * width;
  cpu.simd().gemm->widen(x.bf16() + row * width, rows * width, scratch);
  return scratch;
}

// y (M, N) = dropout(act(x (M, K) w^T + bias)). A task is a block of rows and a group of panels.
class LinearKernel final : public Kernel {
 public:
  LinearKernel(CpuBackend& cpu, const Linear& op, const Operands& io)
      : cpu_(cpu), op_(op), x_(io.in[0]), w_(io.in[1]), bias_(io.in[2]), rng_(io.in[3]), y_(io.out[0]),
        saved_(io.out.size() > 1 ? io.out[1] : TensorView{}), packed_{w_.shape[1], w_.shape[0]},
        row_blocks_{x_.shape.rows(), kRowBlock}, groups_{packed_.panels(), panels_per_group(packed_.panels())} {
    const int64_t k = packed_.depth, group = groups_.size * kPanel;
    cpu.reserve_shared(packed_.bytes());
    // Per thread: widened rows of x, a block of the product, dropout factors.
    cpu.reserve_per_thread(static_cast<size_t>(kRowBlock * k + kRowBlock * group + group + 16) * kFloat);
  }

  void launch() override {
    auto* packed = reinterpret_cast<float*>(cpu_.shared_scratch());
    pack(cpu_, packed_, w_, /*transposed=*/true, packed);
    const DropSite drop = op_.drop > 0 ? drop_site(random_state(rng_), op_.drop, op_.site) : DropSite{};
    const LinearEpilogueArgs epilogue{floats(y_), floats(saved_), bias_.f32(), op_.act, op_.drop > 0 ? &drop : nullptr,
                                      packed_.columns};
    const int64_t groups = groups_.count();
    cpu_.pool().run(row_blocks_.count() * groups,
                    [&](int64_t task, int thread) { block(epilogue, packed, task / groups, task % groups, thread); });
  }

 private:
  // A few panels a task keep their rows of y in the cache until the epilogue, and give small batches enough tasks.
  static int64_t panels_per_group(int64_t panels) { return panels >= 16 ? 8 : panels >= 8 ? 4 : 2; }

  void block(const LinearEpilogueArgs& epilogue, const float* packed, int64_t row_block, int64_t group, int thread) {
    const int64_t row = row_blocks_.first(row_block), rows = row_blocks_.last(row_block) - row;
    const int64_t k = packed_.depth, n = packed_.columns;
    const int64_t column = groups_.first(group) * kPanel, columns = std::min(n, groups_.last(group) * kPanel) - column;
    auto* scratch = reinterpret_cast<float*>(cpu_.thread_scratch(thread));
    const float* a = rows_as_f32(cpu_, x_, row, rows, scratch);
    // f32 results are computed in the memory they end in; the epilogue then works in place.
    const TensorView& target = saved_ ? saved_ : y_;
    const bool in_place = target.dtype == DType::kF32;
    float* c = in_place ? target.f32() + row * n + column : scratch + kRowBlock * k;
    const int64_t ldc = in_place ? n : groups_.size * kPanel;
    for (int64_t p = groups_.first(group); p < groups_.last(group); ++p)
      cpu_.simd().gemm->panel(a, k, packed_.panel(packed, p), c + (p - groups_.first(group)) * kPanel, ldc, rows, k,
                              std::min(kPanel, n - p * kPanel), false);
    if (in_place && !epilogue.bias && epilogue.act == Act::kNone && !epilogue.drop) return;
    cpu_.simd().linear->epilogue(epilogue, c, ldc, row, rows, column, columns,
                                 scratch + kRowBlock * (k + groups_.size * kPanel));
  }

  CpuBackend& cpu_;
  Linear op_;
  TensorView x_, w_, bias_, rng_, y_, saved_;
  PackedB packed_;
  Chunks row_blocks_, groups_;
};

// dx (M, K) = dpre w, dw (N, K) += dpre^T x, dbias += column sums of dpre, where dpre (M, N) is dy behind dropout
// and activation. Rows are taken in chunks, so that dpre, dx and x of a chunk are read while in the cache.
class LinearBwdKernel final : public Kernel {
 public:
  LinearBwdKernel(CpuBackend& cpu, const LinearBwd& op, const Operands& io)
      : cpu_(cpu), op_(op), dy_(io.in[0]), x_(io.in[1]), w_(io.in[2]), saved_(io.in[3]), rng_(io.in[4]),
        dx_(io.out[0]), dw_(io.out[1]), dbias_(io.out[2]), n_(w_.shape[0]), k_(w_.shape[1]), packed_{n_, k_},
        chunks_{dy_.shape.rows(), rows_per_chunk(dy_.shape.rows(), n_)},
        direct_(op.act == Act::kNone && op.drop == 0 && dy_.dtype == DType::kF32) {
    choose_dw_blocks();
    dpre_at_ = static_cast<int64_t>(dx_ ? packed_.bytes() / kFloat : 0);
    cpu.reserve_shared(static_cast<size_t>(dpre_at_ + (direct_ ? 0 : chunks_.size * n_)) * kFloat);
    const int64_t dx_scratch = kRowBlock * kPanel;
    const int64_t dw_scratch = kDepthBlock * (dw_rows_ + kStrip + kPanel);
    cpu.reserve_per_thread(static_cast<size_t>(std::max({dx_scratch, dw_scratch, n_ + 16})) * kFloat);
  }

  void launch() override {
    auto* packed = reinterpret_cast<float*>(cpu_.shared_scratch());
    if (dx_) pack(cpu_, packed_, w_, /*transposed=*/false, packed);
    const DropSite drop = op_.drop > 0 ? drop_site(random_state(rng_), op_.drop, op_.site) : DropSite{};
    const LinearGradArgs gradient{floats(dy_), floats(saved_), op_.act, op_.drop > 0 ? &drop : nullptr, n_};
    for (int64_t c = 0; c < chunks_.count(); ++c) {
      const int64_t row = chunks_.first(c), rows = chunks_.last(c) - row;
      float* dpre = direct_ ? dy_.f32() + row * n_ : packed + dpre_at_;
      if (!direct_) prepare(gradient, row, rows, dpre);
      if (dx_) input_gradient(packed, dpre, row, rows);
      if (dw_ || dbias_) weight_gradient(dpre, row, rows);
    }
  }

 private:
  static constexpr int64_t kDepthBlock = 160;  // rows of x and dpre packed at a time for dw

  static int64_t rows_per_chunk(int64_t rows, int64_t n) {
    const int64_t wanted = std::clamp<int64_t>((int64_t{1} << 20) / n, 2 * kRowBlock, 16 * kRowBlock);
    const int64_t parts = (rows + wanted - 1) / wanted;
    return (rows / parts + kRowBlock) / kRowBlock * kRowBlock;
  }

  // Blocks of dw: large enough to pay for packing, and at least eight of them where the shape allows.
  void choose_dw_blocks() {
    dw_rows_ = std::min<int64_t>(n_, 480), dw_panels_ = std::min<int64_t>(packed_.panels(), 6);
    const auto tasks = [&] {
      return ((n_ + dw_rows_ - 1) / dw_rows_) * ((packed_.panels() + dw_panels_ - 1) / dw_panels_);
    };
    while (tasks() < 8 && (dw_rows_ > 48 || dw_panels_ > 1)) {
      if (dw_rows_ > 48 && dw_rows_ >= dw_panels_ * kPanel) dw_rows_ = (dw_rows_ / 2 + kStrip - 1) / kStrip * kStrip;
      else if (dw_panels_ > 1) dw_panels_ = (dw_panels_ + 1) / 2;
      else break;
    }
  }

  void prepare(const LinearGradArgs& gradient, int64_t row, int64_t rows, float* dpre) {
    const Chunks blocks{rows, std::max<int64_t>(1, 16384 / n_)};
    for_chunks(cpu_, blocks, [&](int64_t first, int64_t last, int64_t, int thread) {
      cpu_.simd().linear->gradient(gradient, row + first, last - first, dpre + first * n_,
                                   reinterpret_cast<float*>(cpu_.thread_scratch(thread)));
    });
  }

  void input_gradient(const float* packed, const float* dpre, int64_t row, int64_t rows) {
    const Chunks blocks{rows, kRowBlock};
    const int64_t panels = packed_.panels(), group = panels >= 8 ? 4 : 1, groups = (panels + group - 1) / group;
    cpu_.pool().run(blocks.count() * groups, [&](int64_t task, int thread) {
      const int64_t first = blocks.first(task / groups), count = blocks.last(task / groups) - first;
      const int64_t from = task % groups * group;
      for (int64_t p = from; p < std::min(panels, from + group); ++p)
        input_gradient_panel(packed, dpre + first * n_, row + first, count, p, thread);
    });
  }
  void input_gradient_panel(const float* packed, const float* dpre, int64_t row, int64_t rows, int64_t p, int thread) {
    const int64_t column = p * kPanel, width = std::min(kPanel, k_ - column);
    const bool in_place = dx_.dtype == DType::kF32;
    auto* scratch = reinterpret_cast<float*>(cpu_.thread_scratch(thread));
    float* c = in_place ? dx_.f32() + row * k_ + column : scratch;
    cpu_.simd().gemm->panel(dpre, n_, packed_.panel(packed, p), c, in_place ? k_ : kPanel, rows, n_, width, false);
    if (in_place) return;
    const LinearEpilogueArgs store{floats(dx_), {}, nullptr, Act::kNone, nullptr, k_};
    cpu_.simd().linear->epilogue(store, c, kPanel, row, rows, column, width, nullptr);
  }

  void weight_gradient(const float* dpre, int64_t row, int64_t rows) {
    const Chunks row_blocks{n_, dw_rows_}, panel_blocks{packed_.panels(), dw_panels_};
    const int64_t across = panel_blocks.count();
    cpu_.pool().run(row_blocks.count() * across, [&](int64_t task, int thread) {
      const int64_t first = row_blocks.first(task / across), count = row_blocks.last(task / across) - first;
      if (dbias_ && task % across == 0)
        cpu_.simd().linear->column_sums({const_cast<float*>(dpre), DType::kF32}, first, n_, rows, count,
                                        dbias_.f32() + first);
      if (!dw_) return;
      for (int64_t m = 0; m < rows; m += kDepthBlock)
        weight_block(dpre + m * n_, row + m, std::min(kDepthBlock, rows - m), first, count,
                     panel_blocks.first(task % across), panel_blocks.last(task % across), thread);
    });
  }
  void weight_block(const float* dpre, int64_t row, int64_t depth, int64_t first, int64_t count, int64_t panel,
                    int64_t last_panel, int thread) {
    const GemmKernels& gemm = *cpu_.simd().gemm;
    auto* b = reinterpret_cast<float*>(cpu_.thread_scratch(thread));
    float* a = b + kDepthBlock * kPanel;
    gemm.pack_strips(dpre + first, false, n_, depth, count, a);
    for (int64_t p = panel; p < last_panel; ++p) {
      const int64_t column = p * kPanel, width = std::min(kPanel, k_ - column);
      const auto* x = static_cast<const std::byte*>(x_.data) + (row * k_ + column) * static_cast<int64_t>(size_of(x_.dtype));
      gemm.pack_panel(x, x_.dtype == DType::kBF16, k_, /*transposed=*/false, depth, width, b);
      gemm.strips(a, b, dw_.f32() + first * k_ + column, k_, count, depth, width, /*accumulate=*/true);
    }
  }

  CpuBackend& cpu_;
  LinearBwd op_;
  TensorView dy_, x_, w_, saved_, rng_, dx_, dw_, dbias_;
  int64_t n_, k_;
  PackedB packed_;  // w as the right operand of dx
  Chunks chunks_;
  bool direct_;  // dy serves as dpre
  int64_t dw_rows_ = 0, dw_panels_ = 0, dpre_at_ = 0;
};

}  // namespace

KernelPtr lower(CpuBackend& cpu, const Linear& op, const Operands& io) {
  return std::make_unique<LinearKernel>(cpu, op, io);
}
KernelPtr lower(CpuBackend& cpu, const LinearBwd& op, const Operands& io) {
  return std::make_unique<LinearBwdKernel>(cpu, op, io);
}

}  // namespace vitrum::cpu
