#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace vitrum {

// Groups whose images are mixed with each other where they lie far away (Dataset::groups()).
inline constexpr int kShuffleWindow = 8;

// Who reads which place of an epoch's order: `batch` places (each image `repeat` times) are read by
// the first lane, as many by the next, and so on in turn. A process has one lane or some.
struct Lanes {
  int64_t count = 1, batch = 1, repeat = 1;
  int64_t of(int64_t place) const { return place * repeat / batch % count; }
};

// The order of a shuffled epoch; depends on nothing but what is given. Without groups any image may
// follow any other. With them groups come in random order and are dealt to the lanes, and the
// images of each eight of them (of all lanes together) in random order: whoever reads a lane needs
// few groups at a time, and others than those who read another.
void shuffle_epoch(std::span<int64_t> order, std::span<const int32_t> groups, uint64_t seed,
                   int64_t epoch, const Lanes& lanes = {});

}  // namespace vitrum
