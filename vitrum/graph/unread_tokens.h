// Tokens that nobody reads. A model that pools its class token needs, behind its last attention,
// no more than that token of every image: what follows works on rows, and those of the others go
// nowhere.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "vitrum/graph/graph.h"

namespace vitrum {

// Cuts the rows of such nodes down to the tokens that are read. For inference, before fuse().
// `kept` are read as a whole. What is computed has the same bits where a row's do not depend on
// others.
void drop_unread_tokens(Graph& g, std::span<const Value> kept);

// The linear layers of which only some tokens are read, by name.
std::vector<std::string> partly_read_layers(const Graph& g, std::span<const Value> kept);

}  // namespace vitrum
