// The update of a range of an arena in one pass over its arrays: clip, decay, moments, parameter,
// EMA, bf16 copy, cleared gradient. Formulas and their order are PyTorch's, and timm's for Lion and
// LAMB.
#include "vitrum/cpu/simd/arrays.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

// The sum of term(i, lanes) over [first, last): short f32 sums, added up in f64.
template <class Term>
VITRUM_LANES double sum_blocks(int64_t first, int64_t last, const Term& term) {
  constexpr int64_t kBlock = 1024;
  double total = 0;
  for (int64_t at = first; at < last; at += kBlock)
    total += static_cast<double>(sum_lanes(last - at < kBlock ? last - at : kBlock,
                                           [&](int64_t i, auto n) { return term(at + i, n); }));
  return total;
}

double sum_squares(const float* x, int64_t count) {
  return sum_blocks(0, count, [&](int64_t i, auto n) {
    const Vf v = load(x + i, n);
    return v * v;
  });
}

struct Rates {
  Vf clip, beta1, rest1, beta2, rest2, eps, root2;  // root2: 1 / sqrt(correction2)
  Vf step, decay, shrink, ema, ema_rest;
  Vf whole1;  // 1 / correction1; where LAMB needs it, `step` does not have it
};

VITRUM_LANES Rates rates(const OptimizerArgs& g, float lr_scale, float decay) {
  const double lr = static_cast<double>(g.lr) * static_cast<double>(lr_scale);
  const bool adam = g.kind == OptimizerKind::kAdam || g.kind == OptimizerKind::kAdamW;
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
          .ema_rest = narrow(1.0 - static_cast<double>(g.ema_decay)),
          .whole1 = narrow(1.0 / static_cast<double>(g.correction1))};
}

VITRUM_LANES Vf sign(Vf x) {
  return select(lt(x, zero()), splat(-1), select(gt(x, zero()), splat(1), zero()));
}

VITRUM_LANES Vf lamb_update(const Rates& k, Vf m, Vf v, Vf p) {
  return fma(k.decay, p, m * k.whole1 / fma(sqrt(v), k.root2, k.eps));
}

template <OptimizerKind kKind>
VITRUM_LANES void step_range(const OptimizerArgs& g, const Rates& k, int64_t first, int64_t last) {
  using enum OptimizerKind;
  for_lanes(first, last, [&](int64_t i, auto n) {
    Vf d = load(g.gradient + i, n) * k.clip, p = load(g.param + i, n);
    if constexpr (kKind == kSgd || kKind == kAdam) d = fma(k.decay, p, d);
    if constexpr (kKind == kAdamW || kKind == kLion || kKind == kMuon) p = p * k.shrink;
    if constexpr (kKind == kSgd) {
      if (g.first) {
        const Vf m = fma(k.beta1, load(g.first + i, n), d);
        store(g.first + i, m, n);
        d = g.nesterov ? fma(k.beta1, m, d) : m;
      }
    } else if constexpr (kKind == kLion) {
      const Vf m = load(g.first + i, n);
      store(g.first + i, fma(k.beta2, m, k.rest2 * d), n);
      d = sign(fma(k.beta1, m, k.rest1 * d));
    } else if constexpr (kKind == kLamb) {
      d = lamb_update(k, load(g.first + i, n), load(g.second + i, n), p);
    } else if constexpr (kKind != kMuon) {
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
    case OptimizerKind::kLion: return step_range<OptimizerKind::kLion>(g, k, first, last);
    case OptimizerKind::kLamb: return step_range<OptimizerKind::kLamb>(g, k, first, last);
    case OptimizerKind::kMuon: return step_range<OptimizerKind::kMuon>(g, k, first, last);
  }
}

double lamb_moments(const OptimizerArgs& g, float decay, int64_t first, int64_t last) {
  const Rates k = rates(g, 1, decay);
  return sum_blocks(first, last, [&](int64_t i, auto n) {
    const Vf d = load(g.gradient + i, n) * k.clip;
    const Vf m = fma(k.beta1, load(g.first + i, n), k.rest1 * d);
    const Vf v = fma(k.beta2, load(g.second + i, n), k.rest2 * d * d);
    store(g.first + i, m, n), store(g.second + i, v, n);
    const Vf u = lamb_update(k, m, v, load(g.param + i, n));
    return u * u;
  });
}

double momentum(const OptimizerArgs& g, int64_t first, int64_t last) {
  const Vf clip = splat(g.clip), beta = splat(g.beta1), rest = splat(g.rest1);
  return sum_blocks(first, last, [&](int64_t i, auto n) {
    const Vf d = rest * (load(g.gradient + i, n) * clip);
    const Vf m = fma(beta, load(g.first + i, n), d), u = g.nesterov ? fma(beta, m, d) : m;
    store(g.first + i, m, n), store(g.gradient + i, u, n);
    return u * u;
  });
}

void perturb(const OptimizerArgs& g, float scale, int64_t first, int64_t last) {
  const Vf factor = splat(scale);
  for_lanes(first, last, [&](int64_t i, auto n) {
    const Vf p = fma(factor, load(g.gradient + i, n), load(g.param + i, n));
    store(g.param + i, p, n), store(g.gradient + i, zero(), n);
    if (g.compute) store(g.compute + i, p, n);
  });
}

// In the tree's order: the lowest sibling first.
void fold(const float* const* lefts, size_t count, float* gradient, float* sum, int64_t first,
          int64_t last) {
  for_lanes(first, last, [&](int64_t i, auto n) {
    Vf x = load(gradient + i, n);
    for (size_t k = 0; k < count; ++k) x = load(lefts[k] + i, n) + x;
    store((sum ? sum : gradient) + i, x, n);
    if (sum) store(gradient + i, zero(), n);
  });
}

}  // namespace

constinit const OptimizerKernels kOptimizer = {.sum_squares = sum_squares,
                                               .step = step,
                                               .lamb_moments = lamb_moments,
                                               .momentum = momentum,
                                               .perturb = perturb,
                                               .fold = fold};

}  // namespace vitrum::cpu::VITRUM_ISA
