// Convolution as products with the windows of an image. Windows are never all laid out: a task
// unfolds a few columns of its rows into scratch, where the product finds them in the cache.
#include "vitrum/cpu/conv.h"

#include <cstring>

#include "vitrum/core/ceil_div.h"
#include "vitrum/cpu/batch_norm.h"
#include "vitrum/cpu/gemm.h"
#include "vitrum/cpu/simd/linear.h"

namespace vitrum::cpu {
namespace {

constexpr size_t kFloat = sizeof(float);
constexpr int64_t kSlice = 576;  // columns unfolded at a time: with 192 rows 432 KiB
static_assert(kSlice % kStepDepth == 0);
constexpr int64_t kGroup = 4;  // panels of the right operand that share them

// The right operand: for tap t and channel d row t * depth + d, its columns strides of the weights
// (O, C, K, K).
struct ConvWeights {
  TensorView w;
  int64_t depth, columns;               // forward C, O; of dx O, C
  int64_t depth_stride, column_stride;  // in elements of w
  std::vector<int64_t> taps;            // of K * K, in the order of a window's pixels

  PackedB packed() const { return {static_cast<int64_t>(taps.size()) * depth, columns}; }
  int64_t area() const { return w.shape[2] * w.shape[3]; }
  // Channels whose taps lie one after the other are packed together.
  int64_t together() const {
    return depth_stride == area() ? std::max<int64_t>(1, 144 / area()) : 1;
  }
  int64_t scratch_floats() const { return together() * area() * kPanel; }

  void pack(CpuBackend& cpu, float* to) const {
    const PackedB shape = packed();
    cpu.pool().run(shape.panels(), [&](int64_t p, int thread) {
      pack_panel(cpu, p * kPanel, to + p * kPanel * shape.depth,
                 reinterpret_cast<float*>(cpu.thread_scratch(thread)));
    });
  }
  // The same as tiles; a thread's scratch has room for a whole panel besides.
  void pack(CpuBackend& cpu, uint32_t* to) const {
    const int64_t depth_of_all = packed().depth, band = band_words(depth_of_all);
    cpu.pool().run(packed().panels(), [&](int64_t p, int thread) {
      auto* scratch = reinterpret_cast<float*>(cpu.thread_scratch(thread));
      float* panel = scratch + scratch_floats();
      pack_panel(cpu, p * kPanel, panel, scratch);
      cpu.simd().tiles->pack({{panel, DType::kF32}, 0, kPanel, /*along=*/false}, TileSide::kRight,
                             std::min(kPanel, columns - p * kPanel), depth_of_all,
                             to + p * (kPanel / kBand) * band, band);
    });
  }

 private:
  void pack_panel(CpuBackend& cpu, int64_t column, float* to, float* scratch) const {
    const auto element = static_cast<int64_t>(size_of(w.dtype));
    for (int64_t d = 0, n; d < depth; d += n) {
      n = std::min(together(), depth - d);
      const auto* from = static_cast<const std::byte*>(w.data) +
                         (column * column_stride + d * depth_stride) * element;
      cpu.simd().gemm->pack_panel(from, w.dtype == DType::kBF16, column_stride,
                                  /*transposed=*/true, n * area(),
                                  std::min(kPanel, columns - column), scratch, kPanel);
      for (int64_t i = 0; i < n; ++i)
        for (size_t t = 0; t < taps.size(); ++t)
          std::memcpy(to + (static_cast<int64_t>(t) * depth + d + i) * kPanel,
                      scratch + (i * area() + taps[t]) * kPanel, kPanel * kFloat);
    }
  }
};

// Where the rows of a product go: window (i, j) to pixel (i * step + top, j * step + left).
struct Target {
  TensorView y;  // (B, H, W, columns)
  int64_t step = 1, top = 0, left = 0;
};

// target = windows x weights, and a batch norm behind it where there is one.
class WindowProduct {
 public:
  WindowProduct(CpuBackend& cpu, const Windows& windows, ConvWeights weights, const Target& target)
      : cpu_(cpu),
        windows_(windows),
        weights_(std::move(weights)),
        target_(target),
        packed_(weights_.packed()),
        pixels_(windows.rows == 1 && windows.columns == 1 && windows.step == 1 &&
                windows.top == 0 && windows.left == 0 && windows.down == windows.height &&
                windows.across == windows.width),
        in_place_(pixels_ && windows.x.dtype == DType::kF32),
        tiled_(takes_tiles(cpu, {weights_.w}) && windows.x.dtype == DType::kBF16),
        direct_(target.step == 1 && target.y.dtype == DType::kF32),
        groups_{packed_.panels(), kGroup},
        rows_{target.y.shape[0] * windows.down * windows.across, 1} {
    rows_.size = rows_per_task(rows_.total, groups_.count());
    left_at_ = rows_.size * (kSlice + kGroup * kPanel);
    const int64_t block = left_at_ + (tiled_ ? packed_words(rows_.size, kSlice) : 0),
                  panel = weights_.scratch_floats() + (tiled_ ? packed_.depth * kPanel : 0);
    cpu.reserve_shared(
        tiled_
            ? static_cast<size_t>(packed_words(packed_.panels() * kPanel, packed_.depth)) * kFloat
            : packed_.bytes());
    cpu.reserve_per_thread(static_cast<size_t>(std::max(block, panel)) * kFloat);
  }

