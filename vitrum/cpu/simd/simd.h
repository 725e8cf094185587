// The inner loops of the CPU backend, compiled once per instruction set and reached through tables
// of function pointers. One table a file. Nothing here may have a body: see lanes.h.
#pragma once
#include <cstdint>

#include "vitrum/core/dtype.h"
#include "vitrum/core/philox.h"
#include "vitrum/graph/op.h"

namespace vitrum::cpu {

// An array of f32 or bf16 (or, where a loop says so, u8). Null: absent.
struct Array {
  void* data;
  DType dtype;
};

// What one launch of a dropping op needs; rng is read from memory at launch.
struct DropSite {
  RandomState rng;
  uint32_t site, threshold;
  float scale;
};

// ---- norm ----
struct LayerNormArgs {
  Array a, b;  // b: AddLayerNorm's second addend, or absent
  Array sum, y;
  const float *w, *bias;
  float *mean, *rstd;
  int64_t width;
  float eps;
};
struct LayerNormBwdArgs {
  Array dy, x, dskip, dx;
  const float *w, *mean, *rstd;
  int64_t width;
};
struct NormKernels {
  // Rows [first, last). scratch: `width` floats, rounded up to 16.
  void (*forward)(const LayerNormArgs&, int64_t first, int64_t last, float* scratch);
  // dw, dbias: this chunk's own sums, overwritten; both or neither.
  void (*backward)(const LayerNormBwdArgs&, int64_t first, int64_t last, float* dw, float* dbias);
};

// ---- elementwise; ranges are in elements ----
struct ElementwiseKernels {
  void (*activation)(Act, Array x, Array y, int64_t first, int64_t last);
  void (*activation_bwd)(Act, Array dy, Array x, Array dx, int64_t first, int64_t last);
  // past: y is too large for the caches; first is a multiple of 16.
  void (*add)(Array a, Array b, Array y, int64_t first, int64_t last, bool past);
  void (*scale)(Array x, Array y, float factor, int64_t first, int64_t last);  // factor 0 writes +0
  void (*dropout)(const DropSite&, Array x, Array y, int64_t first,
                  int64_t last);  // first: multiple of kDrawRow
  // Rows [first, last) of `width` channels. dgamma: this chunk's own sums, overwritten; may be
  // null, as may dx.
  void (*channel_scale)(Array x, const float* gamma, Array y, int64_t width, int64_t first,
                        int64_t last);
  void (*channel_scale_bwd)(Array dy, Array x, const float* gamma, Array dx, float* dgamma,
                            int64_t width, int64_t first, int64_t last);
  // y[i] += the sum over parts of part[p * stride + i], in the order of p.
  void (*accumulate)(float* y, const float* part, int64_t parts, int64_t stride, int64_t n);
  void (*convert)(Array x, Array y, int64_t first,
                  int64_t last);  // between f32 and bf16, or a plain copy
};

// ---- gate: rows [first, last), `width` results each ----
struct GateKernels {
  void (*forward)(Act, Array x, Array y, int64_t width, int64_t first, int64_t last);
  void (*backward)(Act, Array dy, Array x, Array dx, int64_t width, int64_t first, int64_t last);
};

// ---- rotate: rows [first, last) of qkv; the op Rotate has the words ----
struct RotateArgs {
  Array x, y;
  const float* table;
  int64_t tokens, prefix, heads, head;  // tokens of an image, values of a head
  bool halves, inverse;
};
struct RotateKernels {
  void (*rows)(const RotateArgs&, int64_t first, int64_t last);
};

// ---- embed: from pixels to tokens and back to one vector an image ----
struct PatchifyArgs {
  Array image, y;  // image: u8, f32 or bf16
  const float *scale, *shift;
  int64_t channels, height, width, patch_h, patch_w;
  PatchOrder order;
};
struct EmbedKernels {
  // y[i] = x[i] * scale + shift over [first, last); x may be u8.
  void (*normalize)(Array x, Array y, float scale, float shift, int64_t first, int64_t last);
  // y[at..] = own * x[at..] + (1 - own) * x[other..], n elements; x is u8.
  void (*mix)(const uint8_t* x, float* y, float own, int64_t at, int64_t other, int64_t n);
  // Patch rows [first, last) of all images, B * height / patch_h in total. scratch: image width in
  // floats.
  void (*patchify)(const PatchifyArgs&, int64_t first, int64_t last, float* scratch);
  // y[y_at..] = x[x_at..] + pos[0..n); pos may be null.
  void (*add_row)(Array x, int64_t x_at, const float* pos, Array y, int64_t y_at, int64_t n);
  // The sum of `count` rows of x, `stride` elements apart: divided by divisor and written to y, or
  // added to `to` and `also` (either may be null).
  void (*mean_rows)(Array x, int64_t x_at, int64_t count, int64_t stride, float divisor, Array y,
                    int64_t y_at, int64_t n);
  void (*sum_rows)(Array x, int64_t x_at, int64_t count, int64_t stride, float* to, float* also,
                   int64_t n);
  // y = x / divisor.
  void (*divide_row)(Array x, int64_t x_at, float divisor, Array y, int64_t y_at, int64_t n);
};

// ---- loss ----
struct LossArgs {
  Array logits;           // (B, K)
  const int32_t* labels;  // (B), or
  const float* target;    // (B, K)
  const float* weight;    // (B)
  int64_t classes;
  LossForm form;
};
struct LossKernels {
  // Rows [first, last): weight * scale * loss to loss[b], and lse[b] unless null.
  void (*forward)(const LossArgs&, int64_t first, int64_t last, double* loss, float* lse);
  void (*backward)(const LossArgs&, const float* lse, Array dlogits, int64_t first, int64_t last);
  // counts[0], counts[1]: rows of weight > 0 that are right, and all of them.
  void (*correct)(const LossArgs&, int64_t first, int64_t last, double* counts);
  // Rows [first, last) of `classes` values.
  void (*argmax)(Array x, int32_t* y, int64_t classes, int64_t first, int64_t last);
  void (*log_softmax)(Array x, float tau, Array y, int64_t classes, int64_t first, int64_t last);
};

// ---- optimizer ----
struct OptimizerArgs {
  OptimizerKind kind;
  float beta1, rest1, beta2, rest2, eps;  // rest = 1 - beta
  bool nesterov;
  float lr, correction1, correction2, ema_decay, clip;  // read at launch
  float *gradient, *param, *first, *second, *ema;       // first, second, ema: may be null
  uint16_t* compute;                                    // bf16 copy, may be null
};
struct OptimizerKernels {
  double (*sum_squares)(const float* x, int64_t n);
  void (*step)(const OptimizerArgs&, float lr_scale, float decay, int64_t first, int64_t last);
  // What LAMB does before step(): the moments take in the gradient. Returns the sum of squares of
  // the update that step() will make for lr 1.
  double (*lamb_moments)(const OptimizerArgs&, float decay, int64_t first, int64_t last);
  // Muon: the momentum takes in clip * gradient, and the gradient becomes the momentum (or its
  // Nesterov form). Returns the sum of its squares.
  double (*momentum)(const OptimizerArgs&, int64_t first, int64_t last);
  // SAM: param += scale * gradient, which is then cleared.
  void (*perturb)(const OptimizerArgs&, float scale, int64_t first, int64_t last);
  // The op Fold; `sum` may be null.
  void (*fold)(const float* const* lefts, size_t count, float* gradient, float* sum, int64_t first,
               int64_t last);
};

struct GemmKernels;           // simd/gemm.h
struct LinearKernels;         // simd/linear.h
struct AttentionKernels;      // simd/attention.h
struct ConvKernels;           // simd/conv.h
struct DepthwiseKernels;      // simd/depthwise.h
struct UnitHeadsKernels;      // simd/unit_heads.h
struct BatchNormKernels;      // simd/conv.h
struct TilePacking;           // simd/tiles.h
struct ByteKernels;           // simd/bytes.h
struct ByteAttentionKernels;  // simd/byte_attention.h

struct SimdKernels {
  const NormKernels* norm;
  const ElementwiseKernels* elementwise;
  const GateKernels* gate;
  const RotateKernels* rotate;
  const EmbedKernels* embed;
  const LossKernels* loss;
  const OptimizerKernels* optimizer;
  const GemmKernels* gemm;
  const LinearKernels* linear;
  const AttentionKernels* attention;
  const ConvKernels* conv;
  const DepthwiseKernels* depthwise;
  const UnitHeadsKernels* unit_heads;
  const BatchNormKernels* batch_norm;
  const TilePacking* tiles;
  const ByteKernels* bytes;
  const ByteAttentionKernels* byte_attention;
};
extern const SimdKernels kSimdAvx2, kSimdAvx512, kSimdAvx512Bf16;

#ifdef VITRUM_ISA
namespace VITRUM_ISA {
extern const NormKernels kNorm;
extern const ElementwiseKernels kElementwise;
extern const GateKernels kGate;
extern const RotateKernels kRotate;
extern const EmbedKernels kEmbed;
extern const LossKernels kLoss;
extern const OptimizerKernels kOptimizer;
extern const GemmKernels kGemm;
extern const LinearKernels kLinear;
extern const AttentionKernels kAttention;
extern const ConvKernels kConv;
extern const DepthwiseKernels kDepthwise;
extern const UnitHeadsKernels kUnitHeads;
extern const BatchNormKernels kBatchNorm;
extern const TilePacking kTilePacking;
extern const ByteKernels kBytes;
extern const ByteAttentionKernels kByteAttention;
}  // namespace VITRUM_ISA
#endif

}  // namespace vitrum::cpu
