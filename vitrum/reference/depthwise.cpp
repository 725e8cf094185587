// Convolution of every channel with a window of its own.
#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {

// Calls use(element of the smaller image y, element of x, element of w) for every product, x's
// windows reaching `padding` pixels over its edges.
template <class Use>
static void for_products(const Shape& x, const Shape& y, int64_t kernel, int64_t padding,
                         const Use& use) {
  const int64_t channels = x[3];
  for (int64_t r = 0; r < y.rows(); ++r)
    for (int64_t ky = 0; ky < kernel; ++ky)
      for (int64_t kx = 0; kx < kernel; ++kx) {
        const int64_t image = r / (y[1] * y[2]), i = r / y[2] % y[1] + ky - padding,
                      j = r % y[2] + kx - padding;
        if (i < 0 || i >= x[1] || j < 0 || j >= x[2]) continue;
        const int64_t pixel = (image * x[1] + i) * x[2] + j;
        for (int64_t c = 0; c < channels; ++c)
          use(r * channels + c, pixel * channels + c, (c * kernel + ky) * kernel + kx);
      }
}

void run(const DepthwiseConv& op, const Operands& io) {
  const auto& [padding] = op;
  const TensorView x = io.in[DepthwiseConv::kX], w = io.in[DepthwiseConv::kWeight],
                   y = io.out[DepthwiseConv::kY];
  if (!y) return;
  const Values pixels = read(x), weights = read(w), bias = read(at(io.in, DepthwiseConv::kBias));
  Values sums(static_cast<size_t>(y.shape.numel()));
  for (size_t i = 0; i < sums.size() && !bias.empty(); ++i) sums[i] = bias[i % bias.size()];
  for_products(x.shape, y.shape, w.shape[2], padding, [&](int64_t to, int64_t from, int64_t by) {
    sums[to] += pixels[from] * weights[by];
  });
  write(y, sums);
}

void run(const DepthwiseConvBwd& op, const Operands& io) {
  const auto& [padding] = op;
  const TensorView dy = io.in[DepthwiseConvBwd::kDy], x = io.in[DepthwiseConvBwd::kX],
                   w = io.in[DepthwiseConvBwd::kWeight];
  const Values d = read(dy), pixels = read(x), weights = read(w);
  Values dx(pixels.size()), dw(weights.size());
  for_products(x.shape, dy.shape, w.shape[2], padding, [&](int64_t to, int64_t from, int64_t by) {
    dx[from] += d[to] * weights[by];
    dw[by] += d[to] * pixels[from];
  });
  write(io.out[DepthwiseConvBwd::kDx], dx);
  add_to(at(io.out, DepthwiseConvBwd::kDweight), dw);
  add_to(at(io.out, DepthwiseConvBwd::kDbias), sum_rows(d, dy.shape[3]));
}

}  // namespace vitrum::reference
