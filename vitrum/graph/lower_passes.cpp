// The passes between a differentiated graph and a plan: precision, and what is not needed after
// all.
#include <algorithm>

#include "vitrum/graph/passes.h"

namespace vitrum {

// The result of a product, or of a backward one its gradient.
static ValueId product_of(const Node& node) {
  const bool backward =
      std::holds_alternative<LinearBwd>(node.op) || std::holds_alternative<Conv2dBwd>(node.op);
  static_assert(int{LinearBwd::kDy} == Conv2dBwd::kDy && int{Linear::kY} == Conv2d::kY);
  return backward ? node.in[LinearBwd::kDy] : node.out[Linear::kY];
}

// Which operand of a product is its weights.
static std::optional<size_t> weight_operand(const Op& op) {
  if (std::holds_alternative<Linear>(op)) return Linear::kWeight;
  if (std::holds_alternative<Conv2d>(op)) return Conv2d::kWeight;
  if (std::holds_alternative<LinearBwd>(op)) return LinearBwd::kWeight;
  if (std::holds_alternative<Conv2dBwd>(op)) return Conv2dBwd::kWeight;
  return {};
}

void assign_dtypes(Graph& g, DType compute, std::span<const Value> keep_f32) {
  if (compute == DType::kF32 || compute == DType::kI8) return;
  if (compute == DType::kE4M3) compute = DType::kBF16;
  const auto kept = [&](size_t id) {
    return std::any_of(keep_f32.begin(), keep_f32.end(),
                       [&](Value v) { return v.id() == static_cast<ValueId>(id); });
  };
  std::vector<bool> weight(g.values.size(), false);
  for (const Node& node : g.nodes)
    if (const std::optional<size_t> at = weight_operand(node.op);
        at && !g.values[static_cast<size_t>(product_of(node))].exact)
      weight[static_cast<size_t>(node.in[*at])] = true;
  for (size_t id = 0; id < g.values.size(); ++id) {
    ValueInfo& info = g.values[id];
    if (info.dtype != DType::kF32) continue;
    if (compute == DType::kF64)
      info.dtype = DType::kF64;
    else if (weight[id] || (info.role == Role::kTemp && !info.exact && !kept(id)))
      info.dtype = compute;
  }
  for (const Node& node : g.nodes)  // a bias has the precision of the sum it goes into
    if (std::holds_alternative<Linear>(node.op) && node.in[Linear::kBias] != kAbsent)
      g.values[static_cast<size_t>(node.in[Linear::kBias])].dtype =
          g.values[static_cast<size_t>(node.out[Linear::kY])].dtype;
}

bool only_bf16_weights(const Graph& g, ValueId id) {
  for (const Node& node : g.nodes)
    for (size_t i = 0; i < node.in.size(); ++i) {
      if (node.in[i] != id) continue;
      if (!std::holds_alternative<Linear>(node.op) || i != Linear::kWeight) return false;
      if (g.values[static_cast<size_t>(node.in[Linear::kX])].dtype != DType::kBF16) return false;
    }
  return true;
}

std::optional<ColumnSums> column_sums(const Node& node) {
  const auto* linear = std::get_if<LinearBwd>(&node.op);
  if (!linear) return {};
  const auto& [act, drop, site] = *linear;
  if (act != Act::kNone || drop != 0 || node.out[LinearBwd::kDbias] == kAbsent) return {};
  return ColumnSums{.of = node.in[LinearBwd::kDy], .result = LinearBwd::kDbias};
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