  void run(const ChannelNormArgs* norm = nullptr) {
    auto* packed = reinterpret_cast<float*>(cpu_.shared_scratch());
    tiled_ ? weights_.pack(cpu_, reinterpret_cast<uint32_t*>(packed)) : weights_.pack(cpu_, packed);
    const int64_t groups = groups_.count();
    cpu_.pool().run(rows_.count() * groups, [&](int64_t task, int thread) {
      block(packed, norm, task / groups, task % groups, thread);
    });
  }

 private:
  // As for linear layers: of up to 192 rows, fewer where that makes few tasks.
  static int64_t rows_per_task(int64_t rows, int64_t groups) {
    constexpr int64_t kTasks = 16, kLeast = 48;
    const int64_t parts = std::max(
        {ceil_div(rows, kRowBlock), int64_t{1}, std::min(ceil_div(kTasks, groups), rows / kLeast)});
    return std::min(kRowBlock, ceil_div(ceil_div(rows, parts), kStrip) * kStrip);
  }

  void block(const float* packed, const ChannelNormArgs* norm, int64_t row_block, int64_t group,
             int thread) {
    const int64_t row = rows_.first(row_block), rows = rows_.last(row_block) - row;
    const int64_t n = packed_.columns, column = groups_.first(group) * kPanel,
                  columns = std::min(n, groups_.last(group) * kPanel) - column;
    auto* scratch = reinterpret_cast<float*>(cpu_.thread_scratch(thread));
    float* c = direct_ ? target_.y.f32() + row * n + column : scratch + rows_.size * kSlice;
    const int64_t ldc = direct_ ? n : kGroup * kPanel;
    if (packed_.depth == 0)  // pixels that no window sees
      for (int64_t r = 0; r < rows; ++r) std::fill_n(c + r * ldc, columns, 0.f);
    const int64_t slice = in_place_ ? packed_.depth : kSlice;
    for (int64_t k = 0; k < packed_.depth; k += slice)
      multiply(packed, row, rows, group, k, std::min(slice, packed_.depth - k), scratch, c, ldc);
    store(norm, c, ldc, row, rows, column, columns);
  }

  void multiply(const float* packed, int64_t row, int64_t rows, int64_t group, int64_t k,
                int64_t depth, float* scratch, float* c, int64_t ldc) {
    if (tiled_) return multiply_tiles(packed, row, rows, group, k, depth, scratch, c, ldc);
    const float* a = scratch;
    if (in_place_)
      a = static_cast<const float*>(windows_.x.data) + row * packed_.depth;
    else
      cpu_.simd().conv->unfold(windows_, row, rows, k, k + depth, scratch, depth);
    for (int64_t p = groups_.first(group); p < groups_.last(group); ++p)
      cpu_.simd().gemm->panel(a, depth, packed_.panel(packed, p) + k * kPanel, kPanel,
                              c + (p - groups_.first(group)) * kPanel, ldc, rows, depth,
                              std::min(kPanel, packed_.columns - p * kPanel), k > 0);
  }

