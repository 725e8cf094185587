#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace vitrum {

// Groups whose images are mixed with each other where they lie far away (Dataset::groups()).
inline constexpr int kShuffleWindow = 8;

// The order of a shuffled epoch; depends on nothing but what is given. Without groups any image may
// follow any other. With them groups come in random order, and the images of each eight of them in
// random order: whoever reads them needs few groups at a time.
void shuffle_epoch(std::span<int64_t> order, std::span<const int32_t> groups, uint64_t seed,
                   int64_t epoch);

}  // namespace vitrum
