#include "vitrum/cpu/simd/activate.h"
#include "vitrum/cpu/simd/arrays.h"
#include "vitrum/cpu/simd/conv.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

// body(column, vectors, lanes) over columns, 64 at a time for longer runs of memory.
template <class Body>
VITRUM_LANES void for_columns(int64_t width, const Body& body) {
  int64_t j = 0;
  for (; j + 64 <= width; j += 64) body.template operator()<4>(j, All{});
  for_lanes(j, width, [&](int64_t i, auto n) { body.template operator()<1>(i, n); });
}

void moments(Array x_array, int64_t width, const float* shift, int64_t first, int64_t last,
             float* sum, float* squares) {
  with_type(
      [&]<class T>() {
        const Stream<T> x(x_array);
        for_columns(width, [&]<int kN>(int64_t j, auto n) {
          Vf k[kN], s[kN], q[kN];
          for (int v = 0; v < kN; ++v)
            k[v] = load(shift + j + 16 * v, n), s[v] = load(sum + j + 16 * v, n),
            q[v] = load(squares + j + 16 * v, n);
          for (int64_t r = first; r < last; ++r)
            for (int v = 0; v < kN; ++v) {
              const Vf d = x.load(r * width + j + 16 * v, n) - k[v];
              s[v] += d, q[v] = fma(d, d, q[v]);
            }
          for (int v = 0; v < kN; ++v)
            store(sum + j + 16 * v, s[v], n), store(squares + j + 16 * v, q[v], n);
        });
      },
      x_array);
}

// One element: rounded where a graph of norm, sum and ReLU has tensors.
template <class T, class N>
VITRUM_LANES void finish(const ChannelNormArgs& g, Vf v, int64_t at, int64_t column, N n) {
  const Stream<T> y(g.y), skip(g.skip);
  v = y.rounded(fma(v, load(g.scale + column, n), load(g.shift + column, n)));
  if (skip) v = y.rounded(v + skip.load(at, n));
  if (g.act == Act::kRelu) v = activate<Act::kRelu>(v);
  y.store(at, v, n);
}

void apply(const ChannelNormArgs& g, Array x_array, int64_t first, int64_t last) {
  with_type_or_past(
      g.past,
      [&]<class T>() {
        const Stream<T> x(x_array);
        for (int64_t r = first; r < last; ++r)
          for_lanes(0, g.width, [&](int64_t j, auto n) {
            finish<T>(g, x.load(r * g.width + j, n), r * g.width + j, j, n);
          });
      },
      x_array, g.y, g.skip);
}

void apply_block(const ChannelNormArgs& g, const float* c, int64_t ldc, int64_t row, int64_t rows,
                 int64_t column, int64_t columns) {
  with_type(
      [&]<class T>() {
        const Stream<T> y(g.y);
        for (int64_t r = 0; r < rows; ++r, c += ldc)
          for_lanes(0, columns, [&](int64_t j, auto n) {
            finish<T>(g, y.rounded(load(c + j, n)), (row + r) * g.width + column + j, column + j,
                      n);
          });
      },
      g.y, g.skip);
}

// dy behind the ReLU.
template <class T, class N>
VITRUM_LANES Vf gradient(Stream<T> dy, Stream<T> y, int64_t at, N n) {
  const Vf d = dy.load(at, n);
  return y ? where(gt(y.load(at, n), zero()), d) : d;
}

void moments_bwd(const BatchNormBwdArgs& g, int64_t first, int64_t last, float* sum,
                 float* product) {
  with_type(
      [&]<class T>() {
        const Stream<T> dy(g.dy), x(g.x), y(g.y);
        for_columns(g.width, [&]<int kN>(int64_t j, auto n) {
          Vf m[kN], s[kN], p[kN];
          for (int v = 0; v < kN; ++v)
            m[v] = load(g.mean + j + 16 * v, n), s[v] = load(sum + j + 16 * v, n),
            p[v] = load(product + j + 16 * v, n);
          for (int64_t r = first; r < last; ++r)
            for (int v = 0; v < kN; ++v) {
              const int64_t at = r * g.width + j + 16 * v;
              const Vf d = gradient(dy, y, at, n);
              s[v] += d, p[v] = fma(d, x.load(at, n) - m[v], p[v]);
            }
          for (int v = 0; v < kN; ++v)
            store(sum + j + 16 * v, s[v], n), store(product + j + 16 * v, p[v], n);
        });
      },
      g.dy, g.x, g.y);
}

void apply_bwd(const BatchNormBwdArgs& g, bool counted, int64_t first, int64_t last) {
  with_type_or_past(
      g.past,
      [&]<class T>() {
        const Stream<T> dy(g.dy), x(g.x), y(g.y), dx(g.dx), dskip(g.dskip);
        for (int64_t r = first; r < last; ++r)
          for_lanes(0, g.width, [&](int64_t j, auto n) {
            const int64_t at = r * g.width + j;
            const Vf d = gradient(dy, y, at, n);
            if (dskip) dskip.store(at, d, n);
            if (!dx) return;
            Vf v = d * load(g.scale + j, n);
            if (counted)
              v = v - fma(x.load(at, n) - load(g.mean + j, n), load(g.slope + j, n),
                          load(g.offset + j, n));
            dx.store(at, v, n);
          });
      },
      g.dy, g.x, g.y, g.dx, g.dskip);
}

}  // namespace

constinit const BatchNormKernels kBatchNorm = {.moments = moments,
                                               .apply = apply,
                                               .apply_block = apply_block,
                                               .moments_bwd = moments_bwd,
                                               .apply_bwd = apply_bwd};

}  // namespace vitrum::cpu::VITRUM_ISA
