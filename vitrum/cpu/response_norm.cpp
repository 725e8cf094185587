// The norm of a channel by its length over an image. Its loops are those of batch norm, an image
// at a time.
#include <cmath>

#include "vitrum/cpu/backend.h"
#include "vitrum/cpu/simd/conv.h"

namespace vitrum::cpu {
namespace {

// Images of `rows` rows each, cut into chunks of rows whose sums are made apart and added in order.
struct ImageRows {
  int64_t images, rows, width;
  Chunks chunks;

  explicit ImageRows(const Shape& x)
      : images(x[0]),
        rows(x.rows() / x[0]),
        width(x[-1]),
        chunks{rows, std::clamp<int64_t>((1 << 15) / width, 16, 512)} {}
  // body(first row, last row, chunk of all images, image)
  template <class Body>
  void for_each(CpuBackend& cpu, const Body& body) const {
    const int64_t count = chunks.count();
    cpu.pool().run(images * count, [&](int64_t i, int) {
      const int64_t image = i / count, first = image * rows;
      body(first + chunks.first(i % count), first + chunks.last(i % count), i, image);
    });
  }
  size_t floats(int64_t each) const { return static_cast<size_t>(images * each * width); }
};

class ResponseNormKernel final : public Kernel {
 public:
  ResponseNormKernel(CpuBackend& cpu, float eps, const Operands& io)
      : cpu_(cpu),
        eps_(eps),
        x_(cpu::floats(io.in[ResponseNorm::kX])),
        y_(cpu::floats(io.out[ResponseNorm::kY])),
        w_(f32_only(io.in[ResponseNorm::kWeight])),
        bias_(f32_only(io.in[ResponseNorm::kBias])),
        length_out_(f32_only(operand(io.out, ResponseNorm::kLength))),
        of_(io.in[ResponseNorm::kX].shape),
        zero_(static_cast<size_t>(of_.width)),
        factor_(of_.floats(1)),
        length_(of_.floats(1)) {
    cpu.reserve_shared(of_.floats(2 * of_.chunks.count()) * sizeof(float));
  }

  void launch() override {
    const int64_t width = of_.width;
    auto* sums = reinterpret_cast<float*>(cpu_.shared_scratch());
    of_.for_each(cpu_, [&](int64_t first, int64_t last, int64_t chunk, int64_t) {
      float* mine = sums + chunk * 2 * width;
      std::fill_n(mine, 2 * width, 0.f);
      cpu_.simd().batch_norm->moments(x_, width, zero_.data(), first, last, mine, mine + width);
    });
    cpu_.pool().run(of_.images, [&](int64_t image, int) { measure(image, sums); });
    if (length_out_) std::copy(length_.begin(), length_.end(), length_out_);
    if (!y_.data) return;
    of_.for_each(cpu_, [&](int64_t first, int64_t last, int64_t, int64_t image) {
      const ChannelNormArgs args{.y = y_,
                                 .skip = {},
                                 .scale = factor_.data() + image * width,
                                 .shift = bias_,
                                 .act = Act::kNone,
                                 .width = width};
      cpu_.simd().batch_norm->apply(args, x_, first, last);
    });
  }

 private:
  void measure(int64_t image, const float* sums) {
    const int64_t width = of_.width, count = of_.chunks.count();
    float *length = length_.data() + image * width, *factor = factor_.data() + image * width;
    std::fill_n(length, width, 0.f);
    cpu_.simd().elementwise->accumulate(length, sums + image * count * 2 * width + width, count,
                                        2 * width, width);
    double total = 0;
    for (int64_t c = 0; c < width; ++c)
      length[c] = std::sqrt(length[c]), total += static_cast<double>(length[c]);
    const double mean = total / static_cast<double>(width) + static_cast<double>(eps_);
    for (int64_t c = 0; c < width; ++c)
      factor[c] = static_cast<float>(1 + static_cast<double>(w_[c]) * length[c] / mean);
  }

