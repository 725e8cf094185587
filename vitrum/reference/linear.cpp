#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {

void run(const Linear& op, const Operands& io) {
  const TensorView x = io.in[0], w = io.in[1], y = io.out[0], saved = at(io.out, 1);
  const int64_t rows = x.shape.rows(), n = w.shape[0], k = w.shape[1];
  const DType dtype = y ? y.dtype : saved.dtype;

  Values v = matmul(read(x), transpose(read(w), n, k), rows, k, n);
  const Values bias = read(at(io.in, 2));
  for (size_t i = 0; i < v.size() && !bias.empty(); ++i) v[i] += bias[i % bias.size()];
  round_all(v, dtype);
  write(saved, v);

  const DropMask mask(at(io.in, 3), op.drop, op.site);
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = rounded(activate(op.act, v[i]), dtype) * mask.at(static_cast<int64_t>(i));
  write(y, v);
}

// The gradient before activation and dropout, rounded after each as their own backward ops would.
static Values pre_activation_gradient(const LinearBwd& op, const Operands& io) {
  const DType dtype = io.in[0].dtype;
  Values d = read(io.in[0]);
  const Values saved = read(at(io.in, 3));
  // The output of ReLU is positive exactly where it was active and kept: no draw is needed.
  const bool by_output = op.act == Act::kRelu;
  const DropMask mask(at(io.in, 4), by_output ? 0 : op.drop, op.site);
  for (size_t i = 0; i < d.size(); ++i) {
    const double kept =
        by_output ? (op.drop > 0 ? keep_scale(op.drop) : 1) : mask.at(static_cast<int64_t>(i));
    d[i] = rounded(d[i] * kept, dtype);
    if (op.act != Act::kNone) d[i] = rounded(d[i] * activation_slope(op.act, saved[i]), dtype);
  }
  return d;
}

void run(const LinearBwd& op, const Operands& io) {
  const TensorView dy = io.in[0], x = io.in[1], w = io.in[2];
  const TensorView dx = io.out[0], dw = at(io.out, 1), dbias = at(io.out, 2);
  const int64_t rows = dy.shape.rows(), n = w.shape[0], k = w.shape[1];

  const Values d = pre_activation_gradient(op, io);
  if (dx) write(dx, matmul(d, read(w), rows, n, k));
  if (dw) add_to(dw, matmul(transpose(d, rows, n), read(x), n, rows, k));
  if (dbias) add_to(dbias, sum_rows(d, n));
}

}  // namespace vitrum::reference
