// Linear layers of blocks become layers of eight bits, and so does attention between them.
#include <algorithm>

#include "vitrum/core/e4m3.h"
#include "vitrum/core/eight_bits.h"
#include "vitrum/graph/bounds.h"
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

// A layer of a block whose weights are a matrix of parameters.
bool is_chosen(const Graph& g, const Node& node, const Moving& moving, const KeepsFloat& keeps) {
  const auto* linear = std::get_if<Linear>(&node.op);
  if (!linear) return false;
  const auto& [act, drop, site] = *linear;
  const ValueInfo& weight = g.values[static_cast<size_t>(node.in[Linear::kWeight])];
  const bool plain = drop == 0 && node.out.size() == 1 && weight.role == Role::kParam &&
                     weight.shape[1] <= kMostByteDepth && moving[node.in[Linear::kX]];
  return plain && in_repeated_block(node.name) && !is_adapter(node.name) &&
         !(keeps && keeps(node.name));
}

void replace(Node& node, float scale) {
  const auto& [act, drop, site] = std::get<Linear>(node.op);
  node.op = QLinear{.act = act, .scale = scale};
  static_assert(int{QLinear::kX} == Linear::kX && int{QLinear::kWeight} == Linear::kWeight &&
                int{QLinear::kBias} == Linear::kBias && int{QLinear::kY} == Linear::kY);
  node.in.resize(QLinear::kBias + 1);
}

// Rows and columns of e4m3 are copied sixteen at a time, and columns multiplied by 32.
bool is_wide(const Shape& weight) { return weight[0] % 32 == 0 && weight[1] % 32 == 0; }

// `x` rounded, behind the node that makes it.
ValueId round_to_e4m3(Graph& g, ValueId x, float scale, const std::string& reader) {
  ValueInfo info = g.values[static_cast<size_t>(x)];
  info.dtype = DType::kE4M3;
  const ValueId rounded = g.add_value(std::move(info)).id();
  const auto made = std::ranges::find_if(
      g.nodes, [&](const Node& node) { return std::ranges::find(node.out, x) != node.out.end(); });
  g.nodes.insert(made + 1, Node{.op = ToE4M3{.scale = scale},
                                .in = {x},
                                .out = {rounded},
                                .name = reader,
                                .region = made->region});
  return rounded;
}

}  // namespace

std::vector<std::string> quantize(Graph& g, const KeepsFloat& keeps) {
  const Moving moving(g);
  std::vector<std::string> layers;
  for (Node& node : g.nodes)
    if (is_chosen(g, node, moving, keeps)) layers.push_back(node.name), replace(node, 0);
  quantize_attention(g);
  return layers;
}

std::vector<std::string> quantize_e4m3(Graph& g, const ParamValues& values, ActivationScales& known,
                                       const KeepsFloat& keeps) {
  const Moving moving(g);
  const Bounds bounds(g, values);
  std::vector<std::string> layers;
  std::map<ValueId, float> scales;  // of what becomes e4m3
  for (const Node& node : g.nodes) {
    const ValueId x = node.in.empty() ? kAbsent : node.in[0];
    if (!is_chosen(g, node, moving, keeps) || !bounds.has(x) ||
        !is_wide(g.values[static_cast<size_t>(node.in[Linear::kWeight])].shape))
      continue;
    layers.push_back(node.name);
    const auto [scale, is_new] = known.try_emplace(node.name, 1.0f);
    if (is_new && values) scale->second = activation_scale(*bounds.most(x));
    scales[x] = scale->second;
  }
  std::map<ValueId, ValueId> rounded;
  for (const std::string& layer : layers) {
    const auto find = [&]() -> Node& {
      return *std::ranges::find_if(g.nodes, [&](const Node& n) {
        return n.name == layer && std::holds_alternative<Linear>(n.op);
      });
    };
    const ValueId x = find().in[Linear::kX];
    if (!rounded.contains(x)) rounded[x] = round_to_e4m3(g, x, scales[x], layer);
    Node& node = find();
    replace(node, scales[x]);
    node.in[QLinear::kX] = rounded[x];
  }
  return layers;
}

}  // namespace vitrum
