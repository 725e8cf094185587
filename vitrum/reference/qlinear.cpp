#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "vitrum/core/e4m3.h"
#include "vitrum/core/eight_bits.h"
#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {
namespace {

struct WeightRow {
  std::vector<int8_t> bytes;
  float scale = 0;
  int32_t sum = 0;
};

WeightRow weight_row(std::span<const double> w) {
  const std::vector<float> single(w.begin(), w.end());
  WeightRow row{.bytes = std::vector<int8_t>(w.size())};
  row.scale = round_weights(single, row.bytes.data());
  row.sum = std::accumulate(row.bytes.begin(), row.bytes.end(), int32_t{0});
  return row;
}

struct ActivationRow {
  std::vector<uint8_t> bytes;
  ByteRange range;
};

ActivationRow activation_row(const double* x, int64_t count) {
  float low = 0, high = 0, whole = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(x[i]);
    low = std::min(low, value), high = std::max(high, value);
    whole += value * 0;  // NaN where one is not finite
  }
  ActivationRow row{.bytes = {}, .range = byte_range(low + whole, high + whole)};
  for (int64_t i = 0; i < count; ++i)
    row.bytes.push_back(activation_byte(static_cast<float>(x[i]), row.range));
  return row;
}

// Weights that are bytes already, with scales that are known.
std::vector<WeightRow> byte_rows(const TensorView& w, std::span<const float> scales) {
  std::vector<WeightRow> rows;
  const auto* from = static_cast<const int8_t*>(w.data);
  for (const float scale : scales) {
    WeightRow& row = rows.emplace_back(WeightRow{{from, from + w.shape[1]}, scale});
    row.sum = std::accumulate(row.bytes.begin(), row.bytes.end(), int32_t{0});
    from += w.shape[1];
  }
  return rows;
}

std::vector<WeightRow> weight_rows(const TensorView& w, const PackedParams* packed) {
  if (w.dtype == DType::kI8) return byte_rows(w, packed->scales(w.data));
  const Values values = read(w);
  std::vector<WeightRow> rows;
  for (int64_t j = 0; j < w.shape[0]; ++j)
    rows.push_back(weight_row(std::span(values).subspan(static_cast<size_t>(j * w.shape[1]),
                                                        static_cast<size_t>(w.shape[1]))));
  return rows;
}

// A row of weights as e4m3 has it.
Values e4m3_weights(const TensorView& w, const PackedParams* packed) {
  const auto width = static_cast<size_t>(w.shape[1]);
  Values values = read(w);
  for (size_t j = 0; j < values.size(); j += width) {
    if (w.dtype == DType::kE4M3) {
      const double scale = packed->scales(w.data)[j / width];
      for (size_t k = j; k < j + width; ++k) values[k] *= scale;
      continue;
    }
    const std::vector<float> row(values.begin() + static_cast<ptrdiff_t>(j),
                                 values.begin() + static_cast<ptrdiff_t>(j + width));
    std::vector<uint8_t> bytes(width);
    const double scale = round_weights_e4m3(row, bytes.data());
    for (size_t k = 0; k < width; ++k)
      values[j + k] = static_cast<double>(from_e4m3(bytes[k])) * scale;
  }
  return values;
}

void run_e4m3(const QLinear& op, const Operands& io) {
  const auto& [act, scale] = op;
  const TensorView x = io.in[QLinear::kX], w = io.in[QLinear::kWeight], y = io.out[QLinear::kY];
  const int64_t rows = x.shape.rows(), k = w.shape[1], columns = w.shape[0];
  Values from = read(x);
  for (double& v : from) v *= static_cast<double>(scale);
  Values v = matmul(from, transpose(e4m3_weights(w, io.packed), columns, k), rows, k, columns);
  const Values bias = read(at(io.in, QLinear::kBias));
  for (size_t i = 0; i < v.size(); ++i) {
    if (!bias.empty()) v[i] += bias[i % bias.size()];
    v[i] = activate(act, rounded(v[i], y.dtype));
  }
  write(y, v);
}

}  // namespace

void run(const ToE4M3& op, const Operands& io) {
  const auto& [scale] = op;
  Values v = read(io.in[ToE4M3::kX]);
  for (double& x : v) x /= static_cast<double>(scale);
  write(io.out[ToE4M3::kY], v);
}

void run(const QLinear& op, const Operands& io) {
  const auto& [act, scale] = op;
  if (scale > 0) return run_e4m3(op, io);
  const TensorView x = io.in[QLinear::kX], w = io.in[QLinear::kWeight], y = io.out[QLinear::kY];
  const int64_t rows = x.shape.rows(), k = w.shape[1];
  const Values from = read(x), bias = read(at(io.in, QLinear::kBias));
  const std::vector<WeightRow> columns = weight_rows(w, io.packed);
  Values v;
  for (int64_t i = 0; i < rows; ++i) {
    const ActivationRow row = activation_row(from.data() + i * k, k);
    for (size_t j = 0; j < columns.size(); ++j) {
      int32_t sum = 0;
      for (size_t d = 0; d < row.bytes.size(); ++d) sum += row.bytes[d] * columns[j].bytes[d];
      // In single precision, as everywhere: the bytes of the next layer hang on every bit.
      float value = byte_product(sum, columns[j].sum, row.range, columns[j].scale);
      if (!bias.empty()) value += static_cast<float>(bias[j]);
      v.push_back(rounded(activate(act, rounded(static_cast<double>(value), y.dtype)), y.dtype));
    }
  }
  write(y, v);
}

}  // namespace vitrum::reference
