#include "vitrum/cpu/linear.h"

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
    const auto divide_up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
    const int64_t parts = std::max(
        {divide_up(rows, kRowBlock), int64_t{1}, std::min<int64_t>(threads, rows / kLeast)});
    return divide_up(rows, parts);
  }
  // Small weights that do not change are packed once, where a launch would spend a twentieth of its
  // time or more on that.
  const float* kept(const Operands& io) {
    constexpr int64_t kRows = 1024, kWeights = 192 * 1024;
    if (!io.packed || x_.shape.rows() > kRows || w_.shape.numel() > kWeights) return nullptr;
    return reinterpret_cast<const float*>(
        io.packed->copy(w_.data, packed_.bytes(), [&](std::byte* memory) {
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

// dx (M, K) = dpre w, dw (N, K) += dpre^T x, dbias += column sums of dpre, where dpre (M, N) is dy
// behind dropout and activation. Rows are taken in chunks: what a chunk computes and packs is read
// again while in the cache. What few panels would use is not packed but read in place: dpre where
// dw is narrow, and x, for the transpose of dw, where dw has one panel of rows.
class LinearBwdKernel final : public Kernel {
 public:
  LinearBwdKernel(CpuBackend& cpu, const LinearBwd& op, const Operands& io)
      : cpu_(cpu),
        op_(op),
        dy_(io.in[0]),
        x_(io.in[1]),
        w_(io.in[2]),
        saved_(io.in[3]),
        rng_(io.in[4]),
        dx_(io.out[0]),
        dw_(io.out[1]),
        dbias_(io.out[2]),
        n_(w_.shape[0]),
        k_(w_.shape[1]),
        packed_w_{n_, k_},
        chunks_{dy_.shape.rows(), rows_per_chunk(dy_.shape.rows(), n_, k_)},
        direct_(op.act == Act::kNone && op.drop == 0 && dy_.dtype == DType::kF32),
        turned_(dw_ && x_.dtype == DType::kF32 && n_ == kPanel && k_ > kPanel && k_ % 8 == 0),
        pack_x_(dw_ && !turned_ && !(x_.dtype == DType::kF32 && k_ == kPanel)),
        pack_dpre_(dw_ && !turned_ && packed_w_.panels() > 4) {
    const auto floats_of = [&](bool used, int64_t n) {
      return used ? (n + 15) / 16 * 16 : int64_t{0};
    };
    const int64_t w =
        floats_of(static_cast<bool>(dx_), static_cast<int64_t>(packed_w_.bytes() / kFloat));
    dpre_at_ = w;
    x_at_ = dpre_at_ + floats_of(!direct_, chunks_.size * n_);
    turned_at_ = x_at_ + floats_of(pack_x_, chunks_.size * packed_w_.panels() * kPanel);
    strips_at_ = turned_at_ + floats_of(turned_, kPanel * k_);
    const int64_t end = strips_at_ + floats_of(pack_dpre_, chunks_.size * (n_ + kStrip));
    cpu.reserve_shared(static_cast<size_t>(end) * kFloat);
    cpu.reserve_per_thread(static_cast<size_t>(std::max(kRowBlock * kPanel, n_ + 16)) * kFloat);
  }

  void launch() override {
    auto* shared = reinterpret_cast<float*>(cpu_.shared_scratch());
    if (dx_) pack(cpu_, packed_w_, w_, /*transposed=*/false, shared);
    const DropSite drop =
        op_.drop > 0 ? drop_site(random_state(rng_), op_.drop, op_.site) : DropSite{};
    const LinearGradArgs gradient{floats(dy_), floats(saved_), op_.act,
                                  op_.drop > 0 ? &drop : nullptr, n_};
    if (turned_) turn_weight_gradient(shared);
    for (int64_t c = 0; c < chunks_.count(); ++c) {
      const int64_t row = chunks_.first(c), rows = chunks_.last(c) - row;
      float* dpre = direct_ ? dy_.f32() + row * n_ : shared + dpre_at_;
      if (!direct_) prepare(gradient, row, rows, dpre);
      input_gradient_and_packing(shared, dpre, row, rows);
      if (dw_) weight_gradient(shared, dpre, row, rows);
    }
    if (turned_) turn_back_weight_gradient(shared);
  }

 private:
  static constexpr int64_t kStripBlock = 96;   // columns of dpre packed by one task
  static constexpr int64_t kWeightRows = 192;  // block of dw computed by one task
  static constexpr int64_t kWeightPanels = 3;

  // Short chunks keep what is packed in the second-level cache; but each chunk reads and writes all
  // of dw, so where that is large they are long enough for the products to outweigh it.
  static int64_t rows_per_chunk(int64_t rows, int64_t n, int64_t k) {
    constexpr int64_t kUnit = 96;
    const int64_t least = n * k <= (1 << 18) ? 2 * kUnit : 8 * kUnit;
    const int64_t wanted = std::clamp<int64_t>((int64_t{3} << 17) / (n + k), least, 16 * kUnit);
    const int64_t parts = (rows + wanted - 1) / wanted;
    return (rows / parts + kUnit) / kUnit * kUnit;
  }

  void prepare(const LinearGradArgs& gradient, int64_t row, int64_t rows, float* dpre) {
    const Chunks blocks{rows, std::max<int64_t>(1, 16384 / n_)};
    for_chunks(cpu_, blocks, [&](int64_t first, int64_t last, int64_t, int thread) {
      cpu_.simd().linear->gradient(gradient, row + first, last - first,
                                   {dpre + first * n_, DType::kF32},
                                   reinterpret_cast<float*>(cpu_.thread_scratch(thread)));
    });
  }

  // Everything that needs only dpre, in one loop: dx, the column sums, and both sides of dw packed.
  void input_gradient_and_packing(float* shared, const float* dpre, int64_t row, int64_t rows) {
    const Chunks blocks{dx_ ? rows : 0, kRowBlock},
        panels{packed_w_.panels(), packed_w_.panels() >= 8 ? 4 : 1};
    const int64_t dx_tasks = blocks.count() * panels.count();
    const Chunks columns{pack_dpre_ || dbias_ ? n_ : 0, kStripBlock};
    const int64_t x_panels = pack_x_ ? packed_w_.panels() : 0;
    cpu_.pool().run(dx_tasks + columns.count() + x_panels, [&](int64_t task, int thread) {
      if (task < dx_tasks) {
        const int64_t block = task / panels.count(), group = task % panels.count();
        const int64_t first = blocks.first(block), count = blocks.last(block) - first;
        for (int64_t p = panels.first(group); p < panels.last(group); ++p)
          input_gradient(shared, dpre + first * n_, row + first, count, p, thread);
      } else if (task < dx_tasks + columns.count()) {
        const int64_t block = task - dx_tasks, first = columns.first(block),
                      count = columns.last(block) - first;
        if (pack_dpre_)
          cpu_.simd().gemm->pack_strips(dpre + first, n_, rows, count,
                                        shared + strips_at_ + first * rows);
        if (dbias_)
          cpu_.simd().linear->column_sums({const_cast<float*>(dpre), DType::kF32}, first, n_, rows,
                                          count, dbias_.f32() + first);
      } else {
        pack_x(shared, task - dx_tasks - columns.count(), row, rows);
      }
    });
  }

  void input_gradient(const float* packed, const float* dpre, int64_t row, int64_t rows, int64_t p,
                      int thread) {
    const int64_t column = p * kPanel, width = std::min(kPanel, k_ - column);
    const bool in_place = dx_.dtype == DType::kF32;
    auto* scratch = reinterpret_cast<float*>(cpu_.thread_scratch(thread));
    float* c = in_place ? dx_.f32() + row * k_ + column : scratch;
    cpu_.simd().gemm->panel(dpre, n_, packed_w_.panel(packed, p), kPanel, c, in_place ? k_ : kPanel,
                            rows, n_, width, false);
    if (in_place) return;
    const LinearEpilogueArgs store{floats(dx_), {}, nullptr, Act::kNone, nullptr, k_};
    cpu_.simd().linear->epilogue(store, c, kPanel, row, rows, column, width, nullptr);
  }

  void pack_x(float* shared, int64_t p, int64_t row, int64_t rows) {
    const int64_t column = p * kPanel, element = static_cast<int64_t>(size_of(x_.dtype));
    const auto* x = static_cast<const std::byte*>(x_.data) + (row * k_ + column) * element;
    cpu_.simd().gemm->pack_panel(x, x_.dtype == DType::kBF16, k_, /*transposed=*/false, rows,
                                 std::min(kPanel, k_ - column), shared + x_at_ + p * kPanel * rows,
                                 kPanel);
  }

  void weight_gradient(float* shared, const float* dpre, int64_t row, int64_t rows) {
    const int64_t height = turned_ ? k_ : n_;
    const Chunks blocks{height, height >= 2 * kWeightRows ? kWeightRows : kWeightRows / 4},
        panels{turned_ ? 1 : packed_w_.panels(), kWeightPanels};
    cpu_.pool().run(blocks.count() * panels.count(), [&](int64_t task, int) {
      const int64_t first = blocks.first(task / panels.count()),
                    count = blocks.last(task / panels.count()) - first;
      if (turned_)
        return cpu_.simd().gemm->columns(x_.f32() + row * k_ + first, k_, dpre, n_,
                                         shared + turned_at_ + first * n_, n_, count, rows, n_,
                                         /*accumulate=*/true);
      for (int64_t p = panels.first(task % panels.count()); p < panels.last(task % panels.count());
           ++p)
        weight_gradient_panel(shared, dpre, row, rows, p, first, count);
    });
  }

  void weight_gradient_panel(const float* shared, const float* dpre, int64_t row, int64_t rows,
                             int64_t p, int64_t first, int64_t count) {
    const GemmKernels& gemm = *cpu_.simd().gemm;
    const float* x = pack_x_ ? shared + x_at_ + p * kPanel * rows : x_.f32() + row * k_;
    float* dw = dw_.f32() + first * k_ + p * kPanel;
    const int64_t width = std::min(kPanel, k_ - p * kPanel);
    if (pack_dpre_)
      gemm.strips(shared + strips_at_ + first * rows, x, kPanel, dw, k_, count, rows, width,
                  /*accumulate=*/true);
    else
      gemm.columns(dpre + first, n_, x, kPanel, dw, k_, count, rows, width, /*accumulate=*/true);
  }

  // dw as its transpose (k, n) in shared scratch, so that its chains of sums go on there; and back.
  void turn_weight_gradient(float* shared) {
    for_chunks(cpu_, {k_, 256}, [&](int64_t first, int64_t last, int64_t, int) {
      cpu_.simd().gemm->pack_panel(dw_.f32() + first, /*bf16=*/false, k_, /*transposed=*/true,
                                   last - first, n_, shared + turned_at_ + first * n_, n_);
    });
  }
  void turn_back_weight_gradient(const float* shared) {
    for_chunks(cpu_, {n_, 16}, [&](int64_t first, int64_t last, int64_t, int) {
      cpu_.simd().gemm->pack_panel(shared + turned_at_ + first, /*bf16=*/false, n_,
                                   /*transposed=*/true, last - first, k_, dw_.f32() + first * k_,
                                   k_);
    });
  }

  CpuBackend& cpu_;
  LinearBwd op_;
  TensorView dy_, x_, w_, saved_, rng_, dx_, dw_, dbias_;
  int64_t n_, k_;
  PackedB packed_w_;  // the right operand of dx; its panels also count those of x
  Chunks chunks_;
  bool direct_;                                                     // dy serves as dpre
  bool turned_, pack_x_, pack_dpre_;                                // how dw is computed
  int64_t dpre_at_ = 0, x_at_ = 0, strips_at_ = 0, turned_at_ = 0;  // in shared scratch, in floats
};

}  // namespace

KernelPtr lower(CpuBackend& cpu, const Linear& op, const Operands& io) {
  if (takes_tiles(cpu, {io.in[0], io.in[1]})) return lower_tiles(cpu, op, io);
  if (has_few_rows(io)) return lower_few_rows(cpu, op, io);
  return std::make_unique<LinearKernel>(cpu, op, io);
}
KernelPtr lower(CpuBackend& cpu, const LinearBwd& op, const Operands& io) {
  if (takes_tiles(cpu, {io.in[0], io.in[1], io.in[2], io.in[3] ? io.in[3] : io.in[0]}))
    return lower_tiles(cpu, op, io);
  return std::make_unique<LinearBwdKernel>(cpu, op, io);
}

}  // namespace vitrum::cpu
