// Numbers of eight bits with a point (e4m3fn, "fp8"): a sign, four bits of exponent, three of
// mantissa; up to 448, no infinities, 0x7f and 0xff are NaN. Every backend computes just this.
//
// A row of weights is scale * q, q of e4m3. A tensor of activations is that, too, its scale a power
// of two that hangs on the parameters alone: a bound on what it can hold, divided by 448
// (graph/bounds.h). Nothing is measured on images, and no image depends on another.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace vitrum {

inline constexpr float kMostE4M3 = 448;

// To the nearest, ties to even; what is larger becomes 448, NaN stays NaN.
constexpr uint8_t to_e4m3(float x) {
  constexpr uint32_t kInfinity = 0x7f800000, kMost = std::bit_cast<uint32_t>(kMostE4M3),
                     kLeastNormal = std::bit_cast<uint32_t>(0x1p-6f);
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffff;
  const uint32_t sign = bits >> 24 & 0x80;
  if (magnitude > kInfinity) return 0x7f;
  if (magnitude >= kMost) return static_cast<uint8_t>(sign | 0x7e);
  if (magnitude < kLeastNormal) {  // multiples of 2^-9, which are the last bits of numbers at 2^14
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(
        sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0x1p14f)));
  }
  constexpr int kDropped = 20;
  const uint32_t nearest = magnitude + (1u << (kDropped - 1)) - 1 + (magnitude >> kDropped & 1);
  return static_cast<uint8_t>(sign | ((nearest >> kDropped) - ((127u - 7u) << 3)));
}

constexpr float from_e4m3(uint8_t q) {
  const uint32_t sign = (q & 0x80u) << 24, exponent = q >> 3 & 15u, mantissa = q & 7u;
  if ((q & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) {
    const float x = static_cast<float>(mantissa) * 0x1p-9f;
    return sign ? -x : x;
  }
  return std::bit_cast<float>(sign | (exponent + 127 - 7) << 23 | mantissa << 20);
}

// The scale of a row of weights whose largest magnitude becomes `top`. Rounded up to 20 significant
// bits: scale * q is then exact in f32, so that weights that were rounded once come out the same
// when they are rounded again. NaN where a weight is not finite.
inline float e4m3_weight_scale(float largest, float top = kMostE4M3) {
  if (!(largest < std::numeric_limits<float>::infinity()))
    return std::numeric_limits<float>::quiet_NaN();
  constexpr uint32_t kLow = 0xf;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(largest / top) + kLow) & ~kLow);
}

// The nearest number of e4m3, as a float; for numbers of up to 448.
constexpr float nearest_e4m3(float x) {
  const float magnitude = x < 0 ? -x : x;
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  const float coarse = std::bit_cast<float>((bits + 0x7ffffu + (bits >> 20 & 1)) & ~0xfffffu),
              fine = (magnitude + 0x1p14f) - 0x1p14f, nearest = magnitude < 0x1p-6f ? fine : coarse;
  return x < 0 ? -nearest : nearest;
}

// What the largest of a row may become. How far numbers of e4m3 are apart doubles at powers of two,
// so it matters where between two of them a row's numbers lie. All four are numbers of e4m3: of
// weights that were rounded with one of them the same one is found again.
inline constexpr float kTopsE4M3[] = {kMostE4M3, 384, 320, 256};

// Of the scales that bring the largest of a row to one of these, the one with the least sum of
// squared errors.
inline float best_e4m3_scale(std::span<const float> row, float largest) {
  float best = e4m3_weight_scale(largest);
  double least = std::numeric_limits<double>::infinity();
  for (const float top : kTopsE4M3) {
    const float scale = e4m3_weight_scale(largest, top);
    if (!(scale > 0) || !(scale < std::numeric_limits<float>::infinity())) return best;
    const float inverse = 1 / scale;
    double squares = 0;
    for (const float w : row) {
      const float off = w - scale * nearest_e4m3(w * inverse);
      squares += static_cast<double>(off) * off;
    }
    if (squares < least) least = squares, best = scale;
  }
  return best;
}

// A row of weights, rounded; returns its scale: 0 where all are zero, NaN where one is not finite.
inline float round_weights_e4m3(std::span<const float> row, uint8_t* to) {
  float largest = 0, finite = 0;
  for (const float w : row) {
    if (std::abs(w) > largest) largest = std::abs(w);
    finite += w * 0;  // NaN where one is not
  }
  const float scale = best_e4m3_scale(row, largest + finite);
  for (const float w : row) *to++ = scale > 0 ? to_e4m3(w / scale) : uint8_t{0};
  return scale;
}

// The scale of activations that are at most this in magnitude: of the powers of two the least that
// leaves none above 448.
inline float activation_scale(float bound) {
  constexpr int kLeast = -30, kMost = 30;  // a bound of zero, or one that says nothing
  if (!(bound < std::ldexp(kMostE4M3, kMost))) return std::ldexp(1.0f, kMost);
  const int exponent = bound > 0 ? std::ilogb(bound / kMostE4M3) : kLeast;
  if (exponent < kLeast) return std::ldexp(1.0f, kLeast);
  const float scale = std::ldexp(1.0f, exponent);
  return scale * kMostE4M3 < bound ? 2 * scale : scale;
}

}  // namespace vitrum
