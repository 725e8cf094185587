#include "vitrum/cpu/linear.h"

#include "vitrum/core/ceil_div.h"
#include "vitrum/cpu/gemm.h"

namespace vitrum::cpu {
namespace {

constexpr size_t kFloat = sizeof(float);

// The rows of a (rows, width) operand as f32: in place, or widened into `scratch`.
const float* rows_as_f32(const CpuBackend& cpu, const TensorView& x, int64_t row, int64_t rows,
                         float* scratch) {
  const int64_t width = x.shape[-1];
  if (x.dtype == DType::kF32) return x.f32() + row * width;
  cpu.simd().gemm->widen(x.bf16() + row * width, rows * width, scratch);
  return scratch;
}

// A task is a block of rows and a group of panels of w.
class LinearKernel final : public LinearForward {
 public:
  LinearKernel(CpuBackend& cpu, const Linear& op, const Operands& io)
      : LinearForward(cpu, op, io),
        packed_{w_.shape[1], w_.shape[0]},
        groups_{packed_.panels(), panels_per_group(packed_.panels())},
        row_blocks_{x_.shape.rows(), rows_per_task(x_.shape.rows(), cpu.pool().threads())},
        kept_(kept(io)) {
    if (!kept_) cpu.reserve_shared(packed_.bytes());
    cpu.reserve_per_thread(static_cast<size_t>(factors_at() + groups_.size * kPanel + 16) * kFloat);
  }

  void launch() override {
    const float* packed = kept_;
    if (!packed) {
      auto* shared = reinterpret_cast<float*>(cpu_.shared_scratch());
      pack(cpu_, packed_, w_, /*transposed=*/true, shared);
      packed = shared;
    }
    const LinearEpilogueArgs& epilogue = this->epilogue();
    const int64_t groups = groups_.count();
    cpu_.pool().run(row_blocks_.count() * groups, [&](int64_t task, int thread) {
      block(epilogue, packed, task / groups, task % groups, thread);
    });
  }

 private:
  // A few panels a task keep their rows of y in the cache until the epilogue, and give small
  // batches enough tasks.
  static int64_t panels_per_group(int64_t panels) { return panels >= 16 ? 8 : panels >= 8 ? 4 : 2; }
  // Blocks of one size, so that threads finish together: of up to 192 rows; of one image, a block
  // for each thread, which then finds its rows of the layer before in its cache.
  static int64_t rows_per_task(int64_t rows, int threads) {
    constexpr int64_t kLeast = 48;
    const int64_t parts = std::max(
        {ceil_div(rows, kRowBlock), int64_t{1}, std::min<int64_t>(threads, rows / kLeast)});
    return ceil_div(rows, parts);
  }
  // Small weights that do not change are packed once.
  const float* kept(const Operands& io) {
    constexpr int64_t kWeights = 192 * 1024;
    if (!io.packed || x_.shape.rows() > kSmallM || w_.shape.numel() > kWeights) return nullptr;
    return reinterpret_cast<const float*>(io.packed->copy(
        w_.data, PackedParams::Layout::kPanels, packed_.bytes(), [&](std::byte* memory) {
          pack(cpu_, packed_, w_, /*transposed=*/true, reinterpret_cast<float*>(memory));
        }));
  }

  // Per thread, where they are not f32: widened rows of x and a block of the product; then dropout
  // factors. f32 results are computed in the memory they end in, and the epilogue works in place.
  const TensorView& target() const { return saved_ ? saved_ : y_; }
  bool in_place() const { return target().dtype == DType::kF32; }
  int64_t product_at() const {
    return x_.dtype == DType::kF32 ? 0 : row_blocks_.size * packed_.depth;
  }
  int64_t factors_at() const {
    return product_at() + (in_place() ? 0 : row_blocks_.size * groups_.size * kPanel);
  }

  void block(const LinearEpilogueArgs& epilogue, const float* packed, int64_t row_block,
             int64_t group, int thread) {
    const int64_t row = row_blocks_.first(row_block), rows = row_blocks_.last(row_block) - row;
    const int64_t k = packed_.depth, n = packed_.columns;
    const int64_t column = groups_.first(group) * kPanel,
                  columns = std::min(n, groups_.last(group) * kPanel) - column;
    auto* scratch = reinterpret_cast<float*>(cpu_.thread_scratch(thread));
    const float* a = rows_as_f32(cpu_, x_, row, rows, scratch);
    float* c = in_place() ? target().f32() + row * n + column : scratch + product_at();
    const int64_t ldc = in_place() ? n : groups_.size * kPanel;
    for (int64_t p = groups_.first(group); p < groups_.last(group); ++p)
      cpu_.simd().gemm->panel(a, k, packed_.panel(packed, p), kPanel,
                              c + (p - groups_.first(group)) * kPanel, ldc, rows, k,
                              std::min(kPanel, n - p * kPanel), false);
    if (in_place() && !epilogue.bias && epilogue.act == Act::kNone && !epilogue.drop) return;
    cpu_.simd().linear->epilogue(epilogue, c, ldc, row, rows, column, columns,
                                 scratch + factors_at());
  }

  PackedB packed_;
  Chunks groups_, row_blocks_;
  const float* kept_;  // packed weights; null: packed at each launch
};

}  // namespace

KernelPtr lower(CpuBackend& cpu, const Linear& op, const Operands& io) {
  [[maybe_unused]] const auto& [act, drop, site] = op;
  const TensorView& w = io.in[Linear::kWeight];
  const bool narrow = w.dtype == DType::kBF16 || (io.packed && io.packed->allows(w.data));
  if (narrow && takes_tiles(cpu, {io.in[Linear::kX]})) return lower_tiles(cpu, op, io);
  if (has_small_m(io)) return lower_small_m(cpu, op, io);
  return std::make_unique<LinearKernel>(cpu, op, io);
}

}  // namespace vitrum::cpu
