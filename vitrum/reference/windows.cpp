// Tokens in windows: their order, and the bias by distance inside a window.
#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {

// Calls use(place in (H, T, T), place in the table) for all pairs of tokens of a window.
template <class Use>
static void for_each_pair(int64_t h, int64_t w, int64_t heads, const Use& use) {
  const int64_t tokens = h * w;
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t u = 0; u < tokens; ++u) {
        const int64_t dy = t / w - u / w + h - 1, dx = t % w - u % w + w - 1;
        use((head * tokens + t) * tokens + u, (dy * (2 * w - 1) + dx) * heads + head);
      }
}

void run(const RelativeBias& op, const Operands& io) {
  const Values table = read(io.in[0]);
  Values bias(static_cast<size_t>(io.out[0].shape.numel()));
  for_each_pair(op.window_h, op.window_w, io.out[0].shape[0],
                [&](int64_t place, int64_t row) { bias[place] = table[row]; });
  write(io.out[0], bias);
}

void run(const RelativeBiasBwd& op, const Operands& io) {
  if (!io.out[0]) return;
  const Values dy = read(io.in[0]);
  Values dtable(static_cast<size_t>(io.out[0].shape.numel()));
  for_each_pair(op.window_h, op.window_w, io.in[0].shape[0],
                [&](int64_t place, int64_t row) { dtable[row] += dy[place]; });
  add_to(io.out[0], dtable);
}

void run(const GatherTokens& op, const Operands& io) {
  const Values x = read(io.in[0]);
  const int64_t width = op.width, images = io.in[0].shape.numel() / (op.tokens * width);
  Values y;
  for (int64_t b = 0; b < images; ++b)
    for (const int32_t from : op.from)
      for (int64_t c = 0; c < width; ++c)
        y.push_back(from < 0 ? 0 : x[(b * op.tokens + from) * width + c]);
  write(io.out[0], y);
}

}  // namespace vitrum::reference
