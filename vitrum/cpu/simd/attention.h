// Softmax attention, the inner part. Two ways: long heads through matrix products with a head's
// scores in scratch; heads of at most kLaneHead values with sixteen heads side by side, one a lane.
#pragma once
#include <cstdint>

#include "vitrum/cpu/simd/simd.h"

namespace vitrum::cpu {

inline constexpr int64_t kLaneHead = 16;

struct LaneAttentionArgs {
  Array qkv, y, dy, dqkv;  // (B, T, 3C) and (B, T, C)
  float* lse;              // (B, H, T); written forward (may be null), read backward
  int64_t batch, tokens, heads, head;
  const DropSite* drop;  // may be null
};

struct AttentionKernels {
  // `rows` rows of `width` values, `stride` apart from element `at`, to and from contiguous f32.
  void (*gather)(Array x, int64_t at, int64_t stride, int64_t rows, int64_t width, float* to);
  // factors: one for each row, or null.
  void (*scatter)(const float* from, Array y, int64_t at, int64_t stride, int64_t rows,
                  int64_t width, const float* factors);

  // Scores (rows, stride) of one head -> probabilities, dropped, in place. `row`: number of the
  // first row among all rows of all heads, for the draws. factors: stride + 32 floats.
  void (*softmax)(float* scores, int64_t rows, int64_t tokens, int64_t stride, float scale,
                  int64_t row, const DropSite* drop, float* lse, float* factors);
  // The same for products of bf16, in fewer instructions: each row becomes bf16 in place (so rows
  // are 2 * stride of these apart), and is still to be multiplied by inverse[its number].
  void (*softmax_narrow)(float* scores, int64_t rows, int64_t tokens, int64_t stride, float scale,
                         int64_t row, const DropSite* drop, float* lse, float* inverse,
                         float* factors);
  // Backward of one head: from scores and dp = dy v^T to the dropped probabilities (in scores) and
  // the gradient of the unscaled scores (in dp). y and dy: (tokens, head), with their strides.
  void (*softmax_bwd)(float* scores, float* dp, int64_t tokens, int64_t stride, float scale,
                      int64_t row, const DropSite* drop, const float* lse, const float* y,
                      int64_t y_stride, const float* dy, int64_t dy_stride, int64_t head,
                      float* factors);

  // scores * scale + bias + mask in place; bias and mask (rows, tokens), the mask may be null.
  void (*add_bias)(float* scores, int64_t rows, int64_t tokens, int64_t stride, float scale,
                   const float* bias, const float* mask);
  // From the gradient of the biased scores to that of the plain ones: dp * scale in place, after dp
  // was added to dbias (tokens, tokens), which may be null.
  void (*add_bias_bwd)(float* dp, int64_t tokens, int64_t stride, float scale, float* dbias);

  // Sixteen heads from head number 16 * group of B * H. scratch: lane_scratch(tokens) floats.
  void (*lanes_forward)(const LaneAttentionArgs&, int64_t group, float* scratch);
  void (*lanes_backward)(const LaneAttentionArgs&, int64_t group, float* scratch);
};

constexpr int64_t lane_scratch(int64_t tokens) {
  return 16 * tokens * (8 * kLaneHead + 4) + 16 * 16;
}

}  // namespace vitrum::cpu
