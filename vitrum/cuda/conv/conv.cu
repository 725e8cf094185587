// Convolution: which kernel it is lowered to, and the one through cuBLASLt, for every shape, type
// and card: the windows of a few images at a time are laid out as rows of a matrix in scratch,
// small enough to stay in the card's cache; a 1x1 convolution needs none of it.
#include <algorithm>

#include "vitrum/cuda/conv/tile.h"
#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 256, kRows = 8;  // of a block of kWarp x kRows threads
constexpr size_t kChunkBytes = size_t{32} << 20;

// A convolution from x (B, height, width, channels) to (B, down, across, out). The columns of a
// window's row are (K, K, C), padded so that every row starts on 16 bytes.
struct Geometry {
  int height, width, channels, down, across, kernel, stride, padding;

  __host__ __device__ int area() const { return kernel * kernel; }
  __host__ __device__ int depth() const { return (area() * channels + 7) / 8 * 8; }
  __host__ __device__ int windows() const { return down * across; }  // an image
};
Geometry geometry_of(const Shape& x, const Shape& y, int64_t kernel, int64_t stride,
                     int64_t padding) {
  const auto narrow = [](int64_t n) { return static_cast<int>(n); };
  return {narrow(x[1]), narrow(x[2]),   narrow(x[3]),   narrow(y[1]),
          narrow(y[2]), narrow(kernel), narrow(stride), narrow(padding)};
}

template <class T, int kWide>
struct alignas(sizeof(T) * kWide) Pack {
  T v[kWide];
};

// One row of windows a line of threads, kWide neighbouring columns a thread.
template <class T, int kWide>
__global__ void __launch_bounds__(kWarp* kRows)
    unfold(const T* x, T* columns, Geometry g, int64_t rows) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.y;
  if (row >= rows) return;
  const auto window = static_cast<int>(row % g.windows());
  const int64_t image = row / g.windows();
  const int top = window / g.across * g.stride - g.padding,
            left = window % g.across * g.stride - g.padding;
  const int depth = g.depth();
  for (int column = threadIdx.x * kWide; column < depth; column += kWarp * kWide) {
    const int tap = column / g.channels, c = column % g.channels;
    const int y = top + tap / g.kernel, xx = left + tap % g.kernel;
    Pack<T, kWide> value = {};
    if (tap < g.area() && y >= 0 && y < g.height && xx >= 0 && xx < g.width)
      value = *reinterpret_cast<const Pack<T, kWide>*>(
          x + ((image * g.height + y) * g.width + xx) * g.channels + c);
    *reinterpret_cast<Pack<T, kWide>*>(columns + row * depth + column) = value;
  }
}

// dx from the gradients of the windows' rows: each pixel adds up what the windows over it hold.
template <class T, int kWide>
__global__ void __launch_bounds__(kThreads)
    fold(const T* columns, T* dx, Geometry g, int64_t packs) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= packs) return;
  const int across_packs = g.channels / kWide, c = static_cast<int>(i % across_packs) * kWide;
  const int64_t pixel = i / across_packs, image = pixel / (g.height * g.width);
  const int x = static_cast<int>(pixel % g.width), y = static_cast<int>(pixel / g.width % g.height);
  float sum[kWide] = {};
  for (int ky = 0; ky < g.kernel; ++ky) {
    const int down = y + g.padding - ky;
    if (down < 0 || down % g.stride != 0 || down / g.stride >= g.down) continue;
    for (int kx = 0; kx < g.kernel; ++kx) {
      const int across = x + g.padding - kx;
      if (across < 0 || across % g.stride != 0 || across / g.stride >= g.across) continue;
      const int64_t row = (image * g.down + down / g.stride) * g.across + across / g.stride;
      const auto value = *reinterpret_cast<const Pack<T, kWide>*>(
          columns + row * g.depth() + (ky * g.kernel + kx) * g.channels + c);
#pragma unroll
      for (int k = 0; k < kWide; ++k) sum[k] += to_float(value.v[k]);
    }
  }
  Pack<T, kWide> out;
#pragma unroll
  for (int k = 0; k < kWide; ++k) out.v[k] = from_float<T>(sum[k]);
  *reinterpret_cast<Pack<T, kWide>*>(dx + pixel * g.channels + c) = out;
}

// (O, C, K, K) -> (O, depth), zero where a row is padded.
template <class T>
__global__ void __launch_bounds__(kThreads) relay(const T* w, T* laid, Geometry g, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const int column = static_cast<int>(i % g.depth());
  const int64_t out = i / g.depth();
  const int tap = column / g.channels, c = column % g.channels;
  laid[i] = tap < g.area() ? w[(out * g.channels + c) * g.area() + tap] : from_float<T>(0.0f);
}

