// The order in which the gradients of a step are added: a complete binary tree over its leaves (the
// slices of its batches). Who computes a leaf does not matter: a sum has the same bits whether one
// process makes all of it or many make parts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace vitrum {

// Leaves [index << level, (index + 1) << level), those of them that there are.
struct TreeNode {
  int level = 0;
  int64_t index = 0;
  bool operator==(const TreeNode&) const = default;
};

// Nodes that come one after the other, from left to right, and wait until their right siblings
// come.
class TreeStack {
 public:
  // Returns how many of those waiting, the last first, are added to this node. Their sum waits in
  // the place of the first of them.
  size_t push(TreeNode node) {
    size_t merged = 0;
    while (!waiting_.empty() && waiting_.back().level == node.level &&
           waiting_.back().index + 1 == node.index && node.index % 2 == 1) {
      waiting_.pop_back();
      node = {node.level + 1, node.index / 2};
      ++merged;
    }
    waiting_.push_back(node);
    return merged;
  }
  size_t size() const { return waiting_.size(); }
  const std::vector<TreeNode>& waiting() const { return waiting_; }
  void clear() { waiting_.clear(); }

 private:
  std::vector<TreeNode> waiting_;
};

}  // namespace vitrum
