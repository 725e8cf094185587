#include <algorithm>
#include <cmath>

#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {
namespace {

// x (m, n) with m <= n: x <- a x + (b A + c A A) x with A = x x^T. The coefficients take singular
// values from anywhere in (0, 1] to about 1 in five steps; they are Keller Jordan's.
Values newton_schulz(Values x, int64_t m, int64_t n) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  for (int step = 0; step < 5; ++step) {
    const Values gram = matmul(x, transpose(x, m, n), m, n, m);
    Values factor = matmul(gram, gram, m, m, m);
    for (size_t i = 0; i < factor.size(); ++i) factor[i] = kC * factor[i] + kB * gram[i];
    for (int64_t i = 0; i < m; ++i) factor[static_cast<size_t>(i * m + i)] += kA;
    x = matmul(factor, x, m, m, n);
  }
  return x;
}

Values orthogonalized(Values x, const MatrixSegment& matrix) {
  const bool tall = matrix.rows > matrix.columns;
  double squares = 0;
  for (double v : x) squares += v * v;
  for (double& v : x) v /= std::max(std::sqrt(squares), 1e-7);
  if (!tall) return newton_schulz(std::move(x), matrix.rows, matrix.columns);
  x = newton_schulz(transpose(x, matrix.rows, matrix.columns), matrix.columns, matrix.rows);
  return transpose(x, matrix.columns, matrix.rows);
}

}  // namespace

void run(const Orthogonalize& op, const Operands& io) {
  const auto& [momentum, nesterov, bf16, matrices] = op;
  const Values clip = read(at(io.in, Orthogonalize::kClip));
  Values g = read(io.out[Orthogonalize::kGradients]), m = read(io.out[Orthogonalize::kMomentum]);
  for (const MatrixSegment& matrix : matrices) {
    const auto first = static_cast<size_t>(matrix.offset);
    Values x(static_cast<size_t>(matrix.rows * matrix.columns));
    for (size_t i = 0; i < x.size(); ++i) {
      const double d = g[first + i] * (clip.empty() ? 1 : clip[1]);
      double& moment = m[first + i];
      moment = momentum * moment + (1 - momentum) * d;
      x[i] = nesterov ? momentum * moment + (1 - momentum) * d : moment;
    }
    x = orthogonalized(std::move(x), matrix);
    for (size_t i = 0; i < x.size(); ++i) g[first + i] = matrix.scale * x[i];
  }
  write(io.out[Orthogonalize::kGradients], g), write(io.out[Orthogonalize::kMomentum], m);
}

}  // namespace vitrum::reference
