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

// act(norm(x) + skip) of either kind of norm, rounded where a graph of three ops has tensors.
template <class Norm>
void normalize(const Norm& op, const Operands& io, const Values& x, const Values& mean,
               const Values& var) {
  const auto& [eps, act] = op;
  const Values w = read(io.in[Norm::kWeight]), bias = read(io.in[Norm::kBias]),
               added = read(at(io.in, Norm::kSkip));
  const TensorView& out = io.out[Norm::kY];
  const size_t c = w.size();
  Values y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t k = i % c;
    y[i] = (x[i] - mean[k]) / std::sqrt(var[k] + eps) * w[k] + bias[k];
    if (!added.empty()) y[i] = rounded(y[i], out.dtype) + added[i];
    y[i] = activate(act, rounded(y[i], out.dtype));
  }
  write(out, y);
}

}  // namespace

void run(const BatchNorm& op, const Operands& io) {
  [[maybe_unused]] const auto& [eps, act] = op;
  const Values x = read(io.in[BatchNorm::kX]);
  const auto c = static_cast<size_t>(io.in[BatchNorm::kX].shape[-1]);
  const std::vector<bool> counted =
      counted_rows(io.in[BatchNorm::kX].shape, at(io.in, BatchNorm::kSampleWeight));
  const double n = count_of(counted);
  Values mean(c), var(c);
  for (size_t i = 0; i < x.size(); ++i)
    if (counted[i / c]) mean[i % c] += x[i] / n;
  for (size_t i = 0; i < x.size(); ++i)
    if (counted[i / c]) var[i % c] += (x[i] - mean[i % c]) * (x[i] - mean[i % c]) / n;
  if (io.out[BatchNorm::kY]) normalize(op, io, x, mean, var);
  write(at(io.out, BatchNorm::kMean), mean);
  write(at(io.out, BatchNorm::kVar), var);
}

void run(const FrozenBatchNorm& op, const Operands& io) {
  [[maybe_unused]] const auto& [eps, act] = op;
  if (io.out[FrozenBatchNorm::kY])
    normalize(op, io, read(io.in[FrozenBatchNorm::kX]), read(io.in[FrozenBatchNorm::kMean]),
              read(io.in[FrozenBatchNorm::kVar]));
}

void run(const RunningStats& op, const Operands& io) {
  const auto& [momentum, samples, positions] = op;
  const Values weight = read(at(io.in, RunningStats::kSampleWeight));
  const auto counted = std::count_if(weight.begin(), weight.end(), [](double w) { return w > 0; });
  const auto n = static_cast<double>((weight.empty() ? samples : counted) * positions);
  const auto move = [&, momentum = momentum](const TensorView& running, const Values& batch,
                                             double factor) {
    Values r = read(running);
    for (size_t i = 0; i < r.size(); ++i)
      r[i] = (1 - momentum) * r[i] + momentum * factor * batch[i];
    write(running, r);
  };
  move(io.out[RunningStats::kRunningMean], read(io.in[RunningStats::kMean]), 1);
  move(at(io.out, RunningStats::kRunningVar), read(io.in[RunningStats::kVar]),
       n / std::max(n - 1, 1.0));
}

void run(const BatchNormBwd& op, const Operands& io) {
  const auto& [eps, act] = op;
  Values d = read(io.in[BatchNormBwd::kDy]);
  const Values x = read(io.in[BatchNormBwd::kX]), w = read(io.in[BatchNormBwd::kWeight]),
               mean = read(io.in[BatchNormBwd::kMean]), var = read(io.in[BatchNormBwd::kVar]);
  const Values y = read(at(io.in, BatchNormBwd::kY));
  const size_t c = w.size();
  const std::vector<bool> counted =
      counted_rows(io.in[BatchNormBwd::kX].shape, at(io.in, BatchNormBwd::kSampleWeight));
  const double n = count_of(counted);
  if (act == Act::kRelu)
    for (size_t i = 0; i < d.size(); ++i) d[i] = y[i] > 0 ? d[i] : 0;
  write(at(io.out, BatchNormBwd::kDskip), d);

  const auto rstd = [&, eps = eps](size_t k) { return 1 / std::sqrt(var[k] + eps); };
  Values dw(c), dbias(c), dx(d.size());
  for (size_t i = 0; i < d.size(); ++i)
    dbias[i % c] += d[i], dw[i % c] += d[i] * (x[i] - mean[i % c]) * rstd(i % c);
  // A sample that does not count is normalised by statistics that do not depend on it.
  for (size_t i = 0; i < d.size(); ++i) {
    const size_t k = i % c;
    const double through = (dbias[k] + (x[i] - mean[k]) * rstd(k) * dw[k]) / n;
    dx[i] = w[k] * rstd(k) * (d[i] - (counted[i / c] ? through : 0));
  }
  write(io.out[BatchNormBwd::kDx], dx);
  add_to(at(io.out, BatchNormBwd::kDweight), dw);
  add_to(at(io.out, BatchNormBwd::kDbias), dbias);
}

}  // namespace vitrum::reference
