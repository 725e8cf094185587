#include "vitrum/cpu/backend.h"

namespace vitrum::cpu {
namespace {

// body(first, last) over the elements, in multiples of a draw row so that every op may draw.
template <class Body>
KernelPtr over_elements(CpuBackend& cpu, int64_t elements, const Body& body) {
  const Chunks chunks = chunk_rows(elements, 1, /*most=*/128, /*multiple=*/kDrawRow);
  return make_kernel([&cpu, chunks, body] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) { body(first, last); });
  });
}

}  // namespace

KernelPtr lower(CpuBackend& cpu, const Activation& op, const Operands& io) {
  const auto& [act] = op;
  return over_elements(cpu, io.in[Activation::kX].shape.numel(),
                       [k = cpu.simd().elementwise, act = act, x = floats(io.in[Activation::kX]),
                        y = floats(io.out[Activation::kY])](int64_t first, int64_t last) {
                         k->activation(act, x, y, first, last);
                       });
}

KernelPtr lower(CpuBackend& cpu, const ActivationBwd& op, const Operands& io) {
  const auto& [act] = op;
  return over_elements(
      cpu, io.in[ActivationBwd::kDy].shape.numel(),
      [k = cpu.simd().elementwise, act = act, dy = floats(io.in[ActivationBwd::kDy]),
       x = floats(io.in[ActivationBwd::kX]), dx = floats(io.out[ActivationBwd::kDx])](
          int64_t first, int64_t last) { k->activation_bwd(act, dy, x, dx, first, last); });
}

KernelPtr lower(CpuBackend& cpu, const NoAttributes<Add>&, const Operands& io) {
  return over_elements(
      cpu, io.in[Add::kA].shape.numel(),
      [k = cpu.simd().elementwise, a = floats(io.in[Add::kA]), b = floats(io.in[Add::kB]),
       y = floats(io.out[Add::kY]), past = exceeds_caches(io.out[Add::kY].shape.numel())](
          int64_t first, int64_t last) { k->add(a, b, y, first, last, past); });
}

KernelPtr lower(CpuBackend& cpu, const Dropout& op, const Operands& io) {
  const auto& [drop, site] = op;
  return over_elements(cpu, io.in[Dropout::kX].shape.numel(),
                       [k = cpu.simd().elementwise, drop = drop, site = site,
                        rng = io.in[Dropout::kRng], x = floats(io.in[Dropout::kX]),
                        y = floats(io.out[Dropout::kY])](int64_t first, int64_t last) {
                         k->dropout(drop_site(random_state(rng), drop, site), x, y, first, last);
                       });
}

KernelPtr lower(CpuBackend& cpu, const DropPath& op, const Operands& io) {
  const auto& [drop, site] = op;
  const int64_t samples = io.in[DropPath::kX].shape[0],
                each = samples ? io.in[DropPath::kX].shape.numel() / samples : 0;
  const Chunks chunks = chunk_rows(samples, each);
  return make_kernel([&cpu, chunks, drop = drop, site = site, each, rng = io.in[DropPath::kRng],
                      x = floats(io.in[DropPath::kX]), y = floats(io.out[DropPath::kY])] {
    const RandomState& state = random_state(rng);
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      for (int64_t b = first; b < last; ++b) {
        const bool kept = draw16(state, site, /*per_row=*/1, b, 0) < keep_threshold(drop);
        cpu.simd().elementwise->scale(x, y, kept ? keep_scale(drop) : 0, b * each, (b + 1) * each);
      }
    });
  });
}

KernelPtr lower(CpuBackend& cpu, const NoAttributes<ChannelScale>&, const Operands& io) {
  const int64_t width = io.in[ChannelScale::kX].shape[-1];
  const Chunks chunks = chunk_rows(io.in[ChannelScale::kX].shape.rows(), width);
  return make_kernel([&cpu, chunks, width, x = floats(io.in[ChannelScale::kX]),
                      gamma = f32_only(io.in[ChannelScale::kGamma]),
                      y = floats(io.out[ChannelScale::kY])] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      cpu.simd().elementwise->channel_scale(x, gamma, y, width, first, last);
    });
  });
}

KernelPtr lower(CpuBackend& cpu, const NoAttributes<ChannelScaleBwd>&, const Operands& io) {
  const int64_t width = io.in[ChannelScaleBwd::kDy].shape[-1];
  const Chunks chunks = chunk_rows(io.in[ChannelScaleBwd::kDy].shape.rows(), width, /*most=*/32);
  float* dgamma = f32_only(operand(io.out, ChannelScaleBwd::kDgamma));
  if (dgamma) cpu.reserve_shared(static_cast<size_t>(chunks.count() * width) * sizeof(float));
  return make_kernel([&cpu, chunks, width, dgamma, dy = floats(io.in[ChannelScaleBwd::kDy]),
                      x = floats(io.in[ChannelScaleBwd::kX]),
                      gamma = f32_only(io.in[ChannelScaleBwd::kGamma]),
                      dx = floats(io.out[ChannelScaleBwd::kDx])] {
    auto* sums = dgamma ? reinterpret_cast<float*>(cpu.shared_scratch()) : nullptr;
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t chunk, int) {
      cpu.simd().elementwise->channel_scale_bwd(
          dy, x, gamma, dx, sums ? sums + chunk * width : nullptr, width, first, last);
    });
    if (dgamma) cpu.simd().elementwise->accumulate(dgamma, sums, chunks.count(), width, width);
  });
}

}  // namespace vitrum::cpu
