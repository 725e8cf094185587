#include "vitrum/data/affine.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numbers>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#define VITRUM_AVX2 __attribute__((target("avx2")))
#endif

namespace vitrum {
namespace {

// Python's round(x, 15).
double round15(double x) {
  char text[64];
  std::snprintf(text, sizeof text, "%.15f", x);
  return std::strtod(text, nullptr);
}

double cubic(double v1, double v2, double v3, double v4, double d) {
  const double p2 = -v1 + v3, p3 = 2 * (v1 - v2) + v3 - v4, p4 = -v1 + v2 - v3 + v4;
  return v2 + d * (p2 + d * (p3 + d * p4));
}

uint8_t to_byte(double v) { return static_cast<uint8_t>(std::clamp(v, 0.0, 255.0)); }

// One plane, to be read at places between its pixels. Columns outside are the nearest one; a row
// outside is what the row before it gave.
struct Plane {
  const uint8_t* data;
  int height, width;

  const uint8_t* row(int y) const {
    return data + static_cast<size_t>(std::clamp(y, 0, height - 1)) * static_cast<size_t>(width);
  }
  int column(int x) const { return std::clamp(x, 0, width - 1); }
  double at(int y, int x) const { return row(y)[column(x)]; }

  uint8_t bilinear(double x, double y) const {
    const int left = static_cast<int>(std::floor(x)), top = static_cast<int>(std::floor(y));
    const double dx = x - left, dy = y - top;
    const auto line = [&](int r) {
      const double a = at(r, left), b = at(r, left + 1);
      return a + (b - a) * dx;
    };
    const double v1 = line(top), v2 = top + 1 < height ? line(top + 1) : v1;
    return to_byte(v1 + (v2 - v1) * dy);
  }
  uint8_t bicubic(double x, double y) const {
    const int left = static_cast<int>(std::floor(x)), top = static_cast<int>(std::floor(y));
    const double dx = x - left, dy = y - top;
    double v[4];
    for (int k = 0; k < 4; ++k) {
      const int r = top - 1 + k;
      v[k] = k > 0 && (r < 0 || r >= height)
                 ? v[k - 1]
                 : cubic(at(r, left - 1), at(r, left), at(r, left + 1), at(r, left + 2), dx);
    }
    return to_byte(cubic(v[0], v[1], v[2], v[3], dy));
  }
};

Plane plane_of(const Image& image, int channel) {
  return {image.plane(channel), image.height, image.width};
}

// What a transform needs besides its images.
struct Sampling {
  AffineMatrix m;
  bool cubic;
  bool across, down;  // false: that axis falls on whole pixels everywhere
};

bool on_pixels(double own, double other, double shift) {
  return own == 1.0 && other == 0.0 && shift == std::nearbyint(shift);
}

// Output pixels [begin, end) of row y.
void sample_plain(const Image& in, const Sampling& s, int y, int begin, int end, Image& out) {
  const AffineMatrix& m = s.m;
  const double down = y + 0.5;
  for (int x = begin; x < end; ++x) {
    const double right = x + 0.5;
    const double from_x = m[0] * right + m[1] * down + m[2];
    const double from_y = m[3] * right + m[4] * down + m[5];
    if (!(from_x >= 0 && from_x < in.width && from_y >= 0 && from_y < in.height)) continue;
    const size_t to =
        static_cast<size_t>(y) * static_cast<size_t>(in.width) + static_cast<size_t>(x);
    for (int c = 0; c < in.channels; ++c) {
      const Plane plane = plane_of(in, c);
      out.plane(c)[to] = s.cubic ? plane.bicubic(from_x - 0.5, from_y - 0.5)
                                 : plane.bilinear(from_x - 0.5, from_y - 0.5);
    }
  }
}

#if defined(__x86_64__)

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}

// Eight doubles. No fused multiply-add: Pillow rounds every product.
struct Eight {
  __m256d low, high;
};
#define VITRUM_EIGHT VITRUM_AVX2 inline __attribute__((always_inline))
VITRUM_EIGHT Eight operator+(Eight a, Eight b) {
  return {_mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high)};
}
VITRUM_EIGHT Eight operator-(Eight a, Eight b) {
  return {_mm256_sub_pd(a.low, b.low), _mm256_sub_pd(a.high, b.high)};
}
VITRUM_EIGHT Eight operator*(Eight a, Eight b) {
  return {_mm256_mul_pd(a.low, b.low), _mm256_mul_pd(a.high, b.high)};
}
VITRUM_EIGHT Eight splat(double x) { return {_mm256_set1_pd(x), _mm256_set1_pd(x)}; }
VITRUM_EIGHT Eight widen(__m256i x) {
  return {_mm256_cvtepi32_pd(_mm256_castsi256_si128(x)),
          _mm256_cvtepi32_pd(_mm256_extracti128_si256(x, 1))};
}
VITRUM_EIGHT Eight floor(Eight x) { return {_mm256_floor_pd(x.low), _mm256_floor_pd(x.high)}; }
VITRUM_EIGHT __m256i truncate(Eight x) {
  return _mm256_set_m128i(_mm256_cvttpd_epi32(x.high), _mm256_cvttpd_epi32(x.low));
}
VITRUM_EIGHT bool all_between(Eight x, double low, double high) {
  const __m256d a = _mm256_set1_pd(low), b = _mm256_set1_pd(high);
  const __m256d inside = _mm256_and_pd(
      _mm256_and_pd(_mm256_cmp_pd(x.low, a, _CMP_GE_OQ), _mm256_cmp_pd(x.low, b, _CMP_LE_OQ)),
      _mm256_and_pd(_mm256_cmp_pd(x.high, a, _CMP_GE_OQ), _mm256_cmp_pd(x.high, b, _CMP_LE_OQ)));
  return _mm256_movemask_pd(inside) == 15;
}

