#include "vitrum/data/edit_loops.h"

#include <algorithm>

namespace vitrum {
namespace {

#if defined(__x86_64__)
bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}
// The same loop, compiled for wider vectors.
template <class Loop>
[[gnu::target("avx2")]] void run_avx2(const Loop& loop) {
  loop();
}
template <class Loop>
void run(const Loop& loop) {
  has_avx2() ? run_avx2(loop) : loop();
}
#else
template <class Loop>
void run(const Loop& loop) {
  loop();
}
#endif
#define VITRUM_LOOP [&]() __attribute__((always_inline))

}  // namespace

void apply_lut(const Lut& lut, std::span<uint8_t> pixels) {
  for (uint8_t& pixel : pixels) pixel = lut[pixel];
}

// Four counters a value, so that equal neighbours do not wait for each other.
Histogram histogram_of(std::span<const uint8_t> pixels) {
  std::array<Histogram, 4> parts{};
  size_t i = 0;
  for (; i + 4 <= pixels.size(); i += 4)
    for (size_t k = 0; k < 4; ++k) ++parts[k][pixels[i + k]];
  for (; i < pixels.size(); ++i) ++parts[0][pixels[i]];
  for (size_t k = 1; k < 4; ++k)
    for (size_t v = 0; v < 256; ++v) parts[0][v] += parts[k][v];
  return parts[0];
}

void to_grey(const uint8_t* __restrict red, const uint8_t* __restrict green,
             const uint8_t* __restrict blue, size_t n, uint8_t* __restrict grey) {
  run(VITRUM_LOOP {
    for (size_t i = 0; i < n; ++i)
      grey[i] = static_cast<uint8_t>(
          (red[i] * 19595u + green[i] * 38470u + blue[i] * 7471u + 0x8000u) >> 16);
  });
}

void blend(const uint8_t* __restrict from, float alpha, size_t n, uint8_t* __restrict pixels) {
  run(VITRUM_LOOP {
    for (size_t i = 0; i < n; ++i) {
      const int start = from[i], step = pixels[i] - start;
      const float mixed = static_cast<float>(start) + alpha * static_cast<float>(step);
      pixels[i] = static_cast<uint8_t>(std::clamp(static_cast<int>(mixed), 0, 255));
    }
  });
}

// The sum of nine over 13 is never halfway between two integers, so that integers round as
// Pillow's floats do.
void smooth_row(const uint8_t* __restrict above, const uint8_t* __restrict row,
                const uint8_t* __restrict below, size_t width, uint8_t* __restrict out) {
  run(VITRUM_LOOP {
    for (size_t x = 1; x + 1 < width; ++x) {
      const int sum = above[x - 1] + above[x] + above[x + 1] + row[x - 1] + 5 * row[x] +
                      row[x + 1] + below[x - 1] + below[x] + below[x + 1];
      out[x] = static_cast<uint8_t>(static_cast<uint16_t>(2 * sum + 13) / 26);
    }
  });
}

void box_row(const BoxWeights& box, const uint8_t* const* rows, size_t n, uint8_t* __restrict out) {
  const int last = 2 * box.radius + 2;
  constexpr size_t kBlock = 256;
  uint32_t sum[kBlock];
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t count = std::min(kBlock, n - begin);
    std::fill_n(sum, count, 0u);
    run(VITRUM_LOOP {
      for (int k = 1; k < last; ++k) {
        const uint8_t* __restrict row = rows[k] + begin;
        for (size_t i = 0; i < count; ++i) sum[i] += row[i];
      }
      const uint8_t* __restrict first = rows[0] + begin;
      const uint8_t* __restrict end = rows[last] + begin;
      for (size_t i = 0; i < count; ++i) {
        const uint32_t ends = static_cast<uint32_t>(first[i]) + end[i];
        out[begin + i] =
            static_cast<uint8_t>((sum[i] * box.inner + ends * box.outer + (1u << 23)) >> 24);
      }
    });
  }
}

}  // namespace vitrum
