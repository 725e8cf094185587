// LayerNorm. A row is read once from memory; the later passes over it find it in the L1 cache.
#include "vitrum/cpu/simd/arrays.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

// Copies a row (or the rounded sum of two) to `row` as f32, and returns its sum.
template <class T, bool kAdd>
VITRUM_LANES float read_row(const LayerNormArgs& g, int64_t at, float* row) {
  const Stream<T> a(g.a), b(g.b), total(g.sum), kind(g.sum.data ? g.sum : g.a);
  return sum_lanes(g.width, [&](int64_t i, auto n) {
    Vf v = a.load(at + i, n);
    if constexpr (kAdd) {
      v = kind.rounded(v + b.load(at + i, n));
      if (total) total.store(at + i, v, n);
    }
    store(row + i, v);
    return v;
  });
}

struct Deviations {
  float sum, squares;
};
// Of a row from its mean, which f32 cannot hold exactly: where the mean is large, their sum says
// what it missed.
VITRUM_LANES Deviations deviations(const float* row, int64_t width, float mean) {
  const Vf m = splat(mean);
  Vf s[2] = {zero(), zero()}, q[2] = {zero(), zero()};
  const auto add = [&](int k, Vf d) { s[k] += d, q[k] = fma(d, d, q[k]); };
  int64_t i = 0;
  for (; i + 32 <= width; i += 32) add(0, load(row + i) - m), add(1, load(row + i + 16) - m);
  for_lanes(i, width, [&](int64_t at, auto n) { add(0, only(load(row + at) - m, n)); });
  return {sum(s[0] + s[1]), sum(q[0] + q[1])};
}

template <class T>
VITRUM_LANES void write_row(const LayerNormArgs& g, int64_t at, const float* row, float mean,
                            float missed, float rstd) {
  const Stream<T> y(g.y);
  const Vf m = splat(mean), s = splat(rstd), rest = splat(-missed * rstd);
  for_lanes(0, g.width, [&](int64_t i, auto n) {
    const Vf unit = fma(load(row + i) - m, s, rest);
    const Vf bias = g.bias ? load(g.bias + i, n) : zero();
    y.store(at + i, fma(unit, load(g.w + i, n), bias), n);
  });
}

template <class T, bool kAdd>
void forward_rows(const LayerNormArgs& g, int64_t first, int64_t last, float* row) {
  const auto width = static_cast<float>(g.width);
  for (int64_t r = first; r < last; ++r) {
    const float mean = read_row<T, kAdd>(g, r * g.width, row) / width;
    const Deviations d = deviations(row, g.width, mean);
    const float missed = d.sum / width, squares = d.squares - d.sum * missed;
    const float rstd = 1.0f / __builtin_sqrtf((squares > 0 ? squares : 0) / width + g.eps);
    if (g.mean) g.mean[r] = mean + missed;
    if (g.rstd) g.rstd[r] = rstd;
    if (g.y.data) write_row<T>(g, r * g.width, row, mean, missed, rstd);
  }
}

void forward(const LayerNormArgs& g, int64_t first, int64_t last, float* scratch) {
  with_type(
      [&]<class T>() {
        g.b.data ? forward_rows<T, true>(g, first, last, scratch)
                 : forward_rows<T, false>(g, first, last, scratch);
      },
      g.a, g.b, g.sum, g.y);
}

// Rows [r, r + kRows) together, so that the running dw and dbias are loaded and stored once for all
// of them.
template <class T, int kRows>
VITRUM_LANES void backward_rows(const LayerNormBwdArgs& g, int64_t r, float* dw, float* dbias) {
  const Stream<T> dy(g.dy), x(g.x), dskip(g.dskip), dx(g.dx);
  Vf mean[kRows], rstd[kRows], s1[kRows], s2[kRows];
  for (int k = 0; k < kRows; ++k)
    mean[k] = splat(g.mean[r + k]), rstd[k] = splat(g.rstd[r + k]), s1[k] = s2[k] = zero();
  for_lanes(0, g.width, [&](int64_t i, auto n) {
    const Vf w = load(g.w + i, n);
    Vf gw = dw ? load(dw + i, n) : zero(), gb = dw ? load(dbias + i, n) : zero();
    for (int k = 0; k < kRows; ++k) {
      const int64_t at = (r + k) * g.width + i;
      const Vf d = dy.load(at, n), unit = (x.load(at, n) - mean[k]) * rstd[k], wd = w * d;
      s1[k] += wd, s2[k] = fma(wd, unit, s2[k]);
      gw = fma(d, unit, gw), gb += d;
    }
    if (dw) store(dw + i, gw, n), store(dbias + i, gb, n);
  });
  if (!dx) return;
  for (int k = 0; k < kRows; ++k) {
    const auto width = static_cast<float>(g.width);
    const Vf c1 = splat(sum(s1[k]) / width), c2 = splat(sum(s2[k]) / width);
    for_lanes(0, g.width, [&](int64_t i, auto n) {
      const int64_t at = (r + k) * g.width + i;
      const Vf unit = (x.load(at, n) - mean[k]) * rstd[k];
      Vf d = fnma(unit, c2, load(g.w + i, n) * dy.load(at, n) - c1) * rstd[k];
      if (dskip) d = dx.rounded(d) + dskip.load(at, n);
      dx.store(at, d, n);
    });
  }
}

void backward(const LayerNormBwdArgs& g, int64_t first, int64_t last, float* dw, float* dbias) {
#ifdef __AVX512F__
  constexpr int kRows = 4;
#else
  constexpr int kRows = 2;  // 16 registers hold no more sums; the order of additions is the same
#endif
  if (dw)
    for_lanes(0, g.width,
              [&](int64_t i, auto n) { store(dw + i, zero(), n), store(dbias + i, zero(), n); });
  with_type(
      [&]<class T>() {
        int64_t r = first;
        for (; r + kRows <= last; r += kRows) backward_rows<T, kRows>(g, r, dw, dbias);
        for (; r < last; ++r) backward_rows<T, 1>(g, r, dw, dbias);
      },
      g.dy, g.x, g.dskip, g.dx);
}

}  // namespace

constinit const NormKernels kNorm = {.forward = forward, .backward = backward};

}  // namespace vitrum::cpu::VITRUM_ISA
