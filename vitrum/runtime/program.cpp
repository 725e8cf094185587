#include "vitrum/runtime/program.h"

#include <cassert>

#include "vitrum/runtime/summary.h"

namespace vitrum {
namespace {

std::string operand_name(const Graph& g, ValueId id) {
  const ValueInfo& info = g.values[static_cast<size_t>(id)];
  if (info.role == Role::kTemp) return "";
  return info.role == Role::kParam ? g.params[static_cast<size_t>(info.param)].name : info.name;
}

template <class View>
Operands operands(const Node& node, const View& view) {
  Operands io;
  for (ValueId id : node.in) io.in.push_back(id == kAbsent ? TensorView{} : view(id));
  for (ValueId id : node.out) io.out.push_back(id == kAbsent ? TensorView{} : view(id));
  return io;
}

// For each value, how many nodes read it, and one more where the caller does.
std::vector<int> readers(const Graph& g, std::span<const Value> outputs) {
  std::vector<int> count(g.values.size(), 0);
  for (const Node& node : g.nodes)
    for (ValueId id : node.in)
      if (id != kAbsent) ++count[static_cast<size_t>(id)];
  for (Value v : outputs) ++count[static_cast<size_t>(v.id())];
  return count;
}

// Of each node, whether the backend computes it together with the one after it.
std::vector<bool> joined_nodes(const Graph& g, std::span<const Value> outputs,
                               const Backend& backend) {
  const std::vector<int> readers_of = readers(g, outputs);
  const auto shape_only = [&](ValueId id) {
    const ValueInfo& info = g.values[static_cast<size_t>(id)];
    return TensorView{nullptr, info.shape, info.dtype};
  };
  std::vector<bool> joined(g.nodes.size(), false);
  for (size_t i = 0; i + 1 < g.nodes.size(); ++i) {
    const Node &first = g.nodes[i], &second = g.nodes[i + 1];
    if (first.out.empty() || first.out[0] == kAbsent || second.in.empty() ||
        second.in[0] != first.out[0] || (i > 0 && joined[i - 1]))
      continue;
    joined[i] = backend.joins(first.op, operands(first, shape_only), second.op,
                              operands(second, shape_only),
                              readers_of[static_cast<size_t>(first.out[0])] > 1);
  }
  return joined;
}

}  // namespace

Program::Program(Graph& g, std::span<const Value> outputs, ParamStore& store,
                 const CompileOptions& options)
    : store_(store) {
  assign_dtypes(g, options.compute, outputs);
  std::vector<Value> read(outputs.begin(), outputs.end());
  read.insert(read.end(), options.taps.begin(), options.taps.end());
  drop_dead(g, read);
  const std::vector<bool> joined = joined_nodes(g, read, store.backend());
  plan_ = plan_memory(g, read, options.share_memory, joined);
  arena_ = store.backend().allocate(static_cast<size_t>(plan_.bytes));
  for (ValueId id = 0; id < static_cast<ValueId>(g.values.size()); ++id)
    views_.push_back(bind(g, id, options));
  Kernels kernels;
  const auto view = [&](ValueId id) { return views_[static_cast<size_t>(id)]; };
  const auto macs = [&](size_t i) {
    if (i > 0 && joined[i - 1]) return int64_t{0};
    return multiply_adds(g, g.nodes[i]) + (joined[i] ? multiply_adds(g, g.nodes[i + 1]) : 0);
  };
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const Node& node = g.nodes[i];
    Operands io = operands(node, view);
    io.packed = store.packed();
    // One kernel a node all the same: the first of two joined ones has the work of both.
    if (joined[i])
      kernels.push_back(store.backend().lower_joined(node.op, io, g.nodes[i + 1].op,
                                                     operands(g.nodes[i + 1], view)));
    else if (i > 0 && joined[i - 1])
      kernels.push_back(make_kernel([] {}));
    else
      kernels.push_back(store.backend().lower(node.op, io));
    Step step{.name = node.name, .op = name_of(node.op), .number = steps_.size(), .macs = macs(i)};
    for (ValueId id : node.in)
      if (id != kAbsent && view(id)) step.in.push_back({operand_name(g, id), view(id)});
    for (const auto* views : {&io.in, &io.out})
      for (const TensorView& v : *views)
        if (v) step.bytes += static_cast<int64_t>(v.bytes());
    step.out = std::move(io.out);
    steps_.push_back(std::move(step));
  }
  sequence_ = store.backend().prepare(std::move(kernels));
}

TensorView Program::bind(const Graph& g, ValueId id, const CompileOptions& options) {
  const ValueInfo& info = g.values[static_cast<size_t>(id)];
  for (const Shared& shared : options.shared)
    if (shared.value.id() == id) {
      assert(shared.view.shape == info.shape && shared.view.dtype == info.dtype);
      return shared.view;
    }
  const auto own = [&] {
    const size_t bytes = static_cast<size_t>(info.shape.numel()) * size_of(info.dtype);
    owned_.push_back(store_.backend().allocate(bytes));
    return TensorView{owned_.back().data(), info.shape, info.dtype};
  };
  const auto param = static_cast<size_t>(info.param);
  switch (info.role) {
    case Role::kInput: return own();
    case Role::kConst: {
      const TensorView view = own();
      if (info.dtype == DType::kF64) {
        const std::vector<double> wide(info.data.begin(), info.data.end());
        store_.backend().upload(view, wide.data());
      } else {
        store_.backend().upload(view, info.data.data());
      }
      return view;
    }
    case Role::kParam: {
      const Arena arena = info.dtype == DType::kBF16 ? Arena::kCompute : options.weights;
      const TensorView view = store_.view(param, arena);
      if (store_.packed()) store_.packed()->allow(view.data);
      return view;
    }
    case Role::kGrad: return store_.view(param, Arena::kGrad);
    case Role::kArena: return store_.arena(info.arena);
    case Role::kState: return store_.state(info.name, info.shape, info.dtype);
    case Role::kTemp: break;
  }
  const int64_t offset = plan_.offset[static_cast<size_t>(id)];
  return offset < 0 ? TensorView{} : TensorView{arena_.data() + offset, info.shape, info.dtype};
}

std::unique_ptr<Sequence> Program::join(std::span<Program* const> programs) {
  Kernels all;
  for (const Program* program : programs) {
    const Kernels& own = program->sequence_->kernels();
    all.insert(all.end(), own.begin(), own.end());
  }
  return programs.front()->store_.backend().prepare(std::move(all));
}

void Program::run_traced(const Trace& after) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const double seconds = sequence_->run_one(i);
    after(steps_[i], seconds);
  }
}

double Program::read_scalar(Value v) const {
  const TensorView view = (*this)[v];
  float single = 0;
  double wide = 0;
  if (view.dtype == DType::kF64)
    return store_.backend().download(&wide, {view.data, {1}, view.dtype}), wide;
  store_.backend().download(&single, {view.data, {1}, view.dtype});
  return static_cast<double>(single);
}

}  // namespace vitrum
