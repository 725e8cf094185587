#include "vitrum/train/gradient_tree.h"

#include <algorithm>

namespace vitrum {
namespace {

// In how many parts gradients may leave, and at multiples of how many elements they are cut.
constexpr int64_t kParts = 8, kCutAt = 1024;

Stretch common(Stretch a, Stretch b) {
  const int64_t first = std::max(a.first, b.first);
  return {first, std::max(first, std::min(a.last, b.last))};
}

}  // namespace

void GradientTree::fold(int64_t leaf, const Program::Trace& trace) {
  if (single()) return;
  const size_t waiting = stack_.size(), merged = stack_.push({.level = 0, .index = leaf});
  const bool last = !link_ && leaf + 1 == share_.leaves().last;
  if (last) stack_.clear();
  run_program(program(waiting, last ? waiting : merged, last), trace);
}

// More than one part where a device goes on computing meanwhile and no process has to add up leaves
// of its own.
std::multimap<size_t, Stretch> GradientTree::parts(const Program& backward) {
  const int64_t elements = store_.elements(Arena::kGrad);
  const bool single_everywhere = share_.leaves(share_.ranks() - 1).last == share_.ranks();
  const int64_t count = link_->overlaps() && single_everywhere ? kParts : 1;
  const auto cut = [&](int64_t i) {
    return i == count ? elements : elements * i / count / kCutAt * kCutAt;
  };
  std::multimap<size_t, Stretch> parts;
  for (int64_t i = 0; i < count; ++i) {
    const Stretch part{cut(i), cut(i + 1)};
    if (part.size() == 0) continue;
    const TensorView view = store_.part(Arena::kGrad, part.first, part.size());
    const auto last = backward.last_to_write({static_cast<std::byte*>(view.data), view.bytes()});
    parts.emplace(last ? *last + 1 : 0, part);
  }
  return parts;
}

void GradientTree::add_sum(Kernels& to, const Program& backward) {
  make_total();
  for (const auto& [before, part] : parts(backward)) to.push_back(link_->exchange(views(part)));
  add_total(to);
}

void GradientTree::add_backward_and_sum(Kernels& to, const Program& backward,
                                        const Kernels& kernels) {
  make_total();
  const std::multimap<size_t, Stretch> all = parts(backward);
  for (size_t i = 0; i <= kernels.size(); ++i) {
    for (auto [at, end] = all.equal_range(i); at != end; ++at)
      to.push_back(link_->exchange(views(at->second)));
    if (i < kernels.size()) to.push_back(kernels[i]);
  }
  add_total(to);
}

void GradientTree::add_total(Kernels& to) {
  to.push_back(link_->arrived());
  if (!total_.program) return;
  const Kernels& kernels = total_.program->sequence().kernels();
  to.insert(to.end(), kernels.begin(), kernels.end());
}

TensorView GradientTree::slot(size_t i) {
  const TensorView gradients = store_.arena(Arena::kGrad);
  while (slots_.size() <= i) slots_.push_back(store_.backend().allocate(gradients.bytes()));
  return {slots_[i].data(), gradients.shape, gradients.dtype};
}

TensorView GradientTree::own_part(size_t i, Stretch elements) {
  if (single()) return store_.part(Arena::kGrad, elements.first, elements.size());
  const TensorView all = slot(i);
  const auto at = static_cast<size_t>(elements.first) * size_of(all.dtype);
  return {static_cast<std::byte*>(all.data) + at, {elements.size()}, all.dtype};
}

// What leaves and what comes of some elements: nodes of a process one after the other, each with
// all that this one updates.
RankViews GradientTree::views(Stretch elements) {
  const Stretch own = share_.elements(), here = common(own, elements);
  const DType dtype = store_.dtype(Arena::kGrad);
  RankViews views;
  std::byte* at = received_.data() + static_cast<size_t>(here.first - own.first) * size_of(dtype);
  for (int r = 0; r < share_.ranks(); ++r) {
    if (!is_peer(link_->comm(), r)) continue;
    const Stretch there = common(share_.elements(r), elements);
    for (size_t i = 0; there.size() > 0 && i < nodes_of(share_.leaves()).size(); ++i)
      views.sends.push_back({r, own_part(i, there)});
    for (size_t i = 0; i < nodes_of(share_.leaves(r)).size(); ++i) {
      if (here.size() > 0) views.receives.push_back({r, {at, {here.size()}, dtype}});
      at += static_cast<size_t>(own.size()) * size_of(dtype);
    }
  }
  return views;
}

// The nodes of all processes, from left to right, and the program that goes up the tree from them.
// It ends in the gradients, of which nothing is left but what this process updates.
void GradientTree::make_total() {
  if (total_.program || received_.data()) return;
  const Stretch own = share_.elements();
  const DType dtype = store_.dtype(Arena::kGrad);
  const size_t bytes = static_cast<size_t>(own.size()) * size_of(dtype);
  size_t foreign = 0;
  for (int r = 0; r < share_.ranks(); ++r)
    if (is_peer(link_->comm(), r)) foreign += nodes_of(share_.leaves(r)).size();
  received_ = store_.backend().allocate(std::max<size_t>(foreign * bytes, 1));
  Graph& g = total_.graph;
  CompileOptions options;
  const auto value = [&](const TensorView& view) {
    options.shared.push_back({g.input("partial sum", view.shape, view.dtype), view});
    return options.shared.back().value.id();
  };
  const TensorView gradients = store_.part(Arena::kGrad, own.first, own.size());
  std::byte* at = received_.data();
  TreeStack stack;
  std::vector<ValueId> waiting;
  for (int r = 0; own.size() > 0 && r < share_.ranks(); ++r) {
    const std::vector<TreeNode> nodes = nodes_of(share_.leaves(r));
    for (size_t i = 0; i < nodes.size(); ++i) {
      TensorView view{at, {own.size()}, dtype};
      if (is_peer(link_->comm(), r))
        at += bytes;
      else
        view = own_part(i, own);
      const bool last = r + 1 == share_.ranks() && i + 1 == nodes.size();
      const size_t siblings = stack.push(nodes[i]), merged = last ? waiting.size() : siblings;
      Node fold{.op = Fold{}, .in = {}, .out = {value(view), kAbsent}, .name = "fold"};
      for (size_t k = 0; k < merged; ++k) fold.in.push_back(waiting.back()), waiting.pop_back();
      waiting.push_back(fold.out[Fold::kGradients]);
      if (last && view.data != gradients.data) fold.out[Fold::kSum] = value(gradients);
      if (merged > 0 || last) g.nodes.push_back(std::move(fold));
    }
  }
  if (single()) clear_others(g);
  if (!g.nodes.empty())
    total_.program = std::make_unique<Program>(g, std::span<const Value>(), store_, options);
}

// What others update was given to them.
void GradientTree::clear_others(Graph& g) const {
  const Stretch own = share_.elements();
  const int64_t all = store_.elements(Arena::kGrad);
  const ValueId arena = g.arena(Arena::kGrad, all, store_.dtype(Arena::kGrad)).id();
  for (const Stretch part : {Stretch{0, own.first}, Stretch{own.last, all}})
    if (part.size() > 0)
      g.nodes.push_back({.op = ClearRange{.first = part.first, .count = part.size()},
                         .in = {},
                         .out = {arena},
                         .name = "clear"});
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
