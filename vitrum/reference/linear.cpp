#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {

void run(const Linear& op, const Operands& io) {
  const auto& [act, drop, site] = op;
  const TensorView x = io.in[Linear::kX], w = io.in[Linear::kWeight], y = io.out[Linear::kY],
                   saved = at(io.out, Linear::kSaved);
  const int64_t rows = x.shape.rows(), n = w.shape[0], k = w.shape[1];
  const DType dtype = y ? y.dtype : saved.dtype;

  Values v = matmul(read(x), transpose(read(w), n, k), rows, k, n);
  const Values bias = read(at(io.in, Linear::kBias));
  for (size_t i = 0; i < v.size() && !bias.empty(); ++i) v[i] += bias[i % bias.size()];
  round_all(v, dtype);
  write(saved, v);

  const DropMask mask(at(io.in, Linear::kRng), drop, site);
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = rounded(activate(act, v[i]), dtype) * mask.at(static_cast<int64_t>(i));
  write(y, v);
}

// The gradient before activation and dropout, rounded after each as their own backward ops would.
static Values pre_activation_gradient(const LinearBwd& op, const Operands& io) {
  const auto& [act, drop, site] = op;
  const DType dtype = io.in[LinearBwd::kDy].dtype;
  Values d = read(io.in[LinearBwd::kDy]);
  const Values saved = read(at(io.in, LinearBwd::kSaved));
  // The output of ReLU is positive exactly where it was active and kept: no draw is needed.
  const bool by_output = act == Act::kRelu;
  const DropMask mask(at(io.in, LinearBwd::kRng), by_output ? 0 : drop, site);
  for (size_t i = 0; i < d.size(); ++i) {
    const double kept =
        by_output ? (drop > 0 ? keep_scale(drop) : 1) : mask.at(static_cast<int64_t>(i));
    d[i] = rounded(d[i] * kept, dtype);
    if (act != Act::kNone) d[i] = rounded(d[i] * activation_slope(act, saved[i]), dtype);
  }
  return d;
}

void run(const LinearBwd& op, const Operands& io) {
  [[maybe_unused]] const auto& [act, drop, site] = op;
  const TensorView dy = io.in[LinearBwd::kDy], x = io.in[LinearBwd::kX],
                   w = io.in[LinearBwd::kWeight];
  const TensorView dx = io.out[LinearBwd::kDx], dw = at(io.out, LinearBwd::kDweight),
                   dbias = at(io.out, LinearBwd::kDbias);
  const int64_t rows = dy.shape.rows(), n = w.shape[0], k = w.shape[1];

  const Values d = pre_activation_gradient(op, io);
  if (dx) write(dx, matmul(d, read(w), rows, n, k));
  if (dw) add_to(dw, matmul(transpose(d, rows, n), read(x), n, rows, k));
  if (dbias) add_to(dbias, sum_rows(d, n));
}

}  // namespace vitrum::reference