  CpuBackend& cpu_;
  float eps_;
  Array x_, y_;
  const float *w_, *bias_;
  float* length_out_;
  ImageRows of_;
  std::vector<float> zero_, factor_, length_;
};

class ResponseNormBwdKernel final : public Kernel {
 public:
  ResponseNormBwdKernel(CpuBackend& cpu, float eps, const Operands& io)
      : cpu_(cpu),
        eps_(eps),
        w_(f32_only(io.in[ResponseNormBwd::kWeight])),
        length_(f32_only(io.in[ResponseNormBwd::kLength])),
        dw_(f32_only(operand(io.out, ResponseNormBwd::kDweight))),
        dbias_(f32_only(operand(io.out, ResponseNormBwd::kDbias))),
        of_(io.in[ResponseNormBwd::kX].shape),
        zero_(static_cast<size_t>(of_.width)),
        scale_(of_.floats(1)),
        slope_(of_.floats(1)),
        sum_(of_.floats(1)),
        product_(of_.floats(1)),
        args_{.dy = cpu::floats(io.in[ResponseNormBwd::kDy]),
              .x = cpu::floats(io.in[ResponseNormBwd::kX]),
              .y = {},
              .dx = cpu::floats(io.out[ResponseNormBwd::kDx]),
              .dskip = {},
              .mean = zero_.data(),
              .scale = nullptr,
              .offset = zero_.data(),
              .slope = nullptr,
              .width = of_.width} {
    cpu.reserve_shared(of_.floats(2 * of_.chunks.count()) * sizeof(float));
  }

  void launch() override {
    const int64_t width = of_.width;
    auto* sums = reinterpret_cast<float*>(cpu_.shared_scratch());
    of_.for_each(cpu_, [&](int64_t first, int64_t last, int64_t chunk, int64_t) {
      float* mine = sums + chunk * 2 * width;
      std::fill_n(mine, 2 * width, 0.f);
      cpu_.simd().batch_norm->moments_bwd(args_, first, last, mine, mine + width);
    });
    cpu_.pool().run(of_.images, [&](int64_t image, int) { measure(image, sums); });
    const auto accumulate = cpu_.simd().elementwise->accumulate;
    if (dbias_) accumulate(dbias_, sum_.data(), of_.images, width, width);
    if (args_.dx.data)
      of_.for_each(cpu_, [&](int64_t first, int64_t last, int64_t, int64_t image) {
        BatchNormBwdArgs args = args_;
        args.scale = scale_.data() + image * width, args.slope = slope_.data() + image * width;
        cpu_.simd().batch_norm->apply_bwd(args, /*counted=*/true, first, last);
      });
    if (dw_) accumulate(dw_, product_.data(), of_.images, width, width);
  }

 private:
  // From the sums of an image's dy and dy x: what is multiplied with dy and (taken off) with x, and
  // the gradient of w.
  void measure(int64_t image, const float* sums) {
    const int64_t width = of_.width, count = of_.chunks.count(), at = image * width;
    const float *parts = sums + 2 * at * count, *length = length_ + at;
    float *sum = sum_.data() + at, *product = product_.data() + at;
    std::fill_n(sum, width, 0.f), std::fill_n(product, width, 0.f);
    const auto accumulate = cpu_.simd().elementwise->accumulate;
    accumulate(sum, parts, count, 2 * width, width);
    accumulate(product, parts + width, count, 2 * width, width);
    double total = 0, shared = 0;
    for (int64_t c = 0; c < width; ++c) {
      total += static_cast<double>(length[c]);
      shared += static_cast<double>(w_[c]) * product[c] * length[c];
    }
    const double n = static_cast<double>(width), mean = total / n + static_cast<double>(eps_);
    shared /= mean * mean * n;
    for (int64_t c = 0; c < width; ++c) {
      const double w = w_[c], g = length[c], of_length = w * product[c] / mean - shared;
      scale_[static_cast<size_t>(at + c)] = static_cast<float>(1 + w * g / mean);
      slope_[static_cast<size_t>(at + c)] = g > 0 ? static_cast<float>(-of_length / g) : 0;
      product[c] = static_cast<float>(product[c] * g / mean);
    }
  }

  CpuBackend& cpu_;
  float eps_;
  const float *w_, *length_;
  float *dw_, *dbias_;
  ImageRows of_;
  std::vector<float> zero_, scale_, slope_, sum_, product_;
  BatchNormBwdArgs args_;
};

}  // namespace

KernelPtr lower(CpuBackend& cpu, const ResponseNorm& op, const Operands& io) {
  const auto& [eps] = op;
  return std::make_unique<ResponseNormKernel>(cpu, eps, io);
}

KernelPtr lower(CpuBackend& cpu, const ResponseNormBwd& op, const Operands& io) {
  const auto& [eps] = op;
  return std::make_unique<ResponseNormBwdKernel>(cpu, eps, io);
}

}  // namespace vitrum::cpu
