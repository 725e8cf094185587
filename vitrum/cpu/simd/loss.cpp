// Losses over rows of logits, and what counts as a right answer.
#include "vitrum/cpu/simd/arrays.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

constexpr float kInf = __builtin_inff();

VITRUM_LANES Vi index_at(int64_t i) { return lane_index() + splat_bits(static_cast<uint32_t>(i)); }

// The target of row b, smoothed: (1 - s) t + s / K, t one-hot or given; or exp(t).
struct Target {
  const float* given;
  Vi label;
  Vf rest, share;
  bool logs;
  VITRUM_LANES Target(const LossArgs& g, int64_t b)
      : given(g.target ? g.target + b * g.classes : nullptr),
        label(splat_bits(g.labels ? static_cast<uint32_t>(g.labels[b]) : 0)),
        rest(splat(1.0f - g.form.smoothing)),
        share(splat(g.form.smoothing / static_cast<float>(g.classes))),
        logs(g.form.kind == LossKind::kDivergence) {}
  template <class N>
  VITRUM_LANES Vf at(int64_t i, N n) const {
    if (logs) return only(VITRUM_ISA::exp(load(given + i, n)), n);
    const Vf t = given ? load(given + i, n) : where(eq(index_at(i), label), splat(1.0f));
    return only(fma(t, rest, share), n);
  }
  template <class N>
  VITRUM_LANES Vf log_at(int64_t i, N n) const {  // what a divergence has to subtract
    return logs ? max(load(given + i, n), splat(-200.0f)) : zero();
  }
};

// A row of x / tau.
template <class T>
struct Row {
  Stream<T> x;
  int64_t at;
  Vf factor;
  VITRUM_LANES Row(Array a, int64_t at, float tau) : x(a), at(at), factor(splat(1.0f / tau)) {}
  template <class N>
  VITRUM_LANES Vf load(int64_t i, N n) const {
    return x.load(at + i, n) * factor;
  }
};

template <class T>
VITRUM_LANES float max_of(const Row<T>& x, int64_t count) {
  Vf m = splat(-kInf);
  for_lanes(0, count, [&](int64_t i, auto n) { m = max(m, or_else(x.load(i, n), n, -kInf)); });
  return max_lane(m);
}

// log sum exp(x - most).
template <class T>
VITRUM_LANES double log_sum(const Row<T>& x, float most, int64_t count) {
  const Vf m = splat(most);
  return __builtin_log(static_cast<double>(sum_lanes(
      count, [&](int64_t i, auto n) { return only(VITRUM_ISA::exp(x.load(i, n) - m), n); })));
}

VITRUM_LANES double factor_of(const LossArgs& g, int64_t b) {
  return static_cast<double>(g.weight[b]) * static_cast<double>(g.form.scale);
}

template <class T>
VITRUM_LANES void softmax_row(const LossArgs& g, int64_t b, double& loss, float* lse) {
  const Row<T> x(g.logits, b * g.classes, g.form.tau);
  const float most = max_of(x, g.classes);
  const double log_total = log_sum(x, most, g.classes);
  if (lse) lse[b] = static_cast<float>(static_cast<double>(most) + log_total);
  loss = 0;
  if (g.weight[b] == 0) return;  // a padding row; its label need not mean anything
  const Target target(g, b);
  const Vf m = splat(most);
  Vf total = zero();
  const float dot = sum_lanes(g.classes, [&](int64_t i, auto n) {
    const Vf t = target.at(i, n);
    total += t;
    return t * (x.load(i, n) - m - target.log_at(i, n));
  });
  loss = factor_of(g, b) * (static_cast<double>(sum(total)) * log_total - static_cast<double>(dot));
}

template <class T>
VITRUM_LANES void binary_row(const LossArgs& g, int64_t b, double& loss) {
  loss = 0;
  if (g.weight[b] == 0) return;
  const Row<T> x(g.logits, b * g.classes, 1);
  const Target target(g, b);
  const float sum = sum_lanes(g.classes, [&](int64_t i, auto n) {
    const Vf z = x.load(i, n), tail = log1p_unit(VITRUM_ISA::exp(-abs(z)));
    return only(max(z, zero()) - z * target.at(i, n) + tail, n);
  });
  loss = factor_of(g, b) * static_cast<double>(sum) / static_cast<double>(g.classes);
}

// The square of an image has many terms: runs of them are added up as doubles.
template <class T>
VITRUM_LANES void square_row(const LossArgs& g, int64_t b, double& loss) {
  constexpr int64_t kRun = 4096;
  loss = 0;
  if (g.weight[b] == 0) return;
  const Stream<T> x(g.logits);
  const int64_t end = (b + 1) * g.classes;
  double total = 0;
  for (int64_t at = b * g.classes; at < end; at += kRun)
    total +=
        static_cast<double>(sum_lanes(end - at < kRun ? end - at : kRun, [&](int64_t i, auto n) {
          const Vf d = only(x.load(at + i, n) - load(g.target + at + i, n), n);
          return d * d;
        }));
  loss = factor_of(g, b) * total / static_cast<double>(g.classes);
}

