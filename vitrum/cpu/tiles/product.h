// How a product is cut into blocks, for every unit that multiplies tiles. Only for the units
// themselves, each compiled for its own instructions: everything here has internal linkage.
#pragma once
#include <type_traits>

#include "vitrum/cpu/simd/tiles.h"

namespace vitrum::cpu {
namespace {

// What the blocks after this one read of the right operand. A unit that waits for memory asks for
// it while it multiplies; addresses past the end of a matrix do no harm.
struct Coming {
  const uint32_t* near;  // the slice of a band that the next block takes
  const uint32_t* far;   // a part of the next slice of this band: for each step of this block and
  int64_t far_lines;     // each of its passes over the right operand so many cache lines
};

template <class Unit, bool kTall, bool kWide, class Sum>
void unit_block(const uint32_t* a, const uint32_t* b, Sum* c, int64_t ldc, int64_t rows,
                int64_t steps, bool accumulate, const Coming& coming) {
  if constexpr (requires { Unit::kPasses; })
    Unit::template block<kTall, kWide>(a, b, c, ldc, rows, steps, accumulate, coming);
  else
    Unit::template block<kTall, kWide>(a, b, c, ldc, rows, steps, accumulate);
}

// A block of at most 32 x 32. Unit::block<tall, wide> may write whole tiles, or with all columns
// whole groups of Unit::kWholeRows rows, so one that reaches past the edge is computed in a buffer.
template <class Unit, class Sum>
void block(const uint32_t* a, const uint32_t* b, Sum* c, int64_t ldc, int64_t rows, int64_t columns,
           int64_t steps, bool accumulate, const Coming& coming) {
  const bool tall = rows > kTile, wide = columns > kTile,
             whole = columns == kBand && rows % Unit::kWholeRows == 0;
  if (whole) return unit_block<Unit, true, true>(a, b, c, ldc, rows, steps, accumulate, coming);
  alignas(64) Sum buffer[kBand * kBand] = {};
  for (int64_t r = 0; accumulate && r < rows; ++r)
    for (int64_t j = 0; j < columns; ++j) buffer[r * kBand + j] = c[r * ldc + j];
  if (tall && wide)
    unit_block<Unit, true, true>(a, b, buffer, kBand, rows, steps, accumulate, coming);
  else if (tall)
    unit_block<Unit, true, false>(a, b, buffer, kBand, rows, steps, accumulate, coming);
  else if (wide)
    unit_block<Unit, false, true>(a, b, buffer, kBand, rows, steps, accumulate, coming);
  else
    unit_block<Unit, false, false>(a, b, buffer, kBand, rows, steps, accumulate, coming);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < columns; ++j) c[r * ldc + j] = buffer[r * kBand + j];
}

// The order of blocks: slices of the depth, bands of rows, bands of columns. What follows block
// (s, r, j), of `steps` steps, where the whole product has `p.b`'s bands `b_band` apart.
template <class Unit, class Sum>
Coming coming_after(const ProductOf<Sum>& p, int64_t b_band, int64_t all_steps, int64_t s,
                    int64_t steps, int64_t r, int64_t j) {
  if constexpr (requires { Unit::kPasses; }) {
    constexpr int64_t kLine = 16, kStepLines = kStepWords / kLine;
    const auto divide_up = [](int64_t x, int64_t y) { return (x + y - 1) / y; };
    const int64_t rows = divide_up(p.rows, kBand), columns = divide_up(p.columns, kBand);
    // Behind the last slice comes the first one of the columns after these.
    const uint32_t* next =
        s + steps < all_steps ? p.b + (s + steps) * kStepWords : p.b + columns * b_band;
    const uint32_t* near = j + 1 < columns ? p.b + (j + 1) * b_band + s * kStepWords
                           : r + 1 < rows  ? p.b + s * kStepWords
                                           : next;
    const int64_t share = divide_up(kStepLines, Unit::kPasses * rows);
    const bool wanted = r * share * Unit::kPasses < kStepLines;
    return {near, next + j * b_band + r * steps * Unit::kPasses * share * kLine,
            wanted ? share : 0};
  }
  return {};
}

// Unit::kSliceSteps: steps of a band in one pass over all columns.
template <class Unit, class Sum>
void multiply(const ProductOf<Sum>& p) {
  constexpr int64_t kSliceSteps = Unit::kSliceSteps,
                    kDepth = std::is_integral_v<Sum> ? kByteStepDepth : kStepDepth;
  [[maybe_unused]] const Unit unit;  // for as long as it is used
  const int64_t steps = (p.depth + kDepth - 1) / kDepth, band = steps * kStepWords;
  const int64_t b_band = p.b_band > 0 ? p.b_band : band;
  for (int64_t s = 0, n; s < steps; s += n) {
    n = steps - s < kSliceSteps ? steps - s : kSliceSteps;
    for (int64_t r = 0; r < p.rows; r += kBand)
      for (int64_t j = 0; j < p.columns; j += kBand)
        block<Unit>(p.a + r / kBand * band + s * kStepWords,
                    p.b + j / kBand * b_band + s * kStepWords, p.c + r * p.ldc + j, p.ldc,
                    p.rows - r < kBand ? p.rows - r : kBand,
                    p.columns - j < kBand ? p.columns - j : kBand, n, p.accumulate || s > 0,
                    coming_after<Unit>(p, b_band, steps, s, n, r / kBand, j / kBand));
  }
}

}  // namespace
}  // namespace vitrum::cpu