VITRUM_EIGHT __m256i byte_of(__m256i words, int k) {
  return _mm256_and_si256(_mm256_srli_epi32(words, 8 * k), _mm256_set1_epi32(255));
}

// Four neighbouring pixels of each of eight places, beginning at base + at.
VITRUM_EIGHT __m256i gather(const uint8_t* base, __m256i at) {
  return _mm256_i32gather_epi32(reinterpret_cast<const int*>(base), at, 1);
}

// The pixels' differences are exact in integers.
VITRUM_EIGHT Eight cubic_pixels(__m256i words, Eight d) {
  const __m256i a = byte_of(words, 0), b = byte_of(words, 1), c = byte_of(words, 2),
                e = byte_of(words, 3);
  const __m256i ab = _mm256_sub_epi32(a, b), ce = _mm256_sub_epi32(c, e);
  const Eight p2 = widen(_mm256_sub_epi32(c, a)),
              p3 = widen(_mm256_add_epi32(_mm256_add_epi32(ab, ab), ce)),
              p4 = widen(_mm256_sub_epi32(_mm256_setzero_si256(), _mm256_add_epi32(ab, ce)));
  return widen(b) + d * (p2 + d * (p3 + d * p4));
}
VITRUM_EIGHT Eight cubic_values(Eight v1, Eight v2, Eight v3, Eight v4, Eight d) {
  const Eight p2 = v3 - v1, p3 = splat(2.0) * (v1 - v2) + v3 - v4, p4 = v2 - v1 - v3 + v4;
  return v2 + d * (p2 + d * (p3 + d * p4));
}

// `at` is the pixel up and left of the place; rows are `stride` apart.
template <bool kAcross, bool kDown>
VITRUM_EIGHT Eight bicubic_8(const uint8_t* base, __m256i at, int stride, Eight dx, Eight dy) {
  const auto line = [&](int k) __attribute__((always_inline, target("avx2"))) {
    const __m256i words = gather(base, _mm256_add_epi32(at, _mm256_set1_epi32(k * stride)));
    if constexpr (kAcross) return cubic_pixels(words, dx);
    return widen(byte_of(words, 1));
  };
  if constexpr (!kDown) return line(1);
  return cubic_values(line(0), line(1), line(2), line(3), dy);
}
template <bool kAcross, bool kDown>
VITRUM_EIGHT Eight bilinear_8(const uint8_t* base, __m256i at, int stride, Eight dx, Eight dy) {
  const auto line = [&](int k) __attribute__((always_inline, target("avx2"))) {
    const __m256i words = gather(base, _mm256_add_epi32(at, _mm256_set1_epi32(k * stride)));
    const __m256i a = byte_of(words, 1);
    if constexpr (kAcross) return widen(a) + widen(_mm256_sub_epi32(byte_of(words, 2), a)) * dx;
    return widen(a);
  };
  if constexpr (!kDown) return line(1);
  const Eight v1 = line(1), v2 = line(2);
  return v1 + (v2 - v1) * dy;
}

VITRUM_EIGHT void store_bytes(Eight values, uint8_t* to) {
  const __m256i whole = truncate(values);
  const __m128i half =
      _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(half, half));
}

// A row, eight pixels at a time where all sixteen neighbours of each are inside.
template <bool kCubic, bool kAcross, bool kDown>
VITRUM_AVX2 void sample_row(const Image& in, const Sampling& s, int y, Image& out) {
  const AffineMatrix& m = s.m;
  const int width = in.width;
  const Eight step = widen(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)), half = splat(0.5);
  const Eight right = splat(m[1] * (y + 0.5)), under = splat(m[4] * (y + 0.5));
  int x = 0;
  for (; x + 8 <= width; x += 8) {
    const Eight place = splat(x + 0.5) + step;
    const Eight fx = splat(m[0]) * place + right + splat(m[2]) - half;
    const Eight fy = splat(m[3]) * place + under + splat(m[5]) - half;
    if (!all_between(fx, 1, width - 3) || !all_between(fy, 1, in.height - 3)) {
      sample_plain(in, s, y, x, x + 8, out);
      continue;
    }
    const Eight left = floor(fx), top = floor(fy), dx = fx - left, dy = fy - top;
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i at = _mm256_add_epi32(
        _mm256_mullo_epi32(_mm256_sub_epi32(truncate(top), one), _mm256_set1_epi32(width)),
        _mm256_sub_epi32(truncate(left), one));
    const size_t to = static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x);
    for (int c = 0; c < in.channels; ++c)
      store_bytes(kCubic ? bicubic_8<kAcross, kDown>(in.plane(c), at, width, dx, dy)
                         : bilinear_8<kAcross, kDown>(in.plane(c), at, width, dx, dy),
                  out.plane(c) + to);
  }
  sample_plain(in, s, y, x, width, out);
}

