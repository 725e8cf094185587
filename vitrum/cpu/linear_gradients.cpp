#include "vitrum/core/ceil_div.h"
#include "vitrum/cpu/linear_bwd.h"

namespace vitrum::cpu {
namespace {

constexpr int64_t kTasks = 8;         // at least, where there is enough work for as many
constexpr int64_t kStripBlock = 96;   // columns of dpre packed by one task
constexpr int64_t kWeightPanels = 3;  // of dw, computed by one task

// Blocks of `most` or fewer, so that `others` times their number makes enough tasks.
Chunks blocks_for(int64_t total, int64_t others, int64_t most, int64_t least) {
  int64_t size = most;
  while (size / 2 >= least && ceil_div(total, size) * others < kTasks) size /= 2;
  return {total, size};
}

}  // namespace

LayerGradients::LayerGradients(CpuBackend& cpu, const Operands& io)
    : cpu_(cpu),
      x_(io.in[LinearBwd::kX]),
      w_(io.in[LinearBwd::kWeight]),
      dx_(io.out[LinearBwd::kDx]),
      dw_(io.out[LinearBwd::kDweight]),
      dbias_(io.out[LinearBwd::kDbias]),
      n_(w_.shape[0]),
      k_(w_.shape[1]),
      packed_w_{n_, k_},
      turned_(dw_ && x_.dtype == DType::kF32 && n_ == kPanel && k_ > kPanel && k_ % 8 == 0),
      pack_x_(dw_ && !turned_ && !(x_.dtype == DType::kF32 && k_ % (2 * kPanel) == kPanel)),
      pack_dpre_(dw_ && !turned_ && packed_w_.panels() > 4) {}

int64_t LayerGradients::place(int64_t at, int64_t rows_per_chunk, int64_t slots) {
  const auto take = [&](bool used, int64_t n) {
    const int64_t here = at;
    at += used ? ceil_div(n, 16) * 16 : 0;
    return here;
  };
  x_size_ = rows_per_chunk * panels() * kPanel;
  strips_size_ = ceil_div(rows_per_chunk * (n_ + kStrip), 16) * 16;
  w_at_ = take(w_panels() > 0, panels() * kPanel * n_);
  turned_at_ = take(turned_, kPanel * k_);
  x_at_ = take(pack_x_, slots * x_size_);
  strips_at_ = take(pack_dpre_, slots * strips_size_);
  return at;
}

void LayerGradients::setup(int64_t task) {
  if (task < w_panels()) return pack_w(task);
  // dw as its transpose (k, n), so that its chains of sums go on there.
  const int64_t first = turns().first(task - w_panels()),
                count = turns().last(task - w_panels()) - first;
  cpu_.simd().gemm->pack_panel(dw_.f32() + first, /*bf16=*/false, k_, /*transposed=*/true, count,
                               n_, shared_ + turned_at_ + first * n_, n_);
}

void LayerGradients::finish(int64_t task) {
  const Chunks lines{n_, 16};
  const int64_t first = lines.first(task), count = lines.last(task) - first;
  cpu_.simd().gemm->pack_panel(shared_ + turned_at_ + first, /*bf16=*/false, n_,
                               /*transposed=*/true, count, k_, dw_.f32() + first * k_, k_);
}

void LayerGradients::pack_w(int64_t p) {
  const int64_t element = static_cast<int64_t>(size_of(w_.dtype)), column = p * kPanel;
  cpu_.simd().gemm->pack_panel(static_cast<const std::byte*>(w_.data) + column * element,
                               w_.dtype == DType::kBF16, k_, /*transposed=*/false, n_,
                               std::min(kPanel, k_ - column), shared_ + w_at_ + column * n_,
                               kPanel);
}

void LayerGradients::x_task(const GradientRows& part, int64_t p) {
  const int64_t column = p * kPanel, element = static_cast<int64_t>(size_of(x_.dtype));
  const auto* x = static_cast<const std::byte*>(x_.data) + (part.row * k_ + column) * element;
  cpu_.simd().gemm->pack_panel(x, x_.dtype == DType::kBF16, k_, /*transposed=*/false, part.rows,
                               std::min(kPanel, k_ - column), packed_x(part, p), kPanel);
}

Chunks LayerGradients::columns() const { return {pack_dpre_ || dbias_ ? n_ : 0, kStripBlock}; }

void LayerGradients::column_task(const GradientRows& part, int64_t task) {
  const int64_t first = columns().first(task), count = columns().last(task) - first;
  if (pack_dpre_)
    cpu_.simd().gemm->pack_strips(part.dpre + first, n_, part.rows, count, strips(part, first));
  if (dbias_)
    cpu_.simd().linear->column_sums({const_cast<float*>(part.dpre), DType::kF32}, first, n_,
                                    part.rows, count, dbias_.f32() + first);
}

Chunks LayerGradients::input_rows(int64_t rows) const {
  return blocks_for(dx_ ? rows : 0, input_panels().count(), kRowBlock, 48);
}

void LayerGradients::input_task(const GradientRows& part, int64_t task, int thread) {
  const Chunks blocks = input_rows(part.rows), groups = input_panels();
  const int64_t first = blocks.first(task / groups.count()),
                rows = blocks.last(task / groups.count()) - first, group = task % groups.count();
  for (int64_t p = groups.first(group); p < groups.last(group); ++p)
    input_gradient(part, first, rows, p, thread);
}

void LayerGradients::input_gradient(const GradientRows& part, int64_t first, int64_t rows,
                                    int64_t p, int thread) {
  const int64_t row = part.row + first, column = p * kPanel, width = std::min(kPanel, k_ - column);
  const bool in_place = dx_.dtype == DType::kF32;
  auto* scratch = reinterpret_cast<float*>(cpu_.thread_scratch(thread));
  float* c = in_place ? dx_.f32() + row * k_ + column : scratch;
  cpu_.simd().gemm->panel(part.dpre + first * n_, n_, shared_ + w_at_ + column * n_, kPanel, c,
                          in_place ? k_ : kPanel, rows, n_, width, false);
  if (in_place) return;
  const LinearEpilogueArgs store{floats(dx_), {}, nullptr, Act::kNone, nullptr, k_};
  cpu_.simd().linear->epilogue(store, c, kPanel, row, rows, column, width, nullptr);
}

Chunks LayerGradients::weight_panels() const { return {turned_ ? 1 : panels(), kWeightPanels}; }
Chunks LayerGradients::weight_rows() const {
  return blocks_for(dw_ ? (turned_ ? k_ : n_) : 0, weight_panels().count(), 192, 48);
}

void LayerGradients::weight_task(const GradientRows& part, int64_t task) {
  const Chunks blocks = weight_rows(), groups = weight_panels();
  const int64_t first = blocks.first(task / groups.count()),
                count = blocks.last(task / groups.count()) - first, group = task % groups.count();
  if (turned_)
    return cpu_.simd().gemm->columns(x_.f32() + part.row * k_ + first, k_, part.dpre, n_,
                                     shared_ + turned_at_ + first * n_, n_, count, part.rows, n_,
                                     /*accumulate=*/true);
  for (int64_t p = groups.first(group); p < groups.last(group); ++p)
    weight_panel(part, p, first, count);
}

void LayerGradients::weight_panel(const GradientRows& part, int64_t p, int64_t first,
                                  int64_t count) {
  const GemmKernels& gemm = *cpu_.simd().gemm;
  const float* x = pack_x_ ? packed_x(part, p) : x_.f32() + part.row * k_ + p * kPanel;
  const int64_t stride = pack_x_ ? kPanel : k_;
  float* dw = dw_.f32() + first * k_ + p * kPanel;
  const int64_t width = std::min(kPanel, k_ - p * kPanel);
  if (pack_dpre_)
    gemm.strips(strips(part, first), x, stride, dw, k_, count, part.rows, width,
                /*accumulate=*/true);
  else
    gemm.columns(part.dpre + first, n_, x, stride, dw, k_, count, part.rows, width,
                 /*accumulate=*/true);
}

}  // namespace vitrum::cpu
