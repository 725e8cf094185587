// How a product is cut into blocks, for every unit that multiplies tiles. Only for the units
// themselves, each compiled for its own instructions: everything here has internal linkage.
#pragma once
#include <type_traits>

#include "vitrum/cpu/simd/tiles.h"

namespace vitrum::cpu {
namespace {

// A block of at most 32 x 32. Unit::block<tall, wide> may write whole tiles, or with all columns
// whole groups of Unit::kWholeRows rows, so one that reaches past the edge is computed in a buffer.
template <class Unit, class Sum>
void block(const uint32_t* a, const uint32_t* b, Sum* c, int64_t ldc, int64_t rows, int64_t columns,
           int64_t steps, bool accumulate) {
  const bool tall = rows > kTile, wide = columns > kTile,
             whole = columns == kBand && rows % Unit::kWholeRows == 0;
  if (whole) return Unit::template block<true, true>(a, b, c, ldc, rows, steps, accumulate);
  alignas(64) Sum buffer[kBand * kBand] = {};
  for (int64_t r = 0; accumulate && r < rows; ++r)
    for (int64_t j = 0; j < columns; ++j) buffer[r * kBand + j] = c[r * ldc + j];
  if (tall && wide)
    Unit::template block<true, true>(a, b, buffer, kBand, rows, steps, accumulate);
  else if (tall)
    Unit::template block<true, false>(a, b, buffer, kBand, rows, steps, accumulate);
  else if (wide)
    Unit::template block<false, true>(a, b, buffer, kBand, rows, steps, accumulate);
  else
    Unit::template block<false, false>(a, b, buffer, kBand, rows, steps, accumulate);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < columns; ++j) c[r * ldc + j] = buffer[r * kBand + j];
}

// Unit::kSliceSteps: steps of a band in one pass over all columns.
template <class Unit, class Sum>
void multiply(const ProductOf<Sum>& p) {
  constexpr int64_t kSliceSteps = Unit::kSliceSteps,
                    kDepth = std::is_integral_v<Sum> ? kByteStepDepth : kStepDepth;
  [[maybe_unused]] const Unit unit;  // for as long as it is used
  const int64_t steps = (p.depth + kDepth - 1) / kDepth, band = steps * kStepWords;
  const int64_t b_band = p.b_band > 0 ? p.b_band : band;
  for (int64_t s = 0; s < steps; s += kSliceSteps)
    for (int64_t r = 0; r < p.rows; r += kBand)
      for (int64_t j = 0; j < p.columns; j += kBand)
        block<Unit>(p.a + r / kBand * band + s * kStepWords,
                    p.b + j / kBand * b_band + s * kStepWords, p.c + r * p.ldc + j, p.ldc,
                    p.rows - r < kBand ? p.rows - r : kBand,
                    p.columns - j < kBand ? p.columns - j : kBand,
                    steps - s < kSliceSteps ? steps - s : kSliceSteps, p.accumulate || s > 0);
}

}  // namespace
}  // namespace vitrum::cpu
