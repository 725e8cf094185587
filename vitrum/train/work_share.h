// Who does what, where several processes train one model: which leaves of a step a process
// computes, and which parameters it updates. Neither has any influence on the result.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "vitrum/graph/op.h"
#include "vitrum/runtime/communicator.h"
#include "vitrum/train/leaf_tree.h"
#include "vitrum/train/recipe.h"

namespace vitrum {

struct Stretch {
  int64_t first = 0, last = 0;
  int64_t size() const { return last - first; }
};

// Of `leaves`, which all processes share.
Stretch leaves_of(int rank, int ranks, int64_t leaves);
// What such a process has when it has added together what it can.
std::vector<TreeNode> nodes_of(Stretch leaves);

class WorkShare {
 public:
  WorkShare() = default;
  // `segments`: the trained parameters in the order of the arenas, which have `elements` of such.
  WorkShare(Communicator* comm, const Recipe& recipe, const std::vector<Segment>& segments,
            int64_t elements);

  Communicator* comm() const { return comm_; }
  int rank() const { return comm_ ? comm_->rank() : 0; }
  int ranks() const { return comm_ ? comm_->size() : 1; }

  Stretch leaves(int rank) const { return leaves_of(rank, ranks(), all_leaves_); }
  Stretch leaves() const { return leaves(rank()); }
  // Of the arenas: what a process updates.
  Stretch elements(int rank) const;
  Stretch elements() const { return elements(rank()); }
  // Of BlockSquares over all segments: those of its elements.
  Stretch blocks(int rank) const;
  Stretch blocks() const { return blocks(rank()); }
  int64_t all_blocks() const { return block_cuts_.back(); }
  // What of the segments is its own, offsets counted from its first element.
  const std::vector<Segment>& segments() const { return own_; }

 private:
  Communicator* comm_ = nullptr;
  int64_t all_leaves_ = 1;
  std::vector<int64_t> cuts_ = {0, 0}, block_cuts_ = {0, 0};  // between ranks
  std::vector<Segment> own_;
};

}  // namespace vitrum
