#include <algorithm>
#include <cmath>

#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {

// Class probabilities (B, K) to reach: one-hot labels or given ones, (1 - s) of them and s spread
// evenly.
static Values wanted(const TensorView& target, const Shape& logits, float smoothing) {
  const Values given = read(target);
  const int64_t classes = logits[1];
  Values t(static_cast<size_t>(logits.numel()));
  for (int64_t i = 0; i < logits.numel(); ++i) {
    const double full = target.dtype == DType::kI32
                            ? (given[i / classes] == static_cast<double>(i % classes) ? 1 : 0)
                            : given[i];
    t[i] = (1 - static_cast<double>(smoothing)) * full +
           static_cast<double>(smoothing) / static_cast<double>(classes);
  }
  return t;
}

void run(const CrossEntropy& op, const Operands& io) {
  const Shape& s = io.in[0].shape;
  const Values z = read(io.in[0]), weight = read(io.in[2]);
  const Values t = wanted(io.in[1], s, op.smoothing);
  Values lse(static_cast<size_t>(s[0]));
  double total = 0;
  for (int64_t b = 0; b < s[0]; ++b) {
    const double* row = &z[b * s[1]];
    const double top = *std::max_element(row, row + s[1]);
    double sum = 0, loss = 0;
    for (int64_t k = 0; k < s[1]; ++k) sum += std::exp(row[k] - top);
    lse[b] = top + std::log(sum);
    for (int64_t k = 0; k < s[1]; ++k) loss += t[b * s[1] + k] * (lse[b] - row[k]);
    total += weight[b] * loss;
  }
  write(io.out[0], {total});
  write(at(io.out, 1), lse);
}

void run(const CrossEntropyBwd& op, const Operands& io) {
  const Shape& s = io.in[0].shape;
  const Values z = read(io.in[0]), weight = read(io.in[2]), lse = read(io.in[3]);
  const Values t = wanted(io.in[1], s, op.smoothing);
  Values dz(z.size());
  for (int64_t b = 0; b < s[0]; ++b) {
    double mass = 0;  // 1, unless soft targets do not add up to it
    for (int64_t k = 0; k < s[1]; ++k) mass += t[b * s[1] + k];
    for (int64_t i = b * s[1]; i < (b + 1) * s[1]; ++i)
      dz[i] = weight[b] * (mass * std::exp(z[i] - lse[b]) - t[i]);
  }
  write(io.out[0], dz);
}

// The lowest index wins ties.
static int64_t argmax(const double* row, int64_t n) { return std::max_element(row, row + n) - row; }

void run(const TrainMetrics&, const Operands& io) {
  const Shape& s = io.in[1].shape;
  const Values loss = read(io.in[0]), z = read(io.in[1]), weight = read(io.in[3]);
  const Values t = wanted(io.in[2], s, /*smoothing=*/0);
  double correct = 0, images = 0;
  for (int64_t b = 0; b < s[0]; ++b) {
    if (!(weight[b] > 0)) continue;
    images += 1;
    correct += argmax(&z[b * s[1]], s[1]) == argmax(&t[b * s[1]], s[1]) ? 1 : 0;
  }
  add_to(io.out[0], {loss[0], correct, images});
}

}  // namespace vitrum::reference
