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
      // A store rounds by itself.
      if (kAct != Act::kNone || args.drop) v = y.rounded(v);
      if (saved) saved.store(at + j, v, n);
      if (!y) return;
      if constexpr (kAct != Act::kNone) v = activate<kAct, T>(v);
      if (args.drop) v = kept(y.rounded(v), load(factors + j, n));
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

template <Act kAct, bool kPast>
void through_rows(const LinearEpilogueArgs& args, float* c, int64_t ldc, int64_t row, int64_t rows,
                  int64_t column, int64_t columns, float* factors) {
  auto *y = static_cast<float*>(args.y.data), *saved = static_cast<float*>(args.saved.data);
  const auto put = [](float* to, Vf v, auto n) {
    if constexpr (kPast)
      store_past(to, v);
    else
      store(to, v, n);
  };
  for (int64_t r = 0; r < rows; ++r, c += ldc) {
    const int64_t at = (row + r) * args.width + column;
    if (args.drop) keep_factors(*args.drop, at, columns, factors);
    for_lanes(0, columns, [&](int64_t j, auto n) {
      Vf v = load(c + j, n);
      if (args.bias) v = v + load(args.bias + column + j, n);
      if (saved) put(saved + at + j, v, n);
      if constexpr (kAct != Act::kNone) v = activate<kAct>(v);
      if (args.drop) v = kept(v, load(factors + j, n));
      if (y) put(y + at + j, v, n);
      store(c + j, v, n);
    });
  }
}

void epilogue_through(const LinearEpilogueArgs& args, float* c, int64_t ldc, int64_t row,
                      int64_t rows, int64_t column, int64_t columns, float* factors, bool past) {
  const auto whole_lines = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 64 == 0; };
  past = past && args.width % 16 == 0 && column % 16 == 0 && columns % 16 == 0 &&
         whole_lines(args.y.data) && whole_lines(args.saved.data);
  with_act(args.act, [&]<Act kAct>() {
    (past ? through_rows<kAct, true> : through_rows<kAct, false>)(args, c, ldc, row, rows, column,
                                                                  columns, factors);
  });
  _mm_sfence();  // or other threads might read what was there before
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

template <Act kAct>
void gradient_block_rows(const LinearGradArgs& args, float* c, int64_t ldc, int64_t row,
                         int64_t rows, int64_t column, int64_t columns, float* factors) {
  const auto* saved = static_cast<const float*>(args.saved.data);
  for (int64_t r = 0; r < rows; ++r, c += ldc) {
    const int64_t at = (row + r) * args.width + column;
    const bool draw = args.drop && kAct != Act::kRelu;
    if (draw) keep_factors(*args.drop, at, columns, factors);
    const Vf scale = splat(args.drop ? args.drop->scale : 1.0f);
    for_lanes(0, columns, [&](int64_t j, auto n) {
      Vf d = load(c + j, n);
      if (args.drop) d = kept(d, draw ? load(factors + j, n) : scale);
      if constexpr (kAct != Act::kNone) d = d * activate_grad<kAct>(load(saved + at + j, n));
      store(c + j, d, n);
    });
  }
}

void gradient_block(const LinearGradArgs& args, float* c, int64_t ldc, int64_t row, int64_t rows,
                    int64_t column, int64_t columns, float* factors) {
  with_act(args.act, [&]<Act kAct>() {
    gradient_block_rows<kAct>(args, c, ldc, row, rows, column, columns, factors);
  });
}

// Sums of kN vectors of columns at once: each is a chain of additions that waits for itself.
template <int kN, class T, class N>
VITRUM_LANES void sum_columns(Stream<T> x, int64_t at, int64_t stride, int64_t rows, float* sums,
                              N n) {
  Vf s[kN];
  for (int v = 0; v < kN; ++v) s[v] = load(sums + 16 * v, n);
  for (int64_t r = 0; r < rows; ++r, at += stride)
    for (int v = 0; v < kN; ++v) s[v] += x.load(at + 16 * v, n);
  for (int v = 0; v < kN; ++v) store(sums + 16 * v, s[v], n);
}

void column_sums(Array array, int64_t at, int64_t stride, int64_t rows, int64_t columns,
                 float* sums) {
  with_type(
      [&]<class T>() {
        const Stream<T> x(array);
        int64_t j = 0;
        for (; j + 96 <= columns; j += 96) sum_columns<6>(x, at + j, stride, rows, sums + j, All{});
        for_lanes(j, columns,
                  [&](int64_t i, auto n) { sum_columns<1>(x, at + i, stride, rows, sums + i, n); });
      },
      array);
}

}  // namespace

constinit const LinearKernels kLinear = {.epilogue = epilogue,
                                         .epilogue_through = epilogue_through,
                                         .gradient = gradient,
                                         .gradient_block = gradient_block,
                                         .column_sums = column_sums};

}  // namespace vitrum::cpu::VITRUM_ISA
