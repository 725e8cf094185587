// Sixteen random counters at a time; bit for bit what core/philox.h draws one by one.
#pragma once
#include "vitrum/cpu/simd/lanes.h"
#include "vitrum/cpu/simd/simd.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

struct Draws {
  Vi word[4];  // lane i: the words of counter first + i
};

// Counters (c0, c1), one a lane; c1 without the step.
VITRUM_LANES Draws philox_lanes(const DropSite& drop, Vi c0, Vi c1) {
  c1 = c1 ^ splat_bits(drop.rng.step_high << 16);
  Vi c2 = splat_bits(drop.rng.step_low), c3 = splat_bits(drop.site);
  uint32_t k0 = drop.rng.seed_low, k1 = drop.rng.seed_high;
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    Vi a_high, a_low, b_high, b_low;
    multiply_wide(c0, 0xD2511F53u, a_high, a_low);
    multiply_wide(c2, 0xCD9E8D57u, b_high, b_low);
    c0 = xor3(b_high, c1, splat_bits(k0)), c1 = b_low;
    c2 = xor3(a_high, c3, splat_bits(k1)), c3 = a_low;
  }
  return {{c0, c1, c2, c3}};
}

// Sixteen counters in a row.
VITRUM_LANES Draws philox16(const DropSite& drop, uint64_t first) {
  const auto low = static_cast<uint32_t>(first), high = static_cast<uint32_t>(first >> 32);
  const Vi c0 = splat_bits(low) + lane_index();
  Vi c1 = splat_bits(high);
  if (low > 0xfffffff0u) {  // the low words wrap around inside this vector
    const Vm wrapped = lt(c0 & splat_bits(0x7fffffffu), splat_bits(16));
    c1 = select(wrapped, splat_bits(high + 1), c1);
  }
  return philox_lanes(drop, c0, c1);
}

// Which of 16 elements are kept: those of half `half` (0..7) of the counters. In a row of `per_row`
// counters, lane i of counters [row * per_row + k, ..) and half h stands for element h * per_row +
// k + i.
VITRUM_LANES Vm keep_mask(const Draws& draws, int half, const DropSite& drop) {
  const Vi word = draws.word[half / 2];
  const Vi draw = half % 2 ? shift_right<16>(word) : word & splat_bits(0xffffu);
  return lt(draw, splat_bits(drop.threshold));
}
// 0 or 1 / keep.
VITRUM_LANES Vf keep_factor16(const Draws& draws, int half, const DropSite& drop) {
  return where(keep_mask(draws, half, drop), splat(drop.scale));
}
// The counters of row `row` of an element-wise op (kDrawRow elements): half h stands for elements
// [16 h, 16 h + 16).
VITRUM_LANES Draws row_draws(const DropSite& drop, int64_t row) {
  return philox16(drop, static_cast<uint64_t>(row) * 16);
}

}  // namespace
}  // namespace vitrum::cpu::VITRUM_ISA
