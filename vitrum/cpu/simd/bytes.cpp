#include "vitrum/cpu/simd/bytes.h"

#include "vitrum/cpu/simd/activate.h"
#include "vitrum/cpu/simd/arrays.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

// Of core/eight_bits.h, whose functions may not be compiled here (lanes.h says why); the tests
// compare every bit.
constexpr float kInfinity = __builtin_inff(), kNan = __builtin_nanf(""),
                kLeastNormal = 1.17549435e-38f;

struct Range {
  float scale, inverse, zero;
};

VITRUM_LANES Range range_of(float low, float high) {
  const float scale = (high - low) / 255;
  if (!(scale < kInfinity)) return {kNan, 0, 0};
  if (scale < kLeastNormal) return {scale, 0, 0};
  const float inverse = 1 / scale;
  return {scale, inverse, __builtin_nearbyintf(-low * inverse)};
}

VITRUM_LANES float scale_of(float largest) {
  if (!(largest < kInfinity)) return kNan;
  constexpr uint32_t kLow = 0x7f;
  const float scale = largest / 127;
  uint32_t bits;
  __builtin_memcpy(&bits, &scale, sizeof bits);
  bits = (bits + kLow) & ~kLow;
  float rounded;
  __builtin_memcpy(&rounded, &bits, sizeof bits);
  return rounded;
}

template <class T>
VITRUM_LANES Range row_range(const T* x, int64_t width) {
  Vf low[2] = {zero(), zero()}, high[2] = {zero(), zero()}, finite = zero();
  const auto take = [&](int k, Vf v) {
    low[k] = min(v, low[k]), high[k] = max(v, high[k]);
    finite = fma(v, zero(), finite);  // NaN where one is not finite
  };
  int64_t i = 0;
  for (; i + 32 <= width; i += 32) take(0, load(x + i)), take(1, load(x + i + 16));
  for_lanes(i, width, [&](int64_t j, auto n) { take(0, load(x + j, n)); });
  const float whole = sum(finite);
  return range_of(-max_lane(-min(low[0], low[1])) + whole, max_lane(max(high[0], high[1])) + whole);
}

// The bytes of one line: 64 of each step, a band's steps being kStepWords apart.
template <class T>
VITRUM_LANES void pack_line(const T* x, int64_t width, const Range& range, uint32_t* to) {
  const Vf inverse = splat(range.inverse), offset = splat(range.zero);
  for (int64_t d = 0; d < width; d += kByteStepDepth, to += kStepWords) {
    auto* bytes = reinterpret_cast<uint8_t*>(to);
    if (d + kByteStepDepth <= width) {
#pragma GCC unroll 4
      for (int64_t i = 0; i < kByteStepDepth; i += 16)
        store_bytes(bytes + i, fma(load(x + d + i), inverse, offset));
      continue;
    }
    for (int64_t i = 0; i < kByteStepDepth; i += 16) {
      const int64_t left = width - d - i;
      const Vf v = left >= 16 ? load(x + d + i)
                   : left > 0 ? load_n(x + d + i, static_cast<int>(left))
                              : zero();
      store_bytes(bytes + i, fma(v, inverse, offset));
    }
  }
}

// Missing lines are zero: their sums are thrown away, but are computed.
VITRUM_LANES void clear_line(int64_t width, uint32_t* to) {
  for (int64_t d = 0; d < width; d += kByteStepDepth, to += kStepWords)
    store_words(to, splat_bits(0));
}

template <class T>
void pack_rows_of(const T* x, int64_t count, int64_t width, uint32_t* to, ByteRows rows) {
  for (int64_t i = 0; i < kBand; ++i) {
    if (i >= count) {
      clear_line(width, to + i * kTile);
      continue;
    }
    const Range range = row_range(x + i * width, width);
    rows.scale[i] = range.scale, rows.zero[i] = static_cast<int32_t>(range.zero);
    pack_line(x + i * width, width, range, to + i * kTile);
  }
}

void pack_rows(Array x, int64_t first, int64_t count, int64_t width, uint32_t* to, ByteRows rows) {
  with_type(
      [&]<class T>() {
        pack_rows_of(static_cast<const T*>(x.data) + first * width, count, width, to, rows);
      },
      x);
}

// NaN counts as more than anything: magnitudes are compared as whole numbers.
template <class T>
VITRUM_LANES float largest_of(const T* w, int64_t width) {
  Vi most = splat_bits(0);
  for_lanes(0, width, [&](int64_t j, auto n) {
    const Vi bits = as_bits(abs(load(w + j, n)));
    most = select(lt(most, bits), bits, most);
  });
  alignas(64) uint32_t lanes[16];
  store_words(lanes, most);
  uint32_t largest = 0;
  for (const uint32_t lane : lanes) largest = lane > largest ? lane : largest;
  float value;
  __builtin_memcpy(&value, &largest, sizeof value);
  return value;
}

