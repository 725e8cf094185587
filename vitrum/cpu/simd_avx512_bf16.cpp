// AVX-512 with its instruction that rounds to bf16, which takes subnormal numbers for 0: the loops
// that write most of the bf16 are compiled once more, the others are those of AVX-512.
#include "vitrum/cpu/simd/simd.h"

namespace vitrum::cpu {
namespace avx512_bf16 {
extern const NormKernels kNorm;
extern const LinearKernels kLinear;
extern const AttentionKernels kAttention;
}  // namespace avx512_bf16

const SimdKernels kSimdAvx512Bf16 = [] {
  SimdKernels kernels = kSimdAvx512;
  kernels.norm = &avx512_bf16::kNorm;
  kernels.linear = &avx512_bf16::kLinear;
  kernels.attention = &avx512_bf16::kAttention;
  return kernels;
}();

}  // namespace vitrum::cpu
