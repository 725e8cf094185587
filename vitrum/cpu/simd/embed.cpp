// From pixels to tokens, and from tokens to one vector an image.
#include "vitrum/cpu/simd/arrays.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

template <class Body>
VITRUM_LANES void with_pixels(DType type, const Body& body) {
  if (type == DType::kU8) return body.template operator()<uint8_t>();
  if (type == DType::kBF16) return body.template operator()<uint16_t>();
  body.template operator()<float>();
}
template <class Body>
VITRUM_LANES void with_floats(DType type, const Body& body) {
  if (type == DType::kBF16) return body.template operator()<uint16_t>();
  body.template operator()<float>();
}

template <class X, class Y>
VITRUM_LANES void scale_shift(const X* x, Y* y, float scale, float shift, int64_t count) {
  const Vf a = splat(scale), b = splat(shift);
  for_lanes(0, count, [&](int64_t i, auto n) { store(y + i, fma(load(x + i, n), a, b), n); });
}

void normalize(Array x, Array y, float scale, float shift, int64_t first, int64_t last) {
  with_pixels(x.dtype, [&]<class X>() {
    with_floats(y.dtype, [&]<class Y>() {
      scale_shift(static_cast<const X*>(x.data) + first, static_cast<Y*>(y.data) + first, scale,
                  shift, last - first);
    });
  });
}

void mix(const uint8_t* x, float* y, float own, int64_t at, int64_t other, int64_t count) {
  const Vf a = splat(own), b = splat(1 - own);
  for_lanes(0, count, [&](int64_t i, auto n) {
    store(y + at + i, fma(load(x + at + i, n), a, load(x + other + i, n) * b), n);
  });
}

// One line of one channel, cut into the patches it crosses. `to` is the line's place in the first
// patch.
template <class T>
VITRUM_LANES void scatter_line(const PatchifyArgs& g, const T* line, int64_t channel, int64_t dy,
                               T* to) {
  const int64_t patch = g.channels * g.patch_h * g.patch_w;
  const bool last = g.order == PatchOrder::kChannelLast;
  to += last ? dy * g.patch_w * g.channels + channel : (channel * g.patch_h + dy) * g.patch_w;
  for (int64_t x = 0; x < g.width; x += g.patch_w, to += patch) {
    if (last)
      for (int64_t i = 0; i < g.patch_w; ++i) to[i * g.channels] = line[x + i];
    else
      for_lanes(0, g.patch_w, [&](int64_t i, auto n) { store(to + i, load(line + x + i, n), n); });
  }
}

template <class X, class T>
VITRUM_LANES void patchify_rows(const PatchifyArgs& g, int64_t first, int64_t last, T* line) {
  const int64_t down = g.height / g.patch_h;
  for (int64_t r = first; r < last; ++r) {
    T* to = static_cast<T*>(g.y.data) + r * g.patch_h * g.width * g.channels;
    for (int64_t c = 0; c < g.channels; ++c)
      for (int64_t dy = 0; dy < g.patch_h; ++dy) {
        const int64_t y = (r / down * g.channels + c) * g.height + r % down * g.patch_h + dy;
        const X* from = static_cast<const X*>(g.image.data) + y * g.width;
        scale_shift(from, line, g.scale ? g.scale[c] : 1.0f, g.shift ? g.shift[c] : 0.0f, g.width);
        scatter_line(g, line, c, dy, to);
      }
  }
}

void patchify(const PatchifyArgs& g, int64_t first, int64_t last, float* scratch) {
  with_pixels(g.image.dtype, [&]<class X>() {
    with_floats(g.y.dtype, [&]<class T>() {
      patchify_rows<X>(g, first, last, reinterpret_cast<T*>(scratch));
    });
  });
}

void add_row(Array x_array, int64_t x_at, const float* pos, Array y_array, int64_t y_at,
             int64_t count) {
  with_type(
      [&]<class T>() {
        const Stream<T> x(x_array), y(y_array);
        for_lanes(0, count, [&](int64_t i, auto n) {
          const Vf v = x.load(x_at + i, n);
          y.store(y_at + i, pos ? v + load(pos + i, n) : v, n);
        });
      },
      x_array, y_array);
}

// use(column, sums, lanes) for every column of `count` rows; 64 columns together, for longer runs
// of memory.
template <class T, class Use>
VITRUM_LANES void sum_columns(Stream<T> x, int64_t at, int64_t count, int64_t stride,
                              int64_t columns, const Use& use) {
  int64_t i = 0;
  for (; i + 64 <= columns; i += 64) {
    Vf s[4] = {zero(), zero(), zero(), zero()};
    for (int64_t r = 0; r < count; ++r)
      for (int k = 0; k < 4; ++k) s[k] += x.load(at + r * stride + i + 16 * k, All{});
    for (int k = 0; k < 4; ++k) use(i + 16 * k, s[k], All{});
  }
  for_lanes(i, columns, [&](int64_t c, auto n) {
    Vf s = zero();
    for (int64_t r = 0; r < count; ++r) s += x.load(at + r * stride + c, n);
    use(c, s, n);
  });
}

void mean_rows(Array x, int64_t x_at, int64_t count, int64_t stride, float divisor, Array y_array,
               int64_t y_at, int64_t columns) {
  with_type(
      [&]<class T>() {
        const Stream<T> y(y_array);
        sum_columns(Stream<T>(x), x_at, count, stride, columns,
                    [&](int64_t i, Vf s, auto n) { y.store(y_at + i, s / splat(divisor), n); });
      },
      x, y_array);
}

void sum_rows(Array x, int64_t x_at, int64_t count, int64_t stride, float* to, float* also,
              int64_t columns) {
  with_type(
      [&]<class T>() {
        sum_columns(Stream<T>(x), x_at, count, stride, columns, [&](int64_t i, Vf s, auto n) {
          if (to) store(to + i, load(to + i, n) + s, n);
          if (also) store(also + i, load(also + i, n) + s, n);
        });
      },
      x);
}

void divide_row(Array x_array, int64_t x_at, float divisor, Array y_array, int64_t y_at,
                int64_t count) {
  with_type(
      [&]<class T>() {
        const Stream<T> x(x_array), y(y_array);
        for_lanes(0, count, [&](int64_t i, auto n) {
          y.store(y_at + i, x.load(x_at + i, n) / splat(divisor), n);
        });
      },
      x_array, y_array);
}

}  // namespace

constinit const EmbedKernels kEmbed = {.normalize = normalize,
                                       .mix = mix,
                                       .patchify = patchify,
                                       .add_row = add_row,
                                       .mean_rows = mean_rows,
                                       .sum_rows = sum_rows,
                                       .divide_row = divide_row};

}  // namespace vitrum::cpu::VITRUM_ISA
