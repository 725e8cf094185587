#include "vitrum/data/epoch_order.h"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "vitrum/data/shuffle.h"

namespace vitrum {

void shuffle_epoch(std::span<int64_t> order, std::span<const int32_t> groups, uint64_t seed,
                   int64_t epoch) {
  std::iota(order.begin(), order.end(), int64_t{0});
  // The index of stream 0 is the epoch; windows have streams of their own above it.
  const auto stream = [&](size_t window) {
    return PhiloxStream(seed, kShuffleStream,
                        static_cast<uint64_t>(epoch) | static_cast<uint64_t>(window) << 32);
  };
  if (groups.empty()) return shuffle(order, stream(0));
  assert(groups.size() == order.size());
  std::vector<std::vector<int64_t>> members;
  for (const int64_t i : order) {
    const auto group = static_cast<size_t>(groups[static_cast<size_t>(i)]);
    if (group >= members.size()) members.resize(group + 1);
    members[group].push_back(i);
  }
  std::vector<int64_t> turn(members.size());
  std::iota(turn.begin(), turn.end(), int64_t{0});
  shuffle(turn, stream(0));
  std::erase_if(turn, [&](int64_t g) { return members[static_cast<size_t>(g)].empty(); });
  size_t at = 0;
  for (size_t first = 0; first < turn.size(); first += kShuffleWindow) {
    const size_t begin = at;
    for (size_t i = first; i < std::min(first + kShuffleWindow, turn.size()); ++i)
      for (const int64_t member : members[static_cast<size_t>(turn[i])]) order[at++] = member;
    shuffle(order.subspan(begin, at - begin), stream(first / kShuffleWindow + 1));
  }
}

}  // namespace vitrum
