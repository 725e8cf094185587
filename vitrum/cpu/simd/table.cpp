// Constant-initialised: no code of this file may run before the instruction set is known to exist.
#include "vitrum/cpu/simd/simd.h"

namespace vitrum::cpu {

#ifdef __AVX512F__
constinit const SimdKernels kSimdAvx512
#else
constinit const SimdKernels kSimdAvx2
#endif
    = {.norm = &VITRUM_ISA::kNorm,
       .elementwise = &VITRUM_ISA::kElementwise,
       .gate = &VITRUM_ISA::kGate,
       .rotate = &VITRUM_ISA::kRotate,
       .embed = &VITRUM_ISA::kEmbed,
       .loss = &VITRUM_ISA::kLoss,
       .optimizer = &VITRUM_ISA::kOptimizer,
       .gemm = &VITRUM_ISA::kGemm,
       .linear = &VITRUM_ISA::kLinear,
       .attention = &VITRUM_ISA::kAttention,
       .conv = &VITRUM_ISA::kConv,
       .depthwise = &VITRUM_ISA::kDepthwise,
       .unit_heads = &VITRUM_ISA::kUnitHeads,
       .batch_norm = &VITRUM_ISA::kBatchNorm,
       .tiles = &VITRUM_ISA::kTilePacking,
       .bytes = &VITRUM_ISA::kBytes,
       .byte_attention = &VITRUM_ISA::kByteAttention};

}  // namespace vitrum::cpu
