#include "vitrum/cpu/simd/attention.h"

#include "vitrum/cpu/simd/arrays.h"
#include "vitrum/cpu/simd/draws.h"
#include "vitrum/cpu/simd/transpose.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

void gather(Array array, int64_t at, int64_t stride, int64_t rows, int64_t width, float* to) {
  with_type(
      [&]<class T>() {
        const Stream<T> x(array);
        for (int64_t r = 0; r < rows; ++r, to += width)
          for_lanes(0, width,
                    [&](int64_t j, auto n) { store(to + j, x.load(at + r * stride + j, n), n); });
      },
      array);
}

void scatter(const float* from, Array array, int64_t at, int64_t stride, int64_t rows,
             int64_t width, const float* factors) {
  with_type(
      [&]<class T>() {
        const Stream<T> y(array);
        for (int64_t r = 0; r < rows; ++r, from += width) {
          const Vf factor = splat(factors ? factors[r] : 1.0f);
          for_lanes(0, width, [&](int64_t j, auto n) {
            y.store(at + r * stride + j, load(from + j, n) * factor, n);
          });
        }
      },
      array);
}

// The dropout factors of one row of attention weights: element h * per_row + c is half h of counter
// c.
void row_factors(const DropSite& drop, int64_t row, int64_t tokens, float* out) {
  const int64_t per_row = draws_per_row(tokens);
  for (int64_t c = 0; c < per_row; c += 16) {
    const Draws draws = philox16(drop, static_cast<uint64_t>(row * per_row + c));
    const int n = per_row - c < 16 ? static_cast<int>(per_row - c) : 16;
#pragma GCC unroll 8
    for (int half = 0; half < 8; ++half)
      if (half * per_row + c < tokens)
        store_n(out + half * per_row + c, keep_factor16(draws, half, drop), n);
  }
}

float row_max(const float* s, int64_t n_total) {
  const Vf least = splat(-__builtin_inff());
  Vf m[4] = {least, least, least, least};
  int64_t i = 0;
  for (; i + 64 <= n_total; i += 64)
    for (int k = 0; k < 4; ++k) m[k] = max(m[k], load(s + i + 16 * k));
  for_lanes(i, n_total, [&](int64_t j, auto n) {
    m[0] = max(m[0], or_else(load(s + j, n), n, -__builtin_inff()));
  });
  return max_lane(max(max(m[0], m[1]), max(m[2], m[3])));
}

void softmax(float* s, int64_t rows, int64_t tokens, int64_t stride, float scale, int64_t row,
             const DropSite* drop, float* lse, float* factors) {
  for (int64_t t = 0; t < rows; ++t, s += stride) {
    const float top = row_max(s, tokens) * scale;
    const float total = sum_lanes(tokens, [&](int64_t j, auto n) {
      const Vf e = only(exp(fma(load(s + j, n), splat(scale), splat(-top))), n);
      store(s + j, e, n);
      return e;
    });
    if (lse) lse[t] = top + __builtin_logf(total);
    if (drop) row_factors(*drop, row + t, tokens, factors);
    const Vf inverse = splat(1.0f / total);
    for_lanes(0, tokens, [&](int64_t j, auto n) {
      const Vf p = load(s + j, n) * inverse;
      store(s + j, drop ? p * load(factors + j, n) : p, n);
    });
  }
}

void softmax_narrow(float* s, int64_t rows, int64_t tokens, int64_t stride, float scale,
                    int64_t row, const DropSite* drop, float* lse, float* inverse, float* factors) {
  constexpr float kLog2E = 1.44269504f;
  float top = row_max(s, tokens) * scale;
  for (int64_t t = 0; t < rows; ++t, s += stride) {
    auto* weights = reinterpret_cast<uint16_t*>(s);  // never ahead of what is still to be read
    // Ahead of time, or the exponentials would wait for it.
    const float next = t + 1 < rows ? row_max(s + stride, tokens) * scale : 0;
    if (drop) row_factors(*drop, row + t, tokens, factors);
    const Vf slope = splat(scale * kLog2E), least = splat(-top * kLog2E);
    const float total = sum_lanes(tokens, [&](int64_t j, auto n) {
      const Vf e = only(exp2_narrow(fma(load(s + j, n), slope, least)), n);
      store(weights + j, drop ? e * load(factors + j, n) : e, n);
      return e;
    });
    if (lse) lse[t] = top + __builtin_logf(total);
    inverse[t] = 1.0f / total;
    top = next;
  }
}

