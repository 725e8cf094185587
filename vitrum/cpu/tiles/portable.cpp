// What AMX computes, in plain loops and with the same roundings: packing and blocks can be tested
// on any processor. (A product of two bf16 numbers is exact in f32, so no fused multiply-add is
// needed; AMX takes subnormal numbers for zero, which this does not.)
#include <bit>

#include "vitrum/cpu/tiles/product.h"

namespace vitrum::cpu {
namespace {

struct Portable {
  static constexpr int64_t kSliceSteps = 12;  // fewer than most layers have: the tests see seams
  static constexpr int64_t kWholeRows = 1;

  Portable() {}
  static float low(uint32_t word) { return std::bit_cast<float>(word << 16); }
  static float high(uint32_t word) { return std::bit_cast<float>(word & 0xffff0000u); }

  template <bool kTall, bool kWide>
  static void block(const uint32_t* a, const uint32_t* b, float* c, int64_t ldc, int64_t rows,
                    int64_t steps, bool accumulate) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < (kWide ? kBand : kTile); j += kTile) {
        float* to = c + r * ldc + j;
        for (int64_t i = 0; !accumulate && i < kTile; ++i) to[i] = 0;
        for (int64_t s = 0; s < steps; ++s)
          add_step(a + s * kStepWords + r * kTile, b + s * kStepWords + j * kTile, to);
      }
  }

 private:
  // Sixteen neighbours of one row, and one step: the even and the odd elements each on their own.
  static void add_step(const uint32_t* a, const uint32_t* b, float* c) {
    float even[kTile] = {}, odd[kTile] = {};
    for (int64_t pair = 0; pair < kTile; ++pair)
      for (int64_t i = 0; i < kTile; ++i) {
        even[i] += low(a[pair]) * low(b[pair * kTile + i]);
        odd[i] += high(a[pair]) * high(b[pair * kTile + i]);
      }
    for (int64_t i = 0; i < kTile; ++i) c[i] += even[i] + odd[i];
  }
};

}  // namespace

constinit const TileUnit kTilesPortable = {.name = "tiles", .multiply = multiply<Portable, float>};

}  // namespace vitrum::cpu