// dw (O, C, K, K) += (O, depth)
__global__ void __launch_bounds__(kThreads)
    add_relaid(const float* laid, float* dw, Geometry g, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const int tap = static_cast<int>(i % g.area()), c = static_cast<int>(i / g.area() % g.channels);
  const int64_t out = i / g.area() / g.channels;
  dw[i] += laid[out * g.depth() + tap * g.channels + c];
}

bool wide_fits(const Geometry& g, const TensorView& image) {
  return g.channels % 8 == 0 && aligned16(image);
}

// Scratch by offset: each piece starts on 256 bytes.
struct Layout {
  size_t bytes = 0;
  size_t take(size_t n) {
    const size_t at = bytes;
    bytes += (n + 255) / 256 * 256;
    return at;
  }
};

// What both directions have: weights re-laid, and chunks of images whose windows fit the scratch.
class WindowProducts {
 protected:
  WindowProducts(CudaBackend& cuda, const Geometry& g, const TensorView& w, int64_t images)
      : g_(g), w_(w), images_(images), out_(w.shape[0]), stream_(cuda.stream()) {
    const size_t image = static_cast<size_t>(g.windows()) * g.depth() * size_of(w.dtype);
    per_chunk_ = std::clamp<int64_t>(static_cast<int64_t>(kChunkBytes / std::max<size_t>(image, 1)),
                                     1, std::max<int64_t>(images, 1));
    weights_at_ = layout_.take(static_cast<size_t>(out_) * g.depth() * size_of(w.dtype));
    columns_at_ = layout_.take(static_cast<size_t>(per_chunk_) * image);
  }
  TensorView matrix(size_t at, int64_t rows, DType dtype) const {
    return {scratch_ + at, {rows, g_.depth()}, dtype};
  }
  TensorView weights() const { return matrix(weights_at_, out_, w_.dtype); }
  TensorView columns() const { return matrix(columns_at_, per_chunk_ * g_.windows(), w_.dtype); }

  // body(first image, count, whether the count is a full chunk's)
  template <class Body>
  void for_chunks(const Body& body) const {
    for (int64_t first = 0; first < images_; first += per_chunk_) {
      const int64_t count = std::min(per_chunk_, images_ - first);
      body(first, count, count == per_chunk_ ? 0 : 1);
    }
  }
  // A product for full chunks, and one for the rest where there is one.
  template <class Prepare>
  void prepare_both(Gemm (&gemms)[2], const Prepare& prepare) const {
    gemms[0] = prepare(per_chunk_ * g_.windows());
    if (images_ % per_chunk_ != 0) gemms[1] = prepare(images_ % per_chunk_ * g_.windows());
  }

  void lay_weights() const {
    const int64_t count = out_ * g_.depth();
    with_type(w_.dtype, [&](auto type) {
      using T = decltype(type);
      relay<T><<<blocks_for(count, kThreads), kThreads, 0, stream_>>>(
          static_cast<const T*>(w_.data), static_cast<T*>(weights().data), g_, count);
    });
  }
  void unfold_images(const TensorView& x, int64_t first, int64_t count) const {
    const int64_t rows = count * g_.windows(), each = int64_t{g_.height} * g_.width * g_.channels;
    const dim3 block(kWarp, kRows);
    with_type(x.dtype, [&](auto type) {
      using T = decltype(type);
      const T* from = static_cast<const T*>(x.data) + first * each;
      T* to = static_cast<T*>(columns().data);
      if (wide_fits(g_, x))
        unfold<T, 16 / sizeof(T)>
            <<<blocks_for(rows, kRows), block, 0, stream_>>>(from, to, g_, rows);
      else
        unfold<T, 1><<<blocks_for(rows, kRows), block, 0, stream_>>>(from, to, g_, rows);
    });
  }
  // The rows of a (B, H', W', O) tensor that belong to images from `first` on.
  std::byte* rows_of(const TensorView& y, int64_t first) const {
    return static_cast<std::byte*>(y.data) +
           first * g_.windows() * out_ * static_cast<int64_t>(size_of(y.dtype));
  }

  Geometry g_;
  TensorView w_;
  int64_t images_, out_, per_chunk_ = 1;
  cudaStream_t stream_;
  Layout layout_;
  size_t weights_at_ = 0, columns_at_ = 0;
  std::byte* scratch_ = nullptr;
};

class UnfoldedConv final : public Kernel, WindowProducts {
 public:
  UnfoldedConv(CudaBackend& cuda, const Geometry& g, const Operands& io)
      : WindowProducts(cuda, g, io.in[Conv2d::kWeight], io.in[Conv2d::kX].shape[0]),
        x_(io.in[Conv2d::kX]),
        y_(io.out[Conv2d::kY]) {
    scratch_ = static_cast<std::byte*>(cuda.scratch(layout_.bytes));
    prepare_both(gemms_, [&](int64_t rows) {
      return cuda.gemms().prepare({.m = rows,
                                   .n = out_,
                                   .k = g_.depth(),
                                   .b_transposed = true,
                                   .in = x_.dtype,
                                   .out = y_.dtype},
                                  common_alignment({columns(), weights(), y_}));
    });
  }
  void launch() override {
    lay_weights();
    for_chunks([&](int64_t first, int64_t count, int size) {
      unfold_images(x_, first, count);
      gemms_[size].launch(columns().data, weights().data, rows_of(y_, first));
    });
  }

