// Attention of eight bits (core/eight_bits.h): what surrounds its products of bytes.
#pragma once
#include "vitrum/cpu/simd/bytes.h"

namespace vitrum::cpu {

// One head's queries, keys or values where they lie: (tokens, width).
struct ByteHead {
  Array x;
  int64_t at, stride;  // element number of token 0; from token to token
  int64_t tokens, width;
};

// A row of products of queries and keys, and what becomes of them.
struct ByteScores {
  int32_t* sums;  // (rows, stride); scratch from then on. Whole vectors of a row are read
  int64_t stride, rows, tokens;
  const float* query_scale;  // a row
  float scale;               // 1 / sqrt(D)
  const float* key_scale;    // a key, up to whole vectors
  const int32_t* key_sum;    // what the products are too large by
  const float *bias, *mask;  // (rows, tokens), or null
  float finite;              // 0, or NaN
};

struct ByteAttentionKernels {
  // Queries [first, first + count), at most kBand, as a band of the left operand: 128 more than the
  // byte, which has no sign there. Lines that are missing stay as they are.
  void (*pack_queries)(const ByteHead&, int64_t first, int64_t count, uint32_t* to, float* scale);
  // Keys as the right operand, tokens being its lines. sum: 128 times a token's sum of bytes.
  // Scales and sums of missing lines are 0. Returns 0, or NaN where a key is not finite.
  float (*pack_keys)(const ByteHead&, uint32_t* to, float* scale, int32_t* sum);
  // Values as the right operand, channels being its lines. scale, mean: a channel, up to whole
  // bands.
  void (*pack_values)(const ByteHead&, uint32_t* to, float* scale, float* mean);
  // Rows of weights as a band of the left operand, and one over the sum of each; zeros behind the
  // last token must be there already.
  void (*softmax)(const ByteScores&, uint32_t* to, float* inverse);
  // y = the sums of weighted values (rows, stride) in numbers; y: from token to token.
  void (*write)(const int32_t* sums, int64_t stride, int64_t rows, const float* value_scale,
                const float* mean, const float* inverse, const ByteHead& y);
};

}  // namespace vitrum::cpu
