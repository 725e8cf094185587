// What a traced model consists of: its modules as a table, with shapes, parameters and
// multiply-adds. Derived from the graph before fusion, so that every layer the model file names is
// there.
#pragma once
#include <string>
#include <vector>

#include "vitrum/graph/graph.h"

namespace vitrum {

// Multiply-adds of one run of the node, forward or backward: matrix products and attention; what is
// linear in its tensors counts nothing.
int64_t multiply_adds(const Graph& g, const Node& node);
int64_t multiply_adds(const Graph& g);  // of all nodes

struct LayerSummary {
  std::string name;  // "blocks.0.attn"; "" is the whole model
  std::string type;
  int depth = 0;      // 0: the whole model
  bool leaf = false;  // one op; others are the sum of what follows them at greater depth
  Shape input, output;
  int64_t parameters = 0, trainable = 0;  // elements
  int64_t macs = 0;
  int64_t results = 0;  // elements that its ops write
  Shape weight = {};    // of a layer that has one
};

// Preorder: the model, then its modules and layers in the order of execution. A parameter that two
// nodes share counts once, where it is used first.
std::vector<LayerSummary> summarize(const Graph& g);

struct ParameterCount {
  int64_t all = 0, trainable = 0;
};
ParameterCount count_parameters(const Graph& g);

}  // namespace vitrum