 private:
  TensorView x_, y_;
  Gemm gemms_[2];
};

class UnfoldedConvBwd final : public Kernel, WindowProducts {
 public:
  UnfoldedConvBwd(CudaBackend& cuda, const Geometry& g, const Operands& io)
      : WindowProducts(cuda, g, io.in[Conv2dBwd::kWeight], io.in[Conv2dBwd::kX].shape[0]),
        dy_(io.in[Conv2dBwd::kDy]),
        x_(io.in[Conv2dBwd::kX]),
        dx_(io.out[Conv2dBwd::kDx]),
        dw_(operand(io.out, Conv2dBwd::kDweight)) {
    const size_t sums_at = layout_.take(static_cast<size_t>(out_) * g.depth() * sizeof(float));
    scratch_ = static_cast<std::byte*>(cuda.scratch(layout_.bytes));
    sums_ = matrix(sums_at, out_, DType::kF32);
    if (dx_)
      prepare_both(to_dx_, [&](int64_t rows) {
        return cuda.gemms().prepare(
            {.m = rows, .n = g_.depth(), .k = out_, .in = dy_.dtype, .out = w_.dtype},
            common_alignment({dy_, weights(), columns()}));
      });
    if (dw_)
      prepare_both(to_dw_, [&](int64_t rows) {
        return cuda.gemms().prepare({.m = out_,
                                     .n = g_.depth(),
                                     .k = rows,
                                     .a_transposed = true,
                                     .in = dy_.dtype,
                                     .out = DType::kF32,
                                     .accumulate = true},
                                    common_alignment({dy_, columns(), sums_}));
      });
  }

  void launch() override {
    if (dx_) lay_weights();
    if (dw_) check(cudaMemsetAsync(sums_.data, 0, sums_.bytes(), stream_), "clearing sums");
    for_chunks([&](int64_t first, int64_t count, int size) {
      const void* d = rows_of(dy_, first);
      if (dw_) {
        unfold_images(x_, first, count);
        to_dw_[size].launch(d, columns().data, sums_.data);
      }
      if (dx_) {
        to_dx_[size].launch(d, weights().data, columns().data);
        fold_images(first, count);
      }
    });
    if (!dw_) return;
    const int64_t n = dw_.shape.numel();
    add_relaid<<<blocks_for(n, kThreads), kThreads, 0, stream_>>>(sums_.f32(), dw_.f32(), g_, n);
  }

 private:
  void fold_images(int64_t first, int64_t count) const {
    const int64_t each = int64_t{g_.height} * g_.width * g_.channels;
    with_type(dx_.dtype, [&](auto type) {
      using T = decltype(type);
      T* to = static_cast<T*>(dx_.data) + first * each;
      const T* from = static_cast<const T*>(columns().data);
      constexpr int kWide = 16 / sizeof(T);
      const int64_t packs = count * each / (wide_fits(g_, dx_) ? kWide : 1);
      if (wide_fits(g_, dx_))
        fold<T, kWide><<<blocks_for(packs, kThreads), kThreads, 0, stream_>>>(from, to, g_, packs);
      else
        fold<T, 1><<<blocks_for(packs, kThreads), kThreads, 0, stream_>>>(from, to, g_, packs);
    });
  }

  TensorView dy_, x_, dx_, dw_, sums_;
  Gemm to_dx_[2], to_dw_[2];
};

TensorView as_matrix(TensorView w) {
  if (w) w.shape = {w.shape[0], w.shape[1]};
  return w;
}

// Of an image and its result, or their gradients.
ConvTask task_of(const TensorView& x, const TensorView& w, int64_t stride, int64_t padding,
                 std::initializer_list<TensorView> views) {
  ConvTask task{.images = x.shape[0],
                .height = x.shape[1],
                .width = x.shape[2],
                .channels = x.shape[3],
                .out = w.shape[0],
                .kernel = w.shape[2],
                .stride = stride,
                .padding = padding};
  for (const TensorView& view : views)
    if (view) {
      task.bf16 = task.bf16 && view.dtype == DType::kBF16;
      task.aligned = task.aligned && aligned16(view);
    }
  return task;
}

