#include "vitrum/train/gradient_tree.h"

#include <algorithm>

namespace vitrum {

void GradientTree::fold(int64_t leaf, const Program::Trace& trace) {
  const size_t waiting = stack_.size(), merged = stack_.push({.level = 0, .index = leaf});
  const bool last = !share_.comm() && leaf + 1 == share_.leaves().last;
  if (last) stack_.clear();
  run_program(program(waiting, last ? waiting : merged, last), trace);
}

void GradientTree::sum() {
  if (!share_.comm()) return;
  if (!received_.data() && !total_.program) make_total();
  stack_.clear();
  exchange_views(*share_.comm(), store_.backend(), sends_, receives_);
  if (total_.program) total_.program->run();
}

TensorView GradientTree::slot(size_t i) {
  const TensorView gradients = store_.arena(Arena::kGrad);
  while (slots_.size() <= i) slots_.push_back(store_.backend().allocate(gradients.bytes()));
  return {slots_[i].data(), gradients.shape, gradients.dtype};
}

TensorView GradientTree::slot_part(size_t i, Stretch elements) {
  const TensorView all = slot(i);
  const auto at = static_cast<size_t>(elements.first) * size_of(all.dtype);
  return {static_cast<std::byte*>(all.data) + at, {elements.size()}, all.dtype};
}

// The nodes of all processes, from left to right, and the program that goes up the tree from them.
void GradientTree::make_total() {
  const Stretch own = share_.elements();
  const DType dtype = store_.dtype(Arena::kGrad);
  const size_t bytes = static_cast<size_t>(own.size()) * size_of(dtype);
  size_t foreign = 0;
  for (int r = 0; r < share_.ranks(); ++r)
    if (r != share_.rank()) foreign += nodes_of(share_.leaves(r)).size();
  received_ = store_.backend().allocate(std::max<size_t>(foreign * bytes, 1));
  Graph& g = total_.graph;
  CompileOptions options;
  const auto value = [&](const TensorView& view) {
    options.shared.push_back({g.input("partial sum", view.shape, view.dtype), view});
    return options.shared.back().value.id();
  };
  std::byte* at = received_.data();
  TreeStack stack;
  std::vector<ValueId> waiting;
  for (int r = 0; r < share_.ranks(); ++r) {
    const std::vector<TreeNode> nodes = nodes_of(share_.leaves(r));
    for (size_t i = 0; i < nodes.size(); ++i) {
      TensorView view{at, {own.size()}, dtype};
      if (r == share_.rank())
        view = slot_part(i, own);
      else
        receives_.push_back({r, view}), at += bytes;
      const bool last = r + 1 == share_.ranks() && i + 1 == nodes.size();
      const size_t siblings = stack.push(nodes[i]), merged = last ? waiting.size() : siblings;
      Node fold{.op = Fold{}, .in = {}, .out = {value(view), kAbsent}, .name = "fold"};
      for (size_t k = 0; k < merged; ++k) fold.in.push_back(waiting.back()), waiting.pop_back();
      waiting.push_back(fold.out[Fold::kGradients]);
      if (last) fold.out[Fold::kSum] = value(store_.part(Arena::kGrad, own.first, own.size()));
      if (merged > 0) g.nodes.push_back(std::move(fold));
    }
    if (r == share_.rank()) continue;
    for (size_t i = 0; i < nodes_of(share_.leaves()).size(); ++i)
      sends_.push_back({r, slot_part(i, share_.elements(r))});
  }
  if (own.size() > 0)
    total_.program = std::make_unique<Program>(g, std::span<const Value>(), store_, options);
}

// Of a leaf before which so many wait, and so many of those are added to it.
Program& GradientTree::program(size_t waiting, size_t merged, bool last) {
  Sum& sum = sums_[{waiting, merged, last}];
  if (sum.program) return *sum.program;
  Graph& g = sum.graph;
  CompileOptions options;
  const auto value = [&](size_t i) {
    const TensorView view = slot(i);
    options.shared.push_back(
        {g.input("partial sum " + std::to_string(i), view.shape, view.dtype), view});
    return options.shared.back().value.id();
  };
  const TensorView all = store_.arena(Arena::kGrad);
  Node node{.op = Fold{},
            .in = {},
            .out = {g.arena(Arena::kGrad, all.shape.numel(), all.dtype).id(), kAbsent},
            .name = "fold"};
  for (size_t i = 0; i < merged; ++i) node.in.push_back(value(waiting - 1 - i));
  if (!last) node.out[Fold::kSum] = merged > 0 ? node.in.back() : value(waiting);
  g.nodes.push_back(std::move(node));
  sum.program = std::make_unique<Program>(g, std::span<const Value>(), store_, options);
  return *sum.program;
}

RunningAverages::RunningAverages(ParamStore& store) {
  CompileOptions put, bring;
  const auto copy = [&](Copies& to, CompileOptions& options, TensorView from, TensorView into) {
    const Value x = to.graph.input("running", from.shape, from.dtype),
                y = to.graph.input("aside", into.shape, into.dtype);
    to.graph.nodes.push_back({.op = Copy{}, .in = {x.id()}, .out = {y.id()}, .name = "running"});
    options.shared.push_back({x, from}), options.shared.push_back({y, into});
  };
  for (size_t i = 0; i < store.specs().size(); ++i) {
    if (!store.specs()[i].buffer) continue;
    const TensorView here = store.view(i, Arena::kMaster);
    aside_.push_back(store.backend().allocate(here.bytes()));
    const TensorView there{aside_.back().data(), here.shape, here.dtype};
    copy(put_, put, here, there), copy(bring_, bring, there, here);
  }
  if (aside_.empty()) return;
  put_.program = std::make_unique<Program>(put_.graph, std::span<const Value>(), store, put);
  bring_.program = std::make_unique<Program>(bring_.graph, std::span<const Value>(), store, bring);
}

void RunningAverages::after(int64_t leaf, Stretch leaves) {
  if (!put_.program) return;
  if (leaf == leaves.first) put_.program->run();
  if (leaf + 1 == leaves.last) bring_.program->run();
}

}  // namespace vitrum
