#include <algorithm>
#include <cmath>

#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {

// (B, K), K being all that an image has.
static Shape rows_of(const TensorView& logits) {
  const Shape& s = logits.shape;
  return {s[0], s.numel() / s[0]};
}

// What is to be reached, (B, K): one-hot labels or given probabilities, (1 - s) of them and s
// spread evenly; or the given values.
static Values wanted(const TensorView& target, const Shape& logits, const LossForm& form) {
  const Values given = read(target);
  if (form.kind == LossKind::kSquare) return given;
  const int64_t classes = logits[1];
  const auto s = static_cast<double>(form.smoothing);
  Values t(static_cast<size_t>(logits.numel()));
  for (int64_t i = 0; i < logits.numel(); ++i) {
    const double full = target.dtype == DType::kI32
                            ? (given[i / classes] == static_cast<double>(i % classes) ? 1 : 0)
                            : given[i];
    t[i] = form.kind == LossKind::kDivergence ? std::exp(full)
                                              : (1 - s) * full + s / static_cast<double>(classes);
  }
  return t;
}

static Values divided(Values x, float by) {
  for (double& v : x) v /= static_cast<double>(by);
  return x;
}

static double log_sum_exp(const double* row, int64_t n) {
  const double top = *std::max_element(row, row + n);
  double sum = 0;
  for (int64_t k = 0; k < n; ++k) sum += std::exp(row[k] - top);
  return top + std::log(sum);
}

static double binary_loss(double z, double t) {
  return std::max(z, 0.0) - z * t + std::log1p(std::exp(-std::abs(z)));
}

void run(const CrossEntropy& op, const Operands& io) {
  const auto& [form] = op;
  const Shape s = rows_of(io.in[CrossEntropy::kLogits]);
  const Values z = divided(read(io.in[CrossEntropy::kLogits]),
                           has_softmax(form.kind) ? form.tau : 1),
               weight = read(io.in[CrossEntropy::kSampleWeight]);
  const Values t = wanted(io.in[CrossEntropy::kTarget], s, form),
               given = read(io.in[CrossEntropy::kTarget]);
  Values lse(static_cast<size_t>(s[0]));
  double total = 0;
  for (int64_t b = 0; b < s[0]; ++b) {
    lse[b] = log_sum_exp(&z[b * s[1]], s[1]);
    double loss = 0;
    for (int64_t i = b * s[1]; i < (b + 1) * s[1]; ++i) {
      if (form.kind == LossKind::kBinary)
        loss += binary_loss(z[i], t[i]) / static_cast<double>(s[1]);
      else if (form.kind == LossKind::kSquare)
        loss += (z[i] - t[i]) * (z[i] - t[i]) / static_cast<double>(s[1]);
      else
        loss += t[i] * (lse[b] - z[i]);
      if (form.kind == LossKind::kDivergence && t[i] > 0) loss += t[i] * given[i];
    }
    total += weight[b] * static_cast<double>(form.scale) * loss;
  }
  write(io.out[CrossEntropy::kLoss], {total});
  write(at(io.out, CrossEntropy::kLse), lse);
}

void run(const CrossEntropyBwd& op, const Operands& io) {
  const auto& [form] = op;
  const Shape s = rows_of(io.in[CrossEntropyBwd::kLogits]);
  const bool softmax = has_softmax(form.kind);
  const double slope = static_cast<double>(form.scale) /
                       (softmax ? static_cast<double>(form.tau) : static_cast<double>(s[1]));
  const Values z = divided(read(io.in[CrossEntropyBwd::kLogits]), softmax ? form.tau : 1),
               weight = read(io.in[CrossEntropyBwd::kSampleWeight]);
  const Values lse = read(at(io.in, CrossEntropyBwd::kLse)),
               t = wanted(io.in[CrossEntropyBwd::kTarget], s, form);
  Values dz(z.size());
  for (int64_t b = 0; b < s[0]; ++b) {
    double mass = 0;  // 1, unless soft targets do not add up to it
    for (int64_t k = 0; k < s[1]; ++k) mass += t[b * s[1] + k];
    for (int64_t i = b * s[1]; i < (b + 1) * s[1]; ++i) {
      if (form.kind == LossKind::kSquare)
        dz[i] = weight[b] * slope * 2 * (z[i] - t[i]);
      else if (form.kind == LossKind::kBinary)
        dz[i] = weight[b] * slope * (1 / (1 + std::exp(-z[i])) - t[i]);
      else
        dz[i] = weight[b] * slope * (mass * std::exp(z[i] - lse[b]) - t[i]);
    }
  }
  write(io.out[CrossEntropyBwd::kDlogits], dz);
}

// The lowest index wins ties.
static int64_t argmax(const double* row, int64_t n) { return std::max_element(row, row + n) - row; }

void run(const NoAttributes<Argmax>&, const Operands& io) {
  const Shape& s = io.in[Argmax::kX].shape;
  const Values x = read(io.in[Argmax::kX]);
  Values best(static_cast<size_t>(s[0]));
  for (int64_t b = 0; b < s[0]; ++b) best[b] = static_cast<double>(argmax(&x[b * s[1]], s[1]));
  write(io.out[Argmax::kY], best);
}

void run(const LogSoftmax& op, const Operands& io) {
  const auto& [tau] = op;
  const Shape& s = io.in[LogSoftmax::kX].shape;
  Values x = divided(read(io.in[LogSoftmax::kX]), tau);
  for (int64_t b = 0; b < s[0]; ++b) {
    const double lse = log_sum_exp(&x[b * s[1]], s[1]);
    for (int64_t k = 0; k < s[1]; ++k) x[b * s[1] + k] -= lse;
  }
  write(io.out[LogSoftmax::kY], x);
}

void run(const NoAttributes<TrainMetrics>&, const Operands& io) {
  const TensorView logits = io.in[TrainMetrics::kLogits];
  const Values loss = read(io.in[TrainMetrics::kLoss]), z = read(logits),
               weight = read(io.in[TrainMetrics::kSampleWeight]);
  const int64_t classes = logits ? logits.shape[1] : 0;
  const Values t = logits ? wanted(io.in[TrainMetrics::kTarget], logits.shape, {}) : Values();
  double correct = 0, images = 0;
  for (size_t b = 0; b < weight.size(); ++b) {
    if (!(weight[b] > 0)) continue;
    images += 1;
    const int64_t at = static_cast<int64_t>(b) * classes;
    correct += logits && argmax(&z[at], classes) == argmax(&t[at], classes) ? 1 : 0;
  }
  add_to(io.out[TrainMetrics::kSums], {loss[0], correct, images});
}

}  // namespace vitrum::reference
