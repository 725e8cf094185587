// Sixteen channels at a time, seven neighbours of a line at once: each pixel is loaded once for all
// places of the window's line, and sums and weights stay in registers. A sum is one chain in the
// order of the window's places, so it does not depend on where a strip begins.
#include "vitrum/cpu/simd/depthwise.h"

#include "vitrum/cpu/simd/arrays.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

constexpr int kStrip = 7;

// A line of y: its image's first line of x, and the line of x under the window's first.
struct Line {
  int64_t image, top;
  VITRUM_LANES Line(const DepthwiseArgs& g, int64_t line)
      : image(line / g.down * g.height), top(line % g.down - g.padding) {}
};

// use(u, place of channel c of column j + u - padding of line i of x) for the columns a strip's
// windows see and the image has.
template <int kKernel, class Use>
VITRUM_LANES void for_columns(const DepthwiseArgs& g, int64_t i, int64_t j, int64_t c,
                              const Use& use) {
#pragma GCC unroll 16
  for (int u = 0; u < kStrip + kKernel - 1; ++u) {
    const int64_t column = j + u - g.padding;
    if (column >= 0 && column < g.width) use(u, (i * g.width + column) * g.channels + c);
  }
}

// Pixels [j, j + kStrip) of a line of y, as far as it has them.
template <int kKernel, class T, class N>
VITRUM_LANES void strip(const DepthwiseArgs& g, int64_t line, int64_t j, int64_t c, N n) {
  const Stream<T> x(g.x), y(g.y);
  const Line at(g, line);
  Vf sum[kStrip], w[kKernel];
  const Vf start = g.bias ? load(g.bias + c, n) : zero();
#pragma GCC unroll 16
  for (int t = 0; t < kStrip; ++t) sum[t] = start;
  for (int64_t ky = 0; ky < kKernel; ++ky) {
    if (at.top + ky < 0 || at.top + ky >= g.height) continue;
#pragma GCC unroll 16
    for (int kx = 0; kx < kKernel; ++kx)
      w[kx] = load(g.w + (ky * kKernel + kx) * g.channels + c, n);
    for_columns<kKernel>(g, at.image + at.top + ky, j, c, [&](int u, int64_t place) {
      const Vf v = x.load(place, n);
#pragma GCC unroll 16
      for (int t = 0; t < kStrip; ++t)
        if (u >= t && u - t < kKernel) sum[t] = fma(v, w[u - t], sum[t]);
    });
  }
  const int64_t to = (line * g.across + j) * g.channels + c;
#pragma GCC unroll 16
  for (int t = 0; t < kStrip; ++t)
    if (j + t < g.across) y.store(to + t * g.channels, sum[t], n);
}

// Windows of any other size: a pixel at a time.
template <class T, class N>
VITRUM_LANES void pixel(const DepthwiseArgs& g, int64_t line, int64_t j, int64_t c, N n) {
  const Stream<T> x(g.x), y(g.y);
  const Line at(g, line);
  Vf sum = g.bias ? load(g.bias + c, n) : zero();
  for (int64_t ky = 0; ky < g.kernel; ++ky)
    for (int64_t kx = 0; kx < g.kernel; ++kx) {
      const int64_t i = at.top + ky, column = j + kx - g.padding;
      if (i < 0 || i >= g.height || column < 0 || column >= g.width) continue;
      const Vf v = x.load(((at.image + i) * g.width + column) * g.channels + c, n);
      sum = fma(v, load(g.w + (ky * g.kernel + kx) * g.channels + c, n), sum);
    }
  y.store((line * g.across + j) * g.channels + c, sum, n);
}

void forward(const DepthwiseArgs& g, int64_t first, int64_t last) {
  with_type(
      [&]<class T>() {
        for_lanes(0, g.channels, [&](int64_t c, auto n) {
          for (int64_t line = first; line < last; ++line)
            if (g.kernel == 7)
              for (int64_t j = 0; j < g.across; j += kStrip) strip<7, T>(g, line, j, c, n);
            else
              for (int64_t j = 0; j < g.across; ++j) pixel<T>(g, line, j, c, n);
        });
      },
      g.x, g.y);
}

