#include "vitrum/runtime/fold.h"

#include <algorithm>

#include "vitrum/runtime/program.h"

namespace vitrum {
namespace {

// A result that is larger is not kept: to read it is no faster than to make it again.
constexpr int64_t kMostBytes = 1 << 20;

class Folder {
 public:
  Folder(const Graph& g, std::span<const Value> read) : g_(g), fixed_(g.values.size(), false) {
    for (size_t i = 0; i < g.values.size(); ++i)
      fixed_[i] = g.values[i].role == Role::kParam || g.values[i].role == Role::kConst;
    for (const Node& node : g.nodes) folds_.push_back(is_fixed(node, read));
  }
  bool folds(size_t node) const { return folds_[node]; }
  size_t count() const { return static_cast<size_t>(std::ranges::count(folds_, true)); }
  // The results of nodes that fold which others read.
  std::vector<ValueId> results() const {
    std::vector<ValueId> all;
    for (size_t i = 0; i < g_.nodes.size(); ++i)
      for (const ValueId id : g_.nodes[i].in)
        if (!folds_[i] && id != kAbsent && g_.values[static_cast<size_t>(id)].role == Role::kTemp &&
            fixed_[static_cast<size_t>(id)] && std::ranges::find(all, id) == all.end())
          all.push_back(id);
    return all;
  }

 private:
  bool is_fixed(const Node& node, std::span<const Value> read) {
    for (const ValueId id : node.in)
      if (id != kAbsent && !fixed_[static_cast<size_t>(id)]) return false;
    for (const ValueId id : node.out) {
      if (id == kAbsent) continue;
      const ValueInfo& info = g_.values[static_cast<size_t>(id)];
      if (info.role != Role::kTemp ||
          info.shape.numel() * static_cast<int64_t>(size_of(info.dtype)) > kMostBytes ||
          std::ranges::any_of(read, [&](Value v) { return v.id() == id; }))
        return false;
    }
    for (const ValueId id : node.out)
      if (id != kAbsent) fixed_[static_cast<size_t>(id)] = true;
    return true;
  }

  const Graph& g_;
  std::vector<bool> fixed_, folds_;
};

}  // namespace

std::vector<FoldedValue> fold(Graph& g, std::span<const Value> read, ParamStore& store,
                              Arena weights) {
  if (!store.packed()) return {};
  const Folder folder(g, read);
  if (folder.count() == 0 || folder.count() == g.nodes.size()) return {};
  Graph once(g.mode);
  once.values = g.values, once.params = g.params;
  std::vector<Node> others;
  const std::vector<ValueId> results = folder.results();
  for (size_t i = 0; i < g.nodes.size(); ++i)
    (folder.folds(i) ? once.nodes : others).push_back(std::move(g.nodes[i]));
  g.nodes = std::move(others);
  std::vector<Value> outputs;
  for (const ValueId id : results) outputs.emplace_back(&once, id);
  Program program(once, outputs, store, {.weights = weights});
  program.run();
  std::vector<FoldedValue> folded;
  for (const Value v : outputs) {
    folded.push_back({v.id(), std::vector<std::byte>(program[v].bytes())});
    program.download(folded.back().bytes.data(), v);
    g.values[static_cast<size_t>(v.id())].role = Role::kInput;
  }
  return folded;
}

}  // namespace vitrum
