// Linear layers of blocks become layers of eight bits.
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
  return layers;
}

}  // namespace vitrum