// 64 bytes as words of a line in a right operand, which are a tile's line apart; returns their sum.
VITRUM_LANES int32_t scatter(const int8_t* bytes, uint32_t* to) {
  alignas(64) uint32_t words[kTile];
  __builtin_memcpy(words, bytes, sizeof words);
  for (int64_t i = 0; i < kTile; ++i) to[i * kTile] = words[i];
  int32_t sum = 0;
  for (int64_t i = 0; i < kByteStepDepth; ++i) sum += bytes[i];
  return sum;
}

template <class T>
void pack_weight_line(const T* w, int64_t width, int64_t line, uint32_t* to, float& scale,
                      int32_t& sum) {
  scale = scale_of(largest_of(w, width));
  const Vf divisor = splat(scale > 0 ? scale : kInfinity);
  to += line / kTile * kTileWords + line % kTile;
  sum = 0;
  for (int64_t d = 0; d < width; d += kByteStepDepth, to += kStepWords) {
    alignas(64) int8_t bytes[kByteStepDepth] = {};
    for (int64_t i = 0; i < kByteStepDepth && d + i < width; i += 16) {
      const int64_t left = width - d - i;
      const Vf v = left >= 16 ? load(w + d + i) : load_n(w + d + i, static_cast<int>(left));
      store_bytes(bytes + i, v / divisor);
    }
    sum += scatter(bytes, to);
  }
}

void pack_bytes(const int8_t* w, int64_t first, int64_t count, int64_t width, uint32_t* to,
                int32_t* sum) {
  for (int64_t i = 0; i < byte_band_words(width); ++i) to[i] = 0;
  for (int64_t line = 0; line < count; ++line) {
    const int8_t* from = w + (first + line) * width;
    uint32_t* place = to + line / kTile * kTileWords + line % kTile;
    sum[line] = 0;
    for (int64_t d = 0; d < width; d += kByteStepDepth, place += kStepWords) {
      alignas(64) int8_t bytes[kByteStepDepth] = {};
      for (int64_t i = 0; i < kByteStepDepth && d + i < width; ++i) bytes[i] = from[d + i];
      sum[line] += scatter(bytes, place);
    }
  }
}

void pack_weights(Array w, int64_t first, int64_t count, int64_t width, uint32_t* to,
                  ByteWeights weights) {
  for (int64_t i = 0; i < byte_band_words(width); ++i) to[i] = 0;
  with_type(
      [&]<class T>() {
        const T* p = static_cast<const T*>(w.data) + first * width;
        for (int64_t i = 0; i < count; ++i)
          pack_weight_line(p + i * width, width, i, to, weights.scale[i], weights.sum[i]);
      },
      w);
}

template <Act kAct, class T>
void epilogue_rows(const ByteEpilogueArgs& args, const int32_t* c, int64_t ldc, int64_t row,
                   int64_t rows, int64_t column, int64_t columns, ByteRows left,
                   ByteWeights right) {
  const Stream<T> y(args.y);
  const auto* sums = reinterpret_cast<const uint32_t*>(right.sum);
  for (int64_t r = 0; r < rows; ++r, c += ldc) {
    const Vf scale = splat(left.scale[r]);
    const Vi zero = splat_bits(static_cast<uint32_t>(left.zero[r]));
    const auto* words = reinterpret_cast<const uint32_t*>(c);
    const int64_t at = (row + r) * args.width + column;
    for_lanes(0, columns, [&](int64_t j, auto n) {
      const Vi sum = load_words(words + j) - multiply_low(zero, load_words(sums + j));
      Vf v = to_float(sum) * (scale * load(right.scale + j));
      if (args.bias) v = v + load(args.bias + column + j, n);
      if constexpr (kAct != Act::kNone) v = activate<kAct, uint16_t>(y.rounded(v));
      y.store(at + j, v, n);
    });
  }
}

void epilogue(const ByteEpilogueArgs& args, const int32_t* c, int64_t ldc, int64_t row,
              int64_t rows, int64_t column, int64_t columns, ByteRows left, ByteWeights right) {
  with_act(args.act, [&]<Act kAct>() {
    with_type(
        [&]<class T>() {
          epilogue_rows<kAct, T>(args, c, ldc, row, rows, column, columns, left, right);
        },
        args.y);
  });
}

}  // namespace

constinit const ByteKernels kBytes = {.pack_rows = pack_rows,
                                      .pack_weights = pack_weights,
                                      .pack_bytes = pack_bytes,
                                      .epilogue = epilogue};

}  // namespace vitrum::cpu::VITRUM_ISA
