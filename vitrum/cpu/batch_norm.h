// Batch norm as one multiply-add a channel.
#pragma once
#include <vector>

#include "vitrum/cpu/backend.h"
#include "vitrum/cpu/simd/conv.h"

namespace vitrum::cpu {

// norm(x) = x * scale + shift, from parameters and statistics of C channels.
struct ChannelAffine {
  std::vector<float> scale, shift;

  explicit ChannelAffine(int64_t channels)
      : scale(static_cast<size_t>(channels)), shift(scale.size()) {}
  void set(const float* w, const float* bias, const float* mean, const float* var, float eps);
};

}  // namespace vitrum::cpu