void softmax_bwd(float* s, float* dp, int64_t tokens, int64_t stride, float scale, int64_t row,
                 const DropSite* drop, const float* lse, const float* y, int64_t y_stride,
                 const float* dy, int64_t dy_stride, int64_t head, float* factors) {
  for (int64_t t = 0; t < tokens; ++t, s += stride, dp += stride, y += y_stride, dy += dy_stride) {
    const Vf delta =
        splat(sum_lanes(head, [&](int64_t j, auto n) { return load(y + j, n) * load(dy + j, n); }));
    if (drop) row_factors(*drop, row + t, tokens, factors);
    for_lanes(0, tokens, [&](int64_t j, auto n) {
      const Vf p = exp(fma(load(s + j, n), splat(scale), splat(-lse[t])));
      const Vf f = drop ? load(factors + j, n) : splat(1.0f);
      store(dp + j, p * (load(dp + j, n) * f - delta) * splat(scale), n);
      store(s + j, p * f, n);
    });
  }
}

void add_bias(float* s, int64_t rows, int64_t tokens, int64_t stride, float scale,
              const float* bias, const float* mask) {
  for (int64_t t = 0; t < rows; ++t, s += stride) {
    for_lanes(0, tokens, [&](int64_t j, auto n) {
      const Vf offset = !mask   ? load(bias + j, n)
                        : !bias ? load(mask + j, n)
                                : load(bias + j, n) + load(mask + j, n);
      store(s + j, fma(load(s + j, n), splat(scale), offset), n);
    });
    if (bias) bias += tokens;
    if (mask) mask += tokens;
  }
}

void add_bias_bwd(float* dp, int64_t tokens, int64_t stride, float scale, float* dbias) {
  for (int64_t t = 0; t < tokens; ++t, dp += stride) {
    for_lanes(0, tokens, [&](int64_t j, auto n) {
      const Vf d = load(dp + j, n);
      if (dbias) store(dbias + j, load(dbias + j, n) + d, n);
      store(dp + j, d * splat(scale), n);
    });
    if (dbias) dbias += tokens;
  }
}

// ---- sixteen heads side by side ----
// A head's (tokens, kD) values, value d of token t in 16 lanes at [(t * kD + d) * 16].
template <int kD>
struct Heads {
  const LaneAttentionArgs& args;
  int64_t first;  // head number of lane 0
  int lanes;      // heads that exist

  Heads(const LaneAttentionArgs& a, int64_t group) : args(a), first(group * 16) {
    const int64_t left = a.batch * a.heads - first;
    lanes = left < 16 ? static_cast<int>(left) : 16;
  }
  int64_t at(int lane, int64_t parts, int64_t part) const {  // of token 0; rows are parts * C wide
    const int64_t number = first + lane, b = number / args.heads, h = number % args.heads,
                  c = args.heads * args.head;
    return b * args.tokens * parts * c + part * c + h * args.head;
  }
  // Eight heads by eight values at a time.
  template <class T>
  void read_as(const T* x, int64_t parts, int64_t part, float* to) const {
    const int64_t stride = parts * args.heads * args.head;
    for (int lane = 0; lane < 16; lane += 8) {
      const T* head[8] = {};
      for (int y = 0; y < 8; ++y)
        if (lane + y < lanes) head[y] = x + at(lane + y, parts, part);
      for (int64_t t = 0; t < args.tokens; ++t)
        for (int64_t d = 0; d < kD; d += 8) {
          __m256 r[8];
#pragma GCC unroll 8
          for (int y = 0; y < 8; ++y)
            r[y] = head[y] ? load8_n(head[y] + t * stride + d, args.head - d) : _mm256_setzero_ps();
          transpose8(r);
#pragma GCC unroll 8
          for (int i = 0; i < 8; ++i) _mm256_storeu_ps(to + (t * kD + d + i) * 16 + lane, r[i]);
        }
    }
  }
  [[gnu::noinline]] void read(Array x, int64_t parts, int64_t part, float* to) const {
    if (x.dtype == DType::kBF16)
      read_as(static_cast<const uint16_t*>(x.data), parts, part, to);
    else
      read_as(static_cast<const float*>(x.data), parts, part, to);
  }
  template <class T>
  void write_as(const float* from, T* y, int64_t parts, int64_t part) const {
    const int64_t stride = parts * args.heads * args.head;
    for (int lane = 0; lane < lanes; lane += 8) {
      T* head[8] = {};
      for (int i = 0; i < 8; ++i)
        if (lane + i < lanes) head[i] = y + at(lane + i, parts, part);
      for (int64_t t = 0; t < args.tokens; ++t)
        for (int64_t d = 0; d < args.head; d += 8) {
          __m256 r[8];
#pragma GCC unroll 8
          for (int i = 0; i < 8; ++i) r[i] = load8(from + (t * kD + d + i) * 16 + lane);
          transpose8(r);
#pragma GCC unroll 8
          for (int i = 0; i < 8; ++i)
            if (head[i]) put8_n(head[i] + t * stride + d, r[i], args.head - d);
        }
    }
  }
  [[gnu::noinline]] void write(const float* from, Array y, int64_t parts, int64_t part) const {
    if (y.dtype == DType::kBF16)
      write_as(from, static_cast<uint16_t*>(y.data), parts, part);
    else
      write_as(from, static_cast<float*>(y.data), parts, part);
  }
  static void put8_n(float* p, __m256 values, int64_t n) {
    if (n >= 8) return _mm256_storeu_ps(p, values);
    for (int64_t i = 0; i < n; ++i) p[i] = values[i];
  }
  static void put8_n(uint16_t* p, __m256 values, int64_t n) {
    alignas(32) float wide[16] = {};
    _mm256_store_ps(wide, values);
    store_n(p, load(wide), n < 8 ? static_cast<int>(n) : 8);
  }

