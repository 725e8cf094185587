// The backward pass of a convolution whose windows are one pixel: that of a linear layer.
#include <cstring>

#include "vitrum/cpu/conv.h"

namespace vitrum::cpu {
namespace {

TensorView as_matrix(TensorView w) {
  if (w) w.shape = {w.shape[0], w.shape[1]};
  return w;
}

KernelPtr lower_linear(CpuBackend& cpu, const TensorView& dy, const TensorView& x,
                       const TensorView& dx, const Operands& io) {
  return lower(cpu, LinearBwd{},
               {{dy, x, as_matrix(io.in[Conv2dBwd::kWeight]), {}, {}},
                {dx, as_matrix(operand(io.out, Conv2dBwd::kDweight)), {}}});
}

// The same where windows are some pixels apart: those that they see are copied together, and their
// gradients back.
class SparsePixelsKernel final : public Kernel {
 public:
  SparsePixelsKernel(CpuBackend& cpu, const Conv2dBwd& op, const Operands& io)
      : cpu_(cpu),
        stride_(op.stride),
        seen_(io.in[Conv2dBwd::kDy].shape),
        x_(io.in[Conv2dBwd::kX]),
        dx_(io.out[Conv2dBwd::kDx]),
        bytes_(static_cast<size_t>(x_.shape[3]) * size_of(x_.dtype)),
        near_x_(allocate_host(static_cast<size_t>(seen_.rows()) * bytes_)),
        near_dx_(allocate_host(dx_ ? near_x_.size() : 0)) {
    const Shape near{seen_[0], seen_[1], seen_[2], x_.shape[3]};
    gradient_ = lower_linear(cpu, io.in[Conv2dBwd::kDy], {near_x_.data(), near, x_.dtype},
                             dx_ ? TensorView{near_dx_.data(), near, dx_.dtype} : TensorView{}, io);
  }

  void launch() override {
    const auto lines = seen_[0] * seen_[1];
    cpu_.pool().run(lines, [&](int64_t line, int) {
      for (int64_t j = 0; j < seen_[2]; ++j)
        std::memcpy(near(near_x_, line, j), far(x_, line, j), bytes_);
    });
    gradient_->launch();
    if (!dx_) return;
    // Lines of dx, most of which no window sees.
    cpu_.pool().run(dx_.shape[0] * dx_.shape[1], [&](int64_t line, int) {
      const int64_t image = line / dx_.shape[1], i = line % dx_.shape[1];
      const size_t width = static_cast<size_t>(dx_.shape[2]) * bytes_;
      std::memset(static_cast<std::byte*>(dx_.data) + static_cast<size_t>(line) * width, 0, width);
      if (i % stride_ != 0 || i / stride_ >= seen_[1]) return;
      const int64_t from = image * seen_[1] + i / stride_;
      for (int64_t j = 0; j < seen_[2]; ++j)
        std::memcpy(far(dx_, from, j), near(near_dx_, from, j), bytes_);
    });
  }

 private:
  // Pixel j of a line (image, i) of what windows see: among those, and in the whole image.
  std::byte* near(const Buffer& pixels, int64_t line, int64_t j) const {
    return pixels.data() + static_cast<size_t>(line * seen_[2] + j) * bytes_;
  }
  std::byte* far(const TensorView& image, int64_t line, int64_t j) const {
    const int64_t b = line / seen_[1], i = line % seen_[1] * stride_;
    return static_cast<std::byte*>(image.data) +
           static_cast<size_t>((b * image.shape[1] + i) * image.shape[2] + j * stride_) * bytes_;
  }

  CpuBackend& cpu_;
  int64_t stride_;
  Shape seen_;  // of dy
  TensorView x_, dx_;
  size_t bytes_;  // of a pixel
  Buffer near_x_, near_dx_;
  KernelPtr gradient_;
};

}  // namespace

KernelPtr lower_pixels(CpuBackend& cpu, const Conv2dBwd& op, const Operands& io) {
  const auto& [stride, padding] = op;
  if (stride != 1) return std::make_unique<SparsePixelsKernel>(cpu, op, io);
  return lower_linear(cpu, io.in[Conv2dBwd::kDy], io.in[Conv2dBwd::kX], io.out[Conv2dBwd::kDx], io);
}

}  // namespace vitrum::cpu
