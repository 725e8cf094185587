#include "vitrum/runtime/summary.h"

#include <algorithm>
#include <map>

#include "vitrum/graph/taps.h"

namespace vitrum {
namespace {

const ValueInfo& value(const Graph& g, ValueId id) { return g.values[static_cast<size_t>(id)]; }

std::string leaf(const std::string& name) { return name.substr(name.rfind('.') + 1); }
int depth(const std::string& name) {
  return name.empty() ? 0 : 1 + static_cast<int>(std::count(name.begin(), name.end(), '.'));
}

std::string layer_type(const Op& op) {
  if (const auto* activation = std::get_if<Activation>(&op)) {
    switch (activation->act) {
      case Act::kNone: return "Identity";
      case Act::kGelu: return "GELU";
      case Act::kGeluTanh: return "GELU (tanh)";
      case Act::kRelu: return "ReLU";
      case Act::kQuickGelu: return "QuickGELU";
      case Act::kSilu: return "SiLU";
      case Act::kSigmoid: return "Sigmoid";
    }
  }
  if (std::holds_alternative<FrozenBatchNorm>(op)) return "BatchNorm";
  return std::string(name_of(op));
}

// "patch_embed" -> "PatchEmbed"; a numbered module is one of its parent's: "blocks.3" -> "Block".
std::string module_type(const std::string& name) {
  if (name.empty()) return "Model";
  std::string word = leaf(name);
  if (word.find_first_not_of("0123456789") == std::string::npos) {
    word = leaf(parent_name(name));
    if (word.ends_with('s')) word.pop_back();
  }
  std::string type;
  bool upper = true;
  for (char c : word) {
    if (c != '_')
      type += upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    upper = c == '_';
  }
  return type;
}

// An activation is named after the layer before it ("mlp.fc1.act", or behind a residual sum
// "bn2.add.act"), and so is a gate; in the tree it stands beside it ("mlp.act").
std::string layer_name(const Node& node) {
  const bool gate = std::holds_alternative<Gate>(node.op);
  if (!gate && !std::holds_alternative<Activation>(node.op)) return node.name;
  const std::string own = gate ? "gate" : "act";
  std::string layer = parent_name(node.name);
  if (layer.ends_with(".add")) layer = parent_name(layer);
  const std::string module = parent_name(layer);
  return module.empty() ? own : module + "." + own;
}

class Table {
 public:
  explicit Table(const Graph& g) : g_(g), counted_(g.params.size(), false) {}

  std::vector<LayerSummary> build() {
    open("", {});
    for (const Node& node : g_.nodes)
      // Residual sums belong to no layer, running statistics to the norm that they are of.
      if (!std::holds_alternative<Add>(node.op) && !std::holds_alternative<RunningStats>(node.op))
        add(node);
    return std::move(rows_);
  }

 private:
  // The row of a module, made with all its parents at its first use.
  void open(const std::string& name, const Shape& input) {
    if (index_.contains(name)) return;
    if (!name.empty()) open(parent_name(name), input);
    rows_.push_back({.name = name,
                     .type = module_type(name),
                     .depth = depth(name),
                     .input = input,
                     .output = {}});
    index_[name] = rows_.size() - 1;
  }

  void add(const Node& node) {
    const std::string name = layer_name(node);
    const Shape& input = value(g_, node.in[0]).shape;
    open(parent_name(name), input);
    LayerSummary row{.name = name,
                     .type = layer_type(node.op),
                     .depth = depth(name),
                     .leaf = true,
                     .input = input,
                     .output = value(g_, node.out[0]).shape,
                     .macs = multiply_adds(g_, node),
                     .results = value(g_, node.out[0]).shape.numel()};
    count_parameters(node, row);
    for (std::string module = name; !module.empty();) {
      module = parent_name(module);
      LayerSummary& sum = rows_[index_.at(module)];
      if (sum.input.rank() == 0) sum.input = input;
      sum.output = row.output;
      sum.parameters += row.parameters, sum.trainable += row.trainable, sum.macs += row.macs;
      sum.results += row.results;
    }
    rows_.push_back(std::move(row));
  }

