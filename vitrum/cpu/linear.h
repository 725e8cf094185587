// What the two forward kernels of a linear layer share.
#pragma once
#include <vector>

#include "vitrum/cpu/backend.h"
#include "vitrum/cpu/simd/gemm.h"
#include "vitrum/cpu/simd/linear.h"

namespace vitrum::cpu {

// y (M, N) = dropout(act(x (M, K) w^T + bias)), and what the backward pass saves.
class LinearForward : public Kernel {
 protected:
  LinearForward(CpuBackend& cpu, const Linear& op, const Operands& io)
      : cpu_(cpu),
        x_(io.in[Linear::kX]),
        w_(io.in[Linear::kWeight]),
        y_(io.out[Linear::kY]),
        saved_(operand(io.out, Linear::kSaved)),
        op_(op),
        bias_(io.in[Linear::kBias]),
        rng_(io.in[Linear::kRng]),
        wide_bias_(bias_.dtype == DType::kBF16 ? static_cast<size_t>(bias_.shape.numel()) : 0) {}

  // What follows the product in this launch.
  const LinearEpilogueArgs& epilogue() {
    if (!wide_bias_.empty())
      cpu_.simd().gemm->widen(bias_.bf16(), bias_.shape.numel(), wide_bias_.data());
    if (op_.drop > 0) drop_ = drop_site(random_state(rng_), op_.drop, op_.site);
    args_ = {.y = floats(y_),
             .saved = floats(saved_),
             .bias = wide_bias_.empty() ? bias_.f32() : wide_bias_.data(),
             .act = op_.act,
             .drop = op_.drop > 0 ? &drop_ : nullptr,
             .width = w_.shape[0]};
    return args_;
  }

  CpuBackend& cpu_;
  TensorView x_, w_, y_, saved_;

 private:
  Linear op_;
  TensorView bias_, rng_;
  std::vector<float> wide_bias_;
  DropSite drop_{};
  LinearEpilogueArgs args_{};
};

// Up to so many rows, some five images, packing weights takes a twentieth of a product's time or
// more.
inline constexpr int64_t kSmallM = 1024;
// Whether a linear layer has so few rows that its weights are better left as they lie.
bool has_small_m(const Operands& io);
KernelPtr lower_small_m(CpuBackend& cpu, const Linear& op, const Operands& io);

// For operands that take tiles.
KernelPtr lower_tiles(CpuBackend& cpu, const Linear& op, const Operands& io);
KernelPtr lower_tiles(CpuBackend& cpu, const LinearBwd& op, const Operands& io);

// Together with the layer behind, whose dx is the dy of this one and has no memory.
KernelPtr lower_joined_bwd(CpuBackend& cpu, const LinearBwd& behind, const Operands& of_behind,
                           const LinearBwd& op, const Operands& io);

}  // namespace vitrum::cpu
