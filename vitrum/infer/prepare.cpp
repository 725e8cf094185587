#include "vitrum/infer/prepare.h"

#include <algorithm>
#include <set>

#include "vitrum/graph/unread_tokens.h"

namespace vitrum {
namespace {

KeepsFloat also(KeepsFloat keeps, std::set<std::string> names) {
  return [keeps = std::move(keeps), names = std::move(names)](const std::string& layer) {
    return names.contains(layer) || (keeps && keeps(layer));
  };
}

// Cutting rows is a pass of its own over what is left: on a card more than a few rows win.
bool is_worth_cutting(const Graph& g, const Backend& backend) {
  constexpr int64_t kLeastRows = 2048;
  return backend.host_visible() || std::ranges::any_of(g.nodes, [&](const Node& node) {
           return std::holds_alternative<Linear>(node.op) &&
                  g.values[static_cast<size_t>(node.out[Linear::kY])].shape.rows() >= kLeastRows;
         });
}

}  // namespace

KeepsFloat keeps_where_slower(const Graph& g, const Backend& backend, KeepsFloat keeps) {
  if (backend.host_visible()) return keeps;
  std::set<std::string> slower;
  for (const Node& node : g.nodes) {
    if (!std::holds_alternative<Linear>(node.op)) continue;
    const Shape& w = g.values[static_cast<size_t>(node.in[Linear::kWeight])].shape;
    const int64_t rows = g.values[static_cast<size_t>(node.out[Linear::kY])].shape.rows();
    if (!e4m3_pays(rows, w[0], w[1])) slower.insert(node.name);
  }
  return also(std::move(keeps), std::move(slower));
}

void prepare(Graph& g, std::span<const Value> outputs, const Backend& backend,
             CompileOptions& options) {
  if (options.compute == DType::kE4M3) {
    const std::vector<std::string> few = partly_read_layers(g, outputs);
    options.keeps_float = also(std::move(options.keeps_float), {few.begin(), few.end()});
  }
  std::vector<Value> read(outputs.begin(), outputs.end());
  read.insert(read.end(), options.taps.begin(), options.taps.end());
  if (is_worth_cutting(g, backend)) drop_unread_tokens(g, read);
}

}  // namespace vitrum