// One kernel after the other; either may be null.
KernelPtr both(KernelPtr a, KernelPtr b) {
  if (!a || !b) return a ? std::move(a) : std::move(b);
  return make_kernel(
      [first = std::shared_ptr<Kernel>(std::move(a)),
       second = std::shared_ptr<Kernel>(std::move(b))] { first->launch(), second->launch(); });
}

// The convolution alone.
KernelPtr product_of(CudaBackend& cuda, const ConvTask& task, const Operands& io) {
  const TensorView x = io.in[Conv2d::kX], w = io.in[Conv2d::kWeight], y = io.out[Conv2d::kY];
  if (task.pixel_by_pixel()) return lower(cuda, Linear{}, {{x, as_matrix(w), {}, {}}, {y}});
  const Geometry g = geometry_of(x.shape, y.shape, task.kernel, task.stride, task.padding);
  return named("unfold", std::make_unique<UnfoldedConv>(cuda, g, io));
}

}  // namespace

ConvTask conv_task(const Conv2d& op, const Operands& io) {
  const TensorView x = io.in[Conv2d::kX], w = io.in[Conv2d::kWeight];
  ConvTask task = task_of(x, w, op.stride, op.padding,
                          {x, w, io.out[Conv2d::kY], operand(io.in, Conv2d::kSkip)});
  task.followed = static_cast<bool>(operand(io.in, Conv2d::kNormWeight));
  return task;
}

// The norm of inference follows in the results' registers, or in place.
KernelPtr lower(CudaBackend& cuda, const Conv2d& op, const Operands& io) {
  const auto& [stride, padding, eps, act] = op;
  const TensorView y = io.out[Conv2d::kY], skip = operand(io.in, Conv2d::kSkip);
  const ConvTask task = conv_task(op, io);
  const bool normed = task.followed;
  const ConvKernel kernel = choose_conv(cuda.card(), task, ConvPass::kForward);
  if (kernel == ConvKernel::kTile) return lower_tile(cuda, op, task, io);
  if (kernel == ConvKernel::kLines) return lower_lines(cuda, op, task, io);
  if (kernel == ConvKernel::kSmallK) return lower_small_k(cuda, op, task, io);
  KernelPtr product = product_of(cuda, task, io);
  if (!normed) return product;
  return both(std::move(product), lower(cuda, FrozenBatchNorm{.eps = eps, .act = act},
                                        {{y, io.in[Conv2d::kNormWeight], io.in[Conv2d::kNormBias],
                                          io.in[Conv2d::kMean], io.in[Conv2d::kVar], skip},
                                         {y}}));
}

KernelPtr lower(CudaBackend& cuda, const Conv2dBwd& op, const Operands& io) {
  const auto& [stride, padding] = op;
  const TensorView dy = io.in[Conv2dBwd::kDy], x = io.in[Conv2dBwd::kX],
                   w = io.in[Conv2dBwd::kWeight];
  const ConvTask task = task_of(x, w, stride, padding, {dy, x, w, io.out[Conv2dBwd::kDx]});
  Operands rest = io;
  KernelPtr to_dx, to_dw, to_rest;
  const auto chosen = [&](ConvPass pass) { return choose_conv(cuda.card(), task, pass); };
  if (rest.out[Conv2dBwd::kDx] && chosen(ConvPass::kInputGradient) == ConvKernel::kTile)
    to_dx = lower_tile_input_gradient(cuda, task, io), rest.out[Conv2dBwd::kDx] = {};
  const ConvKernel for_dw = chosen(ConvPass::kWeightGradient);
  const bool boxes = for_dw == ConvKernel::kTile || for_dw == ConvKernel::kLines;
  if (operand(rest.out, Conv2dBwd::kDweight) && boxes) {
    to_dw = for_dw == ConvKernel::kTile ? lower_tile_weight_gradient(cuda, task, io)
                                        : lower_lines_weight_gradient(cuda, task, io);
    rest.out[Conv2dBwd::kDweight] = {};
  }
  const TensorView dx = rest.out[Conv2dBwd::kDx], dw = operand(rest.out, Conv2dBwd::kDweight);
  if (task.pixel_by_pixel() && (dx || dw))
    to_rest = lower(cuda, LinearBwd{}, {{dy, x, as_matrix(w), {}, {}}, {dx, as_matrix(dw), {}}});
  else if (dx || dw)
    to_rest = named("unfold",
                    std::make_unique<UnfoldedConvBwd>(
                        cuda, geometry_of(x.shape, dy.shape, task.kernel, stride, padding), rest));
  if (!to_dx && !to_dw) return to_rest ? std::move(to_rest) : make_kernel([] {});
  const char* const name = !to_rest                ? "tile"
                           : task.pixel_by_pixel() ? "tile, linear"
                                                   : "tile, unfold";
  return named(name, both(both(std::move(to_dw), std::move(to_dx)), std::move(to_rest)));
}

}  // namespace vitrum::cuda
