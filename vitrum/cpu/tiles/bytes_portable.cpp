// Products of bytes in plain loops, for tests and as what the others must give.
#include "vitrum/cpu/tiles/product.h"

namespace vitrum::cpu {
namespace {

struct Portable {
  static constexpr int64_t kSliceSteps = 2;  // fewer than most layers have: the tests see seams
  static constexpr int64_t kWholeRows = 1;

  Portable() {}

  template <bool kTall, bool kWide>
  static void block(const uint32_t* a, const uint32_t* b, int32_t* c, int64_t ldc, int64_t rows,
                    int64_t steps, bool accumulate) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < (kWide ? kBand : kTile); ++j) {
        int32_t sum = accumulate ? c[r * ldc + j] : 0;
        for (int64_t s = 0; s < steps; ++s)
          for (int64_t word = 0; word < kTile; ++word)
            sum += product(a[s * kStepWords + r * kTile + word],
                           b[s * kStepWords + j / kTile * kTileWords + word * kTile + j % kTile]);
        c[r * ldc + j] = sum;
      }
  }

 private:
  static int32_t product(uint32_t a, uint32_t b) {
    int32_t sum = 0;
    for (int bits = 0; bits < 32; bits += 8)
      sum += static_cast<uint8_t>(a >> bits) * static_cast<int8_t>(b >> bits);
    return sum;
  }
};

}  // namespace

constinit const ByteUnit kBytesPortable = {.name = "portable",
                                           .multiply = multiply<Portable, int32_t>};

}  // namespace vitrum::cpu
