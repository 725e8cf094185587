#include "vitrum/cpu/simd/byte_attention.h"

#include "vitrum/core/eight_bits.h"
#include "vitrum/cpu/simd/arrays.h"
#include "vitrum/cpu/simd/transpose.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

constexpr float kInfinity = __builtin_inff(), kNan = __builtin_nanf(""),
                kLeastNormal = 1.17549435e-38f;
constexpr int64_t kLineBytes = kByteStepDepth;  // of a line in a step of the left operand

struct Range {
  float scale, inverse;
};
VITRUM_LANES Range range_of(float largest) {
  const float scale = largest / 127;
  if (!(scale < kInfinity)) return {kNan, 0};
  if (scale < kLeastNormal) return {scale, 0};
  return {scale, 1 / scale};
}

VITRUM_LANES float largest_lane(Vi bits) {
  const uint32_t most = max_lane(bits);
  float value;
  __builtin_memcpy(&value, &most, sizeof value);
  return value;
}

template <class T>
VITRUM_LANES Range line_range(const T* x, int64_t width) {
  Vi most = splat_bits(0);  // magnitudes as whole numbers, of which NaN's are the largest
  for_lanes(0, width, [&](int64_t j, auto n) { most = max(most, as_bits(abs(load(x + j, n)))); });
  return range_of(largest_lane(most));
}

template <class T>
VITRUM_LANES Vf load_upto(const T* x, int64_t left) {
  return left >= 16 ? load(x) : left > 0 ? load_n(x, static_cast<int>(left)) : zero();
}

template <class T>
void pack_queries_of(const T* x, const ByteHead& q, int64_t count, uint32_t* to, float* scale) {
  for (int64_t i = 0; i < count; ++i, x += q.stride) {
    const Range range = line_range(x, q.width);
    scale[i] = range.scale;
    const Vf inverse = splat(range.inverse), offset = splat(128.0f);
    for (int64_t d = 0; d < q.width; d += 16) {
      auto* bytes = reinterpret_cast<uint8_t*>(to + d / kLineBytes * kStepWords + i * kTile);
      // Rounded before 128 is added, as core/eight_bits.h has it.
      store_bytes(bytes + d % kLineBytes,
                  round_even(load_upto(x + d, q.width - d) * inverse) + offset);
    }
  }
}

void pack_queries(const ByteHead& q, int64_t first, int64_t count, uint32_t* to, float* scale) {
  with_type(
      [&]<class T>() {
        pack_queries_of(static_cast<const T*>(q.x.data) + q.at + first * q.stride, q, count, to,
                        scale);
      },
      q.x);
}

