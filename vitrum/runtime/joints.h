// Which nodes of a graph are one kernel of a backend.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "vitrum/graph/graph.h"
#include "vitrum/runtime/backend.h"

namespace vitrum {

template <class View>
Operands operands(const Node& node, const View& view) {
  Operands io;
  for (ValueId id : node.in) io.in.push_back(id == kAbsent ? TensorView{} : view(id));
  for (ValueId id : node.out) io.out.push_back(id == kAbsent ? TensorView{} : view(id));
  return io;
}

// Nodes of a joint, and which column sums it adds up in passing.
struct Joint {
  size_t first;
  std::vector<ChainNode> nodes;
  ValueId columns = kAbsent;
};
struct Joints {
  std::vector<Joint> all;                     // of every node, in order
  std::vector<bool> with_next;                // of nodes
  std::vector<std::optional<size_t>> summed;  // of nodes: the result that another kernel adds up
};

// By type and shape: before memory is planned. `outputs` are read by others, too.
Joints find_joints(const Graph& g, std::span<const Value> outputs, const Backend& backend,
                   PackedParams* packed);

// For each value, the last node that reads it, or beyond all nodes where the caller does.
std::vector<size_t> last_readers(const Graph& g, std::span<const Value> outputs);

// What the activations of large layers give is read again when the backward pass is back at them,
// and is large itself. Where a kernel there can leave it once more beside its own result, it is not
// kept: with the layers that come first, since those wait longest. That is a little slower.
void compute_again(Graph& g, std::span<const Value> outputs, const Backend& backend,
                   PackedParams* packed);

}  // namespace vitrum
