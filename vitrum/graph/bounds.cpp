#include "vitrum/graph/bounds.h"

#include <algorithm>
#include <cmath>

namespace vitrum {
namespace {

// Operands of eight bits are up to a sixteenth larger than what they stand for, both of a product.
constexpr double kRounding = 1.13;

const Node* linear_of(const Node& node) {
  const bool is_linear =
      std::holds_alternative<Linear>(node.op) || std::holds_alternative<QLinear>(node.op);
  static_assert(int{QLinear::kX} == Linear::kX && int{QLinear::kWeight} == Linear::kWeight &&
                int{QLinear::kBias} == Linear::kBias);
  return is_linear ? &node : nullptr;
}

Act act_of(const Op& op) {
  if (const auto* layer = std::get_if<QLinear>(&op)) {
    const auto& [act, scale] = *layer;
    return act;
  }
  const auto& [act, drop, site] = std::get<Linear>(op);
  return act;
}

}  // namespace

struct Bounds::Norm {
  std::vector<float> gamma, beta;
};

Bounds::Bounds(const Graph& g, const ParamValues& values) : g_(g), values_(values) {}

std::optional<Bounds::Made> Bounds::made(ValueId id) const {
  for (const Node& node : g_.nodes)
    for (size_t i = 0; i < node.out.size(); ++i)
      if (node.out[i] == id) return Made{&node, i};
  return {};
}

// Past what only moves numbers, rounds them, or makes them smaller.
std::optional<Bounds::Made> Bounds::source(ValueId id) const {
  const auto by = made(id);
  if (!by) return {};
  const Op& op = by->node->op;
  const auto* activation = std::get_if<Activation>(&op);
  const bool passes = std::holds_alternative<GatherTokens>(op) ||
                      std::holds_alternative<ToE4M3>(op) ||
                      (activation && activation->act != Act::kSigmoid);
  return passes ? source(by->node->in[0]) : by;
}

bool Bounds::is_norm(const Made& by) const {
  return (std::holds_alternative<LayerNorm>(by.node->op) && by.result == LayerNorm::kY) ||
         (std::holds_alternative<AddLayerNorm>(by.node->op) && by.result == AddLayerNorm::kY);
}

std::vector<float> Bounds::param(ValueId id, size_t count, float otherwise) const {
  if (id == kAbsent) return std::vector<float>(count, otherwise);
  return values_(static_cast<size_t>(g_.values[static_cast<size_t>(id)].param));
}

std::optional<Bounds::Norm> Bounds::norm(ValueId id) const {
  const auto by = source(id);
  if (!by || !is_norm(*by)) return {};
  const bool added = std::holds_alternative<AddLayerNorm>(by->node->op);
  const auto operand = [&](int at) {
    const auto i = static_cast<size_t>(at);
    return i < by->node->in.size() ? by->node->in[i] : kAbsent;
  };
  const ValueId y = by->node->out[by->result];
  const auto width = static_cast<size_t>(g_.values[static_cast<size_t>(y)].shape[-1]);
  return Norm{
      param(operand(added ? int{AddLayerNorm::kWeight} : int{LayerNorm::kWeight}), width, 1),
      param(operand(added ? int{AddLayerNorm::kBias} : int{LayerNorm::kBias}), width, 0)};
}

float Bounds::behind(const Norm& norm, const Node& linear, ElementRange channels) const {
  const size_t width = norm.gamma.size();
  const std::vector<float> w = param(linear.in[Linear::kWeight], 0, 0);
  const std::vector<float> bias = param(
      linear.in.size() > Linear::kBias ? linear.in[Linear::kBias] : kAbsent, w.size() / width, 0);
  double most = 0;
  for (auto row = static_cast<size_t>(channels.first);
       row < static_cast<size_t>(channels.first + channels.count); ++row) {
    double squares = 0, shift = 0;
    for (size_t k = 0; k < width; ++k) {
      const double x = w[row * width + k], scaled = x * norm.gamma[k];
      squares += scaled * scaled, shift += x * norm.beta[k];
    }
    most = std::max(most,
                    std::sqrt(static_cast<double>(width) * squares) + std::abs(shift + bias[row]));
  }
  most *= kRounding;
  return act_of(linear.op) == Act::kSigmoid ? 1.0f : static_cast<float>(most);
}

std::optional<float> Bounds::most(ValueId id, ElementRange channels) const {
  const auto by = source(id);
  if (!by) return {};
  if (channels.count == 0)
    channels = {0, g_.values[static_cast<size_t>(by->node->out[by->result])].shape[-1]};
  if (is_norm(*by)) {
    const Norm norm = *this->norm(id);
    float most = 0;
    const float length = std::sqrt(static_cast<float>(norm.gamma.size()));
    for (auto i = static_cast<size_t>(channels.first);
         i < static_cast<size_t>(channels.first + channels.count); ++i)
      most = std::max(most, length * std::abs(norm.gamma[i]) + std::abs(norm.beta[i]));
    return most;
  }
  const Node& node = *by->node;
  if (linear_of(node)) {
    if (!has(id)) return {};
    return behind(*norm(node.in[Linear::kX]), node, channels);
  }
  if (!std::holds_alternative<Attention>(node.op)) return {};
  const ValueId qkv = unturned(node.in[Attention::kQkv]);
  const int64_t width = g_.values[static_cast<size_t>(qkv)].shape[-1] / 3;
  return most(qkv, {2 * width + channels.first, channels.count});
}

bool Bounds::has(ValueId id) const {
  const auto by = source(id);
  if (!by) return false;
  if (is_norm(*by)) return true;
  if (linear_of(*by->node)) {
    const auto before = source(by->node->in[Linear::kX]);
    if (!before || !is_norm(*before)) return false;
    const ValueInfo& w = g_.values[static_cast<size_t>(by->node->in[Linear::kWeight])];
    const ValueId normed = before->node->out[before->result];
    return w.role == Role::kParam && w.shape[1] == g_.values[static_cast<size_t>(normed)].shape[-1];
  }
  const auto* attention = std::get_if<Attention>(&by->node->op);
  return attention && has(unturned(by->node->in[Attention::kQkv]));
}

// Queries, keys and values before something was done to the first two.
ValueId Bounds::unturned(ValueId qkv) const {
  const auto by = made(qkv);
  const auto* unit = by ? std::get_if<UnitHeads>(&by->node->op) : nullptr;
  const bool turns =
      by && (std::holds_alternative<Rotate>(by->node->op) || (unit && unit->unit < 3));
  return turns ? unturned(by->node->in[0]) : qkv;
}

}  // namespace vitrum
