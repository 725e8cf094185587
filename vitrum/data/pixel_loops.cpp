#include "vitrum/data/pixel_loops.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define VITRUM_AVX2 __attribute__((target("avx2")))
#endif

namespace vitrum {
namespace {

constexpr int kLowerBits = 11;
constexpr int32_t kHalf = 1 << (kWeightBits - 1);

void weigh_rows_plain(const uint8_t* rows, size_t stride, std::span<const int32_t> weights,
                      size_t begin, size_t width, uint8_t* out) {
  for (size_t x = begin; x < width; ++x) {
    int32_t sum = kHalf;
    const uint8_t* pixel = rows + x;
    for (const int32_t w : weights) sum += *pixel * w, pixel += stride;
    out[x] = static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
  }
}

void split_rgb_plain(const uint8_t* rgb, size_t begin, size_t width, uint8_t* red, uint8_t* green,
                     uint8_t* blue) {
  for (size_t x = begin; x < width; ++x)
    red[x] = rgb[3 * x], green[x] = rgb[3 * x + 1], blue[x] = rgb[3 * x + 2];
}

void transpose_plain(const uint8_t* in, size_t in_stride, size_t rows, size_t columns, uint8_t* out,
                     size_t out_stride) {
  for (size_t c = 0; c < columns; ++c)
    for (size_t r = 0; r < rows; ++r) out[c * out_stride + r] = in[r * in_stride + c];
}

#if defined(__x86_64__)

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}

const __m256i* wide(const uint8_t* p) { return reinterpret_cast<const __m256i*>(p); }
const __m128i* half(const uint8_t* p) { return reinterpret_cast<const __m128i*>(p); }

int32_t bits_of(const int16_t (&pair)[2]) {
  int32_t bits;
  std::memcpy(&bits, pair, sizeof bits);
  return bits;
}

// 32 columns. Two rows at a time become pairs of 16-bit numbers, which one instruction multiplies
// and adds; the unpacking within 128-bit lanes is undone by the packing at the end.
VITRUM_AVX2 void weigh_32(const uint8_t* rows, size_t stride, size_t taps,
                          std::span<const WeightPair> pairs, uint8_t* out) {
  const __m256i zero = _mm256_setzero_si256(), half_unit = _mm256_set1_epi32(kHalf);
  __m256i upper[4] = {zero, zero, zero, zero};
  __m256i lower[4] = {half_unit, half_unit, half_unit, half_unit};
  for (size_t i = 0; i < pairs.size(); ++i) {
    const uint8_t* first = rows + 2 * i * stride;
    const uint8_t* second = 2 * i + 1 < taps ? first + stride : first;
    const __m256i a = _mm256_loadu_si256(wide(first)), b = _mm256_loadu_si256(wide(second));
    const __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
    const __m256i pixels[4] = {_mm256_unpacklo_epi8(low, zero), _mm256_unpackhi_epi8(low, zero),
                               _mm256_unpacklo_epi8(high, zero), _mm256_unpackhi_epi8(high, zero)};
    const __m256i wu = _mm256_set1_epi32(bits_of(pairs[i].upper)),
                  wl = _mm256_set1_epi32(bits_of(pairs[i].lower));
    for (int j = 0; j < 4; ++j) {
      upper[j] = _mm256_add_epi32(upper[j], _mm256_madd_epi16(pixels[j], wu));
      lower[j] = _mm256_add_epi32(lower[j], _mm256_madd_epi16(pixels[j], wl));
    }
  }
  for (int j = 0; j < 4; ++j)
    upper[j] = _mm256_srai_epi32(
        _mm256_add_epi32(_mm256_slli_epi32(upper[j], kLowerBits), lower[j]), kWeightBits);
  const __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(upper[0], upper[1]),
                                            _mm256_packs_epi32(upper[2], upper[3]));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
}