  // The dropout factors of row t, each head its own.
  [[gnu::noinline]] void factors(int64_t t, float* out) const {
    const auto per_row = static_cast<uint32_t>(draws_per_row(args.tokens)),
               tokens = static_cast<uint32_t>(args.tokens);
    for (uint32_t c = 0; c < per_row; ++c) {
      alignas(64) uint32_t counter[16];
      for (uint32_t lane = 0; lane < 16; ++lane)
        counter[lane] =
            ((static_cast<uint32_t>(first) + lane) * tokens + static_cast<uint32_t>(t)) * per_row +
            c;
      const Draws draws = philox_lanes(*args.drop, load_words(counter), splat_bits(0));
      for (int half = 0; half < 8; ++half) {
        const uint32_t u = static_cast<uint32_t>(half) * per_row + c;
        if (u < tokens) store(out + u * 16, keep_factor16(draws, half, *args.drop));
      }
    }
  }
};

template <int kD>
VITRUM_LANES Vf dot(const Vf (&a)[kD], const float* b) {
  Vf s = a[0] * load(b);
#pragma GCC unroll 16
  for (int d = 1; d < kD; ++d) s = fma(a[d], load(b + 16 * d), s);
  return s;
}
template <int kD>
VITRUM_LANES void load_row(Vf (&a)[kD], const float* from) {
#pragma GCC unroll 16
  for (int d = 0; d < kD; ++d) a[d] = load(from + 16 * d);
}
template <int kD>
VITRUM_LANES void add_scaled(Vf (&a)[kD], Vf x, const float* b) {
#pragma GCC unroll 16
  for (int d = 0; d < kD; ++d) a[d] = fma(x, load(b + 16 * d), a[d]);
}

template <int kD>
void lanes_forward_of(const LaneAttentionArgs& args, int64_t group, float* scratch) {
  const Heads<kD> heads(args, group);
  const int64_t tokens = args.tokens, size = tokens * kD * 16;
  float *q = scratch, *k = q + size, *v = k + size, *y = v + size, *p = y + size,
        *f = p + tokens * 16;
  heads.read(args.qkv, 3, 0, q), heads.read(args.qkv, 3, 1, k), heads.read(args.qkv, 3, 2, v);
  const Vf scale = splat(1.0f / __builtin_sqrtf(static_cast<float>(args.head)));
  for (int64_t t = 0; t < tokens; ++t) {
    Vf row[kD];
    load_row(row, q + t * kD * 16);
    Vf top = splat(-__builtin_inff()), total = zero();
    for (int64_t u = 0; u < tokens; ++u) {
      const Vf s = dot(row, k + u * kD * 16) * scale;
      top = max(top, s);
      store(p + u * 16, s);
    }
    for (int64_t u = 0; u < tokens; ++u) {
      const Vf e = exp(load(p + u * 16) - top);
      total += e;
      store(p + u * 16, e);
    }
    if (args.lse) {
      alignas(64) float tops[16], totals[16];
      store(tops, top), store(totals, total);
      for (int lane = 0; lane < heads.lanes; ++lane)
        args.lse[(heads.first + lane) * tokens + t] = tops[lane] + __builtin_logf(totals[lane]);
    }
    if (args.drop) heads.factors(t, f);
    Vf out[kD];
#pragma GCC unroll 16
    for (int d = 0; d < kD; ++d) out[d] = zero();
    const Vf inverse = splat(1.0f) / total;
    for (int64_t u = 0; u < tokens; ++u) {
      const Vf weight = load(p + u * 16) * inverse;
      add_scaled(out, args.drop ? weight * load(f + u * 16) : weight, v + u * kD * 16);
    }
#pragma GCC unroll 16
    for (int d = 0; d < kD; ++d) store(y + (t * kD + d) * 16, out[d]);
  }
  if (args.y.data) heads.write(y, args.y, 1, 0);
}

