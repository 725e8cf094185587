// Counter-based randomness: Philox4x32-10 (Salmon et al., 2011). A draw depends only on its key and
// counter, never on which thread asks or on what was drawn before.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace vitrum {

using PhiloxBlock = std::array<uint32_t, 4>;

constexpr PhiloxBlock philox(uint64_t key, PhiloxBlock counter) {
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0], b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(a)};
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return counter;
}

// A sequential stream over one (seed, stream, index) triple, for host-side work: initialisation,
// shuffling, augmentation of sample `index`. The stream id keeps unrelated uses apart.
class PhiloxStream {
 public:
  PhiloxStream(uint64_t seed, uint32_t stream, uint64_t index)
      : seed_(seed),
        counter_{0, stream, static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32)} {}

  uint32_t next_u32() {
    if (used_ == 4) block_ = philox(seed_, counter_), ++counter_[0], used_ = 0;
    return block_[used_++];
  }
  double uniform() {  // [0, 1), 53 bits
    const uint64_t hi = next_u32() >> 5, lo = next_u32() >> 6;
    return static_cast<double>((hi << 26) | lo) * 0x1p-53;
  }
  double uniform(double lo, double hi) { return lo + (hi - lo) * uniform(); }
  uint32_t below(uint32_t n) {  // unbiased integer in [0, n) (Lemire)
    uint64_t m = uint64_t{next_u32()} * n;
    if (static_cast<uint32_t>(m) < n) {
      const uint32_t threshold = -n % n;
      while (static_cast<uint32_t>(m) < threshold) m = uint64_t{next_u32()} * n;
    }
    return static_cast<uint32_t>(m >> 32);
  }
  double normal() {  // Box-Muller
    const double u = 1.0 - uniform(), v = uniform();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
  }
  uint32_t position() const { return 4 * counter_[0] + used_ - 4; }  // words drawn so far

 private:
  uint64_t seed_;
  PhiloxBlock counter_, block_{};
  unsigned used_ = 4;
};

// The word that a PhiloxStream draws after `position` others.
constexpr uint32_t stream_word(uint64_t seed, uint32_t stream, uint64_t index, uint32_t position) {
  return philox(seed, {position / 4, stream, static_cast<uint32_t>(index),
                       static_cast<uint32_t>(index >> 32)})[position % 4];
}

// Stream ids of host-side uses.
inline constexpr uint32_t kInitStream = 1, kShuffleStream = 2, kAugmentStream = 3,
                          kHoldoutStream = 4, kResizedCropStream = 5, kPolicyStream = 6,
                          kJitterStream = 7, kEraseStream = 8, kMixStream = 9;

// What a random op reads from (device) memory each run; `step` counts micro-steps and never repeats
// in a run.
struct RandomState {
  uint32_t seed_low = 0, seed_high = 0, step_low = 0, step_high = 0;
};

// The random bits at place `counter` of random site `site`.
constexpr PhiloxBlock draw_block(RandomState rng, uint32_t site, uint64_t counter) {
  return philox((uint64_t{rng.seed_high} << 32) | rng.seed_low,
                {static_cast<uint32_t>(counter),
                 static_cast<uint32_t>(counter >> 32) ^ (rng.step_high << 16), rng.step_low, site});
}

// The 16 random bits that decide element `u` of `row` at random site `site`. A row of n elements
// uses `per_row = ceil(n / 8)` counters; neighbours in a row use neighbouring counters, so that a
// vector of counters yields a vector of neighbouring draws. Element-wise ops see their tensor as
// rows of 128.
inline constexpr int64_t kDrawRow = 128;
constexpr int64_t draws_per_row(int64_t n) { return (n + 7) / 8; }
constexpr uint16_t draw16(RandomState rng, uint32_t site, int64_t per_row, int64_t row, int64_t u) {
  const auto counter = static_cast<uint64_t>(row * per_row + u % per_row);
  const auto half = static_cast<size_t>(u / per_row);
  const PhiloxBlock block = draw_block(rng, site, counter);
  return static_cast<uint16_t>(block[half / 2] >> (16 * (half % 2)));
}
// The 32 that decide element `u` where draws are compared with each other: equal ones must be rare.
// A row uses `per_row = ceil(n / 4)` counters.
constexpr int64_t wide_draws_per_row(int64_t n) { return (n + 3) / 4; }
constexpr uint32_t draw32(RandomState rng, uint32_t site, int64_t per_row, int64_t row, int64_t u) {
  return draw_block(rng, site,
                    static_cast<uint64_t>(row * per_row + u / 4))[static_cast<size_t>(u % 4)];
}
// An element is kept when its draw is below keep_threshold(p), and then divided by the same
// probability.
constexpr uint32_t keep_threshold(float drop) {
  return static_cast<uint32_t>((1.0 - static_cast<double>(drop)) * 65536.0 + 0.5);
}
constexpr float keep_scale(float drop) {
  return static_cast<float>(65536.0 / static_cast<double>(keep_threshold(drop)));
}

}  // namespace vitrum
