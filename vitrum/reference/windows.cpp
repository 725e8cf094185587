// Tokens in windows: their order, and the bias by distance inside a window.
#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {

// Calls use(place in (H, T, T), place in the table) for all pairs of tokens.
template <class Use>
static void for_each_pair(int64_t h, int64_t w, int64_t prefix, int64_t heads, const Use& use) {
  const int64_t tokens = prefix + h * w, distances = (2 * h - 1) * (2 * w - 1);
  const auto row_of = [&](int64_t t, int64_t u) {
    if (t < prefix || u < prefix) return distances + (u >= prefix ? 0 : t >= prefix ? 1 : 2);
    t -= prefix, u -= prefix;
    return (t / w - u / w + h - 1) * (2 * w - 1) + t % w - u % w + w - 1;
  };
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t u = 0; u < tokens; ++u)
        use((head * tokens + t) * tokens + u, row_of(t, u) * heads + head);
}

void run(const RelativeBias& op, const Operands& io) {
  const auto& [window_h, window_w, prefix] = op;
  const Values table = read(io.in[RelativeBias::kTable]);
  Values bias(static_cast<size_t>(io.out[RelativeBias::kBias].shape.numel()));
  for_each_pair(window_h, window_w, prefix, io.out[RelativeBias::kBias].shape[0],
                [&](int64_t place, int64_t row) { bias[place] = table[row]; });
  write(io.out[RelativeBias::kBias], bias);
}

void run(const RelativeBiasBwd& op, const Operands& io) {
  const auto& [window_h, window_w, prefix] = op;
  if (!io.out[RelativeBiasBwd::kDtable]) return;
  const Values dy = read(io.in[RelativeBiasBwd::kDy]);
  Values dtable(static_cast<size_t>(io.out[RelativeBiasBwd::kDtable].shape.numel()));
  for_each_pair(window_h, window_w, prefix, io.in[RelativeBiasBwd::kDy].shape[0],
                [&](int64_t place, int64_t row) { dtable[row] += dy[place]; });
  add_to(io.out[RelativeBiasBwd::kDtable], dtable);
}

void run(const GatherTokens& op, const Operands& io) {
  const auto& [tokens, width, from] = op;
  const Values x = read(io.in[GatherTokens::kX]);
  const int64_t images = io.in[GatherTokens::kX].shape.numel() / (tokens * width);
  Values y;
  for (int64_t b = 0; b < images; ++b)
    for (const int32_t token : from)
      for (int64_t c = 0; c < width; ++c)
        y.push_back(token < 0 ? 0 : x[(b * tokens + token) * width + c]);
  write(io.out[GatherTokens::kY], y);
}

}  // namespace vitrum::reference
