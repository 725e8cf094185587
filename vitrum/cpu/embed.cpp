#include "vitrum/cpu/backend.h"

namespace vitrum::cpu {

KernelPtr lower(CpuBackend& cpu, const Normalize&, const Operands& io) {
  const Shape& s = io.in[0].shape;  // (B, C, H, W)
  const int64_t channels = s[1], plane = s[2] * s[3];
  const Chunks chunks = chunk_rows(s[0] * channels, plane);
  return make_kernel([&cpu, chunks, channels, plane, x = pixels(io.in[0]), y = floats(io.out[0]),
                      scale = f32_only(io.in[1]), shift = f32_only(io.in[2])] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      for (int64_t p = first; p < last; ++p)
        cpu.simd().embed->normalize(x, y, scale[p % channels], shift[p % channels], p * plane,
                                    (p + 1) * plane);
    });
  });
}

KernelPtr lower(CpuBackend& cpu, const Patchify& op, const Operands& io) {
  const Shape& s = io.in[0].shape;
  const PatchifyArgs args{.image = pixels(io.in[0]),
                          .y = floats(io.out[0]),
                          .scale = f32_only(operand(io.in, 1)),
                          .shift = f32_only(operand(io.in, 2)),
                          .channels = s[1],
                          .height = s[2],
                          .width = s[3],
                          .patch_h = op.patch_h,
                          .patch_w = op.patch_w,
                          .order = op.order};
  cpu.reserve_per_thread(static_cast<size_t>(args.width) * sizeof(float));
  const Chunks chunks = chunk_rows(s[0] * s[2] / op.patch_h, s[1] * op.patch_h * s[3]);
  return make_kernel([&cpu, args, chunks] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int thread) {
      cpu.simd().embed->patchify(args, first, last,
                                 reinterpret_cast<float*>(cpu.thread_scratch(thread)));
    });
  });
}

KernelPtr lower(CpuBackend& cpu, const Tokens&, const Operands& io) {
  const int64_t tokens = io.out[0].shape[1], width = io.out[0].shape[2],
                patches = io.in[0].shape[1];
  std::vector<Array> prefix;
  for (size_t i = 2; i < io.in.size(); ++i) prefix.push_back(floats(io.in[i]));
  const Chunks chunks = chunk_rows(io.out[0].shape[0] * tokens, width);
  return make_kernel([&cpu, chunks, tokens, width, patches, prefix, x = floats(io.in[0]),
                      pos = f32_only(io.in[1]), y = floats(io.out[0])] {
    const int64_t extra = tokens - patches;
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      for (int64_t r = first; r < last; ++r) {
        const int64_t b = r / tokens, t = r % tokens;
        const float* at = pos ? pos + t * width : nullptr;
        if (t < extra)
          cpu.simd().embed->add_row(prefix[static_cast<size_t>(t)], 0, at, y, r * width, width);
        else
          cpu.simd().embed->add_row(x, (b * patches + t - extra) * width, at, y, r * width, width);
      }
    });
  });
}

// One token at a time over all images, so that its gradients are summed in the order of the images.
KernelPtr lower(CpuBackend& cpu, const TokensBwd&, const Operands& io) {
  const Shape& s = io.in[0].shape;  // (B, T, C)
  std::vector<float*> dprefix;
  for (size_t i = 2; i < io.out.size(); ++i) dprefix.push_back(f32_only(io.out[i]));
  const Chunks chunks = chunk_rows(s[1], s[0] * s[2]);
  return make_kernel([&cpu, chunks, dprefix, images = s[0], tokens = s[1], width = s[2],
                      dy = floats(io.in[0]), dx = floats(io.out[0]),
                      dpos = f32_only(operand(io.out, 1))] {
    const EmbedKernels& k = *cpu.simd().embed;
    const auto extra = static_cast<int64_t>(dprefix.size());
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      for (int64_t t = first; t < last; ++t) {
        float* to = dpos ? dpos + t * width : nullptr;
        float* also = t < extra ? dprefix[static_cast<size_t>(t)] : nullptr;
        if (to || also) k.sum_rows(dy, t * width, images, tokens * width, to, also, width);
        for (int64_t b = 0; b < images && t >= extra && dx.data; ++b)
          k.add_row(dy, (b * tokens + t) * width, nullptr, dx,
                    (b * (tokens - extra) + t - extra) * width, width);
      }
    });
  });
}

// (B, H, W, C) as (B, H W, C)
static Shape as_tokens(const Shape& s) { return {s[0], s.rows() / s[0], s[-1]}; }

KernelPtr lower(CpuBackend& cpu, const Pool& op, const Operands& io) {
  const Shape s = as_tokens(io.in[0].shape);
  const Chunks chunks = chunk_rows(s[0], op.count * s[2]);
  return make_kernel(
      [&cpu, chunks, op, tokens = s[1], width = s[2], x = floats(io.in[0]), y = floats(io.out[0])] {
        for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
          for (int64_t b = first; b < last; ++b)
            cpu.simd().embed->mean_rows(x, (b * tokens + op.first) * width, op.count, width,
                                        static_cast<float>(op.count), y, b * width, width);
        });
      });
}

KernelPtr lower(CpuBackend& cpu, const PoolBwd& op, const Operands& io) {
  const Shape s = as_tokens(io.out[0].shape);
  const Chunks chunks = chunk_rows(s[0] * s[1], s[2]);
  return make_kernel([&cpu, chunks, op, tokens = s[1], width = s[2], dy = floats(io.in[0]),
                      dx = floats(io.out[0])] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      for (int64_t r = first; r < last; ++r) {
        const int64_t b = r / tokens, t = r % tokens;
        if (t >= op.first && t < op.first + op.count)
          cpu.simd().embed->divide_row(dy, b * width, static_cast<float>(op.count), dx, r * width,
                                       width);
        else
          cpu.simd().elementwise->scale(dx, dx, 0, r * width, (r + 1) * width);
      }
    });
  });
}

}  // namespace vitrum::cpu
