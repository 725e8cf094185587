#include "vitrum/runtime/joints.h"

#include <algorithm>

#include "vitrum/graph/passes.h"

namespace vitrum {
namespace {

// A value before memory is planned.
auto shape_only(const Graph& g) {
  return [&g](ValueId id) {
    const ValueInfo& info = g.values[static_cast<size_t>(id)];
    return TensorView{nullptr, info.shape, info.dtype};
  };
}

// For each value, how many nodes read it, and one more where the caller does.
std::vector<int> readers(const Graph& g, std::span<const Value> outputs) {
  std::vector<int> count(g.values.size(), 0);
  for (const Node& node : g.nodes)
    for (ValueId id : node.in)
      if (id != kAbsent) ++count[static_cast<size_t>(id)];
  for (Value v : outputs) ++count[static_cast<size_t>(v.id())];
  return count;
}

// Nodes from `first` on, each reading a result of the one before it, as the backend judges them.
constexpr size_t kMostJoined = 7;
std::vector<ChainNode> chain_from(const Graph& g, size_t first, const std::vector<int>& readers_of,
                                  PackedParams* packed) {
  std::vector<ChainNode> chain;
  for (size_t i = first; i < g.nodes.size() && chain.size() < kMostJoined; ++i) {
    const Node& node = g.nodes[i];
    ChainNode next{.op = &node.op, .io = operands(node, shape_only(g))};
    next.in.assign(node.in.begin(), node.in.end());
    next.out.assign(node.out.begin(), node.out.end());
    next.io.packed = packed;
    if (i > first) {
      const auto& results = g.nodes[i - 1].out;
      const auto read =
          std::find_first_of(node.in.begin(), node.in.end(), results.begin(), results.end(),
                             [](ValueId a, ValueId b) { return a == b && a != kAbsent; });
      if (read == node.in.end()) break;
      next.operand = static_cast<size_t>(read - node.in.begin());
      next.result =
          static_cast<size_t>(std::find(results.begin(), results.end(), *read) - results.begin());
      next.only = readers_of[static_cast<size_t>(*read)] == 1;
    }
    chain.push_back(std::move(next));
  }
  return chain;
}

}  // namespace

Joints find_joints(const Graph& g, std::span<const Value> outputs, const Backend& backend,
                   PackedParams* packed) {
  const std::vector<int> readers_of = readers(g, outputs);
  Joints joints{.all = {},
                .with_next = std::vector<bool>(g.nodes.size(), false),
                .summed = std::vector<std::optional<size_t>>(g.nodes.size())};
  std::vector<int> producer(g.values.size(), -1);  // whose last node has it as its first result
  for (size_t i = 0; i < g.nodes.size(); i += joints.all.back().nodes.size()) {
    std::vector<ChainNode> chain = chain_from(g, i, readers_of, packed);
    chain.resize(backend.joins(chain));
    for (size_t k = i; k + 1 < i + chain.size(); ++k) joints.with_next[k] = true;
    const Node& last = g.nodes[i + chain.size() - 1];
    joints.all.push_back({i, std::move(chain)});
    if (!last.out.empty() && last.out[0] != kAbsent &&
        backend.adds_columns(joints.all.back().nodes))
      producer[static_cast<size_t>(last.out[0])] = static_cast<int>(joints.all.size()) - 1;
  }
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const std::optional<ColumnSums> sums = column_sums(g.nodes[i]);
    const int before = sums ? producer[static_cast<size_t>(sums->of)] : -1;
    if (before < 0 || joints.all[static_cast<size_t>(before)].columns != kAbsent) continue;
    joints.all[static_cast<size_t>(before)].columns = g.nodes[i].out[sums->result];
    joints.summed[i] = sums->result;
  }
  return joints;
}

std::vector<size_t> last_readers(const Graph& g, std::span<const Value> outputs) {
  std::vector<size_t> last(g.values.size(), 0);
  for (size_t i = 0; i < g.nodes.size(); ++i)
    for (ValueId id : g.nodes[i].in)
      if (id != kAbsent) last[static_cast<size_t>(id)] = i;
  for (Value v : outputs) last[static_cast<size_t>(v.id())] = g.nodes.size();
  return last;
}

namespace {

// The layer whose activated result this is, where that can be had from what the layer saves.
const Node* activated(const Graph& g, ValueId v) {
  for (const Node& node : g.nodes) {
    const auto* linear = std::get_if<Linear>(&node.op);
    if (!linear || node.out[Linear::kY] != v) continue;
    const auto& [act, drop, site] = *linear;
    const bool saves = node.out.size() > Linear::kSaved && node.out[Linear::kSaved] != kAbsent;
    return act != Act::kNone && drop == 0 && saves ? &node : nullptr;
  }
  return nullptr;
}

// Before the backward pass of a layer behind an activation: that once more. Whether it is one.
bool put_again(Graph& g, size_t at) {
  const Node& node = g.nodes[at];
  if (!std::holds_alternative<LinearBwd>(node.op)) return false;
  const ValueId kept = node.in[LinearBwd::kX];
  const Node* const layer = kept == kAbsent ? nullptr : activated(g, kept);
  if (!layer) return false;
  const auto& [act, drop, site] = std::get<Linear>(layer->op);
  Node again{.op = Activation{.act = act},
             .in = {layer->out[Linear::kSaved]},
             .out = {g.add_value(ValueInfo(g.values[static_cast<size_t>(kept)])).id()},
             .name = layer->name + ".again"};
  g.nodes[at].in[LinearBwd::kX] = again.out[Activation::kY];
  g.nodes.insert(g.nodes.begin() + static_cast<std::ptrdiff_t>(at), std::move(again));
  return true;
}

}  // namespace

void compute_again(Graph& g, std::span<const Value> outputs, const Backend& backend,
                   PackedParams* packed) {
  constexpr size_t kNodes = 3;  // the activation and the backward passes of both layers
  std::vector<size_t> places;
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const std::vector<ValueId> in = g.nodes[i].in;
    if (!put_again(g, i)) continue;
    // The forward pass reads it, too, or there is nothing that waits; others do not.
    const std::vector<int> readers_of = readers(g, outputs);
    if (readers_of[static_cast<size_t>(in[LinearBwd::kX])] == 1 &&
        backend.joins(chain_from(g, i, readers_of, packed)) == kNodes)
      places.push_back(i);
    g.nodes.erase(g.nodes.begin() + static_cast<std::ptrdiff_t>(i));
    g.nodes[i].in = in;
  }
  // The backward pass comes to the first layers last.
  for (size_t left = (places.size() + 1) / 2; left > 0; --left, places.pop_back())
    put_again(g, places.back());
}

}  // namespace vitrum
