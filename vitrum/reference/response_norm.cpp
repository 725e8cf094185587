// The norm of a channel by its length over an image.
#include <cmath>

#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {
namespace {

// Images of `rows` rows of `channels` values each.
struct Images {
  int64_t count, rows, channels;
  explicit Images(const Shape& x) : count(x[0]), rows(x.rows() / x[0]), channels(x[-1]) {}
  // use(element of x, element of (B, C), channel)
  template <class Use>
  void for_each(const Use& use) const {
    for (int64_t b = 0; b < count; ++b)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < channels; ++c)
          use((b * rows + r) * channels + c, b * channels + c, c);
  }
  // The mean length of each image's channels.
  Values means(const Values& length) const {
    Values m(static_cast<size_t>(count));
    for (int64_t i = 0; i < count * channels; ++i)
      m[i / channels] += length[i] / static_cast<double>(channels);
    return m;
  }
};

}  // namespace

void run(const ResponseNorm& op, const Operands& io) {
  const auto& [eps] = op;
  const Images images(io.in[ResponseNorm::kX].shape);
  const Values x = read(io.in[ResponseNorm::kX]), w = read(io.in[ResponseNorm::kWeight]),
               bias = read(io.in[ResponseNorm::kBias]);
  Values length(static_cast<size_t>(images.count * images.channels)), y(x.size());
  images.for_each([&](int64_t i, int64_t channel, int64_t) { length[channel] += x[i] * x[i]; });
  for (double& g : length) g = std::sqrt(g);
  const Values mean = images.means(length);
  images.for_each([&](int64_t i, int64_t channel, int64_t c) {
    const double n = length[channel] / (mean[channel / images.channels] + static_cast<double>(eps));
    y[i] = x[i] * (1 + w[c] * n) + bias[c];
  });
  write(io.out[ResponseNorm::kY], y);
  write(at(io.out, ResponseNorm::kLength), length);
}

// With m = mean + eps and dn = w sum(dy x): the gradient of a length is dn / m less its share of
// what the mean takes, and a length's own gradient is x / length.
void run(const ResponseNormBwd& op, const Operands& io) {
  const auto& [eps] = op;
  const Images images(io.in[ResponseNormBwd::kX].shape);
  const int64_t channels = images.channels;
  const Values dy = read(io.in[ResponseNormBwd::kDy]), x = read(io.in[ResponseNormBwd::kX]),
               w = read(io.in[ResponseNormBwd::kWeight]),
               length = read(io.in[ResponseNormBwd::kLength]);
  Values mean = images.means(length), product(length.size()), shared(mean.size());
  for (double& m : mean) m += static_cast<double>(eps);
  images.for_each([&](int64_t i, int64_t channel, int64_t) { product[channel] += dy[i] * x[i]; });
  Values dw(static_cast<size_t>(channels)), dx(x.size());
  for (int64_t i = 0; i < images.count * channels; ++i) {
    const double m = mean[i / channels];
    dw[i % channels] += product[i] * length[i] / m;
    shared[i / channels] +=
        w[i % channels] * product[i] * length[i] / (m * m * static_cast<double>(channels));
  }
  images.for_each([&](int64_t i, int64_t channel, int64_t c) {
    const double g = length[channel], m = mean[channel / channels];
    const double dg = w[c] * product[channel] / m - shared[channel / channels];
    dx[i] = dy[i] * (1 + w[c] * g / m) + (g > 0 ? dg * x[i] / g : 0);
  });
  write(io.out[ResponseNormBwd::kDx], dx);
  add_to(at(io.out, ResponseNormBwd::kDweight), dw);
  add_to(at(io.out, ResponseNormBwd::kDbias), sum_rows(dy, channels));
}

}  // namespace vitrum::reference