  void count_parameters(const Node& node, LayerSummary& row) {
    for (ValueId id : node.in) {
      if (id == kAbsent || value(g_, id).role != Role::kParam) continue;
      const auto param = static_cast<size_t>(value(g_, id).param);
      if (counted_[param]) continue;
      counted_[param] = true;
      if (g_.params[param].buffer) continue;
      row.parameters += g_.params[param].counted();
      if (row.weight.rank() == 0) row.weight = g_.params[param].shape;
      if (g_.params[param].trainable) row.trainable += g_.params[param].counted();
    }
  }

  const Graph& g_;
  std::vector<bool> counted_;
  std::vector<LayerSummary> rows_;
  std::map<std::string, size_t> index_;  // of module rows
};

}  // namespace

int64_t multiply_adds(const Graph& g, const Node& node) {
  const auto in = [&](size_t i) -> const Shape& { return value(g, node.in[i]).shape; };
  const auto out = [&](size_t i) -> const Shape& { return value(g, node.out[i]).shape; };
  const auto wanted = [&](size_t i) { return node.out[i] != kAbsent ? 1 : 0; };
  if (std::holds_alternative<Linear>(node.op)) return in(Linear::kX).numel() * out(Linear::kY)[-1];
  if (std::holds_alternative<QLinear>(node.op))
    return in(QLinear::kX).numel() * out(QLinear::kY)[-1];
  if (std::holds_alternative<LinearBwd>(node.op))
    return (wanted(LinearBwd::kDx) + wanted(LinearBwd::kDweight)) * in(LinearBwd::kDy).numel() *
           in(LinearBwd::kX)[-1];
  // Every output reads the window of every input channel: (O, C, K, K).
  if (std::holds_alternative<Conv2d>(node.op))
    return out(Conv2d::kY).rows() * in(Conv2d::kWeight).numel();
  if (std::holds_alternative<Conv2dBwd>(node.op))
    return (wanted(Conv2dBwd::kDx) + wanted(Conv2dBwd::kDweight)) * in(Conv2dBwd::kDy).rows() *
           in(Conv2dBwd::kWeight).numel();
  if (std::holds_alternative<DepthwiseConv>(node.op))
    return out(DepthwiseConv::kY).rows() * in(DepthwiseConv::kWeight).numel();
  if (std::holds_alternative<DepthwiseConvBwd>(node.op))
    return (wanted(DepthwiseConvBwd::kDx) + wanted(DepthwiseConvBwd::kDweight)) *
           in(DepthwiseConvBwd::kDy).rows() * in(DepthwiseConvBwd::kWeight).numel();
  // q k^T, and the weighted sum of v, have as many each: (B, T, 3C) -> B * T * T * C. Two for each
  // of forward's on the way back; the scores that are computed again are not counted.
  const auto product = [&](size_t qkv) { return in(qkv).rows() * in(qkv)[-2] * (in(qkv)[-1] / 3); };
  if (std::holds_alternative<Attention>(node.op)) return 2 * product(Attention::kQkv);
  if (std::holds_alternative<QAttention>(node.op)) return 2 * product(QAttention::kQkv);
  if (std::holds_alternative<AttentionProbs>(node.op)) return product(AttentionProbs::kQkv);
  if (std::holds_alternative<AttentionProbsGrad>(node.op)) return product(AttentionProbsGrad::kQkv);
  if (std::holds_alternative<AttentionBwd>(node.op)) return 4 * product(AttentionBwd::kQkv);
  // One query: (B, T, 2C) -> B * T * C for each of scores and sum.
  if (std::holds_alternative<AttendPool>(node.op)) return in(AttendPool::kKv).numel();
  if (std::holds_alternative<AttendPoolBwd>(node.op)) return 2 * in(AttendPoolBwd::kKv).numel();
  return 0;
}

int64_t multiply_adds(const Graph& g) {
  int64_t total = 0;
  for (const Node& node : g.nodes) total += multiply_adds(g, node);
  return total;
}

std::vector<LayerSummary> summarize(const Graph& g) { return Table(g).build(); }

ParameterCount count_parameters(const Graph& g) {
  ParameterCount count;
  for (const ParamSpec& param : g.params) {
    if (param.buffer) continue;
    count.all += param.counted();
    if (param.trainable) count.trainable += param.counted();
  }
  return count;
}

}  // namespace vitrum
