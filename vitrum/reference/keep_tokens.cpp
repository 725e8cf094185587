// Patch dropout: which tokens of an image the model goes on with.
#include <algorithm>
#include <cstring>
#include <utility>

#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {

// The tokens of image b that stay, in their order: the first `prefix` of all, and of the others
// those that draw the smallest numbers.
static std::vector<int64_t> kept_tokens(const TensorView& rng, uint32_t site, int64_t prefix,
                                        int64_t tokens, int64_t kept, int64_t b) {
  RandomState state;
  std::memcpy(&state, rng.data, sizeof state);
  const int64_t patches = tokens - prefix;
  std::vector<std::pair<uint32_t, int64_t>> drawn;
  for (int64_t t = 0; t < patches; ++t)
    drawn.emplace_back(draw32(state, site, wide_draws_per_row(patches), b, t), prefix + t);
  std::ranges::sort(drawn);
  std::vector<int64_t> stay;
  for (int64_t t = 0; t < prefix; ++t) stay.push_back(t);
  for (int64_t i = 0; i < kept - prefix; ++i) stay.push_back(drawn[i].second);
  std::ranges::sort(stay);
  return stay;
}

void run(const KeepTokens& op, const Operands& io) {
  const auto& [prefix, site] = op;
  const Shape &from = io.in[KeepTokens::kX].shape, &to = io.out[KeepTokens::kY].shape;
  const Values x = read(io.in[KeepTokens::kX]);
  Values y;
  for (int64_t b = 0; b < from[0]; ++b)
    for (const int64_t t : kept_tokens(io.in[KeepTokens::kRng], site, prefix, from[1], to[1], b))
      for (int64_t c = 0; c < from[2]; ++c) y.push_back(x[(b * from[1] + t) * from[2] + c]);
  write(io.out[KeepTokens::kY], y);
}

void run(const KeepTokensBwd& op, const Operands& io) {
  const auto& [prefix, site] = op;
  const Shape &from = io.in[KeepTokensBwd::kDy].shape, &to = io.out[KeepTokensBwd::kDx].shape;
  const Values dy = read(io.in[KeepTokensBwd::kDy]);
  Values dx(static_cast<size_t>(to.numel()));
  int64_t row = 0;
  for (int64_t b = 0; b < from[0]; ++b)
    for (const int64_t t :
         kept_tokens(io.in[KeepTokensBwd::kRng], site, prefix, to[1], from[1], b)) {
      for (int64_t c = 0; c < to[2]; ++c) dx[(b * to[1] + t) * to[2] + c] = dy[row * to[2] + c];
      ++row;
    }
  write(io.out[KeepTokensBwd::kDx], dx);
}

}  // namespace vitrum::reference
