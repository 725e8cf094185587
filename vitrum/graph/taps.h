// Taps: values inside a model, asked for by name. Names are timm's: a layer ("blocks.3.attn.qkv"),
// a module for what it returns ("blocks.3"), and "blocks.3.attn.probs" for attention weights.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "vitrum/graph/graph.h"

namespace vitrum {

// "blocks.3.attn" of "blocks.3.attn.qkv"; "" of a name without a dot.
std::string parent_name(const std::string& name);

std::vector<std::string> tap_names(const Graph& g);

// Call after tracing; the results go to fuse() and to the program. Attention weights are recorded
// here as a branch beside the attention that uses them; whatever else is tapped is in the graph
// already. An unknown name is a usage error that offers the nearest one.
std::vector<Value> tap(Graph& g, std::span<const std::string> names);

struct AttentionSite {
  std::string name;  // of the module: "blocks.3.attn"
  Value qkv, y;
  int64_t heads = 1;
};
std::vector<AttentionSite> attention_sites(Graph& g);  // in the order of execution

}  // namespace vitrum
