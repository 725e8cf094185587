// Linear layers of eight bits: rows are rounded to bytes while they are packed, sums are whole
// numbers, and become floats in the epilogue.
#include "vitrum/core/ceil_div.h"
#include "vitrum/cpu/backend.h"
#include "vitrum/cpu/linear.h"
#include "vitrum/cpu/simd/bytes.h"

namespace vitrum::cpu {
namespace {

constexpr int64_t kBlockRows = 192;     // of a product in one task
constexpr int64_t kBlockColumns = 128;  // of a product before its epilogue
static_assert(kBlockRows % kBand == 0 && kBlockColumns % kBand == 0);
static_assert(sizeof(uint32_t) == sizeof(float) && sizeof(int32_t) == sizeof(float));

// Weights as they are multiplied: the bytes of whole bands, then of every line its scale and its
// sum of bytes.
class PackedBytes {
 public:
  PackedBytes(int64_t lines, int64_t depth)
      : depth_(depth), words_(packed_byte_words(lines, depth)), lines_(round_up(lines, kBand)) {}

  size_t bytes() const { return static_cast<size_t>(words_ + 2 * lines_) * sizeof(uint32_t); }
  const uint32_t* band(const std::byte* packed, int64_t line) const {
    return reinterpret_cast<const uint32_t*>(packed) + line / kBand * byte_band_words(depth_);
  }
  ByteWeights weights(std::byte* packed, int64_t line) const {
    auto* scales = reinterpret_cast<float*>(packed) + words_;
    return {scales + line, reinterpret_cast<int32_t*>(scales) + lines_ + line};
  }
  // `scales` are of weights that are bytes already.
  void fill(CpuBackend& cpu, const TensorView& w, std::span<const float> scales,
            std::byte* packed) const {
    const ByteKernels& kernels = *cpu.simd().bytes;
    std::ranges::copy(scales, weights(packed, 0).scale);
    for_chunks(cpu, {w.shape[0], kBand}, [&](int64_t first, int64_t last, int64_t, int) {
      if (w.dtype == DType::kI8)
        return kernels.pack_bytes(static_cast<const int8_t*>(w.data), first, last - first, depth_,
                                  const_cast<uint32_t*>(band(packed, first)),
                                  weights(packed, first).sum);
      kernels.pack_weights(floats(w), first, last - first, depth_,
                           const_cast<uint32_t*>(band(packed, first)), weights(packed, first));
    });
  }

 private:
  int64_t depth_, words_, lines_;
};

class QLinearKernel final : public Kernel {
 public:
  QLinearKernel(CpuBackend& cpu, const QLinear& op, const Operands& io)
      : cpu_(cpu),
        x_(io.in[QLinear::kX]),
        w_(io.in[QLinear::kWeight]),
        bias_(operand(io.in, QLinear::kBias)),
        y_(io.out[QLinear::kY]),
        op_(op),
        rows_(x_.shape.rows()),
        n_(w_.shape[0]),
        k_(w_.shape[1]),
        packed_(n_, k_),
        kept_(kept(io)),
        few_(rows_ <= kSmallM),
        columns_{n_, few_ ? (n_ >= 2048 ? 2 : 1) * kBand : n_},
        row_blocks_{rows_, few_ ? rows_ : rows_per_task(rows_)} {
    const int64_t own = packed_rows_words(row_blocks_.size);
    product_at_ = few_ ? 0 : own;
    if (few_) cpu.reserve_shared(static_cast<size_t>(own) * sizeof(float));
    cpu.reserve_per_thread(
        static_cast<size_t>(product_at_ + row_blocks_.size * kBlockColumns + 16) * sizeof(float));
  }

  void launch() override {
    if (!kept_) packed_.fill(cpu_, w_, {}, own_.data());
    auto* shared = reinterpret_cast<uint32_t*>(cpu_.shared_scratch());
    if (few_)
      for_chunks(cpu_, {rows_, kBand}, [&](int64_t first, int64_t last, int64_t, int) {
        pack_band(shared, rows_, first, first, last - first);
      });
    const ByteEpilogueArgs epilogue{
        .y = floats(y_), .bias = f32_only(bias_), .act = op_.act, .width = n_};
    const int64_t groups = columns_.count();
    cpu_.pool().run(row_blocks_.count() * groups, [&](int64_t task, int thread) {
      block(epilogue, shared, task / groups, task % groups, thread);
    });
  }

