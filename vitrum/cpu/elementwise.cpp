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
  return over_elements(
      cpu, io.in[0].shape.numel(),
      [k = cpu.simd().elementwise, act = op.act, x = floats(io.in[0]), y = floats(io.out[0])](
          int64_t first, int64_t last) { k->activation(act, x, y, first, last); });
}

KernelPtr lower(CpuBackend& cpu, const ActivationBwd& op, const Operands& io) {
  return over_elements(cpu, io.in[0].shape.numel(),
                       [k = cpu.simd().elementwise, act = op.act, dy = floats(io.in[0]),
                        x = floats(io.in[1]), dx = floats(io.out[0])](int64_t first, int64_t last) {
                         k->activation_bwd(act, dy, x, dx, first, last);
                       });
}

KernelPtr lower(CpuBackend& cpu, const Add&, const Operands& io) {
  return over_elements(cpu, io.in[0].shape.numel(),
                       [k = cpu.simd().elementwise, a = floats(io.in[0]), b = floats(io.in[1]),
                        y = floats(io.out[0]), past = exceeds_caches(io.out[0].shape.numel())](
                           int64_t first, int64_t last) { k->add(a, b, y, first, last, past); });
}

KernelPtr lower(CpuBackend& cpu, const Dropout& op, const Operands& io) {
  return over_elements(cpu, io.in[0].shape.numel(),
                       [k = cpu.simd().elementwise, op, rng = io.in[1], x = floats(io.in[0]),
                        y = floats(io.out[0])](int64_t first, int64_t last) {
                         k->dropout(drop_site(random_state(rng), op.drop, op.site), x, y, first,
                                    last);
                       });
}

KernelPtr lower(CpuBackend& cpu, const DropPath& op, const Operands& io) {
  const int64_t samples = io.in[0].shape[0], each = samples ? io.in[0].shape.numel() / samples : 0;
  const Chunks chunks = chunk_rows(samples, each);
  return make_kernel(
      [&cpu, chunks, op, each, rng = io.in[1], x = floats(io.in[0]), y = floats(io.out[0])] {
        const RandomState& state = random_state(rng);
        for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
          for (int64_t b = first; b < last; ++b) {
            const bool kept = draw16(state, op.site, /*per_row=*/1, b, 0) < keep_threshold(op.drop);
            cpu.simd().elementwise->scale(x, y, kept ? keep_scale(op.drop) : 0, b * each,
                                          (b + 1) * each);
          }
        });
      });
}

KernelPtr lower(CpuBackend& cpu, const ChannelScale&, const Operands& io) {
  const int64_t width = io.in[0].shape[-1];
  const Chunks chunks = chunk_rows(io.in[0].shape.rows(), width);
  return make_kernel([&cpu, chunks, width, x = floats(io.in[0]), gamma = f32_only(io.in[1]),
                      y = floats(io.out[0])] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      cpu.simd().elementwise->channel_scale(x, gamma, y, width, first, last);
    });
  });
}

KernelPtr lower(CpuBackend& cpu, const ChannelScaleBwd&, const Operands& io) {
  const int64_t width = io.in[0].shape[-1];
  const Chunks chunks = chunk_rows(io.in[0].shape.rows(), width, /*most=*/32);
  float* dgamma = f32_only(operand(io.out, 1));
  if (dgamma) cpu.reserve_shared(static_cast<size_t>(chunks.count() * width) * sizeof(float));
  return make_kernel([&cpu, chunks, width, dgamma, dy = floats(io.in[0]), x = floats(io.in[1]),
                      gamma = f32_only(io.in[2]), dx = floats(io.out[0])] {
    auto* sums = dgamma ? reinterpret_cast<float*>(cpu.shared_scratch()) : nullptr;
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t chunk, int) {
      cpu.simd().elementwise->channel_scale_bwd(
          dy, x, gamma, dx, sums ? sums + chunk * width : nullptr, width, first, last);
    });
    if (dgamma) cpu.simd().elementwise->accumulate(dgamma, sums, chunks.count(), width, width);
  });
}

}  // namespace vitrum::cpu
