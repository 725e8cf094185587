// Blocks of tiles by AMX, whatever it multiplies. Four tiles of sums, two of each operand:
// registers 0 to 3, 4 and 5, 6 and 7.
#pragma once
#include <immintrin.h>

#include "vitrum/cpu/tiles/product.h"

namespace vitrum::cpu {
namespace {

struct alignas(64) Configuration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(Configuration) == 64);
constexpr Configuration kConfiguration;

// VITRUM_AMX_DOT(sums, left, right) is the instruction: its operands are parts of its name.
struct Amx {
  // The whole depth of most layers: to load and store sums again costs more than operands from the
  // second-level cache.
  static constexpr int64_t kSliceSteps = 96;
  static constexpr int64_t kWholeRows = kBand;

  // The registers are given back after each product: a thread that holds them is slower to switch.
  Amx() { _tile_loadconfig(&kConfiguration); }
  ~Amx() { _tile_release(); }

  template <bool kTall, bool kWide, class Sum>
  static void block(const uint32_t* a, const uint32_t* b, Sum* c, int64_t ldc, int64_t /*rows*/,
                    int64_t steps, bool accumulate) {
    constexpr int kTileStride = kTile * sizeof(uint32_t);
    const int64_t stride = ldc * static_cast<int64_t>(sizeof(Sum));
    // The compiler does not know that tile loads read memory.
    __asm__ volatile("" ::: "memory");
    if (accumulate) {
      _tile_loadd(0, c, stride);
      if constexpr (kWide) _tile_loadd(1, c + kTile, stride);
      if constexpr (kTall) _tile_loadd(2, c + kTile * ldc, stride);
      if constexpr (kTall && kWide) _tile_loadd(3, c + kTile * ldc + kTile, stride);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t s = 0; s < steps; ++s, a += kStepWords, b += kStepWords) {
      _tile_loadd(4, a, kTileStride);
      _tile_loadd(6, b, kTileStride);
      VITRUM_AMX_DOT(0, 4, 6);
      if constexpr (kWide) {
        _tile_loadd(7, b + kTileWords, kTileStride);
        VITRUM_AMX_DOT(1, 4, 7);
      }
      if constexpr (kTall) {
        _tile_loadd(5, a + kTileWords, kTileStride);
        VITRUM_AMX_DOT(2, 5, 6);
      }
      if constexpr (kTall && kWide) VITRUM_AMX_DOT(3, 5, 7);
    }
    _tile_stored(0, c, stride);
    if constexpr (kWide) _tile_stored(1, c + kTile, stride);
    if constexpr (kTall) _tile_stored(2, c + kTile * ldc, stride);
    if constexpr (kTall && kWide) _tile_stored(3, c + kTile * ldc + kTile, stride);
    __asm__ volatile("" ::: "memory");
  }
};

}  // namespace
}  // namespace vitrum::cpu
