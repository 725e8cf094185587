// Linear layers of bf16 programs on a processor that multiplies bf16: operands are packed into
// bands of tiles (simd/tiles.h), products and epilogues work on blocks in the cache.
#include "vitrum/core/ceil_div.h"
#include "vitrum/cpu/linear.h"

namespace vitrum::cpu {
namespace {

constexpr int64_t kBlockRows = 192;     // of a product in one task
constexpr int64_t kBlockColumns = 128;  // of a product before its epilogue: a row of dropout draws
static_assert(kBlockRows % kBand == 0 && kBlockColumns % kBand == 0);

// A matrix from its row `first`; the lines of the operand are its rows, or its columns.
TileSource rows_of(const Array& x, int64_t width, int64_t first) {
  return {x, first * width, width, /*along=*/true};
}
TileSource columns_of(const Array& x, int64_t width, int64_t first) {
  return {x, first * width, width, /*along=*/false};
}

// Words of scratch are counted in floats.
static_assert(sizeof(uint32_t) == sizeof(float));
uint32_t* words(std::byte* scratch) { return reinterpret_cast<uint32_t*>(scratch); }

// Packs rows of a matrix into shared scratch, a band a task.
void pack_rows(CpuBackend& cpu, const TensorView& x, TileSide side, uint32_t* to) {
  const int64_t depth = x.shape[-1];
  for_chunks(cpu, {x.shape.rows(), kBand}, [&](int64_t first, int64_t last, int64_t band, int) {
    cpu.simd().tiles->pack(rows_of(floats(x), depth, first), side, last - first, depth,
                           to + band * band_words(depth), band_words(depth));
  });
}

// One operand is packed once, into shared scratch: of few rows x, of many the weights. The other
// one is packed by the task that needs it, while it is in the cache. Weights that never change are
// packed once and for all.
class TiledLinear final : public LinearForward {
 public:
  TiledLinear(CpuBackend& cpu, const Linear& op, const Operands& io)
      : LinearForward(cpu, op, io),
        rows_(x_.shape.rows()),
        n_(w_.shape[0]),
        k_(w_.shape[1]),
        kept_(kept(io)),
        few_(has_small_m(io)),
        columns_{n_, few_ ? (n_ >= 2048 ? 2 : 1) * kBand : columns_per_task(rows_, n_)},
        row_blocks_{rows_, few_ ? rows_ : rows_per_task(rows_, columns_.count())},
        product_at_(packed_words(few_ ? columns_.size : row_blocks_.size, k_)),
        factors_at_(product_at_ + row_blocks_.size * kBlockColumns) {
    if (few_ || !kept_)
      cpu.reserve_shared(static_cast<size_t>(packed_words(few_ ? rows_ : n_, k_)) * sizeof(float));
    cpu.reserve_per_thread(static_cast<size_t>(factors_at_ + kBlockColumns + 16) * sizeof(float));
  }

  void launch() override {
    uint32_t* shared = words(cpu_.shared_scratch());
    if (few_) pack_rows(cpu_, x_, TileSide::kLeft, shared);
    if (!few_ && !kept_) pack_rows(cpu_, w_, TileSide::kRight, shared);
    const LinearEpilogueArgs& epilogue = this->epilogue();
    const int64_t groups = columns_.count();
    cpu_.pool().run(row_blocks_.count() * groups, [&](int64_t task, int thread) {
      block(epilogue, shared, task / groups, task % groups, thread);
    });
  }

 private:
  const uint32_t* kept(const Operands& io) {
    if (!io.packed) return nullptr;
    const size_t bytes = static_cast<size_t>(packed_words(n_, k_)) * sizeof(uint32_t);
    return reinterpret_cast<const uint32_t*>(io.packed->copy(
        w_.data, PackedParams::Layout::kTiles, bytes,
        [&](std::byte* memory) { pack_rows(cpu_, w_, TileSide::kRight, words(memory)); }));
  }
  // A task packs its rows for all the columns it has; where there are few rows it has fewer.
  static int64_t columns_per_task(int64_t rows, int64_t n) {
    constexpr int64_t kFewer = 512;
    return rows >= 16 * kBlockRows ? n : std::min(n, kFewer);
  }
  // Blocks of one size, so that threads finish together.
  static int64_t rows_per_task(int64_t rows, int64_t groups) {
    constexpr int64_t kTasks = 16, kLeast = 2 * kBand;
    const int64_t parts = std::max({ceil_div(rows, kBlockRows), int64_t{1},
                                    std::min(ceil_div(kTasks, groups), rows / kLeast)});
    return ceil_div(ceil_div(rows, parts), kBand) * kBand;
  }

