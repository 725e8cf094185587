#include "vitrum/export/onnx_ops.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <set>

#include "vitrum/core/eight_bits.h"
#include "vitrum/core/error.h"
#include "vitrum/graph/act.h"

namespace vitrum {
namespace {

using Names = std::vector<std::string>;
using Ints = std::vector<int64_t>;

// (rows, columns) -> (columns, rows)
std::vector<float> transposed(const std::vector<float>& w, int64_t rows, int64_t columns) {
  std::vector<float> t(w.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      t[static_cast<size_t>(c * rows + r)] = w[static_cast<size_t>(r * columns + c)];
  return t;
}

// One function an op: without one, or without a refusal, an op of the closed set does not compile.
// A result is called after its node; what a node needs on the way is called node/Op.
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

class Translator {
 public:
  Translator(const Graph& g, Value result, const std::string& result_name, ParamStore& store,
             OnnxGraph& out)
      : g_(g), result_(result.id()), result_name_(result_name), store_(store), out_(out) {}

  void run() {
    names_.resize(g_.values.size());
    for (size_t i = 0; i < g_.values.size(); ++i)
      if (g_.values[i].role == Role::kInput) names_[i] = g_.values[i].name;
    for (const Node& node : g_.nodes) {
      node_ = &node;
      std::visit([&](const auto& op) { emit(op); }, node.op);
      if (in_planes(0) && !std::holds_alternative<Pool>(node.op)) planes_.insert(node.out[0]);
    }
  }

 private:
  // ---- operands of the node at hand ----
  bool has(size_t i) const { return i < node_->in.size() && node_->in[i] != kAbsent; }
  const ValueInfo& info(size_t i) const { return g_.values[static_cast<size_t>(node_->in[i])]; }
  const Shape& shape(size_t i) const { return info(i).shape; }
  std::vector<float> data(size_t i) const {
    return info(i).role == Role::kConst ? info(i).data
                                        : store_.read(static_cast<size_t>(info(i).param));
  }
  // The name of operand i; a parameter or constant comes into the file on its first use.
  const std::string& in(size_t i) {
    std::string& name = names_[static_cast<size_t>(node_->in[i])];
    if (name.empty()) name = out_.weight(info(i).name, shape(i), data(i));
    return name;
  }

  // ---- nodes ----
  std::string part(const char* op, const Names& in, const std::vector<OnnxAttribute>& attr = {}) {
    return out_.node(op, in, node_->name + "/" + op, attr);
  }
  void last(const char* op, const Names& in, const std::vector<OnnxAttribute>& attr = {},
            size_t output = 0) {
    const ValueId id = node_->out[output];
    const std::string& wanted =
        id == result_ ? result_name_ : g_.values[static_cast<size_t>(id)].name;
    names_[static_cast<size_t>(id)] = out_.node(op, in, wanted, attr);
  }
  // Whether operand i, an image, is (B, C, H, W) in the file: channels last is our own order, and
  // every runtime's convolutions want theirs.
  bool in_planes(size_t i) const { return has(i) && planes_.contains(node_->in[i]); }
  [[noreturn]] void refuse() const {
    fail("{}: {} is a training op and has no place in an exported model", node_->name,
         name_of(node_->op));
  }

  [[noreturn]] void refuse_fused() const {
    fail("{}: only plain graphs can be exported, and this one is fused", node_->name);
  }

  // ---- ops ----
  void emit(const NoAttributes<Normalize>&) {
    const int64_t channels = shape(Normalize::kScale)[0];
    std::string x = in(Normalize::kPixels);
    if (info(Normalize::kPixels).dtype == DType::kU8)
      x = part("Cast", {x}, {{"to", int64_t{onnx::TensorProto::FLOAT}}});
    const std::string scale = out_.weight(info(Normalize::kScale).name, {channels, 1, 1},
                                          data(Normalize::kScale)),
                      shift = out_.weight(info(Normalize::kShift).name, {channels, 1, 1},
                                          data(Normalize::kShift));
    last("Add", {part("Mul", {x, scale}), shift});
  }

  // With the linear layer behind it a convolution, which every runtime is good at.
  void emit(const Patchify& op) {
    const auto& [patch_h, patch_w, order] = op;
    if (has(Patchify::kScale)) refuse_fused();
    // channels_last()
    if (patch_h == 1 && patch_w == 1 && order == PatchOrder::kChannelLast) {
      names_[static_cast<size_t>(node_->out[Patchify::kY])] = in(Patchify::kImage);
      planes_.insert(node_->out[Patchify::kY]);
      return;
    }
    patchified_[node_->out[Patchify::kY]] = {op, in(Patchify::kImage), shape(Patchify::kImage)};
  }

  struct Patches {
    Patchify op;
    std::string image;
    Shape shape;  // (B, C, H, W)
  };

  void emit_patch_embedding(const Patches& patches) {
    const auto& [op, image, image_shape] = patches;
    const auto& [patch_h, patch_w, order] = op;
    const int64_t width = shape(Linear::kWeight)[0], channels = image_shape[1],
                  pixels = patch_h * patch_w;
    std::vector<float> kernel = data(Linear::kWeight);
    if (order == PatchOrder::kChannelLast)  // (out, P, P, C) -> (out, C, P, P)
      for (int64_t o = 0, n = channels * pixels; o < width; ++o) {
        const std::vector<float> one(kernel.begin() + o * n, kernel.begin() + (o + 1) * n);
        std::ranges::copy(transposed(one, pixels, channels), kernel.begin() + o * n);
      }
    Names operands = {image, out_.weight(info(Linear::kWeight).name,
                                         {width, channels, patch_h, patch_w}, kernel)};
    if (has(Linear::kBias)) operands.push_back(in(Linear::kBias));
    const std::string maps =
        part("Conv", operands,
             {{"kernel_shape", Ints{patch_h, patch_w}}, {"strides", Ints{patch_h, patch_w}}});
    if (shape(Linear::kX).rank() == 4)  // the patches are pixels
      return last("Transpose", {maps}, {{"perm", Ints{0, 2, 3, 1}}});
    const std::string flat = part("Reshape", {maps, out_.list({0, width, -1})});
    last("Transpose", {flat}, {{"perm", Ints{0, 2, 1}}});
  }

  void emit(const Linear& op) {
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
  void emit(const QLinear& op) {
    const auto& [act] = op;
    if (act != Act::kNone) refuse_fused();
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
    const std::string scale = part("Mul", {step, scales});
    if (!has(QLinear::kBias)) return last("Mul", {whole, scale});
    last("Add", {part("Mul", {whole, scale}), in(QLinear::kBias)});
  }

  void emit(const Gate& op) {
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
  void emit(const Activation& op) {
    const auto& [act] = op;
    if (act == Act::kNone) return last("Identity", {in(Activation::kX)});
    if (const char* name = one_op(act)) return last(name, {in(Activation::kX)});
    const auto [left, right] = activation_factors(in(Activation::kX), act);
    last("Mul", {left, right});
  }
  std::string activated(const std::string& x, Act act) {
    if (act == Act::kNone) return x;
    if (const char* name = one_op(act)) return part(name, {x});
    const auto [left, right] = activation_factors(x, act);
    return part("Mul", {left, right});
  }
  static const char* one_op(Act act) {
    return act == Act::kRelu ? "Relu" : act == Act::kSigmoid ? "Sigmoid" : nullptr;
  }
  // The others are products.
  std::pair<std::string, std::string> activation_factors(const std::string& x, Act act) {
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
  void layer_norm(const Norm& op, const std::string& x) {
    const auto& [eps] = op;
    Names operands = {x, in(Norm::kWeight)};
    if (has(Norm::kBias)) operands.push_back(in(Norm::kBias));
    last("LayerNormalization", operands, {{"axis", int64_t{-1}}, {"epsilon", eps}}, Norm::kY);
  }
  void emit(const LayerNorm& op) { layer_norm(op, in(LayerNorm::kX)); }
  void emit(const AddLayerNorm& op) {
    last("Add", {in(AddLayerNorm::kA), in(AddLayerNorm::kB)});
    layer_norm(op, names_[static_cast<size_t>(node_->out[AddLayerNorm::kSum])]);
  }

  // Scores (B, H, T, T) and what is added to them; every W items of the batch share the masks.
  std::string with_bias(const std::string& scores, int64_t heads) {
    const std::string biased =
        has(Attention::kBias) ? part("Add", {scores, in(Attention::kBias)}) : scores;
    if (!has(Attention::kMask)) return biased;
    const int64_t windows = shape(Attention::kMask)[0], tokens = shape(Attention::kMask)[1];
    const std::string apart =
        part("Reshape", {biased, out_.list({-1, windows, heads, tokens, tokens})});
    const std::string mask = out_.weight(info(Attention::kMask).name, {windows, 1, tokens, tokens},
                                         data(Attention::kMask));
    return part("Reshape", {part("Add", {apart, mask}), out_.list({-1, heads, tokens, tokens})});
  }
  // Of a table that is computed, as Swin V2's is: runtimes do so once.
  void gather_bias(int64_t h, int64_t w) {
    const int64_t tokens = h * w, heads = shape(RelativeBias::kTable)[1];
    std::vector<int64_t> rows;
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t u = 0; u < tokens; ++u)
        rows.push_back((t / w - u / w + h - 1) * (2 * w - 1) + t % w - u % w + w - 1);
    const std::string pairs =
        part("Gather", {in(RelativeBias::kTable), out_.indices(node_->name + ".from", rows)},
             {{"axis", int64_t{0}}});
    const std::string by_head = part("Transpose", {pairs}, {{"perm", Ints{1, 0}}});
    last("Reshape", {by_head, out_.list({1, heads, tokens, tokens})});
  }
  // The bias is the same for every image, so it is written out.
  void emit(const RelativeBias& op) {
    const auto& [window_h, window_w, prefix] = op;
    if (info(RelativeBias::kTable).role != Role::kParam)
      return gather_bias(window_h, window_w);  // no model has one with a prefix
    const std::vector<float> table = data(RelativeBias::kTable);
    const Shape& s =
        g_.values[static_cast<size_t>(node_->out[RelativeBias::kBias])].shape;  // (H, T, T)
    const int64_t h = window_h, w = window_w, before = prefix,
                  distances = (2 * h - 1) * (2 * w - 1);
    const auto row_of = [&](int64_t t, int64_t u) {
      if (t < before || u < before) return distances + (u >= before ? 0 : t >= before ? 1 : 2);
      t -= before, u -= before;
      return (t / w - u / w + h - 1) * (2 * w - 1) + t % w - u % w + w - 1;
    };
    std::vector<float> bias;
    for (int64_t head = 0; head < s[0]; ++head)
      for (int64_t t = 0; t < s[1]; ++t)
        for (int64_t u = 0; u < s[1]; ++u)
          bias.push_back(table[static_cast<size_t>(row_of(t, u) * s[0] + head)]);
    names_[static_cast<size_t>(node_->out[RelativeBias::kBias])] =
        out_.weight(node_->name, {1, s[0], s[1], s[2]}, bias);
  }
  // Cosines and signed sines of (T, 3, 1, D); prefix tokens and v have cosine 1 and sine 0.
  struct Angles {
    std::string cosines, sines;
  };
  const Angles& angles_of(const Rotate& op) {
    const auto& [heads, prefix, halves, inverse] = op;
    auto [found, fresh] = angles_.try_emplace(node_->in[Rotate::kTable]);
    if (!fresh) return found->second;
    const int64_t tokens = shape(Rotate::kQkv)[1], head = shape(Rotate::kTable)[1],
                  pairs = head / 2;
    const std::vector<float> table = data(Rotate::kTable);
    std::vector<float> cosines, sines;
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t part = 0; part < 3; ++part)
        for (int64_t i = 0; i < head; ++i) {
          const bool turns = t >= prefix && part < 2, first = halves ? i < pairs : i % 2 == 0;
          const auto at = static_cast<size_t>((t - prefix) * head + (halves ? i % pairs : i / 2));
          cosines.push_back(turns ? table[at] : 1.f);
          sines.push_back(turns ? (first ? -1.f : 1.f) * table[at + static_cast<size_t>(pairs)]
                                : 0.f);
        }
    const std::string& name = info(Rotate::kTable).name;
    found->second = {out_.weight(name + ".cos", {tokens, 3, 1, head}, cosines),
                     out_.weight(name + ".sin", {tokens, 3, 1, head}, sines)};
    return found->second;
  }
  // Of (B, T, 3, H, D) each value times its cosine, and what it is paired with times the sine.
  void emit(const Rotate& op) {
    const auto& [heads, prefix, halves, inverse] = op;
    if (inverse) refuse();
    const int64_t width = shape(Rotate::kQkv)[2] / 3, head = width / heads;
    std::vector<int64_t> partner;
    for (int64_t i = 0; i < head; ++i)
      partner.push_back(halves ? (i + head / 2) % head : i % 2 == 0 ? i + 1 : i - 1);
    const Angles& angles = angles_of(op);
    const std::string x = part("Reshape", {in(Rotate::kQkv), out_.list({0, 0, 3, heads, head})});
    const std::string other =
        part("Gather", {x, out_.indices("rope.partner", partner)}, {{"axis", int64_t{4}}});
    const std::string kept = part("Mul", {x, angles.cosines});
    const std::string sum = part("Add", {kept, part("Mul", {other, angles.sines})});
    last("Reshape", {sum, out_.list({0, 0, 3 * width})});
  }
  // An index past the tokens finds a row of zeros put behind them.
  void emit(const GatherTokens& op) {
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

  // (B, T, 3C) -> (3, B, H, T, D) -> q, k, v, as timm's models are exported: runtimes take the last
  // transposition into the product.
  void emit(const Attention& op) {
    const auto& [heads, drop, site] = op;
    if (drop > 0) refuse();
    attention(heads);
  }
  // In f32: runtimes have fast kernels for that, and none for bytes here.
  void emit(const QAttention& op) {
    const auto& [heads] = op;
    static_assert(int{QAttention::kQkv} == Attention::kQkv &&
                  int{QAttention::kBias} == Attention::kBias &&
                  int{QAttention::kMask} == Attention::kMask);
    attention(heads);
  }
  void attention(int64_t heads) {
    const int64_t width = shape(Attention::kQkv)[-1] / 3, head = width / heads;
    const std::string apart =
        part("Reshape", {in(Attention::kQkv), out_.list({0, 0, 3, heads, head})});
    const std::string stacked = part("Transpose", {apart}, {{"perm", Ints{2, 0, 3, 1, 4}}});
    const auto take = [&](int64_t i) {
      return part("Gather", {stacked, out_.index(i)}, {{"axis", int64_t{0}}});
    };
    const std::string q = take(0), v = take(2);
    const std::string k = part("Transpose", {take(1)}, {{"perm", Ints{0, 1, 3, 2}}});
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head)));
    const std::string scores = part("MatMul", {part("Mul", {q, out_.number(scale)}), k});
    const std::string weights =
        part("Softmax", {with_bias(scores, heads)}, {{"axis", int64_t{-1}}});
    const std::string mixed =
        part("Transpose", {part("MatMul", {weights, v})}, {{"perm", Ints{0, 2, 1, 3}}});
    last("Reshape", {mixed, out_.list({0, 0, width})});
  }

  // The one query's scores as a product with the keys, as Attention's are: (B, H, 1, T).
  void emit(const AttendPool& op) {
    const auto& [heads] = op;
    const int64_t width = shape(AttendPool::kQ)[-1], head = width / heads;
    const std::string apart =
        part("Reshape", {in(AttendPool::kKv), out_.list({0, 0, 2, heads, head})});
    const std::string stacked = part("Transpose", {apart}, {{"perm", Ints{2, 0, 3, 1, 4}}});
    const auto take = [&](int64_t i) {
      return part("Gather", {stacked, out_.index(i)}, {{"axis", int64_t{0}}});
    };
    const std::string v = take(1);
    const std::string k = part("Transpose", {take(0)}, {{"perm", Ints{0, 1, 3, 2}}});
    const std::string q = part("Reshape", {in(AttendPool::kQ), out_.list({1, heads, 1, head})});
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head)));
    const std::string scores = part("MatMul", {part("Mul", {q, out_.number(scale)}), k});
    const std::string weights = part("Softmax", {scores}, {{"axis", int64_t{-1}}});
    last("Reshape", {part("MatMul", {weights, v}), out_.list({-1, width})});
  }

  void emit(const NoAttributes<Add>&) { last("Add", {in(Add::kA), in(Add::kB)}); }
  void emit(const NoAttributes<ChannelScale>&) {
    last("Mul", {in(ChannelScale::kX), in(ChannelScale::kGamma)});
  }

  void emit(const NoAttributes<Tokens>&) {
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

  // Of a window over images in planes.
  std::vector<OnnxAttribute> window(int64_t kernel, int64_t stride, int64_t padding) const {
    if (!in_planes(0)) fail("{}: its operand is no image in planes", node_->name);
    return {{"kernel_shape", Ints{kernel, kernel}},
            {"strides", Ints{stride, stride}},
            {"pads", Ints(4, padding)}};
  }
  void emit(const Conv2d& op) {
    const auto& [stride, padding, eps, act] = op;
    if (has(Conv2d::kNormWeight)) refuse_fused();
    last("Conv", {in(Conv2d::kX), in(Conv2d::kWeight)},
         window(shape(Conv2d::kWeight)[2], stride, padding));
  }
  // Channels last but for this op, since what is round it are linear layers.
  void emit(const DepthwiseConv& op) {
    const auto& [padding] = op;
    const int64_t kernel = shape(DepthwiseConv::kWeight)[2];
    Names operands = {part("Transpose", {in(DepthwiseConv::kX)}, {{"perm", Ints{0, 3, 1, 2}}}),
                      in(DepthwiseConv::kWeight)};
    if (has(DepthwiseConv::kBias)) operands.push_back(in(DepthwiseConv::kBias));
    const std::string planes = part("Conv", operands,
                                    {{"kernel_shape", Ints{kernel, kernel}},
                                     {"pads", Ints(4, padding)},
                                     {"group", shape(DepthwiseConv::kX)[3]}});
    last("Transpose", {planes}, {{"perm", Ints{0, 2, 3, 1}}});
  }
  void emit(const ResponseNorm& op) {
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
  void emit(const UnitHeads& op) {
    const auto& [heads, parts, unit] = op;
    const Shape& whole = shape(UnitHeads::kX);
    const int64_t dim = whole[-1] / (parts * heads);
    Ints apart(whole.begin(), whole.end() - 1);
    std::ranges::fill(apart, 0);  // as they are
    const auto axis = static_cast<int64_t>(apart.size());
    apart.insert(apart.end(), {parts, heads, dim});
    const std::string x = part("Reshape", {in(UnitHeads::kX), out_.list(apart)});
    const auto take = [&](int64_t from, int64_t to) {
      return part("Slice", {x, out_.list({from}), out_.list({to}), out_.list({axis})});
    };
    const std::string some = unit < parts ? take(0, unit) : x;
    const std::string length =
        part("ReduceL2", {some}, {{"axes", Ints{-1}}, {"keepdims", int64_t{1}}});
    std::string y = part("Div", {some, part("Max", {length, out_.number(1e-12f)})});
    if (has(UnitHeads::kScale)) {
      std::vector<float> factors(static_cast<size_t>(unit * heads), 1.f);
      const std::vector<float> scale = data(UnitHeads::kScale);
      for (size_t h = 0; h < scale.size(); ++h)
        factors[h] = static_cast<float>(std::sqrt(static_cast<double>(dim)) *
                                        std::exp(std::min<double>(scale[h], std::log(100.0))));
      y = part("Mul", {y, out_.weight(info(UnitHeads::kScale).name, {unit, heads, 1}, factors)});
    }
    if (unit < parts) y = part("Concat", {y, take(unit, parts)}, {{"axis", axis}});
    Ints sizes(whole.begin(), whole.end());
    sizes[0] = -1;
    last("Reshape", {y, out_.list(sizes)});
  }
  void emit(const MaxPool& op) {
    const auto& [kernel, stride, padding] = op;
    last("MaxPool", {in(MaxPool::kX)}, window(kernel, stride, padding));
  }
  void emit(const FrozenBatchNorm& op) {
    const auto& [eps, act] = op;
    if (has(FrozenBatchNorm::kSkip) || act != Act::kNone) refuse_fused();
    Names operands;
    for (size_t i = 0; i < FrozenBatchNorm::kSkip; ++i) operands.push_back(in(i));
    last("BatchNormalization", operands, {{"epsilon", eps}});
  }

  void emit(const Pool& op) {
    const auto& [first, count] = op;
    if (in_planes(Pool::kX))
      return last("Flatten", {part("GlobalAveragePool", {in(Pool::kX)})}, {{"axis", int64_t{1}}});
    if (shape(Pool::kX).rank() == 4)
      return last("ReduceMean", {in(Pool::kX)}, {{"axes", Ints{1, 2}}, {"keepdims", int64_t{0}}});
    if (count == 1)
      return last("Gather", {in(Pool::kX), out_.index(first)}, {{"axis", int64_t{1}}});
    std::string x = in(Pool::kX);
    if (count != shape(Pool::kX)[1])
      x = part("Slice", {x, out_.list({first}), out_.list({first + count}), out_.list({1})});
    last("ReduceMean", {x}, {{"axes", Ints{1}}, {"keepdims", int64_t{0}}});
  }

  void emit(const Dropout&) { refuse(); }
  void emit(const DropPath&) { refuse(); }
  void emit(const KeepTokens&) { refuse(); }
  void emit(const PlaceTokens&) { refuse(); }
  void emit(const CrossEntropy&) { refuse(); }
  void emit(const BatchNorm&) { refuse(); }
  template <NoGradient T>
  void emit(const T&) {
    refuse();
  }

  const Graph& g_;
  const ValueId result_;
  const std::string result_name_;
  ParamStore& store_;
  OnnxGraph& out_;
  const Node* node_ = nullptr;
  Names names_;  // of values by id; empty: not in the file yet
  std::map<ValueId, Patches> patchified_;
  std::map<ValueId, Angles> angles_;  // by Rotate's table
  std::set<ValueId> planes_;
};

}  // namespace

void translate(const Graph& g, Value result, const std::string& result_name, ParamStore& store,
               OnnxGraph& out) {
  Translator(g, result, result_name, store, out).run();
}

}  // namespace vitrum