void forward(const LossArgs& g, int64_t first, int64_t last, double* loss, float* lse) {
  const LossKind kind = g.form.kind;
  with_type(
      [&]<class T>() {
        for (int64_t b = first; b < last; ++b)
          kind == LossKind::kSquare   ? square_row<T>(g, b, loss[b])
          : kind == LossKind::kBinary ? binary_row<T>(g, b, loss[b])
                                      : softmax_row<T>(g, b, loss[b], lse);
      },
      g.logits);
}

template <class T>
VITRUM_LANES void softmax_row_back(const LossArgs& g, int64_t b, float lse, Stream<T> dx) {
  const Row<T> x(g.logits, b * g.classes, g.form.tau);
  const Target target(g, b);
  const Vf total = splat(
      g.target ? sum_lanes(g.classes, [&](int64_t i, auto n) { return target.at(i, n); }) : 1.0f);
  const Vf factor = splat(g.weight[b] * (g.form.scale / g.form.tau)), base = splat(lse);
  for_lanes(0, g.classes, [&](int64_t i, auto n) {
    const Vf p = VITRUM_ISA::exp(x.load(i, n) - base);
    dx.store(x.at + i, factor * (total * p - target.at(i, n)), n);
  });
}

template <class T>
VITRUM_LANES void binary_row_back(const LossArgs& g, int64_t b, Stream<T> dx) {
  const Row<T> x(g.logits, b * g.classes, 1);
  const Target target(g, b);
  const Vf factor = splat(g.weight[b] * (g.form.scale / static_cast<float>(g.classes)));
  for_lanes(0, g.classes, [&](int64_t i, auto n) {
    const Vf p = splat(1.0f) / (splat(1.0f) + VITRUM_ISA::exp(-x.load(i, n)));
    dx.store(x.at + i, factor * (p - target.at(i, n)), n);
  });
}

template <class T>
VITRUM_LANES void square_row_back(const LossArgs& g, int64_t b, Stream<T> dx) {
  const Stream<T> x(g.logits);
  const int64_t at = b * g.classes;
  const Vf factor = splat(g.weight[b] * (2.0f * g.form.scale / static_cast<float>(g.classes)));
  for_lanes(0, g.classes, [&](int64_t i, auto n) {
    dx.store(at + i, factor * (x.load(at + i, n) - load(g.target + at + i, n)), n);
  });
}

void backward(const LossArgs& g, const float* lse, Array dlogits, int64_t first, int64_t last) {
  const LossKind kind = g.form.kind;
  with_type(
      [&]<class T>() {
        const Stream<T> dx(dlogits);
        for (int64_t b = first; b < last; ++b)
          kind == LossKind::kSquare   ? square_row_back<T>(g, b, dx)
          : kind == LossKind::kBinary ? binary_row_back<T>(g, b, dx)
                                      : softmax_row_back<T>(g, b, lse[b], dx);
      },
      g.logits, dlogits);
}

// The index of the largest element; the lowest on ties, 0 of nothing but NaN.
template <class T>
VITRUM_LANES int32_t index_of_max(Stream<T> x, int64_t at, int64_t count) {
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
  return ties ? lowest : 0;
}

void correct(const LossArgs& g, int64_t first, int64_t last, double* counts) {
  int64_t right = 0, all = 0;
  with_type(
      [&]<class T>() {
        const Array given = {const_cast<float*>(g.target), DType::kF32};
        for (int64_t b = first; b < last; ++b) {
          if (!(g.weight[b] > 0)) continue;
          const int32_t wanted =
              g.target ? index_of_max(Stream<float>(given), b * g.classes, g.classes) : g.labels[b];
          right += index_of_max(Stream<T>(g.logits), b * g.classes, g.classes) == wanted, ++all;
        }
      },
      g.logits);
  counts[0] = static_cast<double>(right), counts[1] = static_cast<double>(all);
}

void argmax(Array x, int32_t* y, int64_t classes, int64_t first, int64_t last) {
  with_type(
      [&]<class T>() {
        for (int64_t b = first; b < last; ++b)
          y[b] = index_of_max(Stream<T>(x), b * classes, classes);
      },
      x);
}

void log_softmax(Array x, float tau, Array y, int64_t classes, int64_t first, int64_t last) {
  with_type(
      [&]<class T>() {
        const Stream<T> to(y);
        for (int64_t b = first; b < last; ++b) {
          const Row<T> row(x, b * classes, tau);
          const float most = max_of(row, classes);
          const auto rest = static_cast<float>(log_sum(row, most, classes));
          for_lanes(0, classes, [&](int64_t i, auto n) {
            to.store(row.at + i, row.load(i, n) - splat(most) - splat(rest), n);
          });
        }
      },
      x, y);
}

}  // namespace

constinit const LossKernels kLoss = {.forward = forward,
                                     .backward = backward,
                                     .correct = correct,
                                     .argmax = argmax,
                                     .log_softmax = log_softmax};

}  // namespace vitrum::cpu::VITRUM_ISA
