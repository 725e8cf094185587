// Linear layers, activations and norms as ONNX nodes.
#include <cmath>
#include <numbers>
#include <numeric>

#include "vitrum/core/eight_bits.h"
#include "vitrum/export/onnx_translator.h"
#include "vitrum/graph/act.h"

namespace vitrum {
namespace {

// Weights of eight bits, (in, out) as MatMulInteger wants them.
struct ByteColumns {
  ByteColumns(const std::vector<float>& w, const Shape& shape)
      : columns(shape[0]), depth(shape[1]), bytes(w.size()) {
    std::vector<int8_t> line(static_cast<size_t>(depth));
    for (int64_t c = 0; c < columns; ++c) {
      const std::span all(w);
      scales.push_back(
          round_weights(all.subspan(static_cast<size_t>(c * depth), line.size()), line.data()));
      sums.push_back(std::accumulate(line.begin(), line.end(), int32_t{0}));
      for (size_t d = 0; d < line.size(); ++d)
        bytes[d * static_cast<size_t>(columns) + static_cast<size_t>(c)] = line[d];
    }
  }
  int64_t columns, depth;
  std::vector<int8_t> bytes;
  std::vector<int32_t> sums;
  std::vector<float> scales;
};

// nullptr: a product of two factors, or nothing.
const char* one_op(Act act) {
  return act == Act::kRelu ? "Relu" : act == Act::kSigmoid ? "Sigmoid" : nullptr;
}

}  // namespace

void OnnxTranslator::emit(const Linear& op) {
  const auto& [act, drop, site] = op;
  if (act != Act::kNone || drop > 0) refuse_fused();
  const auto patches = patchified_.find(node_->in[Linear::kX]);
  if (patches != patchified_.end()) return emit_patch_embedding(patches->second);
  const Shape& w = shape(Linear::kWeight);
  if (shape(Linear::kX).rank() == 2) {
    Names operands = {in(Linear::kX), in(Linear::kWeight)};
    if (has(Linear::kBias)) operands.push_back(in(Linear::kBias));
    return last("Gemm", operands, {{"transB", int64_t{1}}});
  }
  // MatMul wants (in, out); transposed here, no runtime has to.
  const std::string weight = out_.weight(info(Linear::kWeight).name, {w[1], w[0]},
                                         transposed(data(Linear::kWeight), w[0], w[1]));
  if (!has(Linear::kBias)) return last("MatMul", {in(Linear::kX), weight});
  const std::string product = part("MatMul", {in(Linear::kX), weight});
  last("Add", {product, in(Linear::kBias)});
}

// Rows to bytes as core/eight_bits.h has it, and a product of whole numbers, which onnxruntime
// has fast kernels for: bytes on the left without a sign, on the right with one.
void OnnxTranslator::emit(const QLinear& op) {
  const auto& [act, scale] = op;
  if (act != Act::kNone || scale > 0) refuse_fused();
  const ByteColumns w(data(QLinear::kWeight), shape(QLinear::kWeight));
  const std::string& name = info(QLinear::kWeight).name;
  const std::string weight = out_.whole(name, {w.depth, w.columns}, w.bytes),
                    sums = out_.whole(name + "_sum", {w.columns}, w.sums),
                    scales = out_.weight(name + "_scale", {w.columns}, w.scales);
  const auto cast = [&](const std::string& x, int64_t type) {
    return part("Cast", {x}, {{"to", type}});
  };
  const auto edge = [&](const char* reduce, const char* or_zero) {
    const std::string most = part(reduce, {in(QLinear::kX)},
                                  {{"axes", std::vector<int64_t>{-1}}, {"keepdims", int64_t{1}}});
    return part(or_zero, {most, out_.number(0)});
  };
  const std::string low = edge("ReduceMin", "Min"), high = edge("ReduceMax", "Max");
  const std::string range = part("Div", {part("Sub", {high, low}), out_.number(255)}),
                    // A row of zeros has a step that divides all the same.
      step = part("Max", {range, out_.number(1.17549435e-38f)});
  const std::string inverse = part("Div", {out_.number(1), step});
  const std::string zero = part("Round", {part("Mul", {part("Neg", {low}), inverse})});
  const std::string q =
      part("Round", {part("Add", {part("Mul", {in(QLinear::kX), inverse}), zero})});
  const std::string byte =
      cast(part("Clip", {q, out_.number(0), out_.number(255)}), onnx::TensorProto::UINT8);
  const std::string product = part("MatMulInteger", {byte, weight}),
                    offset = part("Mul", {cast(zero, onnx::TensorProto::INT32), sums});
  const std::string whole = cast(part("Sub", {product, offset}), onnx::TensorProto::FLOAT);
  const std::string unit = part("Mul", {step, scales});
  if (!has(QLinear::kBias)) return last("Mul", {whole, unit});
  last("Add", {part("Mul", {whole, unit}), in(QLinear::kBias)});
}

void OnnxTranslator::emit(const ToE4M3& op) {
  [[maybe_unused]] const auto& [scale] = op;
  refuse_fused();  // models of e4m3 are exported as the numbers that they stand for
}

void OnnxTranslator::emit(const Gate& op) {
  const auto& [act] = op;
  const int64_t width = shape(Gate::kX)[-1] / 2;
  const auto half = [&](int64_t first) {
    return part("Slice",
                {in(Gate::kX), out_.list({first}), out_.list({first + width}), out_.list({-1})});
  };
  const std::string gate = activated(half(0), act);
  last("Mul", {gate, half(width)});
}

// The erf form is spelt as PyTorch's exporter spells it, the tanh form as TensorFlow's: runtimes
// know and fuse both.
void OnnxTranslator::emit(const Activation& op) {
  const auto& [act] = op;
  if (act == Act::kNone) return last("Identity", {in(Activation::kX)});
  if (const char* name = one_op(act)) return last(name, {in(Activation::kX)});
  const auto [left, right] = activation_factors(in(Activation::kX), act);
  last("Mul", {left, right});
}

std::string OnnxTranslator::activated(const std::string& x, Act act) {
  if (act == Act::kNone) return x;
  if (const char* name = one_op(act)) return part(name, {x});
  const auto [left, right] = activation_factors(x, act);
  return part("Mul", {left, right});
}

// The others are products.
std::pair<std::string, std::string> OnnxTranslator::activation_factors(const std::string& x,
                                                                       Act act) {
  const auto one = [&] { return out_.number(1); };
  const auto half = [&] { return out_.number(0.5f); };
  switch (act) {
    case Act::kNone:
    case Act::kRelu:
    case Act::kSigmoid: break;
    case Act::kGelu: {
      const std::string scaled =
          part("Div", {x, out_.number(static_cast<float>(std::numbers::sqrt2))});
      const std::string twice = part("Mul", {x, part("Add", {part("Erf", {scaled}), one()})});
      return {twice, half()};
    }
    case Act::kGeluTanh: {
      const std::string cube = part("Pow", {x, out_.number(3)});
      const std::string sum = part("Add", {x, part("Mul", {cube, out_.number(0.044715f)})});
      const double scale = std::sqrt(2 * std::numbers::inv_pi);
      const std::string argument = part("Mul", {sum, out_.number(static_cast<float>(scale))});
      const std::string gate = part("Add", {part("Tanh", {argument}), one()});
      return {part("Mul", {x, half()}), gate};
    }
    case Act::kQuickGelu:
    case Act::kSilu: {
      const std::string scaled =
          act == Act::kSilu ? x : part("Mul", {x, out_.number(sigmoid_beta(act))});
      return {x, part("Sigmoid", {scaled})};
    }
  }
  fail("{}: {} is no product", node_->name, static_cast<int>(act));
}

template <class Norm>  // LayerNorm or AddLayerNorm
void OnnxTranslator::layer_norm(const Norm& op, const std::string& x) {
  const auto& [eps] = op;
  Names operands = {x, in(Norm::kWeight)};
  if (has(Norm::kBias)) operands.push_back(in(Norm::kBias));
  last("LayerNormalization", operands, {{"axis", int64_t{-1}}, {"epsilon", eps}}, Norm::kY);
}

void OnnxTranslator::emit(const LayerNorm& op) { layer_norm(op, in(LayerNorm::kX)); }

void OnnxTranslator::emit(const AddLayerNorm& op) {
  last("Add", {in(AddLayerNorm::kA), in(AddLayerNorm::kB)});
  layer_norm(op, names_[static_cast<size_t>(node_->out[AddLayerNorm::kSum])]);
}

void OnnxTranslator::emit(const ResponseNorm& op) {
  const auto& [eps] = op;
  const std::string& x = in(ResponseNorm::kX);
  Ints places;  // all dimensions between images and channels
  for (int i = 1; i + 1 < shape(ResponseNorm::kX).rank(); ++i) places.push_back(i);
  const std::string length = part("ReduceL2", {x}, {{"axes", places}, {"keepdims", int64_t{1}}});
  const std::string mean =
      part("ReduceMean", {length}, {{"axes", Ints{-1}}, {"keepdims", int64_t{1}}});
  const std::string share = part("Div", {length, part("Add", {mean, out_.number(eps)})});
  const std::string scaled = part("Mul", {part("Mul", {x, share}), in(ResponseNorm::kWeight)});
  last("Add", {part("Add", {scaled, in(ResponseNorm::kBias)}), x});
}

}  // namespace vitrum
