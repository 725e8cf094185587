#include <algorithm>
#include <cmath>
#include <cstring>

#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {

void run(const ClipScale& op, const Operands& io) {
  const auto& [max_norm, of_sums] = op;
  double squares = 0;
  for (double g : read(io.in[ClipScale::kGradients])) squares += of_sums ? g : g * g;
  const double norm = std::sqrt(squares);
  write(io.out[ClipScale::kNorms],
        {norm, max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0});
}

void run(const BlockSquares& op, const Operands& io) {
  const auto& [segments] = op;
  const Values g = read(io.in[BlockSquares::kGradients]);
  Values sums;
  for (const Segment& s : segments)
    for (int64_t at = 0; at < s.size; ++at) {
      if (at % BlockSquares::kBlock == 0) sums.push_back(0);
      const double x = g[static_cast<size_t>(s.offset + at)];
      sums.back() += x * x;
    }
  write(io.out[BlockSquares::kSums], sums);
}

// In the precision of the gradients: a sum of two is the same wherever it is made.
template <class T>
static void fold(const Operands& io, T* gradients) {
  const TensorView sum = at(io.out, Fold::kSum);
  for (int64_t i = 0; i < io.out[Fold::kGradients].shape.numel(); ++i) {
    T x = gradients[i];
    for (const TensorView& left : io.in) x = static_cast<const T*>(left.data)[i] + x;
    gradients[i] = sum ? 0 : x;
    if (sum) static_cast<T*>(sum.data)[i] = x;
  }
}

void run(const NoAttributes<Fold>&, const Operands& io) {
  const TensorView& g = io.out[Fold::kGradients];
  return g.dtype == DType::kF64 ? fold(io, g.f64()) : fold(io, g.f32());
}

void run(const ClearRange& op, const Operands& io) {
  const auto& [first, count] = op;
  Values x = read(io.out[ClearRange::kX]);
  std::fill_n(x.begin() + first, count, 0.0);
  write(io.out[ClearRange::kX], x);
}

void run(const NoAttributes<Copy>&, const Operands& io) {
  const TensorView &x = io.in[Copy::kX], &y = io.out[Copy::kY];
  if (x.dtype == y.dtype)
    std::memcpy(y.data, x.data, x.bytes());
  else
    std::transform(x.f32(), x.f32() + x.shape.numel(), y.bf16(), to_bf16);
}

// The elements of a segment, as indices.
template <class Body>
static void each(const Segment& s, const Body& body) {
  for (int64_t i = s.offset; i < s.offset + s.size; ++i) body(static_cast<size_t>(i));
}

void run(const Perturb& op, const Operands& io) {
  const auto& [rho, segments] = op;
  const double scale = rho / (read(io.in[Perturb::kNorms])[0] + 1e-12);
  Values g = read(io.out[Perturb::kGradients]), p = read(io.out[Perturb::kParameters]),
         copy = read(at(io.out, Perturb::kCopy));
  for (const Segment& s : segments)
    each(s, [&](size_t i) {
      p[i] += scale * g[i], g[i] = 0;
      if (!copy.empty()) copy[i] = p[i];
    });
  write(io.out[Perturb::kGradients], g), write(io.out[Perturb::kParameters], p),
      write(at(io.out, Perturb::kCopy), copy);
}

namespace {

// The arenas of one step. Formulas are PyTorch's torch.optim.{SGD, Adam, AdamW, Muon} and timm's
// Lion and Lamb.
struct Step {
  const OptimizerStep& op;
  Values hyper, clip, g, p, m, v;

  double gradient(size_t i) const { return g[i] * (clip.empty() ? 1 : clip[1]); }
  double lr(const Segment& s) const { return hyper[0] * s.lr_scale; }

  void sgd(const Segment& s, size_t i) {
    const double d = gradient(i) + s.decay * p[i];
    double step = d;
    if (!m.empty()) step = m[i] = op.beta1 * m[i] + d;
    if (op.nesterov) step = d + op.beta1 * m[i];
    p[i] -= lr(s) * step;
  }

