#include "vitrum/cpu/simd/conv.h"

#include "vitrum/cpu/simd/arrays.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

int64_t within(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

void fill_zero(float* to, int64_t count) {
  for_lanes(0, count, [&](int64_t i, auto n) { store(to + i, zero(), n); });
}

// The place of one window, walked through without a division a step.
struct Place {
  int64_t image, i, j;

  Place(const Windows& w, int64_t window)
      : image(window / (w.down * w.across)), i(window / w.across % w.down), j(window % w.across) {}
  void next(const Windows& w) {
    if (++j < w.across) return;
    j = 0;
    if (++i < w.down) return;
    i = 0, ++image;
  }
};

// Columns [first, last) of one window. A line of a window is one run of memory, (columns,
// channels), cut off where the image ends.
template <class T>
VITRUM_LANES void unfold_window(const Windows& w, const Place& at, int64_t first, int64_t last,
                                float* to) {
  const int64_t line = w.columns * w.channels, image_line = w.width * w.channels;
  const int64_t top = at.i * w.step + w.top, left = (at.j * w.step + w.left) * w.channels;
  int64_t u = first / line;
  for (int64_t column = first, count; column < last; column += count, to += count, ++u) {
    const int64_t start = column - u * line, from = left + start;
    count = last - column < line - start ? last - column : line - start;
    if (top + u < 0 || top + u >= w.height) {
      fill_zero(to, count);
      continue;
    }
    const int64_t begin = within(-from, 0, count), end = within(image_line - from, begin, count);
    const T* x = static_cast<const T*>(w.x.data) + (at.image * w.height + top + u) * image_line;
    fill_zero(to, begin);
    for_lanes(begin, end, [&](int64_t k, auto n) { store(to + k, load(x + from + k, n), n); });
    fill_zero(to + end, count - end);
  }
}

template <class T>
void unfold_rows(const Windows& w, int64_t row, int64_t count, int64_t first, int64_t last,
                 float* to, int64_t stride) {
  Place at(w, row);
  for (int64_t r = 0; r < count; ++r, to += stride, at.next(w))
    unfold_window<T>(w, at, first, last, to);
}

void unfold(const Windows& w, int64_t row, int64_t count, int64_t first, int64_t last, float* to,
            int64_t stride) {
  w.x.dtype == DType::kBF16 ? unfold_rows<uint16_t>(w, row, count, first, last, to, stride)
                            : unfold_rows<float>(w, row, count, first, last, to, stride);
}

// The part of a window that lies inside the image: offsets from its first pixel.
struct Inside {
  int64_t y, x, top, bottom, left, right;

  Inside(const Windows& w, int64_t i, int64_t j)
      : y(i * w.step + w.top),
        x(j * w.step + w.left),
        top(within(-y, 0, w.rows)),
        bottom(within(w.height - y, 0, w.rows)),
        left(within(-x, 0, w.columns)),
        right(within(w.width - x, 0, w.columns)) {}
};

// The first greatest of a window: its value, and its place as ky * columns + kx.
struct Greatest {
  Vf value, place;
};
template <class T, class N>
VITRUM_LANES Greatest greatest(const Windows& w, Stream<T> x, int64_t image, const Inside& in,
                               int64_t c, N n) {
  Greatest best{splat(-__builtin_inff()), splat(-1.0f)};
  for (int64_t ky = in.top; ky < in.bottom; ++ky)
    for (int64_t kx = in.left; kx < in.right; ++kx) {
      const int64_t pixel = (image * w.height + in.y + ky) * w.width + in.x + kx;
      const Vf v = x.load(pixel * w.channels + c, n);
      const Vm more = gt(v, best.value);
      best.value = select(more, v, best.value);
      best.place = select(more, splat(static_cast<float>(ky * w.columns + kx)), best.place);
    }
  return best;
}

void max_pool(const Windows& w, Array y_array, int64_t first, int64_t last) {
  with_type(
      [&]<class T>() {
        const Stream<T> x(w.x), y(y_array);
        Place at(w, first);
        for (int64_t r = first; r < last; ++r, at.next(w)) {
          const Inside in(w, at.i, at.j);
          for_lanes(0, w.channels, [&](int64_t c, auto n) {
            y.store(r * w.channels + c, greatest(w, x, at.image, in, c, n).value, n);
          });
        }
      },
      w.x, y_array);
}

// Adds to `line` what the windows of row i give to line `ky` of theirs.
template <class T>
VITRUM_LANES void give_back(const Windows& w, Stream<T> x, Stream<T> dy, int64_t image, int64_t i,
                            int64_t ky, float* line) {
  for (int64_t j = 0; j < w.across; ++j) {
    const Inside in(w, i, j);
    const int64_t window = (image * w.down + i) * w.across + j;
    for_lanes(0, w.channels, [&](int64_t c, auto n) {
      const Vf place = greatest(w, x, image, in, c, n).place,
               d = dy.load(window * w.channels + c, n);
      for (int64_t kx = in.left; kx < in.right; ++kx) {
        float* to = line + (in.x + kx) * w.channels + c;
        const Vm here = eq(place, splat(static_cast<float>(ky * w.columns + kx)));
        store(to, load(to, n) + where(here, d), n);
      }
    });
  }
}

void max_pool_bwd(const Windows& w, Array dy_array, Array dx_array, int64_t first, int64_t last,
                  float* line) {
  with_type(
      [&]<class T>() {
        const Stream<T> x(w.x), dy(dy_array), dx(dx_array);
        const int64_t width = w.width * w.channels;
        for (int64_t r = first; r < last; ++r) {
          const int64_t image = r / w.height, y = r % w.height;
          fill_zero(line, width);
          for (int64_t i = 0; i < w.down; ++i) {
            const int64_t ky = y - (i * w.step + w.top);
            if (ky >= 0 && ky < w.rows) give_back(w, x, dy, image, i, ky, line);
          }
          for_lanes(0, width,
                    [&](int64_t k, auto n) { dx.store(r * width + k, load(line + k, n), n); });
        }
      },
      w.x, dy_array, dx_array);
}

}  // namespace

constinit const ConvKernels kConv = {
    .unfold = unfold, .max_pool = max_pool, .max_pool_bwd = max_pool_bwd};

}  // namespace vitrum::cpu::VITRUM_ISA
