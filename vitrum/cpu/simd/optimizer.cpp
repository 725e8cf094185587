// The update of a range of an arena in one pass over its arrays: clip, decay, moments, parameter,
// EMA, bf16 copy, cleared gradient. Formulas and their order are PyTorch's.
#include "vitrum/cpu/simd/arrays.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

// Short f32 sums, added up in f64.
double sum_squares(const float* x, int64_t count) {
  constexpr int64_t kBlock = 1024;
  double total = 0;
  for (int64_t at = 0; at < count; at += kBlock) {
    const float* p = x + at;
    total += static_cast<double>(
        sum_lanes(count - at < kBlock ? count - at : kBlock, [&](int64_t i, auto n) {
          const Vf v = load(p + i, n);
          return v * v;
        }));
  }
  return total;
}

struct Rates {
  Vf clip, beta1, rest1, beta2, rest2, eps, root2;  // root2: 1 / sqrt(correction2)
  Vf step, decay, shrink, ema, ema_rest;
};

VITRUM_LANES Rates rates(const OptimizerArgs& g, float lr_scale, float decay) {
  const double lr = static_cast<double>(g.lr) * static_cast<double>(lr_scale);
  const bool adam = g.kind != OptimizerKind::kSgd;
  const auto narrow = [](double x) { return splat(static_cast<float>(x)); };
  return {.clip = splat(g.clip),
          .beta1 = splat(g.beta1),
          .rest1 = splat(g.rest1),
          .beta2 = splat(g.beta2),
          .rest2 = splat(g.rest2),
          .eps = splat(g.eps),
          .root2 = narrow(1.0 / __builtin_sqrt(static_cast<double>(g.correction2))),
          .step = narrow(adam ? lr / static_cast<double>(g.correction1) : lr),
          .decay = splat(decay),
          .shrink = narrow(1.0 - lr * static_cast<double>(decay)),
          .ema = splat(g.ema_decay),
          .ema_rest = narrow(1.0 - static_cast<double>(g.ema_decay))};
}

template <OptimizerKind kKind>
VITRUM_LANES void step_range(const OptimizerArgs& g, const Rates& k, int64_t first, int64_t last) {
  for_lanes(first, last, [&](int64_t i, auto n) {
    Vf d = load(g.gradient + i, n) * k.clip, p = load(g.param + i, n);
    if constexpr (kKind == OptimizerKind::kAdamW)
      p = p * k.shrink;
    else
      d = fma(k.decay, p, d);
    if constexpr (kKind == OptimizerKind::kSgd) {
      if (g.first) d = fma(k.beta1, load(g.first + i, n), d), store(g.first + i, d, n);
    } else {
      const Vf m = fma(k.beta1, load(g.first + i, n), k.rest1 * d);
      const Vf v = fma(k.beta2, load(g.second + i, n), k.rest2 * d * d);
      store(g.first + i, m, n), store(g.second + i, v, n);
      d = m / fma(sqrt(v), k.root2, k.eps);
    }
    p = fnma(k.step, d, p);
    store(g.param + i, p, n);
    store(g.gradient + i, zero(), n);
    if (g.ema) store(g.ema + i, fma(k.ema, load(g.ema + i, n), k.ema_rest * p), n);
    if (g.compute) store(g.compute + i, p, n);
  });
}

void step(const OptimizerArgs& g, float lr_scale, float decay, int64_t first, int64_t last) {
  const Rates k = rates(g, lr_scale, decay);
  switch (g.kind) {
    case OptimizerKind::kSgd: return step_range<OptimizerKind::kSgd>(g, k, first, last);
    case OptimizerKind::kAdam: return step_range<OptimizerKind::kAdam>(g, k, first, last);
    case OptimizerKind::kAdamW: return step_range<OptimizerKind::kAdamW>(g, k, first, last);
  }
}

}  // namespace

constinit const OptimizerKernels kOptimizer = {.sum_squares = sum_squares, .step = step};

}  // namespace vitrum::cpu::VITRUM_ISA
