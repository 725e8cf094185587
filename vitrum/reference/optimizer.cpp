#include <algorithm>
#include <cmath>

#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {

void run(const ClipScale& op, const Operands& io) {
  double squares = 0;
  for (double g : read(io.in[0])) squares += g * g;
  const double norm = std::sqrt(squares);
  write(io.out[0], {norm, op.max_norm > 0 ? std::min(1.0, op.max_norm / (norm + 1e-6)) : 1.0});
}

namespace {

// The arenas of one step. Formulas are PyTorch's torch.optim.{SGD, Adam, AdamW}.
struct Step {
  const OptimizerStep& op;
  Values hyper, clip, g, p, m, v;

  void sgd(const Segment& s, size_t i) {
    double d = g[i] * clip[1] + s.decay * p[i];
    if (!m.empty()) d = m[i] = op.beta1 * m[i] + d;
    p[i] -= hyper[0] * s.lr_scale * d;
  }

  void adam(const Segment& s, size_t i) {
    const double beta1 = op.beta1, beta2 = op.beta2, lr = hyper[0] * s.lr_scale;
    double d = g[i] * clip[1];
    if (op.kind == OptimizerKind::kAdamW)
      p[i] *= 1 - lr * s.decay;
    else
      d += s.decay * p[i];
    m[i] = beta1 * m[i] + (1 - beta1) * d;
    v[i] = beta2 * v[i] + (1 - beta2) * d * d;
    const double denominator = std::sqrt(v[i]) / std::sqrt(hyper[2]) + op.eps;
    p[i] -= lr / hyper[1] * m[i] / denominator;
  }
};

}  // namespace

// Elements that belong to no segment (padding, frozen parameters) stay as they are.
void run(const OptimizerStep& op, const Operands& io) {
  const std::vector<TensorView>& out = io.out;
  Step step{op,           read(io.in[0]),   read(io.in[1]),  read(out[0]),
            read(out[1]), read(at(out, 2)), read(at(out, 3))};
  Values ema = read(at(out, 4)), copy = read(at(out, 5));
  const double average = step.hyper[3];
  for (const Segment& s : op.segments)
    for (auto i = static_cast<size_t>(s.offset); i < static_cast<size_t>(s.offset + s.size); ++i) {
      op.kind == OptimizerKind::kSgd ? step.sgd(s, i) : step.adam(s, i);
      step.g[i] = 0;
      if (!ema.empty()) ema[i] = average * ema[i] + (1 - average) * step.p[i];
      if (!copy.empty()) copy[i] = step.p[i];
    }
  const Values* results[] = {&step.g, &step.p, &step.m, &step.v, &ema, &copy};
  for (size_t i = 0; i < std::size(results); ++i) write(at(out, i), *results[i]);
}

}  // namespace vitrum::reference
