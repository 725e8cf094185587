#include "vitrum/graph/unread_tokens.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>

namespace vitrum {
namespace {

// The operands of a node that gives a row for every row of them and looks at no other; none where
// it is another kind of node.
std::vector<size_t> row_operands(const Node& node) {
  const bool plain = std::all_of(node.out.begin() + (node.out.empty() ? 0 : 1), node.out.end(),
                                 [](ValueId id) { return id == kAbsent; });
  if (!plain) return {};
  if (const auto* linear = std::get_if<Linear>(&node.op))
    return linear->drop == 0 ? std::vector<size_t>{Linear::kX} : std::vector<size_t>{};
  if (std::holds_alternative<LayerNorm>(node.op)) return {LayerNorm::kX};
  if (std::holds_alternative<Activation>(node.op)) return {Activation::kX};
  if (std::holds_alternative<Gate>(node.op)) return {Gate::kX};
  if (std::holds_alternative<ChannelScale>(node.op)) return {ChannelScale::kX};
  if (std::holds_alternative<Add>(node.op)) return {Add::kA, Add::kB};
  return {};
}

// How many tokens of each value (B, T, C) are read, counted from the first; of values of other
// ranks all are.
class Needs {
 public:
  Needs(const Graph& g, std::span<const Value> kept) : g_(g), needs_(g.values.size(), 0) {
    for (const Value v : kept)
      if (v) needs_[static_cast<size_t>(v.id())] = tokens(v.id());
    for (size_t i = g.nodes.size(); i-- > 0;) read_by(g.nodes[i]);
  }
  bool is_part(ValueId id) const {
    return g_.values[static_cast<size_t>(id)].shape.rank() == 3 && (*this)[id] > 0 &&
           (*this)[id] < tokens(id);
  }
  // Whether the node needs to compute only some tokens, and can.
  bool narrows(const Node& node) const {
    const std::vector<size_t> operands = row_operands(node);
    return !operands.empty() && is_part(node.out[0]) &&
           std::ranges::all_of(operands, [&](size_t i) {
             const Shape& x = g_.values[static_cast<size_t>(node.in[i])].shape;
             return x.rank() == 3 && x[1] == tokens(node.out[0]);
           });
  }
  int64_t operator[](ValueId id) const { return needs_[static_cast<size_t>(id)]; }

 private:
  int64_t tokens(ValueId id) const {
    const Shape& shape = g_.values[static_cast<size_t>(id)].shape;
    return shape.rank() == 3 ? shape[1] : 1;
  }
  void read_by(const Node& node) {
    const auto read = [&](ValueId id, int64_t count) {
      int64_t& need = needs_[static_cast<size_t>(id)];
      need = std::max(need, std::min(count, tokens(id)));
    };
    const auto* pool = std::get_if<Pool>(&node.op);
    const bool narrow = narrows(node);
    const std::vector<size_t> rows = row_operands(node);
    for (size_t i = 0; i < node.in.size(); ++i) {
      const ValueId id = node.in[i];
      if (id == kAbsent) continue;
      const bool by_rows = narrow && std::ranges::find(rows, i) != rows.end();
      read(id, pool ? pool->first + pool->count : by_rows ? (*this)[node.out[0]] : tokens(id));
    }
  }

  const Graph& g_;
  std::vector<int64_t> needs_;
};

// The first `count` tokens of every image of `x`, made by a node of its own.
Node first_tokens(Graph& g, ValueId x, int64_t count, const Node& reader) {
  ValueInfo info = g.values[static_cast<size_t>(x)];
  const Shape shape = info.shape;
  info.shape = {shape[0], count, shape[2]};
  info.role = Role::kTemp;
  std::vector<int32_t> from(static_cast<size_t>(count));
  std::iota(from.begin(), from.end(), 0);
  const ValueId part = g.add_value(std::move(info)).id();
  return {.op = GatherTokens{shape[1], shape[2], std::move(from)},
          .in = {x},
          .out = {part},
          .name = reader.name + ".read",
          .region = reader.region};
}

}  // namespace

void drop_unread_tokens(Graph& g, std::span<const Value> kept) {
  const Needs needs(g, kept);
  const auto narrow = [&](const Node& node) { return needs.narrows(node); };
  // As many of all, so that who reads two of them finds rows of the same tokens.
  int64_t count = 0, least = INT64_MAX;
  bool pays = false;
  std::set<ValueId> narrowed;
  for (const Node& node : g.nodes) {
    if (!narrow(node)) continue;
    narrowed.insert(node.out[0]);
    count = std::max(count, needs[node.out[0]]);
    least = std::min(least, g.values[static_cast<size_t>(node.out[0])].shape[1]);
    pays |= std::holds_alternative<Linear>(node.op);
  }
  if (!pays || 2 * count > least) return;
  std::vector<Node> nodes;
  std::map<ValueId, ValueId> parts;
  const auto cut = [&](const Node& reader, const std::set<ValueId>& there) {
    for (const size_t i : row_operands(reader))
      if (const ValueId x = reader.in[i]; !narrowed.contains(x) && there.contains(x))
        if (const auto [part, is_new] = parts.try_emplace(x, kAbsent); is_new)
          nodes.push_back(first_tokens(g, x, count, reader)), part->second = nodes.back().out[0];
  };
  // What is there before the first of these nodes is cut there: between a layer and the sum behind
  // it there is nothing, then, and both may be one kernel.
  const auto first = std::ranges::find_if(g.nodes, narrow);
  std::set<ValueId> there;
  nodes.assign(g.nodes.begin(), first);
  for (const Node& node : nodes) there.insert(node.out.begin(), node.out.end());
  for (auto node = first; node != g.nodes.end(); ++node)
    if (narrow(*node)) cut(*node, there);
  for (auto node = first; node != g.nodes.end(); ++node) {
    there.insert(node->out.begin(), node->out.end());
    if (narrow(*node)) {
      cut(*node, there);
      for (const size_t i : row_operands(*node))
        if (!narrowed.contains(node->in[i])) node->in[i] = parts.at(node->in[i]);
    }
    nodes.push_back(*node);
  }
  for (const ValueId id : narrowed) {
    Shape& shape = g.values[static_cast<size_t>(id)].shape;
    shape = {shape[0], count, shape[2]};
  }
  g.nodes = std::move(nodes);
}

std::vector<std::string> partly_read_layers(const Graph& g, std::span<const Value> kept) {
  const Needs needs(g, kept);
  std::vector<std::string> layers;
  for (const Node& node : g.nodes)
    if (std::holds_alternative<Linear>(node.op) && needs.narrows(node)) layers.push_back(node.name);
  return layers;
}

}  // namespace vitrum