// Adds what a strip of the gradient gives to one line of the window.
template <int kKernel, class T, class N>
VITRUM_LANES void strip_bwd(const DepthwiseArgs& g, int64_t line, int64_t ky, int64_t j, int64_t c,
                            Vf (&sum)[kKernel], N n) {
  const Stream<T> x(g.x), dy(g.y);
  const Line at(g, line);
  const int64_t from = (line * g.across + j) * g.channels + c;
  Vf d[kStrip];
#pragma GCC unroll 16
  for (int t = 0; t < kStrip; ++t)
    d[t] = j + t < g.across ? dy.load(from + t * g.channels, n) : zero();
  for_columns<kKernel>(g, at.image + at.top + ky, j, c, [&](int u, int64_t place) {
    const Vf v = x.load(place, n);
#pragma GCC unroll 16
    for (int t = 0; t < kStrip; ++t)
      if (u >= t && u - t < kKernel && j + t < g.across) sum[u - t] = fma(v, d[t], sum[u - t]);
  });
}

// One line of the window, over all lines of y.
template <int kKernel, class T, class N>
VITRUM_LANES void window_line_bwd(const DepthwiseArgs& g, int64_t first, int64_t last, int64_t ky,
                                  int64_t c, float* sums, N n) {
  Vf sum[kKernel];
#pragma GCC unroll 16
  for (int kx = 0; kx < kKernel; ++kx) sum[kx] = zero();
  for (int64_t line = first; line < last; ++line) {
    const int64_t i = Line(g, line).top + ky;
    if (i < 0 || i >= g.height) continue;
    for (int64_t j = 0; j < g.across; j += kStrip) strip_bwd<kKernel, T>(g, line, ky, j, c, sum, n);
  }
#pragma GCC unroll 16
  for (int kx = 0; kx < kKernel; ++kx)
    store(sums + (ky * kKernel + kx) * g.channels + c, sum[kx], n);
}

// One place of a window of any other size.
template <class T, class N>
VITRUM_LANES void place_bwd(const DepthwiseArgs& g, int64_t first, int64_t last, int64_t place,
                            int64_t c, float* sums, N n) {
  const Stream<T> x(g.x), dy(g.y);
  Vf sum = zero();
  for (int64_t line = first; line < last; ++line) {
    const Line at(g, line);
    const int64_t i = at.top + place / g.kernel;
    if (i < 0 || i >= g.height) continue;
    for (int64_t j = 0; j < g.across; ++j) {
      const int64_t column = j + place % g.kernel - g.padding;
      if (column < 0 || column >= g.width) continue;
      sum = fma(x.load(((at.image + i) * g.width + column) * g.channels + c, n),
                dy.load((line * g.across + j) * g.channels + c, n), sum);
    }
  }
  store(sums + place * g.channels + c, sum, n);
}

void weights_bwd(const DepthwiseArgs& g, int64_t first, int64_t last, float* sums) {
  with_type(
      [&]<class T>() {
        const Stream<T> dy(g.y);
        for_lanes(0, g.channels, [&](int64_t c, auto n) {
          if (g.kernel == 7)
            for (int64_t ky = 0; ky < 7; ++ky)
              window_line_bwd<7, T>(g, first, last, ky, c, sums, n);
          else
            for (int64_t place = 0; place < g.kernel * g.kernel; ++place)
              place_bwd<T>(g, first, last, place, c, sums, n);
          Vf bias = zero();
          for (int64_t r = first * g.across; r < last * g.across; ++r)
            bias += dy.load(r * g.channels + c, n);
          store(sums + g.kernel * g.kernel * g.channels + c, bias, n);
        });
      },
      g.x, g.y);
}

}  // namespace

constinit const DepthwiseKernels kDepthwise = {.forward = forward, .weights_bwd = weights_bwd};

}  // namespace vitrum::cpu::VITRUM_ISA
