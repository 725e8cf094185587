#include "vitrum/infer/cost_table.h"

#include <algorithm>
#include <cassert>
#include <limits>

namespace vitrum {

CostTable::CostTable(std::vector<Entry> entries) : entries_(std::move(entries)) {
  assert(!entries_.empty() && entries_.front().batch == 1);
  double best_rate = 0;
  for (const Entry& e : entries_)
    best_rate = std::max(best_rate, static_cast<double>(e.batch) / e.seconds);
  for (const Entry& e : entries_) {
    useful_ = e.batch;
    if (static_cast<double>(e.batch) / e.seconds >= 0.95 * best_rate) break;
  }
  // The cheapest way to do n images: a first batch, and the cheapest way to do the rest.
  const auto most = static_cast<size_t>(entries_.back().batch);
  cost_.assign(most + 1, 0);
  choice_.assign(most + 1, 1);
  for (size_t n = 1; n <= most; ++n) {
    cost_[n] = std::numeric_limits<double>::infinity();
    for (const Entry& e : entries_) {
      const size_t left = n - std::min(n, static_cast<size_t>(e.batch));
      const double cost = e.seconds + cost_[left];
      // Of ways that cost the same the one that begins with the largest; what differs by less than
      // timing does costs the same, but padding is never worth it.
      const double noise = static_cast<size_t>(e.batch) <= n ? 0.02 : 1e-9;
      if (cost <= cost_[n] * (1 + noise)) choice_[n] = e.batch;
      cost_[n] = std::min(cost_[n], cost);
      if (left == 0) break;  // a larger one would hold more padding
    }
  }
}

CostTable CostTable::untimed(int64_t largest, bool halves) {
  constexpr double kOverhead = 0.01;  // of a batch, in images
  std::vector<Entry> entries;
  const auto add = [&](int64_t batch) {
    entries.push_back({batch, static_cast<double>(batch) + kOverhead});
  };
  for (int64_t batch = 1; batch < largest; batch *= 2) {
    add(batch);
    if (halves && batch > 1 && batch / 2 * 3 < largest) add(batch / 2 * 3);
  }
  add(largest);
  return CostTable(std::move(entries));
}

int64_t CostTable::first_batch(int64_t images) const {
  return choice_[static_cast<size_t>(std::clamp<int64_t>(images, 1, entries_.back().batch))];
}

double CostTable::seconds(int64_t images) const {
  if (images <= 0) return 0;
  const int64_t most = entries_.back().batch;
  return static_cast<double>(images / most) * cost_.back() +
         cost_[static_cast<size_t>(images % most)];
}

}  // namespace vitrum
