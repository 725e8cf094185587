// Linear layers of blocks become layers of eight bits, and so does attention between them.
#include <algorithm>

#include "vitrum/core/eight_bits.h"
#include "vitrum/graph/passes.h"

namespace vitrum {
namespace {

// "blocks.3.attn.qkv", "layers.0.blocks.1.mlp.fc1": what is repeated. The first and the last layers
// of a model (patch embedding, downsampling, pooling, head) are few, and lose most.
bool in_repeated_block(std::string_view path) {
  constexpr std::string_view kBlocks = "blocks.";
  const size_t at = path.find(kBlocks);
  return at != path.npos && (at == 0 || path[at - 1] == '.') && in_block(path.substr(at));
}

bool is_adapter(std::string_view path) { return path.find(".lora_") != path.npos; }

// Which values hang on an input of the graph; what does not is computed once, and stays as it is.
class Moving {
 public:
  explicit Moving(const Graph& g) : moves_(g.values.size(), false) {
    for (size_t i = 0; i < g.values.size(); ++i) moves_[i] = g.values[i].role == Role::kInput;
    for (const Node& node : g.nodes)
      if (std::ranges::any_of(node.in, [&](ValueId id) { return (*this)[id]; }))
        for (const ValueId id : node.out)
          if (id != kAbsent) moves_[static_cast<size_t>(id)] = true;
  }
  bool operator[](ValueId id) const { return id != kAbsent && moves_[static_cast<size_t>(id)]; }

 private:
  std::vector<bool> moves_;
};

// The node whose result this is, past what only moves or turns its values.
const Node* source(const Graph& g, ValueId id) {
  const auto made = std::ranges::find_if(
      g.nodes, [&](const Node& node) { return std::ranges::find(node.out, id) != node.out.end(); });
  if (made == g.nodes.end()) return nullptr;
  const bool passes = std::holds_alternative<Rotate>(made->op) ||
                      std::holds_alternative<UnitHeads>(made->op) ||
                      std::holds_alternative<GatherTokens>(made->op);
  return passes ? source(g, made->in[0]) : &*made;
}

// Shorter heads are computed sixteen side by side, one a lane; bytes would not pay.
constexpr int64_t kLeastHead = 17;

// Attention goes with the layer that makes its queries, keys and values.
void quantize_attention(Graph& g) {
  for (Node& node : g.nodes) {
    const auto* attention = std::get_if<Attention>(&node.op);
    if (!attention) continue;
    const auto& [heads, drop, site] = *attention;
    const Shape& qkv = g.values[static_cast<size_t>(node.in[Attention::kQkv])].shape;
    const Node* from = source(g, node.in[Attention::kQkv]);
    if (drop > 0 || node.out.size() > 1 || !from || !std::holds_alternative<QLinear>(from->op) ||
        qkv[2] / (3 * heads) < kLeastHead || qkv[1] > kMostByteDepth)
      continue;
    node.op = QAttention{.heads = heads};
    static_assert(
        int{QAttention::kQkv} == Attention::kQkv && int{QAttention::kRng} == Attention::kRng &&
        int{QAttention::kBias} == Attention::kBias && int{QAttention::kMask} == Attention::kMask &&
        int{QAttention::kY} == Attention::kY);
  }
}

}  // namespace

std::vector<std::string> quantize(Graph& g, const KeepsFloat& keeps) {
  const Moving moving(g);
  std::vector<std::string> layers;
  for (Node& node : g.nodes) {
    const auto* linear = std::get_if<Linear>(&node.op);
    if (!linear) continue;
    const auto& [act, drop, site] = *linear;
    const ValueInfo& weight = g.values[static_cast<size_t>(node.in[Linear::kWeight])];
    const bool plain = drop == 0 && node.out.size() == 1 && weight.role == Role::kParam &&
                       weight.shape[1] <= kMostByteDepth && moving[node.in[Linear::kX]];
    if (!plain || !in_repeated_block(node.name) || is_adapter(node.name) ||
        (keeps && keeps(node.name)))
      continue;
    layers.push_back(node.name);
    node.op = QLinear{.act = act};
    static_assert(int{QLinear::kX} == Linear::kX && int{QLinear::kWeight} == Linear::kWeight &&
                  int{QLinear::kBias} == Linear::kBias && int{QLinear::kY} == Linear::kY);
    node.in.resize(QLinear::kBias + 1);
  }
  quantize_attention(g);
  return layers;
}

}  // namespace vitrum
