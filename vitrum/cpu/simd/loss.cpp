// Cross entropy over rows of logits, and what counts as a right answer.
#include "vitrum/cpu/simd/arrays.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

constexpr float kInf = __builtin_inff();

VITRUM_LANES Vi index_at(int64_t i) { return lane_index() + splat_bits(static_cast<uint32_t>(i)); }

// The target of row b, smoothed: (1 - s) t + s / K, t one-hot or given.
struct Target {
  const float* given;
  Vi label;
  Vf rest, share;
  VITRUM_LANES Target(const LossArgs& g, int64_t b)
      : given(g.target ? g.target + b * g.classes : nullptr),
        label(splat_bits(g.labels ? static_cast<uint32_t>(g.labels[b]) : 0)),
        rest(splat(1.0f - g.smoothing)),
        share(splat(g.smoothing / static_cast<float>(g.classes))) {}
  template <class N>
  VITRUM_LANES Vf at(int64_t i, N n) const {
    const Vf t = given ? load(given + i, n) : where(eq(index_at(i), label), splat(1.0f));
    return only(fma(t, rest, share), n);
  }
};

template <class T>
VITRUM_LANES float max_of(Stream<T> x, int64_t at, int64_t count) {
  Vf m = splat(-kInf);
  for_lanes(0, count, [&](int64_t i, auto n) { m = max(m, or_else(x.load(at + i, n), n, -kInf)); });
  return max_lane(m);
}

template <class T>
VITRUM_LANES void forward_row(const LossArgs& g, int64_t b, double& loss, float* lse) {
  const Stream<T> x(g.logits);
  const int64_t at = b * g.classes;
  const float most = max_of(x, at, g.classes);
  const Vf m = splat(most);
  const double log_sum =
      __builtin_log(static_cast<double>(sum_lanes(g.classes, [&](int64_t i, auto n) {
        return only(VITRUM_ISA::exp(x.load(at + i, n) - m), n);
      })));
  if (lse) lse[b] = static_cast<float>(static_cast<double>(most) + log_sum);
  loss = 0;
  if (g.weight[b] == 0) return;  // a padding row; its label need not mean anything
  const Target target(g, b);
  Vf total = zero();
  const float dot = sum_lanes(g.classes, [&](int64_t i, auto n) {
    const Vf t = target.at(i, n);
    total += t;
    return t * (x.load(at + i, n) - m);
  });
  loss = static_cast<double>(g.weight[b]) *
         (static_cast<double>(sum(total)) * log_sum - static_cast<double>(dot));
}

void forward(const LossArgs& g, int64_t first, int64_t last, double* loss, float* lse) {
  with_type(
      [&]<class T>() {
        for (int64_t b = first; b < last; ++b) forward_row<T>(g, b, loss[b], lse);
      },
      g.logits);
}

void backward(const LossArgs& g, const float* lse, Array dlogits, int64_t first, int64_t last) {
  with_type(
      [&]<class T>() {
        const Stream<T> x(g.logits), dx(dlogits);
        for (int64_t b = first; b < last; ++b) {
          const int64_t at = b * g.classes;
          const Target target(g, b);
          const Vf total = splat(
              g.target ? sum_lanes(g.classes, [&](int64_t i, auto n) { return target.at(i, n); })
                       : 1.0f);
          const Vf weight = splat(g.weight[b]), base = splat(lse[b]);
          for_lanes(0, g.classes, [&](int64_t i, auto n) {
            const Vf p = VITRUM_ISA::exp(x.load(at + i, n) - base);
            dx.store(at + i, weight * (total * p - target.at(i, n)), n);
          });
        }
      },
      g.logits, dlogits);
}

// The index of the largest element; the lowest on ties.
template <class T>
VITRUM_LANES int32_t argmax(Stream<T> x, int64_t at, int64_t count) {
  Vf best = splat(-kInf);
  Vi where_best = splat_bits(0);
  for_lanes(0, count, [&](int64_t i, auto n) {
    const Vf v = or_else(x.load(at + i, n), n, -kInf);
    const Vm better = gt(v, best);
    best = select(better, v, best), where_best = select(better, index_at(i), where_best);
  });
  const uint32_t ties = to_bitmask(eq(best, splat(max_lane(best))));
  alignas(64) int32_t index[16];
  store(reinterpret_cast<float*>(index), as_float(where_best));
  int32_t lowest = INT32_MAX;
  for (int k = 0; k < 16; ++k)
    if ((ties >> k & 1) && index[k] < lowest) lowest = index[k];
  return lowest;
}

void correct(const LossArgs& g, int64_t first, int64_t last, double* counts) {
  int64_t right = 0, all = 0;
  with_type(
      [&]<class T>() {
        const Array given = {const_cast<float*>(g.target), DType::kF32};
        for (int64_t b = first; b < last; ++b) {
          if (!(g.weight[b] > 0)) continue;
          const int32_t wanted =
              g.target ? argmax(Stream<float>(given), b * g.classes, g.classes) : g.labels[b];
          right += argmax(Stream<T>(g.logits), b * g.classes, g.classes) == wanted, ++all;
        }
      },
      g.logits);
  counts[0] = static_cast<double>(right), counts[1] = static_cast<double>(all);
}

}  // namespace

constinit const LossKernels kLoss = {.forward = forward, .backward = backward, .correct = correct};

}  // namespace vitrum::cpu::VITRUM_ISA
