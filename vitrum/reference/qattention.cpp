#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "vitrum/core/eight_bits.h"
#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Numbers that share a scale.
struct SignedBytes {
  std::vector<int8_t> bytes;
  float scale = 0;
};
SignedBytes to_bytes(const std::vector<float>& x) {
  float largest = 0, finite = 0;
  for (const float v : x) largest = std::max(largest, std::abs(v)), finite += v * 0;
  const SignedRange range = signed_range(largest + finite);
  SignedBytes rounded{.bytes = {}, .scale = range.scale};
  for (const float v : x) rounded.bytes.push_back(signed_byte(v, range));
  return rounded;
}

// In the order in which vectors of sixteen lanes are added up: four running sums, the last part of
// a vector in the second of them.
float lane_sum(const std::vector<float>& x) {
  constexpr size_t kLanes = 16;
  std::array<std::array<float, kLanes>, 4> s{};
  const size_t fours = x.size() / (4 * kLanes) * (4 * kLanes), whole = x.size() / kLanes * kLanes;
  for (size_t i = 0; i < x.size(); ++i)
    s[i < fours ? i / kLanes % 4 : i < whole ? 0 : 1][i % kLanes] += x[i];
  for (size_t i = 0; i < kLanes; ++i) s[0][i] = (s[0][i] + s[1][i]) + (s[2][i] + s[3][i]);
  for (size_t half = kLanes / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) s[0][i] += s[0][i + half];
  return s[0][0];
}

// One head of one image: queries and keys by token, values by channel.
struct ByteHead {
  std::vector<SignedBytes> q, k, v;
  std::vector<float> mean;  // of values
  float finite = 0;         // NaN where a key is not finite, which every query sees

  // at(part, token, d): a number of qkv.
  ByteHead(int64_t tokens, int64_t size,
           const std::function<float(int64_t, int64_t, int64_t)>& at) {
    for (int64_t part = 0; part < 2; ++part)
      for (int64_t t = 0; t < tokens; ++t) {
        std::vector<float> row;
        for (int64_t d = 0; d < size; ++d) row.push_back(at(part, t, d));
        (part == 0 ? q : k).push_back(to_bytes(row));
      }
    for (int64_t d = 0; d < size; ++d) {
      std::vector<float> column;
      float sum = 0;
      for (int64_t t = 0; t < tokens; ++t) sum += at(2, t, d);
      mean.push_back(sum * (1 / static_cast<float>(tokens)));
      for (int64_t t = 0; t < tokens; ++t) column.push_back(at(2, t, d) - mean.back());
      v.push_back(to_bytes(column));
    }
    for (const SignedBytes& key : k) finite += key.scale * 0;
  }
};

struct WeightBytes {
  std::vector<uint8_t> bytes;
  float inverse = 0;  // of their sum, before they were rounded
};

// The weights of a row from its products with all keys. offset: null, or what is added to a score.
WeightBytes weights(const ByteHead& head, size_t t, const std::function<float(size_t)>& offset) {
  const SignedBytes& query = head.q[t];
  const float scale = query.scale * (1 / std::sqrt(static_cast<float>(query.bytes.size())));
  std::vector<float> s;
  float top = -kInfinity, bad = head.finite;
  for (const SignedBytes& key : head.k) {
    int32_t sum = 0;
    for (size_t d = 0; d < key.bytes.size(); ++d) sum += query.bytes[d] * key.bytes[d];
    float score = static_cast<float>(sum) * key.scale;
    if (offset) score = std::fma(score, scale, offset(s.size()));
    if (std::isnan(score)) bad = score;
    top = std::max(top, score);
    s.push_back(score);
  }
  const float slope = offset ? kLog2OfE : scale * kLog2OfE, least = -top * slope;
  WeightBytes w;
  for (float& score : s) {
    score = attention_weight(std::fma(score, slope, least));
    w.bytes.push_back(attention_byte(score));
  }
  w.inverse = 1 / lane_sum(s) + (least * 0 + bad * 0);
  return w;
}

float weighted(const WeightBytes& w, const SignedBytes& channel, float mean) {
  int32_t sum = 0;
  for (size_t u = 0; u < w.bytes.size(); ++u) sum += w.bytes[u] * channel.bytes[u];
  return std::fma(static_cast<float>(sum), channel.scale * w.inverse, mean);
}

}  // namespace

void run(const QAttention& op, const Operands& io) {
  const auto& [heads] = op;
  const TensorView y = io.out[QAttention::kY];
  const Shape& shape = io.in[QAttention::kQkv].shape;
  const int64_t tokens = shape[1], size = shape[2] / 3 / heads, square = tokens * tokens;
  const Values qkv = read(io.in[QAttention::kQkv]), bias = read(at(io.in, QAttention::kBias)),
               mask = read(at(io.in, QAttention::kMask));
  const int64_t masks = static_cast<int64_t>(mask.size()) / square;
  Values out(qkv.size() / 3);
  for (int64_t b = 0; b < shape[0]; ++b)
    for (int64_t h = 0; h < heads; ++h) {
      const ByteHead head(tokens, size, [&](int64_t part, int64_t t, int64_t d) {
        const int64_t place = (((b * tokens + t) * 3 + part) * heads + h) * size + d;
        return static_cast<float>(qkv[static_cast<size_t>(place)]);
      });
      for (int64_t t = 0; t < tokens; ++t) {
        const auto offset = [&](size_t u) {
          const auto place = static_cast<size_t>(t * tokens) + u;
          const auto of = [&](const Values& x, int64_t which) {
            return static_cast<float>(x[static_cast<size_t>(which * square) + place]);
          };
          if (mask.empty()) return of(bias, h);
          return bias.empty() ? of(mask, b % masks) : of(bias, h) + of(mask, b % masks);
        };
        const bool plain = bias.empty() && mask.empty();
        const WeightBytes w =
            weights(head, static_cast<size_t>(t), plain ? std::function<float(size_t)>() : offset);
        for (int64_t d = 0; d < size; ++d)
          out[static_cast<size_t>(((b * tokens + t) * heads + h) * size + d)] = rounded(
              weighted(w, head.v[static_cast<size_t>(d)], head.mean[static_cast<size_t>(d)]),
              y.dtype);
      }
    }
  write(y, out);
}

}  // namespace vitrum::reference