  void multiply_tiles(const float* packed, int64_t row, int64_t rows, int64_t group, int64_t k,
                      int64_t depth, float* scratch, float* c, int64_t ldc) {
    TileSource windows{windows_.x, row * packed_.depth + k, packed_.depth, /*along=*/true};
    if (!pixels_) {
      cpu_.simd().conv->unfold(windows_, row, rows, k, k + depth, scratch, depth);
      windows = {{scratch, DType::kF32}, 0, depth, /*along=*/true};
    }
    const int64_t first = groups_.first(group) * kPanel, band = band_words(packed_.depth);
    auto* left = reinterpret_cast<uint32_t*>(scratch + left_at_);
    cpu_.simd().tiles->pack(windows, TileSide::kLeft, rows, depth, left, band_words(depth));
    cpu_.tiles()->multiply(
        {.a = left,
         .b = reinterpret_cast<const uint32_t*>(packed) + first / kBand * band +
              k / kStepDepth * kStepWords,
         .c = c,
         .ldc = ldc,
         .rows = rows,
         .columns = std::min(packed_.columns, groups_.last(group) * kPanel) - first,
         .depth = depth,
         .accumulate = k > 0,
         .b_band = band});
  }

  void store(const ChannelNormArgs* norm, const float* c, int64_t ldc, int64_t row, int64_t rows,
             int64_t column, int64_t columns) {
    if (norm) return cpu_.simd().batch_norm->apply_block(*norm, c, ldc, row, rows, column, columns);
    if (direct_) return;
    const LinearEpilogueArgs plain{floats(target_.y), {},      nullptr,
                                   Act::kNone,        nullptr, packed_.columns};
    if (target_.step == 1)
      return cpu_.simd().linear->epilogue(plain, c, ldc, row, rows, column, columns, nullptr);
    for (int64_t r = 0; r < rows; ++r)
      cpu_.simd().linear->epilogue(plain, c + r * ldc, ldc, target_pixel(row + r), 1, column,
                                   columns, nullptr);
  }

  int64_t target_pixel(int64_t window) const {
    const int64_t j = window % windows_.across, i = window / windows_.across % windows_.down,
                  b = window / windows_.across / windows_.down;
    return (b * target_.y.shape[1] + i * target_.step + target_.top) * target_.y.shape[2] +
           j * target_.step + target_.left;
  }

  CpuBackend& cpu_;
  Windows windows_;
  ConvWeights weights_;
  Target target_;
  PackedB packed_;
  bool pixels_;    // the windows are the rows of x
  bool in_place_;  // and are read there
  bool tiled_;     // bf16 operands, multiplied as such
  bool direct_;    // the product is computed where it ends
  Chunks groups_, rows_;
  int64_t left_at_ = 0;  // the windows packed as tiles, in a thread's scratch
};

// All windows of a convolution from x (B, H, W, C) to y (B, H', W', ..).
Windows windows_of(const TensorView& x, const Shape& y, int64_t kernel, int64_t stride,
                   int64_t padding) {
  return {.x = floats(x),
          .height = x.shape[1],
          .width = x.shape[2],
          .channels = x.shape[3],
          .down = y[1],
          .across = y[2],
          .step = stride,
          .top = -padding,
          .left = -padding,
          .rows = kernel,
          .columns = kernel};
}

class ConvKernel final : public Kernel {
 public:
  ConvKernel(CpuBackend& cpu, const Conv2d& op, const Operands& io)
      : op_(op),
        io_(io),
        product_(cpu,
                 windows_of(io.in[Conv2d::kX], io.out[Conv2d::kY].shape,
                            io.in[Conv2d::kWeight].shape[2], op.stride, op.padding),
                 forward_weights(io.in[Conv2d::kWeight]), {io.out[Conv2d::kY]}),
        affine_(operand(io.in, Conv2d::kNormWeight) ? io.in[Conv2d::kWeight].shape[0] : 0) {}

