// Which kernel convolves channels by themselves, and how its work is divided: functions of shape
// and type. Host only; tests/cuda/emulated_depthwise_test.cpp holds them over a grid of shapes.
#pragma once
#include <algorithm>
#include <cstdint>

#include "vitrum/core/ceil_div.h"

namespace vitrum::cuda {

// Images (height, width, channels) that become (down, across, channels).
struct Windows {
  int height, width, channels, down, across, kernel, padding;
};

// conv/depthwise_pairs.cuh: a thread has two channels of kStrip columns, and goes down `rows` lines
// of an image; `items` are those strips of all images, of each group of channels.
namespace depthwise {

constexpr int kKernel = 7, kPlaces = kKernel * kKernel, kStrip = 7, kPairs = 16, kSlots = 8;
constexpr int kThreads = kPairs * kSlots, kChannels = 2 * kPairs;

struct Plan {
  int strips = 0, rows = 0, parts = 0, groups = 0;  // parts: of an image's lines
  int64_t items = 0;
  int64_t blocks() const { return (items + kSlots - 1) / kSlots * groups; }
  // Of the weights' gradient: chunks of items whose sums are added up at the end.
  int64_t each = 0, chunks = 0;
};

}  // namespace depthwise

// As few parts as give every SM something to do, since each reads six lines more than it has. A
// plan without items: other kernels do it. The numbers are the H200's, so that sums have one order
// on all cards.
inline depthwise::Plan plan_depthwise(const Windows& g, int64_t images, bool bf16_aligned) {
  using namespace depthwise;
  constexpr int64_t kProcessors = 132, kWanted = 2 * kProcessors * kSlots, kFewest = kWanted / 3,
                    kFewestRows = 14;
  if (!bf16_aligned || g.kernel != kKernel || g.channels % 2 != 0 || images == 0 || g.down == 0 ||
      g.across == 0)
    return {};
  Plan plan;
  plan.strips = static_cast<int>(ceil_div(g.across, kStrip));
  plan.groups = static_cast<int>(ceil_div(g.channels, kChannels));
  const int64_t whole = images * plan.strips, most = std::max<int64_t>(1, g.down / kFewestRows);
  const int64_t wanted = std::clamp<int64_t>(kWanted / (whole * plan.groups), 1, most);
  plan.rows = static_cast<int>(ceil_div(g.down, wanted));
  plan.parts = static_cast<int>(ceil_div(g.down, plan.rows));
  plan.items = whole * plan.parts;
  if (plan.items * plan.groups < kFewest || plan.blocks() > INT32_MAX) return {};
  const int64_t chunks =
      std::clamp<int64_t>(2 * kProcessors / plan.groups, 1, ceil_div(plan.items, kSlots));
  plan.each = ceil_div(ceil_div(plan.items, chunks), kSlots) * kSlots;
  plan.chunks = ceil_div(plan.items, plan.each);
  return plan;
}

}  // namespace vitrum::cuda