  void block(const LinearEpilogueArgs& epilogue, const uint32_t* shared, int64_t row_block,
             int64_t group, int thread) {
    const int64_t row = row_blocks_.first(row_block), rows = row_blocks_.last(row_block) - row;
    const int64_t first = columns_.first(group), count = columns_.last(group) - first;
    uint32_t* own = words(cpu_.thread_scratch(thread));
    const uint32_t *a = few_ ? shared : own,
                   *b = few_ && !kept_ ? own
                                       : (kept_ ? kept_ : shared) + first / kBand * band_words(k_);
    if (a == own)
      cpu_.simd().tiles->pack(rows_of(floats(x_), k_, row), TileSide::kLeft, rows, k_, own,
                              band_words(k_));
    if (b == own)
      cpu_.simd().tiles->pack(rows_of(floats(w_), k_, first), TileSide::kRight, count, k_, own,
                              band_words(k_));
    auto* c = reinterpret_cast<float*>(own) + product_at_;
    for (int64_t j = 0; j < count; j += kBlockColumns) {
      const int64_t width = std::min(kBlockColumns, count - j);
      cpu_.tiles()->multiply({.a = a,
                              .b = b + j / kBand * band_words(k_),
                              .c = c,
                              .ldc = kBlockColumns,
                              .rows = rows,
                              .columns = width,
                              .depth = k_,
                              .accumulate = false});
      cpu_.simd().linear->epilogue(epilogue, c, kBlockColumns, row, rows, first + j, width,
                                   reinterpret_cast<float*>(own) + factors_at_);
    }
  }

  int64_t rows_, n_, k_;
  const uint32_t* kept_;  // packed weights; null: they may change
  bool few_;
  Chunks columns_, row_blocks_;
  int64_t product_at_, factors_at_;  // in a thread's scratch, behind the operand it packs
};

// As LinearBwdKernel: dx = dpre w, dw += dpre^T x, dbias += column sums of dpre. Chunks of rows are
// packed for both products and multiplied while they are in the cache.
class TiledLinearBwd final : public Kernel {
 public:
  TiledLinearBwd(CpuBackend& cpu, const LinearBwd& op, const Operands& io)
      : cpu_(cpu),
        op_(op),
        dy_(io.in[LinearBwd::kDy]),
        x_(io.in[LinearBwd::kX]),
        w_(io.in[LinearBwd::kWeight]),
        saved_(io.in[LinearBwd::kSaved]),
        rng_(io.in[LinearBwd::kRng]),
        dx_(io.out[LinearBwd::kDx]),
        dw_(io.out[LinearBwd::kDweight]),
        dbias_(io.out[LinearBwd::kDbias]),
        n_(w_.shape[0]),
        k_(w_.shape[1]),
        chunks_{dy_.shape.rows(), rows_per_chunk(dy_.shape.rows(), n_, k_)},
        direct_(op.act == Act::kNone && op.drop == 0) {
    const int64_t rows = chunks_.size;
    dpre_at_ = dx_ ? packed_words(k_, n_) : 0;
    left_at_ = dpre_at_ + (direct_ ? 0 : (rows * n_ + 1) / 2);
    turned_at_ = left_at_ + (dx_ ? packed_words(rows, n_) : 0);
    x_at_ = turned_at_ + (dw_ ? packed_words(n_, rows) : 0);
    const int64_t end = x_at_ + (dw_ ? packed_words(k_, rows) : 0);
    cpu.reserve_shared(static_cast<size_t>(end) * sizeof(float));
    cpu.reserve_per_thread(static_cast<size_t>(std::max(kBlockRows * kBlockColumns, n_ + 16)) *
                           sizeof(float));
  }

  void launch() override {
    uint32_t* shared = words(cpu_.shared_scratch());
    if (dx_) pack_weights(shared);
    const DropSite drop =
        op_.drop > 0 ? drop_site(random_state(rng_), op_.drop, op_.site) : DropSite{};
    const LinearGradArgs gradient{floats(dy_), floats(saved_), op_.act,
                                  op_.drop > 0 ? &drop : nullptr, n_};
    for (int64_t c = 0; c < chunks_.count(); ++c) {
      const int64_t row = chunks_.first(c), rows = chunks_.last(c) - row;
      prepare_chunk(gradient, shared, row, rows);
      multiply_chunk(shared, row, rows);
    }
  }

 private:
  static constexpr int64_t kWeightRows = 128, kWeightColumns = 256;  // block of dw in one task

  // Few enough rows that they stay in the cache when packed; but each chunk reads and writes all of
  // dw, and where that is large the products must outweigh it.
  static int64_t rows_per_chunk(int64_t rows, int64_t n, int64_t k) {
    const int64_t least = n * k <= (1 << 18) ? 384 : 1024;
    const int64_t wanted = std::clamp<int64_t>((int64_t{1} << 19) / (n + k), least, 2048);
    const int64_t parts = std::max<int64_t>(ceil_div(rows, wanted), 1);
    return std::max(ceil_div(ceil_div(rows, parts), kBand), int64_t{1}) * kBand;
  }

  void pack_weights(uint32_t* to) {
    for_chunks(cpu_, {n_, kStepDepth}, [&](int64_t first, int64_t last, int64_t step, int) {
      cpu_.simd().tiles->pack(columns_of(floats(w_), k_, first), TileSide::kRight, k_, last - first,
                              to + step * kStepWords, band_words(n_));
    });
  }