// Sixteen pixels of one colour out of three vectors of interleaved ones: `pick` has the byte of the
// input for each byte of the output, counted through all three.
VITRUM_AVX2 __m128i pick_colour(const __m128i (&in)[3], int colour) {
  __m128i out = _mm_setzero_si128();
  for (int part = 0; part < 3; ++part) {
    alignas(16) std::array<int8_t, 16> pick;
    for (int i = 0; i < 16; ++i) {
      const int at = 3 * i + colour - 16 * part;
      pick[static_cast<size_t>(i)] = static_cast<int8_t>(at >= 0 && at < 16 ? at : -1);
    }
    const __m128i mask = _mm_load_si128(reinterpret_cast<const __m128i*>(pick.data()));
    out = _mm_or_si128(out, _mm_shuffle_epi8(in[part], mask));
  }
  return out;
}

VITRUM_AVX2 size_t split_rgb_avx2(const uint8_t* rgb, size_t width, uint8_t* red, uint8_t* green,
                                  uint8_t* blue) {
  size_t x = 0;
  for (; x + 16 <= width; x += 16, rgb += 48) {
    const __m128i in[3] = {_mm_loadu_si128(half(rgb)), _mm_loadu_si128(half(rgb + 16)),
                           _mm_loadu_si128(half(rgb + 32))};
    uint8_t* const planes[3] = {red + x, green + x, blue + x};
    for (int colour = 0; colour < 3; ++colour)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(planes[colour]), pick_colour(in, colour));
  }
  return x;
}

// Four rounds of interleaving halves: each doubles the run of bytes that came from one column.
void transpose_16(const uint8_t* in, size_t in_stride, uint8_t* out, size_t out_stride) {
  __m128i a[16], b[16];
  for (size_t r = 0; r < 16; ++r) a[r] = _mm_loadu_si128(half(in + r * in_stride));
  const auto interleave = [](const __m128i(&from)[16], __m128i(&to)[16]) {
    for (size_t i = 0; i < 8; ++i) {
      to[2 * i] = _mm_unpacklo_epi8(from[i], from[i + 8]);
      to[2 * i + 1] = _mm_unpackhi_epi8(from[i], from[i + 8]);
    }
  };
  interleave(a, b), interleave(b, a), interleave(a, b), interleave(b, a);
  for (size_t c = 0; c < 16; ++c)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + c * out_stride), a[c]);
}

#endif

}  // namespace

void pair_up(std::span<const int32_t> weights, WeightPair* pairs) {
  std::fill_n(pairs, pairs_of(weights.size()), WeightPair{});
  for (size_t k = 0; k < weights.size(); ++k) {
    pairs[k / 2].upper[k % 2] = static_cast<int16_t>(weights[k] >> kLowerBits);
    pairs[k / 2].lower[k % 2] = static_cast<int16_t>(weights[k] & ((1 << kLowerBits) - 1));
  }
}

void weigh_rows(const uint8_t* rows, size_t stride, std::span<const int32_t> weights,
                [[maybe_unused]] std::span<const WeightPair> pairs, size_t width, uint8_t* out) {
  size_t done = 0;
#if defined(__x86_64__)
  if (has_avx2()) {
    for (; done + 32 <= width; done += 32)
      weigh_32(rows + done, stride, weights.size(), pairs, out + done);
    if (done < width && width >= 32) {  // the last 32 once more, rather than a slow rest
      weigh_32(rows + width - 32, stride, weights.size(), pairs, out + width - 32);
      done = width;
    }
  }
#endif
  weigh_rows_plain(rows, stride, weights, done, width, out);
}

void transpose(const uint8_t* in, size_t in_stride, size_t rows, size_t columns, uint8_t* out,
               size_t out_stride) {
  size_t r = 0;
#if defined(__x86_64__)
  for (; r + 16 <= rows; r += 16) {
    size_t c = 0;
    for (; c + 16 <= columns; c += 16)
      transpose_16(in + r * in_stride + c, in_stride, out + c * out_stride + r, out_stride);
    transpose_plain(in + r * in_stride + c, in_stride, 16, columns - c, out + c * out_stride + r,
                    out_stride);
  }
#endif
  transpose_plain(in + r * in_stride, in_stride, rows - r, columns, out + r, out_stride);
}

void split_rgb(const uint8_t* rgb, size_t width, uint8_t* red, uint8_t* green, uint8_t* blue) {
  size_t done = 0;
#if defined(__x86_64__)
  if (has_avx2()) done = split_rgb_avx2(rgb, width, red, green, blue);
#endif
  split_rgb_plain(rgb, done, width, red, green, blue);
}

}  // namespace vitrum
