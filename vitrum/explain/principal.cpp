#include "vitrum/explain/principal.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "vitrum/core/philox.h"
#include "vitrum/core/rows.h"

namespace vitrum {
namespace {

// Row by row.
struct Matrix {
  size_t rows = 0, columns = 0;
  std::vector<double> values;

  Matrix(size_t r, size_t c) : rows(r), columns(c), values(r * c, 0.0) {}
  double* row(size_t i) { return values.data() + i * columns; }
  const double* row(size_t i) const { return values.data() + i * columns; }
};

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.columns);
  for (size_t i = 0; i < a.rows; ++i)
    for (size_t k = 0; k < a.columns; ++k) add_scaled(c.row(i), a.row(i)[k], b.row(k), b.columns);
  return c;
}

Matrix product_transposed(const Matrix& a, const Matrix& b) {  // a b^T
  Matrix c(a.rows, b.rows);
  for (size_t i = 0; i < a.rows; ++i)
    for (size_t j = 0; j < b.rows; ++j) c.row(i)[j] = dot(a.row(i), b.row(j), a.columns);
  return c;
}

Matrix transposed(const Matrix& a) {
  Matrix t(a.columns, a.rows);
  for (size_t i = 0; i < a.rows; ++i)
    for (size_t j = 0; j < a.columns; ++j) t.row(j)[i] = a.row(i)[j];
  return t;
}

// Rows become orthonormal (Gram-Schmidt, twice for the digits that the first time loses); one that
// depends on those before it becomes zero.
void orthonormalize(Matrix& q) {
  for (size_t i = 0; i < q.rows; ++i) {
    const double before = std::sqrt(dot(q.row(i), q.row(i), q.columns));
    for (int time = 0; time < 2; ++time)
      for (size_t j = 0; j < i; ++j)
        add_scaled(q.row(i), -dot(q.row(i), q.row(j), q.columns), q.row(j), q.columns);
    const double after = std::sqrt(dot(q.row(i), q.row(i), q.columns));
    const double factor = after > 1e-12 * before && after > 0 ? 1 / after : 0;
    for (size_t k = 0; k < q.columns; ++k) q.row(i)[k] *= factor;
  }
}

// Jacobi's method for a small symmetric matrix, which becomes diagonal; returns eigenvectors as
// rows, the largest eigenvalue first.
Matrix diagonalize(Matrix& a) {
  const size_t n = a.rows;
  Matrix v(n, n);
  for (size_t i = 0; i < n; ++i) v.row(i)[i] = 1;
  double all = dot(a.values.data(), a.values.data(), a.values.size());
  for (int sweep = 0; sweep < 60; ++sweep) {
    double off = 0;
    for (size_t p = 0; p < n; ++p)
      for (size_t q = p + 1; q < n; ++q) {
        const double apq = a.row(p)[q];
        off += apq * apq;
        if (apq == 0) continue;
        const double theta = (a.row(q)[q] - a.row(p)[p]) / (2 * apq);
        const double t = (theta >= 0 ? 1 : -1) / (std::fabs(theta) + std::hypot(theta, 1.0)),
                     c = 1 / std::hypot(t, 1.0), s = t * c;
        for (size_t k = 0; k < n; ++k) {
          const double x = a.row(k)[p], y = a.row(k)[q];
          a.row(k)[p] = c * x - s * y, a.row(k)[q] = s * x + c * y;
        }
        for (Matrix* m : {&a, &v})
          for (size_t k = 0; k < n; ++k) {
            const double x = m->row(p)[k], y = m->row(q)[k];
            m->row(p)[k] = c * x - s * y, m->row(q)[k] = s * x + c * y;
          }
      }
    if (off <= 1e-28 * all) break;
  }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t i, size_t j) { return a.row(i)[i] > a.row(j)[j]; });
  Matrix sorted(n, n), values(n, n);
  for (size_t i = 0; i < n; ++i) {
    std::copy_n(v.row(order[i]), n, sorted.row(i));
    values.row(i)[i] = a.row(order[i])[order[i]];
  }
  a = std::move(values);
  return sorted;
}

// Subspace iteration on a symmetric matrix without negative eigenvalues: eigenvectors as rows. More
// rows than wanted are carried along, so that what lies beyond fades quickly.
Matrix largest_eigenvectors(const Matrix& s, size_t count) {
  constexpr int kRounds = 300;
  constexpr double kEnough = 1e-9;  // residual, relative to the largest eigenvalue
  Matrix q(std::min(s.rows, 2 * count + 8), s.rows);
  PhiloxStream draw(0, 0, 0);
  for (double& x : q.values) x = draw.normal();
  orthonormalize(q);
  for (int round = 0; round < kRounds; ++round) {
    Matrix image = product(q, s);
    Matrix small = product_transposed(image, q);
    const Matrix turn = diagonalize(small);
    q = product(turn, q), image = product(turn, image);
    double worst = 0;
    for (size_t i = 0; i < count; ++i) {
      std::vector<double> rest(image.row(i), image.row(i) + image.columns);
      add_scaled(rest.data(), -small.row(i)[i], q.row(i), rest.size());
      worst = std::max(worst, std::sqrt(dot(rest.data(), rest.data(), rest.size())));
    }
    if (worst <= kEnough * small.row(0)[0]) break;
    q = std::move(image);
    orthonormalize(q);
  }
  return q;
}

}  // namespace

Components principal_components(std::span<const float> samples, size_t rows, size_t columns,
                                size_t count) {
  Matrix x(rows, columns);
  std::copy(samples.begin(), samples.end(), x.values.begin());
  for (size_t j = 0; j < columns; ++j) {
    double mean = 0;
    for (size_t i = 0; i < rows; ++i) mean += x.row(i)[j] / static_cast<double>(rows);
    for (size_t i = 0; i < rows; ++i) x.row(i)[j] -= mean;
  }
  count = std::min({count, rows, columns});
  // The smaller of x x^T and x^T x; an eigenvector u of the first is x^T u of the second.
  const bool by_samples = rows < columns;
  const Matrix t = transposed(x);
  const Matrix gram = by_samples ? product_transposed(x, x) : product_transposed(t, t);
  Matrix found = largest_eigenvectors(gram, count);
  if (by_samples) found = product(found, x);
  Components out;
  for (size_t i = 0; i < count; ++i) {
    double* v = found.row(i);
    const auto by_size = [](double a, double b) { return std::fabs(a) < std::fabs(b); };
    const double largest = *std::max_element(v, v + columns, by_size);
    const double length = std::sqrt(dot(v, v, columns));
    const double factor = length > 0 ? (largest < 0 ? -1 : 1) / length : 0;
    for (size_t j = 0; j < columns; ++j) out.vectors.push_back(v[j] * factor);
    double variance = 0;
    for (size_t r = 0; r < rows; ++r) {
      const double along = dot(x.row(r), out.vectors.data() + i * columns, columns);
      variance += along * along / static_cast<double>(rows);
    }
    out.variances.push_back(variance);
  }
  return out;
}

}  // namespace vitrum
