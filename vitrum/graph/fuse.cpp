#include <algorithm>

#include "vitrum/graph/passes.h"

namespace vitrum {
namespace {

// The graph seen by use: who reads a value, and how often.
struct Uses {
  explicit Uses(const Graph& g)
      : count(g.values.size(), 0), reader(g.values.size(), -1), producer(g.values.size(), -1) {
    for (size_t i = 0; i < g.nodes.size(); ++i) {
      for (ValueId v : g.nodes[i].in)
        if (v != kAbsent)
          ++count[static_cast<size_t>(v)], reader[static_cast<size_t>(v)] = static_cast<int>(i);
      for (ValueId v : g.nodes[i].out)
        if (v != kAbsent) producer[static_cast<size_t>(v)] = static_cast<int>(i);
    }
  }
  int only_reader(ValueId v) const {
    return count[static_cast<size_t>(v)] == 1 ? reader[static_cast<size_t>(v)] : -1;
  }
  std::vector<int> count, reader, producer;
};

// Nodes are absorbed in place and swept at the end, so that indices stay valid during the pass.
class Fuser {
 public:
  Fuser(Graph& g, std::span<const Value> keep) : g_(g), uses_(g), gone_(g.nodes.size(), false) {
    for (Value v : keep) ++uses_.count[static_cast<size_t>(v.id())];
  }

  void run() {
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      if (gone_[i]) continue;
      Node& node = g_.nodes[i];
      if (std::holds_alternative<Normalize>(node.op))
        into_patchify(i);
      else if (auto* linear = std::get_if<Linear>(&node.op))
        extend_linear(node, *linear);
      else if (auto* conv = std::get_if<Conv2d>(&node.op))
        extend_conv(i, *conv);
      else if (auto* norm = std::get_if<BatchNorm>(&node.op))
        norm->act = with_residual(i, BatchNorm::kSkip);
      else if (auto* norm = std::get_if<FrozenBatchNorm>(&node.op))
        norm->act = with_residual(i, FrozenBatchNorm::kSkip);
      else if (std::holds_alternative<Add>(node.op))
        with_layer_norm(i);
    }
    size_t kept = 0;
    for (size_t i = 0; i < g_.nodes.size(); ++i)
      if (!gone_[i] && kept++ != i) g_.nodes[kept - 1] = std::move(g_.nodes[i]);
    g_.nodes.resize(kept);
  }

 private:
  template <class T>
  Node* next_is(ValueId v) {  // the only reader of v, if it is a T
    const int at = uses_.only_reader(v);
    if (at < 0 || gone_[static_cast<size_t>(at)]) return nullptr;
    Node& node = g_.nodes[static_cast<size_t>(at)];
    return std::holds_alternative<T>(node.op) ? &node : nullptr;
  }
  void absorb(Node& node) { gone_[static_cast<size_t>(&node - g_.nodes.data())] = true; }

  void into_patchify(size_t i) {
    Node* patchify = next_is<Patchify>(g_.nodes[i].out[Normalize::kY]);
    if (!patchify) return;
    patchify->in = g_.nodes[i].in;
    gone_[i] = true;
  }

  void extend_linear(Node& node, Linear& linear) {
    if (Node* act = next_is<Activation>(node.out[Linear::kY])) {
      const auto& [kind] = std::get<Activation>(act->op);
      linear.act = kind;
      node.out = act->out;
      absorb(*act);
    }
    if (Node* drop = next_is<Dropout>(node.out[Linear::kY])) {
      const auto& [share, site] = std::get<Dropout>(drop->op);
      linear.drop = share, linear.site = site;
      node.in[Linear::kRng] = drop->in[Dropout::kRng];
      node.out = drop->out;
      absorb(*drop);
    }
  }

  void extend_conv(size_t i, Conv2d& conv) {
    Node* norm = next_is<FrozenBatchNorm>(g_.nodes[i].out[Conv2d::kY]);
    if (!norm) return;
    Node& node = g_.nodes[i];
    const auto& [eps, act] = std::get<FrozenBatchNorm>(norm->op);
    if (act != Act::kNone) return;
    conv.eps = eps;
    static_assert(int{Conv2d::kSkip} - Conv2d::kNormWeight ==
                  int{FrozenBatchNorm::kSkip} - FrozenBatchNorm::kWeight);
    std::copy(norm->in.begin() + FrozenBatchNorm::kWeight, norm->in.end(),
              node.in.begin() + Conv2d::kNormWeight);
    node.out = norm->out;
    node.name = norm->name;
    absorb(*norm);
    conv.act = with_residual(i, Conv2d::kSkip);
  }

  // The ReLU behind node i, or the residual sum and the ReLU behind that, where what is added is
  // there already when the node runs.
  Act with_residual(size_t i, size_t skip) {
    Node& node = g_.nodes[i];
    Node* add = next_is<Add>(node.out[0]);  // kY of each of them
    Node* act = next_is<Activation>(add ? add->out[Add::kY] : node.out[0]);
    if (!act || std::get<Activation>(act->op).act != Act::kRelu) return Act::kNone;
    if (add) {
      const ValueId other = add->in[add->in[Add::kA] == node.out[0] ? Add::kB : Add::kA];
      if (uses_.producer[static_cast<size_t>(other)] > static_cast<int>(i)) return Act::kNone;
      node.in[skip] = other;
      absorb(*add);
    }
    node.out[0] = act->out[Activation::kY];
    absorb(*act);
    return Act::kRelu;
  }

  // The norm moves up to the add: its other operands are parameters, so nothing it needs comes
  // later. The sum stays an output of its own, for the residual path.
  void with_layer_norm(size_t i) {
    Node& add = g_.nodes[i];
    const auto norm = std::find_if(g_.nodes.begin() + static_cast<long>(i) + 1, g_.nodes.end(),
                                   [&](const Node& n) {
                                     return std::holds_alternative<LayerNorm>(n.op) &&
                                            n.in[LayerNorm::kX] == add.out[Add::kY] &&
                                            !gone_[static_cast<size_t>(&n - g_.nodes.data())];
                                   });
    if (norm == g_.nodes.end()) return;
    const auto& [eps] = std::get<LayerNorm>(norm->op);
    add.op = AddLayerNorm{eps};
    add.in.insert(add.in.end(), norm->in.begin() + LayerNorm::kWeight, norm->in.end());
    add.out.push_back(norm->out[LayerNorm::kY]);
    add.name = norm->name;
    absorb(*norm);
  }

  Graph& g_;
  Uses uses_;
  std::vector<bool> gone_;
};

}  // namespace

void fuse(Graph& g, std::span<const Value> keep) { Fuser(g, keep).run(); }

}  // namespace vitrum
