#include "vitrum/reference/values.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "vitrum/core/e4m3.h"

namespace vitrum::reference {

TensorView at(const std::vector<TensorView>& operands, size_t i) {
  return i < operands.size() ? operands[i] : TensorView{};
}

Values read(const TensorView& from) {
  if (!from) return {};
  const int64_t n = from.shape.numel();
  Values out(static_cast<size_t>(n));
  switch (from.dtype) {
    case DType::kF32: std::copy_n(from.f32(), n, out.begin()); break;
    case DType::kF64: std::copy_n(from.f64(), n, out.begin()); break;
    case DType::kU8: std::copy_n(from.u8(), n, out.begin()); break;
    case DType::kI32: std::copy_n(from.i32(), n, out.begin()); break;
    case DType::kBF16: std::transform(from.bf16(), from.bf16() + n, out.begin(), from_bf16); break;
    case DType::kE4M3: std::transform(from.e4m3(), from.e4m3() + n, out.begin(), from_e4m3); break;
    case DType::kF16:
    case DType::kI8:
    case DType::kI64: assert(!"no op has operands of this dtype"); break;
  }
  return out;
}

void write(const TensorView& to, const Values& values) {
  if (!to) return;
  assert(to.shape.numel() == static_cast<int64_t>(values.size()));
  switch (to.dtype) {
    case DType::kF32:
      std::transform(values.begin(), values.end(), to.f32(),
                     [](double x) { return static_cast<float>(x); });
      break;
    case DType::kF64: std::copy(values.begin(), values.end(), to.f64()); break;
    case DType::kBF16:
      std::transform(values.begin(), values.end(), to.bf16(),
                     [](double x) { return to_bf16(static_cast<float>(x)); });
      break;
    case DType::kE4M3:
      std::transform(values.begin(), values.end(), to.e4m3(),
                     [](double x) { return to_e4m3(static_cast<float>(x)); });
      break;
    case DType::kI32:
      std::transform(values.begin(), values.end(), to.i32(),
                     [](double x) { return static_cast<int32_t>(x); });
      break;
    case DType::kU8:
      std::transform(values.begin(), values.end(), to.u8(),
                     [](double x) { return static_cast<uint8_t>(x); });
      break;
    default: assert(!"no op has results of this dtype"); break;
  }
}

void add_to(const TensorView& to, const Values& values) {
  Values sum = read(to);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  write(to, sum);
}

double rounded(double x, DType dtype) {
  if (dtype == DType::kF64) return x;
  const auto single = static_cast<float>(x);
  return dtype == DType::kBF16 ? from_bf16(to_bf16(single)) : single;
}

void round_all(Values& values, DType dtype) {
  for (double& x : values) x = rounded(x, dtype);
}

Values transpose(const Values& a, int64_t rows, int64_t cols) {
  Values out(a.size());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) out[j * rows + i] = a[i * cols + j];
  return out;
}

// In strips of columns, so that a strip of `b` stays in the cache while all rows of `a` pass over
// it.
Values matmul(const Values& a, const Values& b, int64_t m, int64_t k, int64_t n) {
  constexpr int64_t kStrip = 64;
  Values out(static_cast<size_t>(m * n));
  for (int64_t begin = 0; begin < n; begin += kStrip) {
    const int64_t width = std::min(kStrip, n - begin);
    for (int64_t i = 0; i < m; ++i) {
      double sum[kStrip] = {};
      for (int64_t p = 0; p < k; ++p) {
        const double factor = a[i * k + p];
        const double* row = &b[p * n + begin];
        if (width == kStrip)
          for (int64_t j = 0; j < kStrip; ++j) sum[j] += factor * row[j];
        else
          for (int64_t j = 0; j < width; ++j) sum[j] += factor * row[j];
      }
      std::copy_n(sum, width, &out[i * n + begin]);
    }
  }
  return out;
}

Values sum_rows(const Values& a, int64_t cols) {
  Values sum(static_cast<size_t>(cols));
  for (size_t i = 0; i < a.size(); ++i) sum[i % sum.size()] += a[i];
  return sum;
}

DropMask::DropMask(const TensorView& rng, float drop, uint32_t site) : drop_(drop), site_(site) {
  assert(drop == 0 || (rng && rng.bytes() == sizeof rng_));
  if (rng) std::memcpy(&rng_, rng.data, sizeof rng_);
}

double DropMask::at(int64_t per_row, int64_t row, int64_t u) const {
  if (drop_ == 0) return 1;
  return draw16(rng_, site_, per_row, row, u) < keep_threshold(drop_) ? keep_scale(drop_) : 0;
}

}  // namespace vitrum::reference
