// Heads of unit length: cosine attention.
#include "vitrum/cpu/simd/unit_heads.h"

#include <cmath>

#include "vitrum/cpu/backend.h"

namespace vitrum::cpu {
namespace {

const double kMostScale = std::log(100.0);

// sqrt(D) exp(min(scale, ln 100)) of every head.
class Factors {
 public:
  Factors(const TensorView& scale, int64_t heads, int64_t dim)
      : scale_(f32_only(scale)),
        root_(std::sqrt(static_cast<double>(dim))),
        values_(scale_ ? static_cast<size_t>(heads) : 0) {}
  const float* now() {
    for (size_t h = 0; h < values_.size(); ++h)
      values_[h] = static_cast<float>(
          root_ * std::exp(std::min(static_cast<double>(scale_[h]), kMostScale)));
    return scale_ ? values_.data() : nullptr;
  }

 private:
  const float* scale_;
  double root_;
  std::vector<float> values_;
};

}  // namespace

KernelPtr lower(CpuBackend& cpu, const UnitHeads& op, const Operands& io) {
  const auto& [heads, parts, unit] = op;
  const Shape& shape = io.in[UnitHeads::kX].shape;
  UnitHeadsArgs args{.x = floats(io.in[UnitHeads::kX]),
                     .y = floats(io.out[UnitHeads::kY]),
                     .dy = {},
                     .dx = {},
                     .factor = nullptr,
                     .heads = heads,
                     .parts = parts,
                     .unit = unit,
                     .dim = shape[-1] / (parts * heads)};
  const Chunks chunks = chunk_rows(shape.rows(), shape[-1]);
  return make_kernel(
      [&cpu, args, chunks,
       factors = Factors(operand(io.in, UnitHeads::kScale), heads, args.dim)]() mutable {
        args.factor = factors.now();
        for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
          cpu.simd().unit_heads->forward(args, first, last);
        });
      });
}

// Every chunk of rows has sums of its own for the scale's gradient, added up in order.
KernelPtr lower(CpuBackend& cpu, const UnitHeadsBwd& op, const Operands& io) {
  const auto& [heads, parts, unit] = op;
  const Shape& shape = io.in[UnitHeadsBwd::kX].shape;
  UnitHeadsArgs args{.x = floats(io.in[UnitHeadsBwd::kX]),
                     .y = {},
                     .dy = floats(io.in[UnitHeadsBwd::kDy]),
                     .dx = floats(io.out[UnitHeadsBwd::kDx]),
                     .factor = nullptr,
                     .heads = heads,
                     .parts = parts,
                     .unit = unit,
                     .dim = shape[-1] / (parts * heads)};
  const float* scale = f32_only(operand(io.in, UnitHeadsBwd::kScale));
  float* dscale = f32_only(operand(io.out, UnitHeadsBwd::kDscale));
  const Chunks chunks = chunk_rows(shape.rows(), shape[-1]);
  if (dscale) cpu.reserve_shared(static_cast<size_t>(chunks.count() * heads) * sizeof(float));
  return make_kernel(
      [&cpu, args, chunks, scale, dscale,
       factors = Factors(operand(io.in, UnitHeadsBwd::kScale), heads, args.dim)]() mutable {
        args.factor = factors.now();
        auto* sums = dscale ? reinterpret_cast<float*>(cpu.shared_scratch()) : nullptr;
        for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t chunk, int) {
          cpu.simd().unit_heads->backward(args, first, last,
                                          sums ? sums + chunk * args.heads : nullptr);
        });
        for (int64_t h = 0; dscale && h < args.heads; ++h) {
          double sum = 0;
          for (int64_t i = 0; i < chunks.count(); ++i)
            sum += static_cast<double>(sums[i * args.heads + h]);
          if (static_cast<double>(scale[h]) <= kMostScale) dscale[h] += static_cast<float>(sum);
        }
      });
}

}  // namespace vitrum::cpu
