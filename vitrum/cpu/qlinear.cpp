// A linear layer of eight bits by itself: rows are rounded to bytes while they are packed, sums are
// whole numbers, and become floats in the epilogue.
#include "vitrum/core/ceil_div.h"
#include "vitrum/cpu/byte_layer.h"
#include "vitrum/cpu/linear.h"

namespace vitrum::cpu {
namespace {

constexpr int64_t kBlockRows = 192;  // of a product in one task
static_assert(kBlockRows % kBand == 0);

class QLinearKernel final : public Kernel {
 public:
  QLinearKernel(CpuBackend& cpu, const QLinear& op, const Operands& io)
      : cpu_(cpu),
        layer_(cpu, op, io),
        rows_(layer_.x().shape.rows()),
        few_(rows_ <= kSmallM),
        columns_{layer_.columns(),
                 few_ ? (layer_.columns() >= 2048 ? 2 : 1) * kBand : layer_.columns()},
        row_blocks_{rows_, few_ ? rows_ : rows_per_task(rows_)} {
    const int64_t own = layer_.rows_words(row_blocks_.size);
    sums_at_ = few_ ? 0 : own;
    if (few_) cpu.reserve_shared(static_cast<size_t>(own) * sizeof(float));
    cpu.reserve_per_thread(static_cast<size_t>(sums_at_ + ByteLayer::sums_words(row_blocks_.size)) *
                           sizeof(float));
  }

  void launch() override {
    layer_.begin();
    auto* shared = reinterpret_cast<uint32_t*>(cpu_.shared_scratch());
    if (few_)
      for_chunks(cpu_, {rows_, kBand}, [&](int64_t first, int64_t last, int64_t, int) {
        layer_.pack(floats(layer_.x()), first, last - first, shared, rows_, first);
      });
    const int64_t groups = columns_.count();
    cpu_.pool().run(row_blocks_.count() * groups, [&](int64_t task, int thread) {
      block(shared, task / groups, task % groups, thread);
    });
  }

 private:
  static int64_t rows_per_task(int64_t rows) {
    const int64_t parts = std::max<int64_t>(ceil_div(rows, kBlockRows), 1);
    return round_up(ceil_div(rows, parts), kBand);
  }

  void block(uint32_t* shared, int64_t row_block, int64_t group, int thread) {
    const int64_t row = row_blocks_.first(row_block), rows = row_blocks_.last(row_block) - row;
    auto* own = reinterpret_cast<uint32_t*>(cpu_.thread_scratch(thread));
    uint32_t* a = few_ ? shared : own;
    for (int64_t i = 0; !few_ && i < rows; i += kBand)
      layer_.pack(floats(layer_.x()), row + i, std::min(kBand, rows - i), own, rows, i);
    layer_.multiply(a, rows, floats(layer_.y()), row, columns_.first(group), columns_.last(group),
                    reinterpret_cast<int32_t*>(own) + sums_at_);
  }

  CpuBackend& cpu_;
  ByteLayer layer_;
  int64_t rows_;
  bool few_;  // rows, which are packed once for all columns; else by each task
  Chunks columns_, row_blocks_;
  int64_t sums_at_ = 0;  // in a thread's scratch, behind the rows it packs
};

}  // namespace

KernelPtr lower(CpuBackend& cpu, const QLinear& op, const Operands& io) {
  const auto& [act, scale] = op;
  if (scale > 0) return lower_e4m3(cpu, op, io);
  return std::make_unique<QLinearKernel>(cpu, op, io);
}

}  // namespace vitrum::cpu
