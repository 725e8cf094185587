#include <algorithm>
#include <cmath>

#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {
namespace {

// Which rows of (B, .., C) are of a sample that counts.
std::vector<bool> counted_rows(const Shape& shape, const TensorView& weight) {
  const auto rows = static_cast<size_t>(shape.rows());
  const Values w = read(weight);
  std::vector<bool> counted(rows, true);
  for (size_t r = 0; r < rows && !w.empty(); ++r) counted[r] = w[r / (rows / w.size())] > 0;
  return counted;
}

double count_of(const std::vector<bool>& counted) {
  return static_cast<double>(std::count(counted.begin(), counted.end(), true));
}

// act(norm(x) + skip), rounded where a graph of three ops has tensors.
void normalize(const Operands& io, const Values& x, const Values& mean, const Values& var,
               float eps, Act act, const TensorView& skip) {
  const Values w = read(io.in[1]), bias = read(io.in[2]), added = read(skip);
  const size_t c = w.size();
  Values y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t k = i % c;
    y[i] = (x[i] - mean[k]) / std::sqrt(var[k] + eps) * w[k] + bias[k];
    if (!added.empty()) y[i] = rounded(y[i], io.out[0].dtype) + added[i];
    y[i] = activate(act, rounded(y[i], io.out[0].dtype));
  }
  write(io.out[0], y);
}

}  // namespace

void run(const BatchNorm& op, const Operands& io) {
  const Values x = read(io.in[0]);
  const auto c = static_cast<size_t>(io.in[0].shape[-1]);
  const std::vector<bool> counted = counted_rows(io.in[0].shape, at(io.in, 3));
  const double n = count_of(counted);
  Values mean(c), var(c);
  for (size_t i = 0; i < x.size(); ++i)
    if (counted[i / c]) mean[i % c] += x[i] / n;
  for (size_t i = 0; i < x.size(); ++i)
    if (counted[i / c]) var[i % c] += (x[i] - mean[i % c]) * (x[i] - mean[i % c]) / n;
  if (io.out[0]) normalize(io, x, mean, var, op.eps, op.act, at(io.in, 4));
  write(at(io.out, 1), mean);
  write(at(io.out, 2), var);
}

void run(const FrozenBatchNorm& op, const Operands& io) {
  if (io.out[0])
    normalize(io, read(io.in[0]), read(io.in[3]), read(io.in[4]), op.eps, op.act, at(io.in, 5));
}

void run(const RunningStats& op, const Operands& io) {
  const Values weight = read(at(io.in, 2));
  const auto counted = std::count_if(weight.begin(), weight.end(), [](double w) { return w > 0; });
  const auto n = static_cast<double>((weight.empty() ? op.samples : counted) * op.positions);
  const auto move = [&](const TensorView& running, const Values& batch, double factor) {
    Values r = read(running);
    for (size_t i = 0; i < r.size(); ++i)
      r[i] = (1 - op.momentum) * r[i] + op.momentum * factor * batch[i];
    write(running, r);
  };
  move(io.out[0], read(io.in[0]), 1);
  move(at(io.out, 1), read(io.in[1]), n / std::max(n - 1, 1.0));
}

void run(const BatchNormBwd& op, const Operands& io) {
  Values d = read(io.in[0]);
  const Values x = read(io.in[1]), w = read(io.in[2]), mean = read(io.in[3]), var = read(io.in[4]);
  const Values y = read(at(io.in, 5));
  const size_t c = w.size();
  const std::vector<bool> counted = counted_rows(io.in[1].shape, at(io.in, 6));
  const double n = count_of(counted);
  if (op.act == Act::kRelu)
    for (size_t i = 0; i < d.size(); ++i) d[i] = y[i] > 0 ? d[i] : 0;
  write(at(io.out, 3), d);

  const auto rstd = [&](size_t k) { return 1 / std::sqrt(var[k] + op.eps); };
  Values dw(c), dbias(c), dx(d.size());
  for (size_t i = 0; i < d.size(); ++i)
    dbias[i % c] += d[i], dw[i % c] += d[i] * (x[i] - mean[i % c]) * rstd(i % c);
  // A sample that does not count is normalised by statistics that do not depend on it.
  for (size_t i = 0; i < d.size(); ++i) {
    const size_t k = i % c;
    const double through = (dbias[k] + (x[i] - mean[k]) * rstd(k) * dw[k]) / n;
    dx[i] = w[k] * rstd(k) * (d[i] - (counted[i / c] ? through : 0));
  }
  write(io.out[0], dx);
  add_to(at(io.out, 1), dw);
  add_to(at(io.out, 2), dbias);
}

}  // namespace vitrum::reference
