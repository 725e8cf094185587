#include "vitrum/cpu/simd/activate.h"
#include "vitrum/cpu/simd/arrays.h"
#include "vitrum/cpu/simd/draws.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

// y[i] = f(x[i]) over [first, last).
template <class F>
VITRUM_LANES void map(Array x_array, Array y_array, int64_t first, int64_t last, const F& f) {
  with_type(
      [&]<class T>() {
        const Stream<T> x(x_array), y(y_array);
        for_lanes(first, last, [&](int64_t i, auto n) { y.store(i, f(x.load(i, n)), n); });
      },
      x_array, y_array);
}

// y[i] = f(a[i], b[i]).
template <class F>
VITRUM_LANES void map2(Array a_array, Array b_array, Array y_array, int64_t first, int64_t last,
                       const F& f) {
  with_type(
      [&]<class T>() {
        const Stream<T> a(a_array), b(b_array), y(y_array);
        for_lanes(first, last,
                  [&](int64_t i, auto n) { y.store(i, f(a.load(i, n), b.load(i, n)), n); });
      },
      a_array, b_array, y_array);
}

void activation(Act act, Array x, Array y, int64_t first, int64_t last) {
  with_act(act, [&]<Act kAct>() {
    with_type(
        [&]<class T>() {
          const Stream<T> from(x), to(y);
          for_lanes(first, last,
                    [&](int64_t i, auto n) { to.store(i, activate<kAct, T>(from.load(i, n)), n); });
        },
        x, y);
  });
}

void activation_bwd(Act act, Array dy, Array x, Array dx, int64_t first, int64_t last) {
  with_act(act, [&]<Act kAct>() {
    map2(dy, x, dx, first, last, [](Vf d, Vf v) {
      if constexpr (kAct == Act::kRelu) return where(gt(v, zero()), d);
      return d * activate_grad<kAct>(v);
    });
  });
}

void add(Array a_array, Array b_array, Array y_array, int64_t first, int64_t last, bool past) {
  with_type_or_past(
      past,
      [&]<class T>() {
        const Stream<T> a(a_array), b(b_array), y(y_array);
        for_lanes(first, last,
                  [&](int64_t i, auto n) { y.store(i, a.load(i, n) + b.load(i, n), n); });
      },
      a_array, b_array, y_array);
}

void scale(Array x, Array y, float factor, int64_t first, int64_t last) {
  const Vf f = splat(factor);
  if (factor == 0) return map(x, y, first, last, [](Vf) { return zero(); });
  map(x, y, first, last, [&](Vf v) { return v * f; });
}

void convert(Array x, Array y, int64_t first, int64_t last) {
  map(x, y, first, last, [](Vf v) { return v; });
}

void dropout(const DropSite& drop, Array x_array, Array y_array, int64_t first, int64_t last) {
  with_type(
      [&]<class T>() {
        const Stream<T> x(x_array), y(y_array);
        const auto part = [&](const Draws& draws, int half, int64_t i, auto n) {
          y.store(i, where(keep_mask(draws, half, drop), x.load(i, n) * splat(drop.scale)), n);
        };
        for (int64_t row = first; row < last; row += kDrawRow) {
          const Draws draws = row_draws(drop, row / kDrawRow);
          if (last - row >= kDrawRow)
            for (int half = 0; half < 8; ++half) part(draws, half, row + 16 * half, All{});
          else
            for (int half = 0; row + 16 * half < last; ++half) {
              const int64_t left = last - row - 16 * half;
              part(draws, half, row + 16 * half, left < 16 ? static_cast<int>(left) : 16);
            }
        }
      },
      x_array, y_array);
}

void channel_scale(Array x_array, const float* gamma, Array y_array, int64_t width, int64_t first,
                   int64_t last) {
  with_type(
      [&]<class T>() {
        const Stream<T> x(x_array), y(y_array);
        for (int64_t at = first * width; at < last * width; at += width)
          for_lanes(0, width, [&](int64_t i, auto n) {
            y.store(at + i, x.load(at + i, n) * load(gamma + i, n), n);
          });
      },
      x_array, y_array);
}

void channel_scale_bwd(Array dy_array, Array x_array, const float* gamma, Array dx_array,
                       float* dgamma, int64_t width, int64_t first, int64_t last) {
  if (dgamma) for_lanes(0, width, [&](int64_t i, auto n) { store(dgamma + i, zero(), n); });
  with_type(
      [&]<class T>() {
        const Stream<T> dy(dy_array), x(x_array), dx(dx_array);
        for (int64_t at = first * width; at < last * width; at += width)
          for_lanes(0, width, [&](int64_t i, auto n) {
            const Vf d = dy.load(at + i, n);
            if (dx) dx.store(at + i, d * load(gamma + i, n), n);
            if (dgamma) store(dgamma + i, fma(d, x.load(at + i, n), load(dgamma + i, n)), n);
          });
      },
      dy_array, x_array, dx_array);
}

void accumulate(float* y, const float* part, int64_t parts, int64_t stride, int64_t n_total) {
  for_lanes(0, n_total, [&](int64_t i, auto n) {
    Vf s = zero();
    for (int64_t p = 0; p < parts; ++p) s += load(part + p * stride + i, n);
    store(y + i, load(y + i, n) + s, n);
  });
}

}  // namespace

constinit const ElementwiseKernels kElementwise = {.activation = activation,
                                                   .activation_bwd = activation_bwd,
                                                   .add = add,
                                                   .scale = scale,
                                                   .dropout = dropout,
                                                   .channel_scale = channel_scale,
                                                   .channel_scale_bwd = channel_scale_bwd,
                                                   .accumulate = accumulate,
                                                   .convert = convert};

}  // namespace vitrum::cpu::VITRUM_ISA
