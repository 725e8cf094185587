#include "vitrum/cpu/simd/unit_heads.h"

#include "vitrum/cpu/simd/arrays.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

constexpr float kLeast = 1e-12f;

template <class T>
VITRUM_LANES float length_of(Stream<T> x, int64_t at, int64_t dim) {
  return __builtin_sqrtf(sum_lanes(dim, [&](int64_t i, auto n) {
    const Vf v = x.load(at + i, n);
    return v * v;
  }));
}

VITRUM_LANES float factor_of(const UnitHeadsArgs& g, int64_t head) {
  return g.factor && head < g.heads ? g.factor[head] : 1.0f;
}

void forward(const UnitHeadsArgs& g, int64_t first, int64_t last) {
  with_type(
      [&]<class T>() {
        const Stream<T> x(g.x), y(g.y);
        const int64_t units = g.unit * g.heads, width = g.parts * g.heads * g.dim;
        for (int64_t row = first * width; row < last * width; row += width) {
          for (int64_t h = 0, at = row; h < units; ++h, at += g.dim) {
            const float length = length_of(x, at, g.dim);
            const Vf factor = splat(factor_of(g, h) / (length > kLeast ? length : kLeast));
            for_lanes(0, g.dim,
                      [&](int64_t i, auto n) { y.store(at + i, x.load(at + i, n) * factor, n); });
          }
          for_lanes(row + units * g.dim, row + width,
                    [&](int64_t i, auto n) { y.store(i, x.load(i, n), n); });
        }
      },
      g.x, g.y);
}

// The gradient of one head; returns factor * (dy in the direction of x).
template <class T>
VITRUM_LANES float head_bwd(const UnitHeadsArgs& g, int64_t at, float factor) {
  const Stream<T> x(g.x), dy(g.dy), dx(g.dx);
  const float length = length_of(x, at, g.dim),
              reciprocal = 1 / (length > kLeast ? length : kLeast);
  const float along = reciprocal * sum_lanes(g.dim, [&](int64_t i, auto n) {
                        return dy.load(at + i, n) * x.load(at + i, n);
                      });
  if (dx) {
    const Vf scale = splat(factor * reciprocal),
             off = splat(length > kLeast ? along * reciprocal : 0);
    for_lanes(0, g.dim, [&](int64_t i, auto n) {
      dx.store(at + i, scale * fnma(off, x.load(at + i, n), dy.load(at + i, n)), n);
    });
  }
  return factor * along;
}

void backward(const UnitHeadsArgs& g, int64_t first, int64_t last, float* sums) {
  for (int64_t h = 0; sums && h < g.heads; ++h) sums[h] = 0;
  with_type(
      [&]<class T>() {
        const Stream<T> dy(g.dy), dx(g.dx);
        const int64_t units = g.unit * g.heads, width = g.parts * g.heads * g.dim;
        for (int64_t row = first * width; row < last * width; row += width) {
          for (int64_t h = 0; h < units; ++h) {
            const float along = head_bwd<T>(g, row + h * g.dim, factor_of(g, h));
            if (sums && h < g.heads) sums[h] += along;
          }
          if (dx)
            for_lanes(row + units * g.dim, row + width,
                      [&](int64_t i, auto n) { dx.store(i, dy.load(i, n), n); });
        }
      },
      g.x, g.dy, g.dx);
}

}  // namespace

constinit const UnitHeadsKernels kUnitHeads = {.forward = forward, .backward = backward};

}  // namespace vitrum::cpu::VITRUM_ISA
