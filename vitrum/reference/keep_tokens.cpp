// Tokens chosen by chance: patch dropout, and what a masked autoencoder sees.
#include <algorithm>
#include <cstring>
#include <utility>

#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {

// For each token of image b whether it is chosen.
static std::vector<bool> chosen(const TensorView& rng, const TokenChoice& choice, int64_t tokens,
                                int64_t b) {
  const auto& [prefix, kept, site, dropped] = choice;
  RandomState state;
  std::memcpy(&state, rng.data, sizeof state);
  const int64_t patches = tokens - prefix;
  std::vector<std::pair<uint32_t, int64_t>> drawn;
  for (int64_t t = 0; t < patches; ++t)
    drawn.emplace_back(draw32(state, site, wide_draws_per_row(patches), b, t), prefix + t);
  std::ranges::sort(drawn);
  std::vector<bool> stays(static_cast<size_t>(tokens), false);
  for (int64_t t = 0; t < prefix; ++t) stays[static_cast<size_t>(t)] = true;
  for (int64_t i = 0; i < kept; ++i) stays[static_cast<size_t>(drawn[i].second)] = true;
  if (dropped) stays.flip();
  return stays;
}

void run(const KeepTokens& op, const Operands& io) {
  const auto& [choice] = op;
  const Shape& from = io.in[KeepTokens::kX].shape;
  const int64_t tokens = from[1], width = from[2];
  const Values x = read(io.in[KeepTokens::kX]);
  Values y, rest(static_cast<size_t>(width));
  for (int64_t b = 0; b < from[0]; ++b) {
    const std::vector<bool> stays = chosen(io.in[KeepTokens::kRng], choice, tokens, b);
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t c = 0; c < width; ++c) {
        const double value = x[(b * tokens + t) * width + c];
        if (stays[static_cast<size_t>(t)])
          y.push_back(value);
        else
          rest[c] += value;
      }
  }
  write(io.out[KeepTokens::kY], y);
  add_to(at(io.out, KeepTokens::kRest), rest);
}

void run(const PlaceTokens& op, const Operands& io) {
  const auto& [choice] = op;
  const Shape& to = io.out[PlaceTokens::kY].shape;
  const int64_t tokens = to[1], width = to[2];
  const Values x = read(io.in[PlaceTokens::kX]), fill = read(at(io.in, PlaceTokens::kFill));
  Values y;
  int64_t row = 0;
  for (int64_t b = 0; b < to[0]; ++b)
    for (const bool stays : chosen(io.in[PlaceTokens::kRng], choice, tokens, b)) {
      for (int64_t c = 0; c < width; ++c)
        y.push_back(stays ? x[row * width + c] : fill.empty() ? 0 : fill[c]);
      row += stays;
    }
  write(io.out[PlaceTokens::kY], y);
}

}  // namespace vitrum::reference