 private:
  static int64_t rows_per_task(int64_t rows) {
    const int64_t parts = std::max<int64_t>(ceil_div(rows, kBlockRows), 1);
    return round_up(ceil_div(rows, parts), kBand);
  }
  // Packed rows are followed by their scales and zeros.
  int64_t packed_rows_words(int64_t rows) const {
    return packed_byte_words(rows, k_) + 2 * round_up(rows, kBand);
  }
  ByteRows byte_rows(uint32_t* packed, int64_t rows, int64_t row) const {
    auto* scales = reinterpret_cast<float*>(packed) + packed_byte_words(rows, k_);
    return {scales + row, reinterpret_cast<int32_t*>(scales) + round_up(rows, kBand) + row};
  }
  const std::byte* kept(const Operands& io) {
    const std::byte* copy =
        io.packed ? io.packed->copy(w_.data, PackedParams::Layout::kBytes, packed_.bytes(),
                                    [&](std::byte* to) {
                                      packed_.fill(cpu_, w_, io.packed->scales(w_.data), to);
                                    })
                  : nullptr;
    if (!copy) own_ = allocate_host(packed_.bytes());
    return copy;
  }

  // Rows from `from` of x become rows from `to`, a multiple of kBand, of `packed`, which has
  // `rows`.
  void pack_band(uint32_t* packed, int64_t rows, int64_t from, int64_t to, int64_t count) {
    cpu_.simd().bytes->pack_rows(floats(x_), from, count, k_,
                                 packed + to / kBand * byte_band_words(k_),
                                 byte_rows(packed, rows, to));
  }

  void block(const ByteEpilogueArgs& epilogue, uint32_t* shared, int64_t row_block, int64_t group,
             int thread) {
    const int64_t row = row_blocks_.first(row_block), rows = row_blocks_.last(row_block) - row;
    const int64_t first = columns_.first(group), count = columns_.last(group) - first;
    auto* own = reinterpret_cast<uint32_t*>(cpu_.thread_scratch(thread));
    uint32_t* a = few_ ? shared : own;
    for (int64_t i = 0; !few_ && i < rows; i += kBand)
      pack_band(own, rows, row + i, i, std::min(kBand, rows - i));
    std::byte* weights = kept_ ? const_cast<std::byte*>(kept_) : own_.data();
    auto* sums = reinterpret_cast<int32_t*>(own) + product_at_;
    for (int64_t j = first; j < first + count; j += kBlockColumns) {
      const int64_t width = std::min(kBlockColumns, first + count - j);
      cpu_.bytes().multiply({.a = a,
                             .b = packed_.band(weights, j),
                             .c = sums,
                             .ldc = kBlockColumns,
                             .rows = rows,
                             .columns = width,
                             .depth = k_,
                             .accumulate = false});
      cpu_.simd().bytes->epilogue(epilogue, sums, kBlockColumns, row, rows, j, width,
                                  byte_rows(a, rows, 0), packed_.weights(weights, j));
    }
  }

  CpuBackend& cpu_;
  TensorView x_, w_, bias_, y_;
  QLinear op_;
  int64_t rows_, n_, k_;
  PackedBytes packed_;
  Buffer own_;             // weights that may change, packed at each launch
  const std::byte* kept_;  // those that never do; null: own_
  bool few_;               // rows, which are packed once for all columns; else by each task
  Chunks columns_, row_blocks_;
  int64_t product_at_ = 0;  // in a thread's scratch, behind the rows it packs
};

}  // namespace

KernelPtr lower(CpuBackend& cpu, const QLinear& op, const Operands& io) {
  [[maybe_unused]] const auto& [act] = op;
  return std::make_unique<QLinearKernel>(cpu, op, io);
}

}  // namespace vitrum::cpu