template <int kD>
void lanes_backward_of(const LaneAttentionArgs& args, int64_t group, float* scratch) {
  const Heads<kD> heads(args, group);
  const int64_t tokens = args.tokens, size = tokens * kD * 16;
  float *q = scratch, *k = q + size, *v = k + size, *y = v + size, *dy = y + size, *dq = dy + size,
        *dk = dq + size, *dv = dk + size, *f = dv + size;
  heads.read(args.qkv, 3, 0, q), heads.read(args.qkv, 3, 1, k), heads.read(args.qkv, 3, 2, v);
  heads.read(args.y, 1, 0, y), heads.read(args.dy, 1, 0, dy);
  for (int64_t i = 0; i < size; i += 16) store(dk + i, zero()), store(dv + i, zero());
  const Vf scale = splat(1.0f / __builtin_sqrtf(static_cast<float>(args.head)));
  for (int64_t t = 0; t < tokens; ++t) {
    Vf query[kD], slope[kD], out[kD];
    load_row(query, q + t * kD * 16), load_row(slope, dy + t * kD * 16);
    const Vf delta = dot(slope, y + t * kD * 16);
    alignas(64) float lses[16] = {};
    for (int lane = 0; lane < heads.lanes; ++lane)
      lses[lane] = args.lse[(heads.first + lane) * tokens + t];
    const Vf lse = load(lses);
    if (args.drop) heads.factors(t, f);
#pragma GCC unroll 16
    for (int d = 0; d < kD; ++d) out[d] = zero();
    for (int64_t u = 0; u < tokens; ++u) {
      const int64_t at = u * kD * 16;
      const Vf p = exp(dot(query, k + at) * scale - lse), dp = dot(slope, v + at);
      const Vf kept = args.drop ? load(f + u * 16) : splat(1.0f), weight = p * kept;
      const Vf ds = p * (dp * kept - delta) * scale;
      add_scaled(out, ds, k + at);
#pragma GCC unroll 16
      for (int d = 0; d < kD; ++d) {
        store(dk + at + 16 * d, fma(ds, query[d], load(dk + at + 16 * d)));
        store(dv + at + 16 * d, fma(weight, slope[d], load(dv + at + 16 * d)));
      }
    }
#pragma GCC unroll 16
    for (int d = 0; d < kD; ++d) store(dq + (t * kD + d) * 16, out[d]);
  }
  heads.write(dq, args.dqkv, 3, 0), heads.write(dk, args.dqkv, 3, 1),
      heads.write(dv, args.dqkv, 3, 2);
}

void lanes_forward(const LaneAttentionArgs& args, int64_t group, float* scratch) {
  args.head <= 8 ? lanes_forward_of<8>(args, group, scratch)
                 : lanes_forward_of<16>(args, group, scratch);
}
void lanes_backward(const LaneAttentionArgs& args, int64_t group, float* scratch) {
  args.head <= 8 ? lanes_backward_of<8>(args, group, scratch)
                 : lanes_backward_of<16>(args, group, scratch);
}

}  // namespace

constinit const AttentionKernels kAttention = {.gather = gather,
                                               .scatter = scatter,
                                               .softmax = softmax,
                                               .softmax_narrow = softmax_narrow,
                                               .softmax_bwd = softmax_bwd,
                                               .add_bias = add_bias,
                                               .add_bias_bwd = add_bias_bwd,
                                               .lanes_forward = lanes_forward,
                                               .lanes_backward = lanes_backward};

}  // namespace vitrum::cpu::VITRUM_ISA
