#include "vitrum/cpu/simd/linear.h"

#include "vitrum/cpu/simd/activate.h"
#include "vitrum/cpu/simd/arrays.h"
#include "vitrum/cpu/simd/draws.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

// out[j] = dropout factor of element first + j, 0 <= j < n. Draws come in rows of kDrawRow
// elements.
void keep_factors(const DropSite& drop, int64_t first, int64_t n, float* out) {
  alignas(64) float row[kDrawRow];
  for (int64_t r = first / kDrawRow; r * kDrawRow < first + n; ++r) {
    const int64_t start = r * kDrawRow - first;  // of this row, in out
    const bool inside = start >= 0 && start + kDrawRow <= n;
    float* to = inside ? out + start : row;
    const Draws draws = row_draws(drop, r);
#pragma GCC unroll 8
    for (int half = 0; half < 8; ++half) store(to + 16 * half, keep_factor16(draws, half, drop));
    for (int64_t u = start < 0 ? -start : 0; !inside && u < kDrawRow && start + u < n; ++u)
      out[start + u] = row[u];
  }
}

// A dropped element is +0 whatever its sign was, as in Dropout itself.
VITRUM_LANES Vf kept(Vf v, Vf factor) { return where(gt(factor, zero()), v * factor); }

template <Act kAct, class T>
void epilogue_rows(const LinearEpilogueArgs& args, const float* c, int64_t ldc, int64_t row,
                   int64_t rows, int64_t column, int64_t columns, float* factors) {
  const Stream<T> y(args.y), saved(args.saved);
  for (int64_t r = 0; r < rows; ++r, c += ldc) {
    const int64_t at = (row + r) * args.width + column;
    if (args.drop) keep_factors(*args.drop, at, columns, factors);
    for_lanes(0, columns, [&](int64_t j, auto n) {
      Vf v = load(c + j, n);
      if (args.bias) v = v + load(args.bias + column + j, n);
      v = y.rounded(v);
      if (saved) saved.store(at + j, v, n);
      if (!y) return;
      if constexpr (kAct != Act::kNone) v = y.rounded(activate<kAct>(v));
      if (args.drop) v = kept(v, load(factors + j, n));
      y.store(at + j, v, n);
    });
  }
}

void epilogue(const LinearEpilogueArgs& args, const float* c, int64_t ldc, int64_t row,
              int64_t rows, int64_t column, int64_t columns, float* factors) {
  with_act(args.act, [&]<Act kAct>() {
    with_type(
        [&]<class T>() {
          epilogue_rows<kAct, T>(args, c, ldc, row, rows, column, columns, factors);
        },
        args.y, args.saved);
  });
}

template <Act kAct, class T, class To>
void gradient_rows(const LinearGradArgs& args, int64_t row, int64_t rows, To* to, float* factors) {
  const Stream<T> dy(args.dy), saved(args.saved);
  for (int64_t r = 0; r < rows; ++r, to += args.width) {
    const int64_t at = (row + r) * args.width;
    // For ReLU the saved output says by itself what was dropped: it is positive only where kept.
    const bool draw = args.drop && kAct != Act::kRelu;
    if (draw) keep_factors(*args.drop, at, args.width, factors);
    const Vf scale = splat(args.drop ? args.drop->scale : 1.0f);
    for_lanes(0, args.width, [&](int64_t j, auto n) {
      Vf d = dy.load(at + j, n);
      if (args.drop) d = dy.rounded(kept(d, draw ? load(factors + j, n) : scale));
      if constexpr (kAct != Act::kNone)
        d = dy.rounded(d * activate_grad<kAct>(saved.load(at + j, n)));
      store(to + j, d, n);
    });
  }
}

void gradient(const LinearGradArgs& args, int64_t row, int64_t rows, Array to, float* factors) {
  with_act(args.act, [&]<Act kAct>() {
    if (to.dtype == DType::kBF16)
      return gradient_rows<kAct, uint16_t>(args, row, rows, static_cast<uint16_t*>(to.data),
                                           factors);
    with_type(
        [&]<class T>() {
          gradient_rows<kAct, T>(args, row, rows, static_cast<float*>(to.data), factors);
        },
        args.dy, args.saved);
  });
}

void column_sums(Array array, int64_t at, int64_t stride, int64_t rows, int64_t columns,
                 float* sums) {
  with_type(
      [&]<class T>() {
        const Stream<T> x(array);
        for_lanes(0, columns, [&](int64_t j, auto n) {
          Vf s = load(sums + j, n);
          for (int64_t r = 0; r < rows; ++r) s += x.load(at + r * stride + j, n);
          store(sums + j, s, n);
        });
      },
      array);
}

}  // namespace

constinit const LinearKernels kLinear = {
    .epilogue = epilogue, .gradient = gradient, .column_sums = column_sums};

}  // namespace vitrum::cpu::VITRUM_ISA
