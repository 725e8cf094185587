#include "vitrum/graph/taps.h"

#include <algorithm>

#include "vitrum/core/error.h"
#include "vitrum/core/nearest.h"

namespace vitrum {
namespace {

std::string inside(const std::string& module, const char* leaf) {
  return module.empty() ? leaf : module + "." + leaf;
}

// An activation is recorded under the layer before it ("mlp.fc1.act"); in timm it stands beside it.
std::string layer_name(const Node& node) {
  if (!std::holds_alternative<Activation>(node.op)) return node.name;
  return inside(parent_name(parent_name(node.name)), "act");
}

std::string probs_name(const Node& attention) {
  return inside(parent_name(attention.name), "probs");
}

struct Known {
  std::string name;
  ValueId value;  // kAbsent: attention weights that are not recorded yet
};

// Modules come last, so that of equal names (a module of one layer) theirs counts.
std::vector<Known> known(const Graph& g) {
  std::vector<Known> all;
  for (const Node& node : g.nodes) {
    if (std::holds_alternative<Add>(node.op)) continue;  // residual sums have no name in timm
    all.push_back({layer_name(node), node.out[0]});
    if (std::holds_alternative<Attention>(node.op)) all.push_back({probs_name(node), kAbsent});
  }
  for (const auto& [name, value] : g.modules) all.push_back({name, value});
  return all;
}

// Right behind the attention, so that qkv need not live longer.
Value record_probs(Graph& g, const std::string& name) {
  const auto at = std::find_if(g.nodes.begin(), g.nodes.end(), [&](const Node& n) {
    return std::holds_alternative<Attention>(n.op) && probs_name(n) == name;
  });
  const auto behind = at - g.nodes.begin() + 1;
  const auto [heads, drop, site] = std::get<Attention>(at->op);  // a copy: nodes move
  const Value qkv(&g, at->in[Attention::kQkv]);
  std::vector<Value> in = {qkv, Value()};  // no dropout
  for (size_t i = Attention::kBias; i < at->in.size(); ++i) in.emplace_back(&g, at->in[i]);
  const Value probs = g.emit(name, AttentionProbs{.heads = heads}, in,
                             {{qkv.dim(0), heads, qkv.dim(1), qkv.dim(1)}});
  g.info(probs).exact = true;
  std::rotate(g.nodes.begin() + behind, g.nodes.end() - 1, g.nodes.end());
  return probs;
}

Value tap_one(Graph& g, const std::string& name) {
  const std::vector<Known> all = known(g);
  // From the back, where weights recorded for an earlier tap of the same name are not kAbsent.
  const Known* found = nullptr;
  for (const Known& k : all)
    if (k.name == name && (!found || k.value != kAbsent)) found = &k;
  if (!found)
    fail_usage("the model has no '{}' to tap{} (`vitrum summary MODEL` lists its modules)", name,
               did_you_mean(name, tap_names(g)));
  return found->value == kAbsent ? record_probs(g, name) : Value(&g, found->value);
}

}  // namespace

std::string parent_name(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

std::vector<std::string> tap_names(const Graph& g) {
  std::vector<std::string> names;
  for (Known& k : known(g)) names.push_back(std::move(k.name));
  return names;
}

std::vector<Value> tap(Graph& g, std::span<const std::string> names) {
  std::vector<Value> values;
  for (const std::string& name : names) values.push_back(tap_one(g, name));
  return values;
}

std::vector<AttentionSite> attention_sites(Graph& g) {
  std::vector<AttentionSite> sites;
  for (const Node& node : g.nodes)
    if (const auto* attention = std::get_if<Attention>(&node.op))
      sites.push_back({parent_name(node.name),
                       {&g, node.in[Attention::kQkv]},
                       {&g, node.out[Attention::kY]},
                       attention->heads});
  return sites;
}

}  // namespace vitrum
