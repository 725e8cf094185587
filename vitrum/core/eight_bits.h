// How numbers are rounded to eight bits. Every backend computes just this, so that all give the
// same bytes, and sums of bytes are exact: an int8 layer has the same bits on every processor.
//
// A row of weights is scale * q, q in [-127, 127]. A row of activations is scale * (q - zero), q in
// [0, 255]: its own range, zero included, so that no image depends on another, and nothing has to
// be calibrated.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace vitrum {

// Sums of so many products of bytes fit into 32 bits: 255 * 127 * 65,536 < 2^31.
inline constexpr int64_t kMostByteDepth = 65536;

// The scale of a row of weights whose largest magnitude this is. Rounded up to 17 significant bits:
// scale * q is then exact in f32, so that weights that were rounded once come out the same when
// they are rounded again. NaN where a weight is not finite.
inline float weight_scale(float largest) {
  if (!(largest < std::numeric_limits<float>::infinity()))
    return std::numeric_limits<float>::quiet_NaN();
  constexpr uint32_t kLow = 0x7f;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(largest / 127) + kLow) & ~kLow);
}

inline int8_t weight_byte(float w, float scale) {
  if (!(scale > 0)) return 0;
  const float q = std::nearbyint(w / scale);
  return static_cast<int8_t>(q > 127 ? 127 : q < -127 ? -127 : q);
}

// A row of weights, rounded; returns its scale: 0 where all are zero, NaN where one is not finite.
inline float round_weights(std::span<const float> row, int8_t* to) {
  float largest = 0, finite = 0;
  for (const float w : row) {
    if (std::abs(w) > largest) largest = std::abs(w);
    finite += w * 0;  // NaN where one is not
  }
  const float scale = weight_scale(largest + finite);
  for (const float w : row) *to++ = weight_byte(w, scale);
  return scale;
}

struct ByteRange {
  float scale = 0, inverse = 0, zero = 0;  // zero: a whole number
};
// Of a row whose numbers are in [low, high], low <= 0 <= high. A row that is not finite has a scale
// that is not; one of zeros, or of less than a normal number, has the inverse 0.
inline ByteRange byte_range(float low, float high) {
  const float scale = (high - low) / 255;
  if (!(scale < std::numeric_limits<float>::infinity()))
    return {std::numeric_limits<float>::quiet_NaN(), 0, 0};
  if (scale < std::numeric_limits<float>::min()) return {scale, 0, 0};
  const float inverse = 1 / scale;
  return {scale, inverse, std::nearbyint(-low * inverse)};
}

inline uint8_t activation_byte(float x, const ByteRange& range) {
  if (range.inverse == 0) return 0;
  const float q = std::nearbyint(std::fma(x, range.inverse, range.zero));
  return static_cast<uint8_t>(q > 255 ? 255 : q < 0 ? 0 : q);
}

// What a sum of products of bytes stands for.
inline float byte_product(int32_t sum, int32_t weight_sum, const ByteRange& range, float scale) {
  return static_cast<float>(sum - static_cast<int32_t>(range.zero) * weight_sum) *
         (range.scale * scale);
}

// ---- attention ----
// Queries and keys of a head are scale * q, q in [-127, 127], by the range of their token. Values
// are that by the range of their channel over all tokens, after its mean was taken off. A score is
//   (sum over d of q k) * scale of the key * scale of the query / sqrt(D) (+ bias),
// its weight 2^e, e being what it is less than the largest of its row, in powers of two. Products
// have attention_byte of that; but what a row is divided by is the sum of weights that were not
// rounded, and as values are less their mean, that takes the place of what rounding lost:
//   y = (sum of bytes of weights and values) * scale of the channel / sum of weights + mean.
struct SignedRange {
  float scale = 0, inverse = 0;
};
// Of numbers up to this magnitude. NaN where one is not finite; the inverse is 0 where all are less
// than a normal number.
inline SignedRange signed_range(float largest) {
  const float scale = largest / 127;
  if (!(scale < std::numeric_limits<float>::infinity()))
    return {std::numeric_limits<float>::quiet_NaN(), 0};
  if (scale < std::numeric_limits<float>::min()) return {scale, 0};
  return {scale, 1 / scale};
}
inline int8_t signed_byte(float x, const SignedRange& range) {
  if (range.inverse == 0) return 0;
  const float q = std::nearbyint(x * range.inverse);
  return static_cast<int8_t>(q > 127 ? 127 : q < -127 ? -127 : q);
}

// Not inline: kernels that are compiled for one instruction set have copies of their own.
constexpr float kLog2OfE = 1.44269504f;
// 255 * 2^r, |r| <= 1/2, to 1e-4 of it; lowest power first.
constexpr float kWeightCurve[] = {254.98164f, 176.781547f, 61.8658407f, 14.0687651f};
// 255 * 2^e; e is at most 0, but for what it was rounded by itself.
inline float attention_weight(float e) {
  e = !(e < 0) ? 0 : e < -126 ? -126 : e;
  const float n = std::nearbyint(e), r = e - n;
  float y = kWeightCurve[3];
  for (int i = 2; i >= 0; --i) y = std::fma(y, r, kWeightCurve[i]);
  return std::ldexp(y, static_cast<int>(n));
}
inline uint8_t attention_byte(float weight) { return static_cast<uint8_t>(std::nearbyint(weight)); }

}  // namespace vitrum
