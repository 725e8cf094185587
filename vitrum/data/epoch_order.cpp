#include "vitrum/data/epoch_order.h"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "vitrum/data/shuffle.h"

namespace vitrum {
namespace {

// Images of the groups, one group after the other, the groups in random order.
std::vector<int64_t> group_by_group(std::span<const int32_t> groups, const PhiloxStream& random) {
  std::vector<std::vector<int64_t>> members;
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto group = static_cast<size_t>(groups[i]);
    if (group >= members.size()) members.resize(group + 1);
    members[group].push_back(static_cast<int64_t>(i));
  }
  std::vector<int64_t> turn(members.size()), images;
  std::iota(turn.begin(), turn.end(), int64_t{0});
  shuffle(turn, random);
  for (const int64_t group : turn) {
    const std::vector<int64_t>& own = members[static_cast<size_t>(group)];
    images.insert(images.end(), own.begin(), own.end());
  }
  return images;
}

}  // namespace

void shuffle_epoch(std::span<int64_t> order, std::span<const int32_t> groups, uint64_t seed,
                   int64_t epoch, const Lanes& lanes) {
  // The index of stream 0 is the epoch; windows have streams of their own above it.
  const auto stream = [&](size_t window) {
    return PhiloxStream(seed, kShuffleStream,
                        static_cast<uint64_t>(epoch) | static_cast<uint64_t>(window) << 32);
  };
  std::iota(order.begin(), order.end(), int64_t{0});
  if (groups.empty()) return shuffle(order, stream(0));
  assert(groups.size() == order.size());
  std::vector<int64_t> images = group_by_group(groups, stream(0));
  const auto group_of = [&](int64_t image) { return groups[static_cast<size_t>(image)]; };
  // Each lane has a stretch as long as it has places, so none is left over; a group at a cut is in
  // two lanes.
  std::vector<size_t> next(static_cast<size_t>(lanes.count) + 1);
  const auto places = static_cast<int64_t>(order.size());
  for (int64_t place = 0; place < places; ++place) ++next[static_cast<size_t>(lanes.of(place)) + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  const int64_t most = std::max<int64_t>(1, kShuffleWindow / lanes.count);
  size_t window = 0;
  for (size_t lane = 0; lane + 1 < next.size(); ++lane)
    for (size_t at = next[lane]; at < next[lane + 1];) {
      const size_t begin = at;
      for (int64_t held = 0; at < next[lane + 1]; ++at)
        if ((at == begin || group_of(images[at]) != group_of(images[at - 1])) && ++held > most)
          break;
      shuffle(std::span(images).subspan(begin, at - begin), stream(++window));
    }
  for (int64_t place = 0; place < places; ++place)
    order[static_cast<size_t>(place)] = images[next[static_cast<size_t>(lanes.of(place))]++];
}

}  // namespace vitrum