  void launch() override {
    if (affine_.scale.empty()) return product_.run();
    affine_.set(io_.in[Conv2d::kNormWeight].f32(), io_.in[Conv2d::kNormBias].f32(),
                io_.in[Conv2d::kMean].f32(), io_.in[Conv2d::kVar].f32(), op_.eps);
    const ChannelNormArgs norm{.y = floats(io_.out[Conv2d::kY]),
                               .skip = floats(operand(io_.in, Conv2d::kSkip)),
                               .scale = affine_.scale.data(),
                               .shift = affine_.shift.data(),
                               .act = op_.act,
                               .width = io_.in[Conv2d::kWeight].shape[0]};
    product_.run(&norm);
  }

 private:
  static ConvWeights forward_weights(const TensorView& w) {
    const int64_t area = w.shape[2] * w.shape[3];
    ConvWeights weights{w, w.shape[1], w.shape[0], area, w.shape[1] * area, {}};
    for (int64_t t = 0; t < area; ++t) weights.taps.push_back(t);
    return weights;
  }

  Conv2d op_;
  Operands io_;
  WindowProduct product_;
  ChannelAffine affine_;
};

// The pixels of dx that lie at the same place between two windows see the same taps: each of the
// stride^2 places is a convolution of dy with those, backwards.
std::vector<WindowProduct> input_gradients(CpuBackend& cpu, const Conv2dBwd& op,
                                           const TensorView& dy, const TensorView& w,
                                           const TensorView& dx) {
  const int64_t kernel = w.shape[2], s = op.stride;
  // Of one axis: the taps in the order of the pixels of dy that they read, and the first of these.
  struct Axis {
    std::vector<int64_t> taps;
    int64_t first = 0;
  };
  const auto axis = [&](int64_t place) {
    Axis a;
    for (int64_t k = kernel - 1; k >= 0; --k) {
      if ((place + op.padding - k) % s != 0) continue;
      if (a.taps.empty()) a.first = (place + op.padding - k) / s;
      a.taps.push_back(k);
    }
    return a;
  };
  std::vector<WindowProduct> products;
  for (int64_t top = 0; top < std::min(s, dx.shape[1]); ++top)
    for (int64_t left = 0; left < std::min(s, dx.shape[2]); ++left) {
      const Axis y = axis(top), x = axis(left);
      ConvWeights weights{w, w.shape[0], w.shape[1], w.shape[1] * kernel * kernel, kernel * kernel,
                          {}};
      for (const int64_t ky : y.taps)
        for (const int64_t kx : x.taps) weights.taps.push_back(ky * kernel + kx);
      const Windows windows{.x = floats(dy),
                            .height = dy.shape[1],
                            .width = dy.shape[2],
                            .channels = dy.shape[3],
                            .down = ceil_div(dx.shape[1] - top, s),
                            .across = ceil_div(dx.shape[2] - left, s),
                            .step = 1,
                            .top = y.first,
                            .left = x.first,
                            .rows = static_cast<int64_t>(y.taps.size()),
                            .columns = static_cast<int64_t>(x.taps.size())};
      products.emplace_back(cpu, windows, std::move(weights), Target{dx, s, top, left});
    }
  return products;
}

// dw (O, C, K, K) += dy^T windows. A task owns a few panels of columns (K, K, C) for one part of
// the rows; the parts are added up at the end, one after the other.
class WeightGradient {
 public:
  WeightGradient(CpuBackend& cpu, const Windows& windows, const TensorView& dy,
                 const TensorView& dw)
      : cpu_(cpu),
        windows_(windows),
        dy_(dy),
        dw_(dw),
        out_(dy.shape[-1]),
        depth_(windows.rows * windows.columns * windows.channels),
        groups_{ceil_div(depth_, kPanel), 3},
        rows_per_chunk_(out_ >= 256 ? 160 : 320),
        tiled_(takes_tiles(cpu, {dy}) && windows.x.dtype == DType::kBF16) {
    const int64_t rows = dy.shape.rows(),
                  wanted = std::min(ceil_div(16, groups_.count()), ceil_div(rows, rows_per_chunk_));
    parts_ = {rows, ceil_div(ceil_div(rows, wanted), rows_per_chunk_) * rows_per_chunk_};
    cpu.reserve_shared(static_cast<size_t>(parts_.count() * out_ * depth_) * kFloat);
    widened_at_ = rows_per_chunk_ * (out_ + kStrip + kPanel);
    const int64_t widened = dy.dtype == DType::kBF16 ? rows_per_chunk_ * out_ : 0;
    right_at_ = packed_words(out_, rows_per_chunk_);
    panel_at_ = right_at_ + packed_words(kPanel, rows_per_chunk_);
    const int64_t end = tiled_ ? panel_at_ + rows_per_chunk_ * kPanel : widened_at_ + widened + 16;
    cpu.reserve_per_thread(static_cast<size_t>(end) * kFloat);
  }

