// Gated activations: one half of a row decides how much of the other goes on.
#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {

void run(const Gate& op, const Operands& io) {
  const auto& [act] = op;
  const Values x = read(io.in[Gate::kX]);
  const int64_t width = io.out[Gate::kY].shape[-1], rows = io.out[Gate::kY].shape.rows();
  Values y;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < width; ++i)
      y.push_back(activate(act, x[2 * row * width + i]) * x[(2 * row + 1) * width + i]);
  write(io.out[Gate::kY], y);
}

void run(const GateBwd& op, const Operands& io) {
  const auto& [act] = op;
  const Values dy = read(io.in[GateBwd::kDy]), x = read(io.in[GateBwd::kX]);
  const int64_t width = io.in[GateBwd::kDy].shape[-1], rows = io.in[GateBwd::kDy].shape.rows();
  Values dx(x.size());
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < width; ++i) {
      const int64_t gate = 2 * row * width + i, value = gate + width;
      const double d = dy[row * width + i];
      dx[gate] = d * x[value] * activation_slope(act, x[gate]);
      dx[value] = d * activate(act, x[gate]);
    }
  write(io.out[GateBwd::kDx], dx);
}

}  // namespace vitrum::reference
