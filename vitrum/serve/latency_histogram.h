// Latencies by their logarithm: any quantile to within one percent, in a few kilobytes, however
// many were added.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>

namespace vitrum::serve {

class LatencyHistogram {
 public:
  using Nanoseconds = std::chrono::nanoseconds;

  void add(Nanoseconds latency) {
    const auto ns = static_cast<uint64_t>(std::max<int64_t>(0, latency.count()));
    ++counts_[bucket_of(ns)], ++count_;
    sum_ += static_cast<double>(ns), most_ = std::max(most_, ns);
  }

  uint64_t count() const { return count_; }
  double mean() const { return count_ == 0 ? 0 : 1e-9 * sum_ / static_cast<double>(count_); }
  double max() const { return 1e-9 * static_cast<double>(most_); }
  // The seconds that a fraction `q` of all took at most.
  double quantile(double q) const {
    const auto rank = static_cast<uint64_t>(std::ceil(q * static_cast<double>(count_)));
    uint64_t seen = 0;
    for (size_t i = 0; i < counts_.size(); ++i)
      if ((seen += counts_[i]) >= rank && seen > 0) return std::min(1e-9 * middle_of(i), max());
    return max();
  }

 private:
  // Up to 2^kBits nanoseconds a bucket each; above, as many for each power of two.
  static constexpr int kBits = 7;
  static constexpr size_t kPerPower = size_t{1} << kBits;

  static size_t bucket_of(uint64_t ns) {
    const int shift = std::max(0, static_cast<int>(std::bit_width(ns)) - kBits - 1);
    return static_cast<size_t>(shift) * kPerPower + static_cast<size_t>(ns >> shift);
  }
  static double middle_of(size_t bucket) {
    const size_t shift = bucket < 2 * kPerPower ? 0 : bucket / kPerPower - 1;
    const auto low = static_cast<double>(bucket - shift * kPerPower);
    return std::ldexp(low + (shift > 0 ? 0.5 : 0.0), static_cast<int>(shift));
  }

  std::array<uint64_t, (64 - kBits + 1) * kPerPower> counts_{};
  uint64_t count_ = 0, most_ = 0;
  double sum_ = 0;
};

}  // namespace vitrum::serve
