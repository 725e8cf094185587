// Attention of one query, and rows of a table by number.
#include <algorithm>
#include <cmath>

#include "vitrum/core/rows.h"
#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {
namespace {

// Where the pieces of one head of one image lie in kv (B, T, 2, H, D); `at` in q (H, D), and in y
// (B, H, D) behind those of the images before.
struct Head {
  int64_t image, head, heads, tokens, size;

  int64_t k(int64_t t) const { return ((image * tokens + t) * 2 * heads + head) * size; }
  int64_t v(int64_t t) const { return k(t) + heads * size; }
  int64_t q() const { return head * size; }
  int64_t y() const { return (image * heads + head) * size; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(size)); }
};

template <class Body>
void for_each_head(const Shape& kv, int64_t heads, const Body& body) {
  for (int64_t b = 0; b < kv[0]; ++b)
    for (int64_t h = 0; h < heads; ++h) body(Head{b, h, heads, kv[1], kv[2] / 2 / heads});
}

// How much of each token the query takes.
Values weights(const Head& at, const Values& kv, const Values& q) {
  Values p(static_cast<size_t>(at.tokens));
  for (int64_t t = 0; t < at.tokens; ++t)
    p[t] = at.scale() * dot(&q[at.q()], &kv[at.k(t)], at.size);
  const double top = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - top);
  for (double& x : p) x /= sum;
  return p;
}

}  // namespace

void run(const AttendPool& op, const Operands& io) {
  const auto& [heads] = op;
  const Values kv = read(io.in[AttendPool::kKv]), q = read(io.in[AttendPool::kQ]);
  Values y(static_cast<size_t>(io.out[AttendPool::kY].shape.numel()));
  for_each_head(io.in[AttendPool::kKv].shape, heads, [&](const Head& at) {
    const Values p = weights(at, kv, q);
    for (int64_t t = 0; t < at.tokens; ++t) add_scaled(&y[at.y()], p[t], &kv[at.v(t)], at.size);
  });
  write(io.out[AttendPool::kY], y);
}

// As AttentionBwd: with g_t = dy . v_t, the gradient of score t is p_t (g_t - sum_j p_j g_j).
void run(const AttendPoolBwd& op, const Operands& io) {
  const auto& [heads] = op;
  const Values dy = read(io.in[AttendPoolBwd::kDy]), kv = read(io.in[AttendPoolBwd::kKv]),
               q = read(io.in[AttendPoolBwd::kQ]);
  Values dkv(kv.size()), dq(q.size());
  for_each_head(io.in[AttendPoolBwd::kKv].shape, heads, [&](const Head& at) {
    const Values p = weights(at, kv, q);
    Values g(p.size());
    for (int64_t t = 0; t < at.tokens; ++t) {
      g[t] = dot(&dy[at.y()], &kv[at.v(t)], at.size);
      add_scaled(&dkv[at.v(t)], p[t], &dy[at.y()], at.size);
    }
    const double mean = dot(p.data(), g.data(), at.tokens);
    for (int64_t t = 0; t < at.tokens; ++t) {
      const double ds = at.scale() * p[t] * (g[t] - mean);
      add_scaled(&dkv[at.k(t)], ds, &q[at.q()], at.size);
      add_scaled(&dq[at.q()], ds, &kv[at.k(t)], at.size);
    }
  });
  write(at(io.out, AttendPoolBwd::kDkv), dkv);
  write(at(io.out, AttendPoolBwd::kDq), dq);
}

void run(const NoAttributes<Lookup>&, const Operands& io) {
  const Values table = read(io.in[Lookup::kTable]);
  const TensorView ids = io.in[Lookup::kIds];
  const int64_t width = io.in[Lookup::kTable].shape[-1];
  Values y;
  for (int64_t i = 0; i < ids.shape.numel(); ++i) {
    const auto row = table.begin() + ids.i32()[i] * width;
    y.insert(y.end(), row, row + width);
  }
  write(io.out[Lookup::kY], y);
}

}  // namespace vitrum::reference
