// Attention, and what families do to its queries, keys and scores, as ONNX nodes.
#include <algorithm>
#include <cmath>

#include "vitrum/export/onnx_translator.h"

namespace vitrum {

// Scores (B, H, T, T) and what is added to them; every W items of the batch share the masks.
std::string OnnxTranslator::with_bias(const std::string& scores, int64_t heads) {
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
void OnnxTranslator::gather_bias(int64_t h, int64_t w) {
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
void OnnxTranslator::emit(const RelativeBias& op) {
  const auto& [window_h, window_w, prefix] = op;
  if (info(RelativeBias::kTable).role != Role::kParam)
    return gather_bias(window_h, window_w);  // no model has one with a prefix
  const std::vector<float> table = data(RelativeBias::kTable);
  const Shape& s =
      g_.values[static_cast<size_t>(node_->out[RelativeBias::kBias])].shape;  // (H, T, T)
  const int64_t h = window_h, w = window_w, before = prefix, distances = (2 * h - 1) * (2 * w - 1);
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

const OnnxTranslator::Angles& OnnxTranslator::angles_of(const Rotate& op) {
  const auto& [heads, prefix, halves, inverse] = op;
  auto [found, fresh] = angles_.try_emplace(node_->in[Rotate::kTable]);
  if (!fresh) return found->second;
  const int64_t tokens = shape(Rotate::kQkv)[1], head = shape(Rotate::kTable)[1], pairs = head / 2;
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
void OnnxTranslator::emit(const Rotate& op) {
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

void OnnxTranslator::emit(const UnitHeads& op) {
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

// (B, T, 3C) -> (3, B, H, T, D) -> q, k, v, as timm's models are exported: runtimes take the last
// transposition into the product.
void OnnxTranslator::emit(const Attention& op) {
  const auto& [heads, drop, site] = op;
  if (drop > 0) refuse();
  attention(heads);
}

// In f32: runtimes have fast kernels for that, and none for bytes here.
void OnnxTranslator::emit(const QAttention& op) {
  const auto& [heads] = op;
  static_assert(int{QAttention::kQkv} == Attention::kQkv &&
                int{QAttention::kBias} == Attention::kBias &&
                int{QAttention::kMask} == Attention::kMask);
  attention(heads);
}

void OnnxTranslator::attention(int64_t heads) {
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
  const std::string weights = part("Softmax", {with_bias(scores, heads)}, {{"axis", int64_t{-1}}});
  const std::string mixed =
      part("Transpose", {part("MatMul", {weights, v})}, {{"perm", Ints{0, 2, 1, 3}}});
  last("Reshape", {mixed, out_.list({0, 0, width})});
}

// The one query's scores as a product with the keys, as Attention's are: (B, H, 1, T).
void OnnxTranslator::emit(const AttendPool& op) {
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

}  // namespace vitrum
