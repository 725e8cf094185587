#include "vitrum/runtime/program.h"

#include <algorithm>
#include <cassert>

#include "vitrum/runtime/fold.h"
#include "vitrum/runtime/joints.h"
#include "vitrum/runtime/summary.h"

namespace vitrum {
namespace {

std::string operand_name(const Graph& g, ValueId id) {
  const ValueInfo& info = g.values[static_cast<size_t>(id)];
  if (info.role == Role::kTemp) return "";
  return info.role == Role::kParam ? g.params[static_cast<size_t>(info.param)].name : info.name;
}

// Whether the backend will make its own copy of these weights: all they are read for are products.
bool is_packed(const Graph& g, ValueId id, ParamStore& store) {
  return store.packed() && store.backend().packs_weights() && only_bf16_weights(g, id);
}

// Kernels that are lowered while it lives go to the side stream, if there is one.
class OnSide {
 public:
  explicit OnSide(SideStream* side) : side_(side) {
    if (side_) side_->enter();
  }
  ~OnSide() {
    if (side_) side_->leave();
  }
  OnSide(const OnSide&) = delete;
  OnSide& operator=(const OnSide&) = delete;

 private:
  SideStream* const side_;
};

// The layer of eight bits that reads this value as its weights, in whatever precision they come.
const QLinear* quantized_layer(const Graph& g, ValueId id) {
  const auto reader = std::ranges::find_if(g.nodes, [&](const Node& node) {
    return std::holds_alternative<QLinear>(node.op) && node.in[QLinear::kWeight] == id;
  });
  return reader == g.nodes.end() ? nullptr : &std::get<QLinear>(reader->op);
}

}  // namespace

Program::Program(Graph& g, std::span<const Value> outputs, ParamStore& store,
                 const CompileOptions& options)
    : store_(store), backend_(options.backend ? *options.backend : store.backend()) {
  if (options.compute == DType::kI8) quantize(g, options.keeps_float);
  if (options.compute == DType::kE4M3)
    quantize_e4m3(
        g, [&](size_t param) { return store.read(param, options.weights); },
        store.activation_scales(), options.keeps_float);
  assign_dtypes(g, options.compute, outputs);
  std::vector<Value> read(outputs.begin(), outputs.end());
  read.insert(read.end(), options.taps.begin(), options.taps.end());
  drop_dead(g, read);
  const std::vector<FoldedValue> folded = fold(g, read, store, options.weights);
  compute_again(g, read, backend_, store.packed());
  Joints joints = find_joints(g, read, backend_, store.packed());
  plan_ = plan_memory(g, read, options.share_memory, joints.with_next);
  const auto bytes = static_cast<size_t>(plan_.bytes);
  if (options.arena && !options.arena->buffer.data())
    options.arena->buffer = backend_.allocate(bytes);
  const bool fits = options.arena && options.arena->buffer.size() >= bytes;
  if (!fits) own_arena_ = backend_.allocate(bytes);
  arena_ = fits ? options.arena->buffer.data() : own_arena_.data();
  for (ValueId id = 0; id < static_cast<ValueId>(g.values.size()); ++id)
    views_.push_back(bind(g, id, options));
  for (const FoldedValue& f : folded)
    backend_.upload(views_[static_cast<size_t>(f.id)], f.bytes.data());
  Kernels kernels;
  const auto view = [&](ValueId id) { return views_[static_cast<size_t>(id)]; };
  const std::vector<size_t> last = last_readers(g, read);
  std::optional<OnSide> inside(options.side);
  for (Joint& joint : joints.all) {
    std::vector<ChainNode>& nodes = joint.nodes;
    for (size_t k = 0; k < nodes.size(); ++k) {
      nodes[k].io = operands(g.nodes[joint.first + k], view);
      nodes[k].io.packed = store.packed();
      for (ValueId id : g.nodes[joint.first + k].in)
        nodes[k].free.push_back(id != kAbsent && plan_.offset[static_cast<size_t>(id)] >= 0 &&
                                last[static_cast<size_t>(id)] < joint.first + nodes.size());
      if (const auto& summed = joints.summed[joint.first + k]) nodes[k].io.out[*summed] = {};
    }
    if (joint.columns != kAbsent) {
      nodes.back().io.column_sums = view(joint.columns);
      summed_.emplace_back(joint.first, view(joint.columns));
    }
    // One kernel a node all the same: the first of joined ones has the work of all.
    kernels.push_back(nodes.size() > 1 ? backend_.lower_joined(nodes)
                                       : backend_.lower(*nodes[0].op, nodes[0].io));
    add_steps(g, joint.first, nodes, *kernels.back());
    for (size_t k = 1; k < nodes.size(); ++k) kernels.push_back(make_kernel([] {}));
  }
  inside.reset();
  if (options.side) {
    side_kernels_ = kernels;
    for (auto& kernel : kernels)
      kernel = in_a_row({options.side->start(), kernel, options.side->end()});
  }
  sequence_ = backend_.prepare(std::move(kernels));
}

void Program::add_steps(const Graph& g, size_t first, std::span<const ChainNode> joined,
                        const Kernel& kernel) {
  const size_t start = steps_.size();
  for (const ChainNode& one : joined) {
    const Node& node = g.nodes[first + steps_.size() - start];
    Step step{.name = node.name, .op = name_of(node.op), .number = steps_.size()};
    for (ValueId id : node.in)
      if (const TensorView view = id == kAbsent ? TensorView{} : views_[static_cast<size_t>(id)])
        step.in.push_back({operand_name(g, id), view});
    for (const auto* views : {&one.io.in, &one.io.out})
      for (const TensorView& v : *views)
        if (v) step.bytes += static_cast<int64_t>(v.bytes());
    step.out = one.io.out;
    step.joined_into = start;
    steps_.push_back(std::move(step));
    steps_[start].macs += multiply_adds(g, node);
  }
  steps_[start].kernel = kernel.name();
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
    owned_.push_back(backend_.allocate(bytes));
    return TensorView{owned_.back().data(), info.shape, info.dtype};
  };
  const auto param = static_cast<size_t>(info.param);
  switch (info.role) {
    case Role::kInput: return own();
    case Role::kConst: {
      const TensorView view = own();
      if (info.dtype == DType::kF64) {
        const std::vector<double> wide(info.data.begin(), info.data.end());
        backend_.upload(view, wide.data());
      } else {
        backend_.upload(view, info.data.data());
      }
      return view;
    }
    case Role::kParam: {
      const bool narrow = info.dtype == DType::kBF16;
      const QLinear* eight_bits = quantized_layer(g, id);
      const TensorView view =
          narrow && is_packed(g, id, store_)     ? store_.view_to_pack(param)
          : eight_bits && eight_bits->scale == 0 ? store_.view_to_quantize(param, options.weights)
          : eight_bits                           ? store_.view_to_e4m3(param, options.weights)
                       : store_.view(param, narrow ? Arena::kCompute : options.weights);
      if (store_.packed()) store_.packed()->allow(view.data);
      return view;
    }
    case Role::kGrad: return store_.view(param, Arena::kGrad);
    case Role::kArena: return store_.arena(info.arena);
    case Role::kState: return store_.state(info.name, info.shape, info.dtype);
    case Role::kTemp: break;
  }
  const int64_t offset = plan_.offset[static_cast<size_t>(id)];
  return {offset < 0 ? nullptr : arena_ + offset, info.shape, info.dtype};
}

