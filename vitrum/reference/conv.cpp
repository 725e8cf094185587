#include <algorithm>
#include <optional>

#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {
namespace {

// How the windows of one image-like tensor (B, H, W, C) lie over another.
struct Windows {
  Shape in, out;  // (B, H, W, ..)
  int64_t kernel, stride, padding;

  // The pixel of `in` (over all images) under place (ky, kx) of the window of pixel `r` of `out`.
  std::optional<int64_t> under(int64_t r, int64_t ky, int64_t kx) const {
    const int64_t b = r / (out[1] * out[2]), y = r / out[2] % out[1] * stride + ky - padding,
                  x = r % out[2] * stride + kx - padding;
    if (y < 0 || y >= in[1] || x < 0 || x >= in[2]) return std::nullopt;
    return (b * in[1] + y) * in[2] + x;
  }
};

// Every window as a row (K, K, C), zeros beyond the edges.
Values unfolded(const Windows& w, const Values& x, int64_t channels) {
  const int64_t rows = w.out.rows(), k = w.kernel;
  Values columns(static_cast<size_t>(rows * k * k * channels));
  double* to = columns.data();
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t ky = 0; ky < k; ++ky)
      for (int64_t kx = 0; kx < k; ++kx, to += channels)
        if (const auto pixel = w.under(r, ky, kx)) std::copy_n(&x[*pixel * channels], channels, to);
  return columns;
}

// (O, C, K, K) -> (O, K, K, C), or back.
Values channels_swapped(const Values& w, int64_t out, int64_t outer, int64_t inner) {
  Values swapped;
  for (int64_t o = 0; o < out; ++o) {
    const auto first = w.begin() + o * outer * inner;
    const Values one = transpose(Values(first, first + outer * inner), outer, inner);
    swapped.insert(swapped.end(), one.begin(), one.end());
  }
  return swapped;
}

}  // namespace

void run(const Conv2d& op, const Operands& io) {
  const auto& [stride, padding, eps, act] = op;
  const TensorView x = io.in[Conv2d::kX], w = io.in[Conv2d::kWeight], y = io.out[Conv2d::kY];
  if (!y) return;
  const int64_t out = w.shape[0], channels = w.shape[1], area = w.shape[2] * w.shape[3];
  const Windows windows{x.shape, y.shape, w.shape[2], stride, padding};
  const Values kernel = channels_swapped(read(w), out, channels, area);
  const Values columns = unfolded(windows, read(x), channels);
  write(y, matmul(columns, transpose(kernel, out, area * channels), y.shape.rows(), area * channels,
                  out));
  if (!at(io.in, Conv2d::kNormWeight)) return;
  const FrozenBatchNorm norm{.eps = eps, .act = act};
  run(norm, {{y, io.in[Conv2d::kNormWeight], io.in[Conv2d::kNormBias], io.in[Conv2d::kMean],
              io.in[Conv2d::kVar], at(io.in, Conv2d::kSkip)},
             {y}});
}

void run(const Conv2dBwd& op, const Operands& io) {
  const auto& [stride, padding] = op;
  const TensorView dy = io.in[Conv2dBwd::kDy], x = io.in[Conv2dBwd::kX],
                   w = io.in[Conv2dBwd::kWeight], dx = io.out[Conv2dBwd::kDx],
                   dw = at(io.out, Conv2dBwd::kDweight);
  const int64_t out = w.shape[0], channels = w.shape[1], k = w.shape[2], area = k * k;
  const int64_t rows = dy.shape.rows();
  const Windows windows{x.shape, dy.shape, k, stride, padding};
  const Values d = read(dy);
  if (dw) {
    const Values columns = unfolded(windows, read(x), channels);
    const Values product = matmul(transpose(d, rows, out), columns, out, rows, area * channels);
    add_to(dw, channels_swapped(product, out, area, channels));
  }
  if (!dx) return;
  const Values dcolumns =
      matmul(d, channels_swapped(read(w), out, channels, area), rows, out, area * channels);
  Values sum(static_cast<size_t>(x.shape.numel()));
  const double* from = dcolumns.data();
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t ky = 0; ky < k; ++ky)
      for (int64_t kx = 0; kx < k; ++kx, from += channels)
        if (const auto pixel = windows.under(r, ky, kx))
          for (int64_t c = 0; c < channels; ++c) sum[*pixel * channels + c] += from[c];
  write(dx, sum);
}

// use(row of y, channel, pixel of x): the first greatest value of every window.
template <class Use>
static void each_maximum(const Windows& windows, const Values& x, const Use& use) {
  const int64_t channels = windows.in[-1];
  for (int64_t r = 0; r < windows.out.rows(); ++r)
    for (int64_t c = 0; c < channels; ++c) {
      std::optional<int64_t> best;
      for (int64_t ky = 0; ky < windows.kernel; ++ky)
        for (int64_t kx = 0; kx < windows.kernel; ++kx)
          if (const auto pixel = windows.under(r, ky, kx))
            if (!best || x[*pixel * channels + c] > x[*best * channels + c]) best = pixel;
      use(r, c, *best);
    }
}

void run(const MaxPool& op, const Operands& io) {
  const auto& [kernel, stride, padding] = op;
  if (!io.out[MaxPool::kY]) return;
  const Values x = read(io.in[MaxPool::kX]);
  const Windows windows{io.in[MaxPool::kX].shape, io.out[MaxPool::kY].shape, kernel, stride,
                        padding};
  const int64_t channels = windows.in[-1];
  Values y(static_cast<size_t>(windows.out.numel()));
  each_maximum(windows, x, [&](int64_t r, int64_t c, int64_t pixel) {
    y[r * channels + c] = x[pixel * channels + c];
  });
  write(io.out[MaxPool::kY], y);
}

void run(const MaxPoolBwd& op, const Operands& io) {
  const auto& [kernel, stride, padding] = op;
  if (!io.out[MaxPoolBwd::kDx]) return;
  const Values dy = read(io.in[MaxPoolBwd::kDy]), x = read(io.in[MaxPoolBwd::kX]);
  const Windows windows{io.in[MaxPoolBwd::kX].shape, io.in[MaxPoolBwd::kDy].shape, kernel, stride,
                        padding};
  const int64_t channels = windows.in[-1];
  Values dx(x.size());
  each_maximum(windows, x, [&](int64_t r, int64_t c, int64_t pixel) {
    dx[pixel * channels + c] += dy[r * channels + c];
  });
  write(io.out[MaxPoolBwd::kDx], dx);
}

}  // namespace vitrum::reference