  // The rows of dpre in this chunk, from which row of the tensor on.
  struct Rows {
    Array x;
    int64_t first;
  };
  Rows dpre(uint32_t* shared, int64_t row) const {
    return direct_ ? Rows{floats(dy_), row} : Rows{{shared + dpre_at_, DType::kBF16}, 0};
  }

  // dpre, and at once: packed as the left operand of dx, turned as that of dw, and x as the right
  // operand of dw. A task has the rows of one band, which are one step in the depth of dw.
  void prepare_chunk(const LinearGradArgs& gradient, uint32_t* shared, int64_t row, int64_t rows) {
    const TilePacking& tiles = *cpu_.simd().tiles;
    const Rows d = dpre(shared, row);
    for_chunks(cpu_, {rows, kBand}, [&](int64_t first, int64_t last, int64_t band, int thread) {
      const int64_t count = last - first;
      if (!direct_)
        cpu_.simd().linear->gradient(gradient, row + first, count,
                                     {static_cast<uint16_t*>(d.x.data) + first * n_, DType::kBF16},
                                     reinterpret_cast<float*>(cpu_.thread_scratch(thread)));
      if (dx_)
        tiles.pack(rows_of(d.x, n_, d.first + first), TileSide::kLeft, count, n_,
                   shared + left_at_ + band * band_words(n_), band_words(n_));
      if (!dw_) return;
      tiles.pack(columns_of(d.x, n_, d.first + first), TileSide::kLeft, n_, count,
                 shared + turned_at_ + band * kStepWords, band_words(rows));
      tiles.pack(columns_of(floats(x_), k_, row + first), TileSide::kRight, k_, count,
                 shared + x_at_ + band * kStepWords, band_words(rows));
    });
  }

  void multiply_chunk(uint32_t* shared, int64_t row, int64_t rows) {
    const Chunks blocks{dx_ ? rows : 0, kBlockRows}, outputs{dw_ ? n_ : 0, kWeightRows},
        inputs{k_, kWeightColumns}, sums{dbias_ ? n_ : 0, kBlockColumns};
    const int64_t before_dw = blocks.count(),
                  before_sums = before_dw + outputs.count() * inputs.count();
    const Rows d = dpre(shared, row);
    cpu_.pool().run(before_sums + sums.count(), [&](int64_t task, int thread) {
      if (task < before_dw) {
        const int64_t first = blocks.first(task);
        input_gradient(shared, row, first, blocks.last(task) - first, thread);
      } else if (task < before_sums) {
        const int64_t block = task - before_dw, n = outputs.first(block / inputs.count()),
                      k = inputs.first(block % inputs.count());
        cpu_.tiles()->multiply({.a = shared + turned_at_ + n / kBand * band_words(rows),
                                .b = shared + x_at_ + k / kBand * band_words(rows),
                                .c = dw_.f32() + n * k_ + k,
                                .ldc = k_,
                                .rows = outputs.last(block / inputs.count()) - n,
                                .columns = inputs.last(block % inputs.count()) - k,
                                .depth = rows,
                                .accumulate = true});
      } else {
        const int64_t first = sums.first(task - before_sums),
                      count = sums.last(task - before_sums) - first;
        cpu_.simd().linear->column_sums(d.x, d.first * n_ + first, n_, rows, count,
                                        dbias_.f32() + first);
      }
    });
  }

  void input_gradient(const uint32_t* shared, int64_t row, int64_t first, int64_t rows,
                      int thread) {
    auto* c = reinterpret_cast<float*>(cpu_.thread_scratch(thread));
    const LinearEpilogueArgs store{floats(dx_), {}, nullptr, Act::kNone, nullptr, k_};
    for (int64_t j = 0; j < k_; j += kBlockColumns) {
      const int64_t width = std::min(kBlockColumns, k_ - j);
      cpu_.tiles()->multiply({.a = shared + left_at_ + first / kBand * band_words(n_),
                              .b = shared + j / kBand * band_words(n_),
                              .c = c,
                              .ldc = kBlockColumns,
                              .rows = rows,
                              .columns = width,
                              .depth = n_,
                              .accumulate = false});
      cpu_.simd().linear->epilogue(store, c, kBlockColumns, row + first, rows, j, width, nullptr);
    }
  }

  CpuBackend& cpu_;
  LinearBwd op_;
  TensorView dy_, x_, w_, saved_, rng_, dx_, dw_, dbias_;
  int64_t n_, k_;
  Chunks chunks_;
  bool direct_;  // dy serves as dpre
  // In shared scratch, behind the weights, in words: dpre, the same packed, packed turned, and x.
  int64_t dpre_at_ = 0, left_at_ = 0, turned_at_ = 0, x_at_ = 0;
};

}  // namespace

KernelPtr lower_tiles(CpuBackend& cpu, const Linear& op, const Operands& io) {
  [[maybe_unused]] const auto& [act, drop, site] = op;
  return std::make_unique<TiledLinear>(cpu, op, io);
}
KernelPtr lower_tiles(CpuBackend& cpu, const LinearBwd& op, const Operands& io) {
  [[maybe_unused]] const auto& [act, drop, site] = op;
  return std::make_unique<TiledLinearBwd>(cpu, op, io);
}

}  // namespace vitrum::cpu
