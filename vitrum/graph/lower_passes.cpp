// The passes between a differentiated graph and a plan: precision, and what is not needed after
// all.
#include <algorithm>

#include "vitrum/graph/passes.h"

namespace vitrum {

void assign_dtypes(Graph& g, DType compute, std::span<const Value> keep_f32) {
  if (compute == DType::kF32) return;
  const auto kept = [&](size_t id) {
    return std::any_of(keep_f32.begin(), keep_f32.end(),
                       [&](Value v) { return v.id() == static_cast<ValueId>(id); });
  };
  std::vector<bool> weight(g.values.size(), false);
  for (const Node& node : g.nodes) {
    if (std::holds_alternative<Linear>(node.op) || std::holds_alternative<Conv2d>(node.op))
      weight[static_cast<size_t>(node.in[1])] = true;
    if (std::holds_alternative<LinearBwd>(node.op) || std::holds_alternative<Conv2dBwd>(node.op))
      weight[static_cast<size_t>(node.in[2])] = true;
  }
  for (size_t id = 0; id < g.values.size(); ++id) {
    ValueInfo& info = g.values[id];
    if (info.dtype != DType::kF32) continue;
    if (compute == DType::kF64)
      info.dtype = DType::kF64;
    else if (weight[id] || (info.role == Role::kTemp && !info.exact && !kept(id)))
      info.dtype = compute;
  }
  for (const Node& node : g.nodes)  // a bias has the precision of the sum it goes into
    if (std::holds_alternative<Linear>(node.op) && node.in[2] != kAbsent)
      g.values[static_cast<size_t>(node.in[2])].dtype =
          g.values[static_cast<size_t>(node.out[0])].dtype;
}

void drop_dead(Graph& g, std::span<const Value> outputs) {
  std::vector<bool> read(g.values.size(), false);
  for (Value v : outputs) read[static_cast<size_t>(v.id())] = true;
  // A node lives if somebody reads one of its temporaries, or if it writes memory that outlives the
  // program.
  const auto lives = [&](ValueId v) {
    return v != kAbsent &&
           (read[static_cast<size_t>(v)] || g.values[static_cast<size_t>(v)].role != Role::kTemp);
  };
  std::vector<Node> kept;
  for (size_t i = g.nodes.size(); i-- > 0;) {
    Node& node = g.nodes[i];
    if (std::none_of(node.out.begin(), node.out.end(), lives)) continue;
    for (ValueId& v : node.out)
      if (!lives(v)) v = kAbsent;
    for (ValueId v : node.in)
      if (v != kAbsent) read[static_cast<size_t>(v)] = true;
    kept.push_back(std::move(node));
  }
  std::reverse(kept.begin(), kept.end());
  g.nodes = std::move(kept);
}

}  // namespace vitrum
