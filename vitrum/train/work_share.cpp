#include "vitrum/train/work_share.h"

#include <algorithm>

#include "vitrum/core/ceil_div.h"

namespace vitrum {
namespace {

// What one process updates as a whole: a block of a tensor, or all of it.
struct Unit {
  int64_t first, size, blocks;
};

std::vector<Unit> units_of(const std::vector<Segment>& segments, bool whole) {
  std::vector<Unit> units;
  for (const Segment& s : segments) {
    const int64_t step = whole ? s.size : BlockSquares::kBlock;
    for (int64_t at = 0; at < s.size; at += step) {
      const int64_t size = std::min(step, s.size - at);
      units.push_back({s.offset + at, size, ceil_div(size, BlockSquares::kBlock)});
    }
  }
  return units;
}

// LAMB looks at the norm of a tensor, Muon multiplies it with itself.
bool needs_whole_tensors(OptimizerKind kind) {
  return kind == OptimizerKind::kLamb || kind == OptimizerKind::kMuon;
}

}  // namespace

Stretch leaves_of(int rank, int ranks, int64_t leaves) {
  return {leaves * rank / ranks, leaves * (rank + 1) / ranks};
}

std::vector<TreeNode> nodes_of(Stretch leaves) {
  TreeStack stack;
  for (int64_t leaf = leaves.first; leaf < leaves.last; ++leaf)
    stack.push({.level = 0, .index = leaf});
  return stack.waiting();
}

// Neighbours in the arenas stay together, so that a share is one stretch of each; the cuts are
// where the sum of sizes comes nearest to equal parts.
WorkShare::WorkShare(Communicator* comm, const Recipe& recipe, const std::vector<Segment>& segments,
                     int64_t elements)
    : comm_(comm), all_leaves_(recipe.leaves()) {
  const std::vector<Unit> units = units_of(segments, needs_whole_tensors(recipe.optimizer));
  int64_t total = 0;
  for (const Unit& unit : units) total += unit.size;
  cuts_ = block_cuts_ = {0};
  size_t next = 0;
  int64_t sum = 0, blocks = 0;
  for (int r = 1; r < ranks(); ++r) {
    const int64_t goal = total * r / ranks();
    while (next < units.size() && sum + units[next].size / 2 < goal)
      sum += units[next].size, blocks += units[next].blocks, ++next;
    cuts_.push_back(next < units.size() ? units[next].first : elements);
    block_cuts_.push_back(blocks);
  }
  for (; next < units.size(); ++next) blocks += units[next].blocks;
  cuts_.push_back(elements), block_cuts_.push_back(blocks);
  const Stretch mine = this->elements();
  for (Segment s : segments) {
    const int64_t first = std::max(s.offset, mine.first),
                  last = std::min(s.offset + s.size, mine.last);
    if (first >= last) continue;
    s.offset = first - mine.first, s.size = last - first;
    own_.push_back(s);
  }
}

Stretch WorkShare::elements(int rank) const {
  const auto r = static_cast<size_t>(rank);
  return {cuts_[r], cuts_[r + 1]};
}

Stretch WorkShare::blocks(int rank) const {
  const auto r = static_cast<size_t>(rank);
  return {block_cuts_[r], block_cuts_[r + 1]};
}

}  // namespace vitrum
