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

}  // namespace

Program::Program(Graph& g, std::span<const Value> outputs, ParamStore& store,
                 const CompileOptions& options)
    : store_(store) {
  assign_dtypes(g, options.compute, outputs);
  std::vector<Value> read(outputs.begin(), outputs.end());
  read.insert(read.end(), options.taps.begin(), options.taps.end());
  drop_dead(g, read);
  plan_ = plan_memory(g, read, options.share_memory);
  arena_ = store.backend().allocate(static_cast<size_t>(plan_.bytes));
  for (ValueId id = 0; id < static_cast<ValueId>(g.values.size()); ++id)
    views_.push_back(bind(g, id, options));
  Kernels kernels;
  for (const Node& node : g.nodes) {
    Operands io{.in = {}, .out = {}, .packed = store.packed()};
    const auto view = [&](ValueId id) {
      return id == kAbsent ? TensorView{} : views_[static_cast<size_t>(id)];
    };
    for (ValueId id : node.in) io.in.push_back(view(id));
    for (ValueId id : node.out) io.out.push_back(view(id));
    kernels.push_back(store.backend().lower(node.op, io));
    Step step{.name = node.name,
              .op = name_of(node.op),
              .number = steps_.size(),
              .macs = multiply_adds(g, node)};
    for (ValueId id : node.in)
      if (id != kAbsent) step.in.push_back({operand_name(g, id), view(id)});
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