  void run() {
    auto* sums = reinterpret_cast<float*>(cpu_.shared_scratch());
    const int64_t groups = groups_.count();
    cpu_.pool().run(parts_.count() * groups, [&](int64_t task, int thread) {
      const int64_t part = task / groups;
      const Chunks chunks{parts_.last(part) - parts_.first(part), rows_per_chunk_};
      for (int64_t c = 0; c < chunks.count(); ++c)
        chunk(parts_.first(part) + chunks.first(c), chunks.last(c) - chunks.first(c), task % groups,
              sums + part * out_ * depth_, c > 0, thread);
    });
    for_chunks(cpu_, {out_, std::max<int64_t>(1, 16384 / depth_)},
               [&](int64_t first, int64_t last, int64_t, int) {
                 for (int64_t o = first; o < last; ++o) add_up(sums, o);
               });
  }

 private:
  void chunk(int64_t row, int64_t rows, int64_t group, float* sums, bool more, int thread) {
    auto* strips = reinterpret_cast<float*>(cpu_.thread_scratch(thread));
    if (tiled_) return chunk_of_tiles(row, rows, group, sums, more, strips);
    float *panel = strips + rows_per_chunk_ * (out_ + kStrip), *widened = strips + widened_at_;
    const float* d = widened;
    if (dy_.dtype == DType::kF32)
      d = dy_.f32() + row * out_;
    else
      cpu_.simd().gemm->widen(dy_.bf16() + row * out_, rows * out_, widened);
    cpu_.simd().gemm->pack_strips(d, out_, rows, out_, strips);
    for (int64_t p = groups_.first(group); p < groups_.last(group); ++p) {
      const int64_t column = p * kPanel, width = std::min(kPanel, depth_ - column);
      if (width < kPanel) std::fill_n(panel, rows * kPanel, 0.f);
      cpu_.simd().conv->unfold(windows_, row, rows, column, column + width, panel, kPanel);
      cpu_.simd().gemm->strips(strips, panel, kPanel, sums + column, depth_, out_, rows, width,
                               more);
    }
  }

  void chunk_of_tiles(int64_t row, int64_t rows, int64_t group, float* sums, bool more,
                      float* scratch) {
    const TilePacking& tiles = *cpu_.simd().tiles;
    auto *left = reinterpret_cast<uint32_t*>(scratch), *right = left + right_at_;
    float* panel = scratch + panel_at_;
    tiles.pack({floats(dy_), row * out_, out_, /*along=*/false}, TileSide::kLeft, out_, rows, left,
               band_words(rows));
    for (int64_t p = groups_.first(group); p < groups_.last(group); ++p) {
      const int64_t column = p * kPanel, width = std::min(kPanel, depth_ - column);
      cpu_.simd().conv->unfold(windows_, row, rows, column, column + width, panel, kPanel);
      tiles.pack({{panel, DType::kF32}, 0, kPanel, /*along=*/false}, TileSide::kRight, width, rows,
                 right, band_words(rows));
      cpu_.tiles()->multiply({.a = left,
                              .b = right,
                              .c = sums + column,
                              .ldc = depth_,
                              .rows = out_,
                              .columns = width,
                              .depth = rows,
                              .accumulate = more});
    }
  }

