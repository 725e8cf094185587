#include <cmath>

#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {

// Normalises rows of `x` by their mean and biased variance (two passes). io.out[first..]: y, mean,
// rstd.
static void layer_norm(const Values& x, const Values& w, const Values& bias, float eps,
                       const Operands& io, size_t first) {
  const size_t c = w.size(), rows = x.size() / c;
  Values y(x.size()), means(rows), rstds(rows);
  for (size_t r = 0; r < rows; ++r) {
    const double* row = &x[r * c];
    double sum = 0, squares = 0;
    for (size_t i = 0; i < c; ++i) sum += row[i];
    const double mean = means[r] = sum / static_cast<double>(c);
    for (size_t i = 0; i < c; ++i) squares += (row[i] - mean) * (row[i] - mean);
    const double rstd = rstds[r] = 1 / std::sqrt(squares / static_cast<double>(c) + eps);
    for (size_t i = 0; i < c; ++i)
      y[r * c + i] = (row[i] - mean) * rstd * w[i] + (bias.empty() ? 0 : bias[i]);
  }
  write(at(io.out, first), y);
  write(at(io.out, first + 1), means);
  write(at(io.out, first + 2), rstds);
}

void run(const LayerNorm& op, const Operands& io) {
  const auto& [eps] = op;
  layer_norm(read(io.in[LayerNorm::kX]), read(io.in[LayerNorm::kWeight]),
             read(at(io.in, LayerNorm::kBias)), eps, io, LayerNorm::kY);
}

void run(const AddLayerNorm& op, const Operands& io) {
  const auto& [eps] = op;
  Values sum = read(io.in[AddLayerNorm::kA]);
  const Values b = read(io.in[AddLayerNorm::kB]);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  round_all(sum, io.out[AddLayerNorm::kSum] ? io.out[AddLayerNorm::kSum].dtype
                                            : io.in[AddLayerNorm::kA].dtype);
  write(io.out[AddLayerNorm::kSum], sum);
  layer_norm(sum, read(io.in[AddLayerNorm::kWeight]), read(at(io.in, AddLayerNorm::kBias)), eps, io,
             AddLayerNorm::kY);
}

void run(const NoAttributes<LayerNormBwd>&, const Operands& io) {
  const Values dy = read(io.in[LayerNormBwd::kDy]), x = read(io.in[LayerNormBwd::kX]),
               w = read(io.in[LayerNormBwd::kWeight]);
  const Values mean = read(io.in[LayerNormBwd::kMean]), rstd = read(io.in[LayerNormBwd::kRstd]),
               dskip = read(at(io.in, LayerNormBwd::kDskip));
  const size_t c = w.size(), rows = mean.size();
  Values dx(x.size()), dw(c), dbias(c);
  for (size_t r = 0; r < rows; ++r) {
    const auto hat = [&](size_t i) { return (x[r * c + i] - mean[r]) * rstd[r]; };
    double sum = 0, sum_hat = 0;  // of the gradient, and of the gradient times the normalised input
    for (size_t i = 0; i < c; ++i) {
      const double g = dy[r * c + i];
      dw[i] += g * hat(i), dbias[i] += g;
      sum += g * w[i], sum_hat += g * w[i] * hat(i);
    }
    for (size_t i = 0; i < c; ++i)
      dx[r * c + i] =
          rstd[r] * (dy[r * c + i] * w[i] - (sum + hat(i) * sum_hat) / static_cast<double>(c));
  }
  if (!dskip.empty()) {
    round_all(dx, io.out[LayerNormBwd::kDx].dtype);
    for (size_t i = 0; i < dx.size(); ++i) dx[i] += dskip[i];
  }
  write(io.out[LayerNormBwd::kDx], dx);
  add_to(at(io.out, LayerNormBwd::kDweight), dw);
  add_to(at(io.out, LayerNormBwd::kDbias), dbias);
}

}  // namespace vitrum::reference