namespace {

bool overlap(std::span<const std::byte> bytes, const TensorView& v) {
  const auto* first = static_cast<const std::byte*>(v.data);
  return first && first < bytes.data() + bytes.size() && bytes.data() < first + v.bytes();
}

}  // namespace

std::optional<size_t> Program::last_to_write(std::span<const std::byte> bytes) const {
  std::optional<size_t> last;
  const auto note = [&](size_t kernel, const TensorView& v) {
    if (overlap(bytes, v)) last = std::max(last.value_or(0), kernel);
  };
  for (const Step& step : steps_)
    for (const TensorView& v : step.out) note(step.number, v);
  for (const auto& [kernel, v] : summed_) note(kernel, v);
  return last;
}

std::optional<size_t> Program::first_to_read(const TensorView& view) const {
  const std::span bytes(static_cast<const std::byte*>(view.data), view.bytes());
  for (const Step& step : steps_)
    for (const Operand& operand : step.in)
      if (overlap(bytes, operand.view)) return step.joined_into;
  return {};
}

void Program::run_traced(const Trace& after) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const double seconds = sequence_->run_one(i);
    after(steps_[i], seconds);
  }
}

void Program::upload_part(Value v, size_t i, const void* from) {
  const TensorView whole = (*this)[v];
  const int64_t elements = whole.shape.numel() / whole.shape[0];
  auto* at = static_cast<std::byte*>(whole.data) +
             i * (whole.bytes() / static_cast<size_t>(whole.shape[0]));
  backend_.upload({at, {elements}, whole.dtype}, from);
}

double Program::read_scalar(Value v) const {
  const TensorView view = (*this)[v];
  float single = 0;
  double wide = 0;
  if (view.dtype == DType::kF64)
    return backend_.download(&wide, {view.data, {1}, view.dtype}), wide;
  backend_.download(&single, {view.data, {1}, view.dtype});
  return static_cast<double>(single);
}

}  // namespace vitrum
