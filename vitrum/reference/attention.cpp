#include <algorithm>
#include <cmath>

#include "vitrum/core/rows.h"
#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {
namespace {

// Where the pieces of one head of one image lie in qkv (B, T, 3, H, D) and in y (B, T, H, D).
struct Head {
  int64_t image, head, heads, tokens, size;

  int64_t part(int64_t t, int64_t which) const {  // which: 0 q, 1 k, 2 v
    return (((image * tokens + t) * 3 + which) * heads + head) * size;
  }
  int64_t q(int64_t t) const { return part(t, 0); }
  int64_t k(int64_t t) const { return part(t, 1); }
  int64_t v(int64_t t) const { return part(t, 2); }
  int64_t y(int64_t t) const { return ((image * tokens + t) * heads + head) * size; }
  int64_t row(int64_t t) const { return (image * heads + head) * tokens + t; }
};

template <class Body>
void for_each_head(const Shape& qkv, int64_t heads, const Body& body) {
  for (int64_t b = 0; b < qkv[0]; ++b)
    for (int64_t h = 0; h < heads; ++h) body(Head{b, h, heads, qkv[1], qkv[2] / 3 / heads});
}

// What is added to the scores; both may be empty.
struct Offsets {
  Values bias, mask;  // (H, T, T) and (W, T, T)

  Offsets(const TensorView& bias, const TensorView& mask) : bias(read(bias)), mask(read(mask)) {}
  double at(const Head& at, int64_t t, int64_t u) const {
    const int64_t square = at.tokens * at.tokens, place = t * at.tokens + u;
    const int64_t masks = static_cast<int64_t>(mask.size()) / square;
    return (bias.empty() ? 0 : bias[at.head * square + place]) +
           (masks == 0 ? 0 : mask[at.image % masks * square + place]);
  }
};

// q_t . k_u / sqrt(D) and what is added to it, for every u
Values scores(const Head& at, const Values& qkv, const Offsets& offsets, int64_t t) {
  Values s(static_cast<size_t>(at.tokens));
  const double scale = 1 / std::sqrt(static_cast<double>(at.size));
  for (int64_t u = 0; u < at.tokens; ++u)
    s[u] = scale * dot(&qkv[at.q(t)], &qkv[at.k(u)], at.size) + offsets.at(at, t, u);
  return s;
}

double log_sum_exp(const Values& s) {
  const double top = *std::max_element(s.begin(), s.end());
  double sum = 0;
  for (double x : s) sum += std::exp(x - top);
  return top + std::log(sum);
}

}  // namespace

void run(const Attention& op, const Operands& io) {
  const auto& [heads, drop, site] = op;
  const Values qkv = read(io.in[Attention::kQkv]);
  const DropMask mask(at(io.in, Attention::kRng), drop, site);
  const Offsets offsets(at(io.in, Attention::kBias), at(io.in, Attention::kMask));
  const Shape& shape = io.in[Attention::kQkv].shape;
  Values y(qkv.size() / 3), lse(static_cast<size_t>(shape[0] * heads * shape[1]));
  for_each_head(shape, heads, [&](const Head& at) {
    const int64_t per_row = draws_per_row(at.tokens);
    for (int64_t t = 0; t < at.tokens; ++t) {
      const Values s = scores(at, qkv, offsets, t);
      const double norm = lse[at.row(t)] = log_sum_exp(s);
      for (int64_t u = 0; u < at.tokens; ++u)
        add_scaled(&y[at.y(t)], std::exp(s[u] - norm) * mask.at(per_row, at.row(t), u),
                   &qkv[at.v(u)], at.size);
    }
  });
  write(io.out[Attention::kY], y);
  write(at(io.out, Attention::kLse), lse);
}

void run(const AttentionProbs& op, const Operands& io) {
  const auto& [heads] = op;
  const Values qkv = read(io.in[AttentionProbs::kQkv]);
  const Offsets offsets(at(io.in, AttentionProbs::kBias), at(io.in, AttentionProbs::kMask));
  Values p(static_cast<size_t>(io.out[AttentionProbs::kProbs].shape.numel()));
  for_each_head(io.in[AttentionProbs::kQkv].shape, heads, [&](const Head& at) {
    for (int64_t t = 0; t < at.tokens; ++t) {
      const Values s = scores(at, qkv, offsets, t);
      const double norm = log_sum_exp(s);
      for (int64_t u = 0; u < at.tokens; ++u) p[at.row(t) * at.tokens + u] = std::exp(s[u] - norm);
    }
  });
  write(io.out[AttentionProbs::kProbs], p);
}

void run(const AttentionProbsGrad& op, const Operands& io) {
  const auto& [heads] = op;
  const Values dy = read(io.in[AttentionProbsGrad::kDy]),
               qkv = read(io.in[AttentionProbsGrad::kQkv]);
  Values d(static_cast<size_t>(io.out[AttentionProbsGrad::kDprobs].shape.numel()));
  for_each_head(io.in[AttentionProbsGrad::kQkv].shape, heads, [&](const Head& at) {
    for (int64_t t = 0; t < at.tokens; ++t)
      for (int64_t u = 0; u < at.tokens; ++u)
        d[at.row(t) * at.tokens + u] = dot(&dy[at.y(t)], &qkv[at.v(u)], at.size);
  });
  write(io.out[AttentionProbsGrad::kDprobs], d);
}

// With weights p = exp(s - lse), their dropout factors m and g_u = m_u (dy_t . v_u):
// dv_u += p_u m_u dy_t, and ds_u = p_u (g_u - sum_j p_j g_j).
void run(const AttentionBwd& op, const Operands& io) {
  const auto& [heads, drop, site] = op;
  const Values dy = read(io.in[AttentionBwd::kDy]), qkv = read(io.in[AttentionBwd::kQkv]),
               lse = read(io.in[AttentionBwd::kLse]);
  const DropMask mask(at(io.in, AttentionBwd::kRng), drop, site);
  const Offsets offsets(at(io.in, AttentionBwd::kBias), at(io.in, AttentionBwd::kMask));
  Values d(qkv.size()), dbias(offsets.bias.size());
  for_each_head(io.in[AttentionBwd::kQkv].shape, heads, [&](const Head& at) {
    const double scale = 1 / std::sqrt(static_cast<double>(at.size));
    const int64_t per_row = draws_per_row(at.tokens);
    Values p(static_cast<size_t>(at.tokens)), g(p);
    for (int64_t t = 0; t < at.tokens; ++t) {
      const Values s = scores(at, qkv, offsets, t);
      for (int64_t u = 0; u < at.tokens; ++u) {
        const double factor = mask.at(per_row, at.row(t), u);
        p[u] = std::exp(s[u] - lse[at.row(t)]);
        g[u] = factor * dot(&dy[at.y(t)], &qkv[at.v(u)], at.size);
        add_scaled(&d[at.v(u)], p[u] * factor, &dy[at.y(t)], at.size);
      }
      const double mean = dot(p.data(), g.data(), at.tokens);
      for (int64_t u = 0; u < at.tokens; ++u) {
        const double ds = p[u] * (g[u] - mean);
        if (!dbias.empty()) dbias[(at.head * at.tokens + t) * at.tokens + u] += ds;
        add_scaled(&d[at.q(t)], scale * ds, &qkv[at.k(u)], at.size);
        add_scaled(&d[at.k(u)], scale * ds, &qkv[at.q(t)], at.size);
      }
    }
  });
  write(io.out[AttentionBwd::kDqkv], d);
  write(at(io.out, AttentionBwd::kDbias), dbias);
}

}  // namespace vitrum::reference
