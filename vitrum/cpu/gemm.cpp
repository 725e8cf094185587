#include "vitrum/cpu/gemm.h"

namespace vitrum::cpu {

void pack(CpuBackend& cpu, const PackedB& shape, const TensorView& b, bool transposed, float* to) {
  const bool bf16 = b.dtype == DType::kBF16;
  const int64_t stride = b.shape[-1], element = static_cast<int64_t>(size_of(b.dtype));
  cpu.pool().run(shape.panels(), [&](int64_t p, int) {
    const int64_t column = p * kPanel, width = std::min(kPanel, shape.columns - column);
    const auto* from =
        static_cast<const std::byte*>(b.data) + (transposed ? column * stride : column) * element;
    cpu.simd().gemm->pack_panel(from, bf16, stride, transposed, shape.depth, width,
                                to + p * kPanel * shape.depth, kPanel);
  });
}

}  // namespace vitrum::cpu