template <bool kCubic>
void sample_row(const Image& in, const Sampling& s, int y, Image& out) {
  if (!s.down)
    return s.across ? sample_row<kCubic, true, false>(in, s, y, out)
                    : sample_row<kCubic, false, false>(in, s, y, out);
  s.across ? sample_row<kCubic, true, true>(in, s, y, out)
           : sample_row<kCubic, false, true>(in, s, y, out);
}

#endif

void sample(const Image& in, const Sampling& s, Image& out) {
  for (int y = 0; y < in.height; ++y) {
#if defined(__x86_64__)
    // Places are computed in 32 bits.
    if (has_avx2() && in.plane_size() < size_t{1} << 30) {
      s.cubic ? sample_row<true>(in, s, y, out) : sample_row<false>(in, s, y, out);
      continue;
    }
#endif
    sample_plain(in, s, y, 0, in.width, out);
  }
}

// ---- nearest: Pillow has two ways, and each rounds in its own ----

int whole(double v) { return v < 0 ? -1 : static_cast<int>(v); }

void copy_pixel(const Image& in, int y, int x, int to_y, int to_x, Image& out) {
  const auto width = static_cast<size_t>(in.width);
  for (int c = 0; c < in.channels; ++c)
    out.plane(c)[static_cast<size_t>(to_y) * width + static_cast<size_t>(to_x)] =
        in.plane(c)[static_cast<size_t>(y) * width + static_cast<size_t>(x)];
}

void nearest_straight(const Image& in, const AffineMatrix& m, Image& out) {
  std::vector<int> columns(static_cast<size_t>(in.width));
  double at = m[2] + m[0] * 0.5;
  for (int& x : columns) x = whole(std::min(at, static_cast<double>(in.width))), at += m[0];
  double down = m[5] + m[4] * 0.5;
  for (int y = 0; y < in.height; ++y, down += m[4]) {
    const int from = whole(std::min(down, static_cast<double>(in.height)));
    if (from < 0 || from >= in.height) continue;
    for (int x = 0; x < in.width; ++x)
      if (const int c = columns[static_cast<size_t>(x)]; c >= 0 && c < in.width)
        copy_pixel(in, from, c, y, x, out);
  }
}

// 16.16 fixed point.
void nearest_turned(const Image& in, const AffineMatrix& m, Image& out) {
  const auto fixed = [](double v) { return static_cast<int64_t>(std::floor(v * 65536.0 + 0.5)); };
  int64_t start_x = fixed(m[2] + m[0] * 0.5 + m[1] * 0.5);
  int64_t start_y = fixed(m[5] + m[3] * 0.5 + m[4] * 0.5);
  for (int y = 0; y < in.height; ++y, start_x += fixed(m[1]), start_y += fixed(m[4])) {
    int64_t at_x = start_x, at_y = start_y;
    for (int x = 0; x < in.width; ++x, at_x += fixed(m[0]), at_y += fixed(m[3])) {
      const int64_t from_x = at_x >> 16, from_y = at_y >> 16;
      if (from_x >= 0 && from_x < in.width && from_y >= 0 && from_y < in.height)
        copy_pixel(in, static_cast<int>(from_y), static_cast<int>(from_x), y, x, out);
    }
  }
}

}  // namespace

AffineMatrix rotation(double degrees, int height, int width) {
  double turn = std::fmod(degrees, 360.0);
  if (turn < 0) turn += 360.0;
  const double angle = -(turn * (std::numbers::pi / 180.0));
  const double cosine = round15(std::cos(angle)), sine = round15(std::sin(angle));
  const double x = width / 2.0, y = height / 2.0;
  AffineMatrix m = {cosine, sine, 0, round15(-std::sin(angle)), cosine, 0};
  m[2] = m[0] * -x + m[1] * -y + 0.0 + x;
  m[5] = m[3] * -x + m[4] * -y + 0.0 + y;
  return m;
}

void transform_affine(const Image& in, const AffineMatrix& m, Filter filter, const ByteColour& fill,
                      Image& out) {
  assert(&in != &out && in.channels <= 3);
  out.reshape(in.channels, in.height, in.width);
  for (int c = 0; c < in.channels; ++c)
    std::fill_n(out.plane(c), out.plane_size(), fill[static_cast<size_t>(c)]);
  if (filter == Filter::kNearest)
    return m[1] == 0 && m[3] == 0 ? nearest_straight(in, m, out) : nearest_turned(in, m, out);
  sample(in,
         {.m = m,
          .cubic = filter != Filter::kBilinear,
          .across = !on_pixels(m[0], m[1], m[2]),
          .down = !on_pixels(m[4], m[3], m[5])},
         out);
}

}  // namespace vitrum