  void take_in(size_t i, double d) {
    m[i] = op.beta1 * m[i] + (1 - op.beta1) * d;
    v[i] = op.beta2 * v[i] + (1 - op.beta2) * d * d;
  }
  double adaptive(size_t i) const {
    return m[i] / hyper[1] / (std::sqrt(v[i]) / std::sqrt(hyper[2]) + op.eps);
  }
  void adam(const Segment& s, size_t i) {
    take_in(i, gradient(i) + s.decay * p[i]);
    p[i] -= lr(s) * adaptive(i);
  }
  void adamw(const Segment& s, size_t i) {
    p[i] *= 1 - lr(s) * s.decay;
    take_in(i, gradient(i));
    p[i] -= lr(s) * adaptive(i);
  }

  void lion(const Segment& s, size_t i) {
    p[i] *= 1 - lr(s) * s.decay;
    const double c = op.beta1 * m[i] + (1 - op.beta1) * gradient(i);
    p[i] -= lr(s) * (c > 0 ? 1 : c < 0 ? -1 : 0);
    m[i] = op.beta2 * m[i] + (1 - op.beta2) * gradient(i);
  }

  void muon(const Segment& s, size_t i) {
    p[i] = p[i] * (1 - lr(s) * s.decay) - lr(s) * gradient(i);
  }

  // Tensors that do not decay are not adapted either, as in timm.
  void lamb(const Segment& s) {
    const auto update = [&](size_t i) { return adaptive(i) + s.decay * p[i]; };
    double weights = 0, updates = 0;
    each(s, [&](size_t i) {
      take_in(i, gradient(i));
      weights += p[i] * p[i], updates += update(i) * update(i);
    });
    const bool adapts = s.decay != 0 && weights > 0 && updates > 0;
    const double trust = adapts ? std::sqrt(weights / updates) : 1;
    each(s, [&](size_t i) { p[i] -= lr(s) * trust * update(i); });
  }

  void run(const Segment& s) {
    switch (op.kind) {
      case OptimizerKind::kSgd: return each(s, [&](size_t i) { sgd(s, i); });
      case OptimizerKind::kAdam: return each(s, [&](size_t i) { adam(s, i); });
      case OptimizerKind::kAdamW: return each(s, [&](size_t i) { adamw(s, i); });
      case OptimizerKind::kLion: return each(s, [&](size_t i) { lion(s, i); });
      case OptimizerKind::kLamb: return lamb(s);
      case OptimizerKind::kMuon: return each(s, [&](size_t i) { muon(s, i); });
    }
  }
};

}  // namespace

// Elements that belong to no segment (padding, frozen parameters) stay as they are.
void run(const OptimizerStep& op, const Operands& io) {
  const auto& [kind, beta1, beta2, eps, nesterov, segments] = op;  // the others: Step
  const std::vector<TensorView>& out = io.out;
  Step step{op,
            read(io.in[OptimizerStep::kHyper]),
            read(at(io.in, OptimizerStep::kClip)),
            read(out[OptimizerStep::kGradients]),
            read(out[OptimizerStep::kParameters]),
            read(at(out, OptimizerStep::kMoment1)),
            read(at(out, OptimizerStep::kMoment2))};
  Values ema = read(at(out, OptimizerStep::kEma)), copy = read(at(out, OptimizerStep::kCopy));
  const double average = step.hyper[3];
  for (const Segment& s : segments) {
    step.run(s);
    each(s, [&](size_t i) {
      step.g[i] = 0;
      if (!ema.empty()) ema[i] = average * ema[i] + (1 - average) * step.p[i];
      if (!copy.empty()) copy[i] = step.p[i];
    });
  }
  const Values* results[] = {&step.g, &step.p, &step.m, &step.v, &ema, &copy};
  for (size_t i = 0; i < std::size(results); ++i) write(at(out, i), *results[i]);
}

}  // namespace vitrum::reference
