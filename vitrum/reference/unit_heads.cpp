// Heads of unit length: cosine attention.
#include <algorithm>
#include <cmath>

#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {
namespace {

constexpr double kLeast = 1e-12;
const double kMostScale = std::log(100.0);

struct Heads {
  int64_t heads, parts, unit, dim;
  Heads(int64_t heads, int64_t parts, int64_t unit, const Shape& x)
      : heads(heads), parts(parts), unit(unit), dim(x[-1] / (parts * heads)) {}

  // use(first element, part, head) for every head of x.
  template <class Use>
  void for_each(const Values& x, const Use& use) const {
    for (int64_t h = 0; h * dim < static_cast<int64_t>(x.size()); ++h)
      use(h * dim, h / heads % parts, h % heads);
  }
  double length(const Values& x, int64_t first) const {
    double squares = 0;
    for (int64_t i = first; i < first + dim; ++i) squares += x[i] * x[i];
    return std::sqrt(squares);
  }
  double factor(const Values& scale, int64_t part, int64_t head) const {
    if (part > 0 || scale.empty()) return 1;
    return std::sqrt(static_cast<double>(dim)) * std::exp(std::min(scale[head], kMostScale));
  }
};

}  // namespace

void run(const UnitHeads& op, const Operands& io) {
  const auto& [heads, parts, unit] = op;
  const Heads of(heads, parts, unit, io.in[UnitHeads::kX].shape);
  const Values x = read(io.in[UnitHeads::kX]), scale = read(at(io.in, UnitHeads::kScale));
  Values y = x;
  of.for_each(x, [&](int64_t first, int64_t part, int64_t head) {
    if (part >= of.unit) return;
    const double factor = of.factor(scale, part, head) / std::max(of.length(x, first), kLeast);
    for (int64_t i = first; i < first + of.dim; ++i) y[i] *= factor;
  });
  write(io.out[UnitHeads::kY], y);
}

void run(const UnitHeadsBwd& op, const Operands& io) {
  const auto& [heads, parts, unit] = op;
  const Heads of(heads, parts, unit, io.in[UnitHeadsBwd::kX].shape);
  const Values dy = read(io.in[UnitHeadsBwd::kDy]), x = read(io.in[UnitHeadsBwd::kX]),
               scale = read(at(io.in, UnitHeadsBwd::kScale));
  Values dx = dy, dscale(scale.size());
  of.for_each(x, [&](int64_t first, int64_t part, int64_t head) {
    if (part >= of.unit) return;
    const double length = of.length(x, first), reciprocal = 1 / std::max(length, kLeast);
    const double factor = of.factor(scale, part, head);
    double along = 0;  // dy in the direction of x
    for (int64_t i = first; i < first + of.dim; ++i) along += dy[i] * x[i] * reciprocal;
    if (part == 0 && !scale.empty() && scale[head] <= kMostScale) dscale[head] += factor * along;
    if (length < kLeast) along = 0;
    for (int64_t i = first; i < first + of.dim; ++i)
      dx[i] = factor * reciprocal * (dy[i] - along * x[i] * reciprocal);
  });
  write(io.out[UnitHeadsBwd::kDx], dx);
  add_to(at(io.out, UnitHeadsBwd::kDscale), dscale);
}

}  // namespace vitrum::reference
