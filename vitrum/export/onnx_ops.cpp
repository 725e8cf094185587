#include "vitrum/export/onnx_ops.h"

#include <algorithm>

#include "vitrum/export/onnx_translator.h"

namespace vitrum {

std::vector<float> transposed(const std::vector<float>& w, int64_t rows, int64_t columns) {
  std::vector<float> t(w.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      t[static_cast<size_t>(c * rows + r)] = w[static_cast<size_t>(r * columns + c)];
  return t;
}

void OnnxTranslator::run() {
  names_.resize(g_.values.size());
  for (size_t i = 0; i < g_.values.size(); ++i)
    if (g_.values[i].role == Role::kInput) names_[i] = g_.values[i].name;
  for (const Node& node : g_.nodes) {
    node_ = &node;
    std::visit([&](const auto& op) { emit(op); }, node.op);
    if (in_planes(0) && !std::holds_alternative<Pool>(node.op)) planes_.insert(node.out[0]);
  }
}

std::vector<float> OnnxTranslator::data(size_t i) const {
  return info(i).role == Role::kConst ? info(i).data
                                      : store_.read(static_cast<size_t>(info(i).param));
}

const std::string& OnnxTranslator::in(size_t i) {
  std::string& name = names_[static_cast<size_t>(node_->in[i])];
  if (name.empty()) name = out_.weight(info(i).name, shape(i), data(i));
  return name;
}

std::string OnnxTranslator::part(const char* op, const Names& in, const Attributes& attr) {
  return out_.node(op, in, node_->name + "/" + op, attr);
}

void OnnxTranslator::last(const char* op, const Names& in, const Attributes& attr, size_t output) {
  const ValueId id = node_->out[output];
  const std::string& wanted =
      id == result_ ? result_name_ : g_.values[static_cast<size_t>(id)].name;
  names_[static_cast<size_t>(id)] = out_.node(op, in, wanted, attr);
}

void OnnxTranslator::refuse() const {
  fail("{}: {} is a training op and has no place in an exported model", node_->name,
       name_of(node_->op));
}

void OnnxTranslator::refuse_fused() const {
  fail("{}: only plain graphs can be exported, and this one is fused", node_->name);
}

void OnnxTranslator::emit(const NoAttributes<Add>&) { last("Add", {in(Add::kA), in(Add::kB)}); }

void OnnxTranslator::emit(const NoAttributes<ChannelScale>&) {
  last("Mul", {in(ChannelScale::kX), in(ChannelScale::kGamma)});
}

void OnnxTranslator::emit(const NoAttributes<Tokens>&) {
  Names sequence;
  if (node_->in.size() > Tokens::kPrefix) {
    const std::string batch =
        part("Shape", {in(Tokens::kX)}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
    const std::string shape_of_token =  // 1: as many as there are
        part("Concat", {batch, out_.list({1, shape(Tokens::kX)[-1]})}, {{"axis", int64_t{0}}});
    for (size_t i = Tokens::kPrefix; i < node_->in.size(); ++i)
      sequence.push_back(part("Expand", {in(i), shape_of_token}));
  }
  sequence.push_back(in(Tokens::kX));
  if (!has(Tokens::kPos)) return last("Concat", sequence, {{"axis", int64_t{1}}});
  const std::string all =
      sequence.size() == 1 ? sequence[0] : part("Concat", sequence, {{"axis", int64_t{1}}});
  last("Add", {all, in(Tokens::kPos)});
}

// An index past the tokens finds a row of zeros put behind them.
void OnnxTranslator::emit(const GatherTokens& op) {
  const auto& [tokens, width, from] = op;
  const Shape& y = g_.values[static_cast<size_t>(node_->out[GatherTokens::kY])].shape;
  std::vector<int64_t> indices(from.begin(), from.end());
  std::ranges::replace(indices, -1, tokens);
  std::string x = part("Reshape", {in(GatherTokens::kX), out_.list({-1, tokens, width})});
  if (std::ranges::find(from, -1) != from.end())
    x = part("Pad", {x, out_.list({0, 0, 0, 0, 1, 0})});
  const std::string taken =
      part("Gather", {x, out_.indices(node_->name + ".from", indices)}, {{"axis", int64_t{1}}});
  Ints sizes(y.begin(), y.end());
  sizes[0] = -1;
  last("Reshape", {taken, out_.list(sizes)});
}

void OnnxTranslator::emit(const Pool& op) {
  const auto& [first, count] = op;
  if (in_planes(Pool::kX))
    return last("Flatten", {part("GlobalAveragePool", {in(Pool::kX)})}, {{"axis", int64_t{1}}});
  if (shape(Pool::kX).rank() == 4)
    return last("ReduceMean", {in(Pool::kX)}, {{"axes", Ints{1, 2}}, {"keepdims", int64_t{0}}});
  if (count == 1) return last("Gather", {in(Pool::kX), out_.index(first)}, {{"axis", int64_t{1}}});
  std::string x = in(Pool::kX);
  if (count != shape(Pool::kX)[1])
    x = part("Slice", {x, out_.list({first}), out_.list({first + count}), out_.list({1})});
  last("ReduceMean", {x}, {{"axes", Ints{1}}, {"keepdims", int64_t{0}}});
}

void translate(const Graph& g, Value result, const std::string& result_name, ParamStore& store,
               OnnxGraph& out) {
  OnnxTranslator(g, result, result_name, store, out).run();
}

}  // namespace vitrum