  // (K, K, C) of one output -> (C, K, K)
  void add_up(const float* sums, int64_t o) {
    const int64_t channels = windows_.channels, area = depth_ / channels;
    float* to = dw_.f32() + o * depth_;
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t t = 0; t < area; ++t) {
        float sum = 0;
        for (int64_t part = 0; part < parts_.count(); ++part)
          sum += sums[(part * out_ + o) * depth_ + t * channels + c];
        to[c * area + t] += sum;
      }
  }

  CpuBackend& cpu_;
  Windows windows_;
  TensorView dy_, dw_;
  int64_t out_, depth_;
  Chunks groups_, parts_;  // of panels; of rows
  int64_t rows_per_chunk_, widened_at_ = 0;
  bool tiled_;                           // bf16 operands, multiplied as such
  int64_t right_at_ = 0, panel_at_ = 0;  // in a thread's scratch, behind dy as tiles
};

class ConvBwdKernel final : public Kernel {
 public:
  ConvBwdKernel(CpuBackend& cpu, const Conv2dBwd& op, const Operands& io) {
    const TensorView dy = io.in[Conv2dBwd::kDy], x = io.in[Conv2dBwd::kX],
                     w = io.in[Conv2dBwd::kWeight], dw = operand(io.out, Conv2dBwd::kDweight);
    if (io.out[Conv2dBwd::kDx]) to_dx_ = input_gradients(cpu, op, dy, w, io.out[Conv2dBwd::kDx]);
    if (dw)
      to_dw_.emplace_back(cpu, windows_of(x, dy.shape, w.shape[2], op.stride, op.padding), dy, dw);
  }
  void launch() override {
    for (WindowProduct& product : to_dx_) product.run();
    for (WeightGradient& gradient : to_dw_) gradient.run();
  }

 private:
  std::vector<WindowProduct> to_dx_;
  std::vector<WeightGradient> to_dw_;  // one, or none
};

}  // namespace

KernelPtr lower(CpuBackend& cpu, const Conv2d& op, const Operands& io) {
  [[maybe_unused]] const auto& [stride, padding, eps, act] = op;
  return std::make_unique<ConvKernel>(cpu, op, io);
}

KernelPtr lower(CpuBackend& cpu, const Conv2dBwd& op, const Operands& io) {
  const auto& [stride, padding] = op;
  if (io.in[Conv2dBwd::kWeight].shape[2] == 1 && padding == 0) return lower_pixels(cpu, op, io);
  return std::make_unique<ConvBwdKernel>(cpu, op, io);
}

KernelPtr lower(CpuBackend& cpu, const MaxPool& op, const Operands& io) {
  const auto& [kernel, stride, padding] = op;
  const Windows windows =
      windows_of(io.in[MaxPool::kX], io.out[MaxPool::kY].shape, kernel, stride, padding);
  const Chunks chunks =
      chunk_rows(io.out[MaxPool::kY].shape.rows(), kernel * kernel * windows.channels);
  return make_kernel([&cpu, windows, chunks, y = floats(io.out[MaxPool::kY])] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      cpu.simd().conv->max_pool(windows, y, first, last);
    });
  });
}

KernelPtr lower(CpuBackend& cpu, const MaxPoolBwd& op, const Operands& io) {
  const auto& [kernel, stride, padding] = op;
  const Windows windows =
      windows_of(io.in[MaxPoolBwd::kX], io.in[MaxPoolBwd::kDy].shape, kernel, stride, padding);
  const int64_t line = windows.width * windows.channels;
  const Chunks chunks = chunk_rows(io.in[MaxPoolBwd::kX].shape[0] * windows.height, kernel * line);
  cpu.reserve_per_thread(static_cast<size_t>(line + 16) * kFloat);
  return make_kernel([&cpu, windows, chunks, dy = floats(io.in[MaxPoolBwd::kDy]),
                      dx = floats(io.out[MaxPoolBwd::kDx])] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int thread) {
      cpu.simd().conv->max_pool_bwd(windows, dy, dx, first, last,
                                    reinterpret_cast<float*>(cpu.thread_scratch(thread)));
    });
  });
}

}  // namespace vitrum::cpu