// Sixteen lines of sixteen words, [line][word] to [word][line].
VITRUM_LANES void transpose_words(const uint32_t* from, uint32_t* to) {
  const auto* in = reinterpret_cast<const float*>(from);
  auto* out = reinterpret_cast<float*>(to);
#ifdef __AVX512F__
  __m512 r[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(in + i * kTile);
  transpose16(r);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_storeu_ps(out + i * kTile, r[i]);
#else
  for (int row = 0; row < 16; row += 8)
    for (int half = 0; half < 16; half += 8) {
      __m256 r[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(in + (row + i) * kTile + half);
      transpose8(r);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) _mm256_storeu_ps(out + (half + i) * kTile + row, r[i]);
    }
#endif
}

// Key `line` of a tile, of which `words` has the bytes of one step.
template <class T>
VITRUM_LANES float round_key(const T* x, int64_t width, Vf inverse, uint32_t* words) {
  Vf sum = zero();
  for (int64_t i = 0; i < kLineBytes; i += 16) {
    const Vf q = round_even(load_upto(x + i, width - i) * inverse);
    sum += q;
    store_bytes(reinterpret_cast<int8_t*>(words) + i, q);
  }
  return VITRUM_ISA::sum(sum);
}

template <class T>
float pack_keys_of(const T* x, const ByteHead& k, uint32_t* to, float* scale, int32_t* sum) {
  const int64_t steps = (k.width + kLineBytes - 1) / kLineBytes;
  float finite = 0;
  alignas(64) uint32_t words[kTileWords];
  for (int64_t first = 0; first < bands_of(k.tokens) * kBand; first += kTile) {
    uint32_t* tile = to + first / kBand * steps * kStepWords + first % kBand / kTile * kTileWords;
    Range ranges[kTile];
    for (int64_t i = 0; i < kTile; ++i) {
      const bool there = first + i < k.tokens;
      ranges[i] = there ? line_range(x + (first + i) * k.stride, k.width) : Range{0, 0};
      scale[first + i] = ranges[i].scale, sum[first + i] = 0;
      finite += ranges[i].scale * 0;
    }
    for (int64_t s = 0; s < steps; ++s, tile += kStepWords) {
      for (int64_t i = 0; i < kTile; ++i) {
        const bool there = ranges[i].inverse > 0;
        const int64_t d = s * kLineBytes, at = there ? (first + i) * k.stride + d : 0;
        sum[first + i] +=
            128 * static_cast<int32_t>(round_key(x + at, there ? k.width - d : 0,
                                                 splat(ranges[i].inverse), words + i * kTile));
      }
      transpose_words(words, tile);
    }
  }
  return finite;
}

float pack_keys(const ByteHead& k, uint32_t* to, float* scale, int32_t* sum) {
  float finite = 0;
  with_type(
      [&]<class T>() {
        finite = pack_keys_of(static_cast<const T*>(k.x.data) + k.at, k, to, scale, sum);
      },
      k.x);
  return finite;
}

// Sixteen channels, four tokens a word.
template <class T, class N>
VITRUM_LANES void pack_channels(const T* x, const ByteHead& v, N n, uint32_t* to, float* scale,
                                float* means) {
  Vf total = zero();
  for (int64_t t = 0; t < v.tokens; ++t) total += load(x + t * v.stride, n);
  const Vf mean = total * splat(1 / static_cast<float>(v.tokens));
  store(means, mean);
  Vi most = splat_bits(0);
  for (int64_t t = 0; t < v.tokens; ++t)
    most = max(most, as_bits(abs(load(x + t * v.stride, n) - mean)));
  alignas(64) float inverses[16];
  alignas(64) uint32_t largest[16];
  store_words(largest, most);
  for (int i = 0; i < 16; ++i) {
    float value;
    __builtin_memcpy(&value, largest + i, sizeof value);
    const Range range = range_of(value);
    scale[i] = range.scale, inverses[i] = range.inverse;
  }
  const Vf inverse = load(inverses);
  const Vi low = splat_bits(0xff);
  const auto bytes = [&](int64_t t) {
    return t < v.tokens ? to_whole((load(x + t * v.stride, n) - mean) * inverse) & low
                        : splat_bits(0);
  };
  for (int64_t t = 0; t < v.tokens; t += 4) {
    const Vi word = (bytes(t) | shift_left<8>(bytes(t + 1))) |
                    (shift_left<16>(bytes(t + 2)) | shift_left<24>(bytes(t + 3)));
    store_words(to + t / kLineBytes * kStepWords + t % kLineBytes / 4 * kTile, word);
  }
  for (int64_t word = (v.tokens + 3) / 4; word % kTile != 0; ++word)
    store_words(to + word / kTile * kStepWords + word % kTile * kTile, splat_bits(0));
}

template <class T>
void pack_values_of(const T* x, const ByteHead& v, uint32_t* to, float* scale, float* mean) {
  const int64_t steps = (v.tokens + kLineBytes - 1) / kLineBytes;
  for (int64_t c = 0; c < bands_of(v.width) * kBand; c += kTile) {
    uint32_t* tile = to + c / kBand * steps * kStepWords + c % kBand / kTile * kTileWords;
    const int64_t left = v.width - c;
    if (left >= kTile)
      pack_channels(x + c, v, All{}, tile, scale + c, mean + c);
    else
      pack_channels(left > 0 ? x + c : x, v, static_cast<int>(left > 0 ? left : 0), tile, scale + c,
                    mean + c);
  }
}

void pack_values(const ByteHead& v, uint32_t* to, float* scale, float* mean) {
  with_type(
      [&]<class T>() {
        pack_values_of(static_cast<const T*>(v.x.data) + v.at, v, to, scale, mean);
      },
      v.x);
}

// Scores of a row in place of its sums; returns the largest, or NaN where one is NaN.
template <bool kOffsets>
VITRUM_LANES float scores_of(const ByteScores& s, int64_t row) {
  auto* sums = reinterpret_cast<uint32_t*>(s.sums) + row * s.stride;
  auto* scores = reinterpret_cast<float*>(sums);
  const auto* corrections = reinterpret_cast<const uint32_t*>(s.key_sum);
  const Vf scale = splat(s.query_scale[row] * s.scale);
  const float *bias = s.bias ? s.bias + row * s.tokens : nullptr,
              *mask = s.mask ? s.mask + row * s.tokens : nullptr;
  Vf most[2] = {splat(-kInfinity), splat(-kInfinity)}, bad = zero();
  const auto take = [&](int k, int64_t j, auto n) {
    Vf v = to_float(load_words(sums + j) - load_words(corrections + j)) * load(s.key_scale + j);
    if constexpr (kOffsets) {
      const Vf offset = !mask   ? load(bias + j, n)
                        : !bias ? load(mask + j, n)
                                : load(bias + j, n) + load(mask + j, n);
      v = or_else(fma(v, scale, offset), n, -kInfinity);
      bad = select(eq(v, v), bad, v);
    }
    store(scores + j, v);
    most[k] = max(or_else(v, n, -kInfinity), most[k]);
  };
  int64_t j = 0;
  for (; j + 32 <= s.tokens; j += 32) take(0, j, All{}), take(1, j + 16, All{});
  for_lanes(j, s.tokens, [&](int64_t i, auto n) { take(0, i, n); });
  const float top = max_lane(max(most[0], most[1]));
  return kOffsets ? top + sum(bad) : top;
}

// 255 * 2^e.
VITRUM_LANES Vf weight_of(Vf e) {
  e = max(splat(-126.0f), min(e, zero()));
  const Vf n = round_even(e);
  return scale2(polynomial(e - n, kWeightCurve), n);
}

template <bool kOffsets>
void softmax_of(const ByteScores& s, uint32_t* to, float* inverse) {
  float tops[kBand];
  for (int64_t r = 0; r < s.rows; ++r) tops[r] = scores_of<kOffsets>(s, r);
  for (int64_t r = 0; r < s.rows; ++r) {
    const float slope = kOffsets ? kLog2OfE : s.query_scale[r] * s.scale * kLog2OfE,
                least = -tops[r] * slope;
    const Vf factor = splat(slope), start = splat(least);
    const auto* scores = reinterpret_cast<const float*>(s.sums) + r * s.stride;
    auto* bytes = reinterpret_cast<uint8_t*>(to + r * kTile);
    const float total = sum_lanes(s.tokens, [&](int64_t j, auto n) {
      const Vf w = only(weight_of(fma(load(scores + j), factor, start)), n);
      store_bytes(bytes + j / kLineBytes * (kStepWords * 4) + j % kLineBytes, w);
      return w;
    });
    inverse[r] = 1 / total + (least * 0 + s.finite);
  }
}

void softmax(const ByteScores& s, uint32_t* to, float* inverse) {
  s.bias || s.mask ? softmax_of<true>(s, to, inverse) : softmax_of<false>(s, to, inverse);
}

void write(const int32_t* sums, int64_t stride, int64_t rows, const float* value_scale,
           const float* mean, const float* inverse, const ByteHead& head) {
  with_type(
      [&]<class T>() {
        const Stream<T> y(head.x);
        const auto* words = reinterpret_cast<const uint32_t*>(sums);
        for (int64_t r = 0; r < rows; ++r, words += stride) {
          const Vf factor = splat(inverse[r]);
          for_lanes(0, head.width, [&](int64_t j, auto n) {
            y.store(head.at + r * head.stride + j,
                    fma(to_float(load_words(words + j)), load(value_scale + j) * factor,
                        load(mean + j)),
                    n);
          });
        }
      },
      head.x);
}

}  // namespace

constinit const ByteAttentionKernels kByteAttention = {.pack_queries = pack_queries,
                                                       .pack_keys = pack_keys,
                                                       .pack_values = pack_values,
                                                       .softmax = softmax,
                                                       .write = write};

}  // namespace vitrum::cpu::VITRUM_ISA
