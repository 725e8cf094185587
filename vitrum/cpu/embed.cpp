#include "vitrum/cpu/backend.h"

namespace vitrum::cpu {

KernelPtr lower(CpuBackend& cpu, const NoAttributes<Normalize>&, const Operands& io) {
  const Shape& s = io.in[Normalize::kPixels].shape;  // (B, C, H, W)
  const int64_t channels = s[1], plane = s[2] * s[3];
  const Chunks chunks = chunk_rows(s[0] * channels, plane);
  return make_kernel([&cpu, chunks, channels, plane, x = pixels(io.in[Normalize::kPixels]),
                      y = floats(io.out[Normalize::kY]), scale = f32_only(io.in[Normalize::kScale]),
                      shift = f32_only(io.in[Normalize::kShift])] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      for (int64_t p = first; p < last; ++p)
        cpu.simd().embed->normalize(x, y, scale[p % channels], shift[p % channels], p * plane,
                                    (p + 1) * plane);
    });
  });
}

namespace {

struct MixArgs {
  const uint8_t* x;
  const float* mix;
  float* y;
  int64_t channels, height, width;
};

// One plane of one image: the lines with a part of the box in three pieces, the others together.
void mix_plane(const EmbedKernels& k, const MixArgs& g, int64_t p) {
  const float* const m = g.mix + p / g.channels * 6;
  const int64_t plane = g.height * g.width, at = p * plane;
  const int64_t other = (static_cast<int64_t>(m[0]) * g.channels + p % g.channels) * plane;
  const auto run = [&](float own, int64_t first, int64_t last) {
    if (first < last) k.mix(g.x, g.y, own, at + first, other + first, last - first);
  };
  const bool box = m[2] < m[3] && m[4] < m[5];
  const int64_t top = box ? static_cast<int64_t>(m[2]) : g.height,
                bottom = box ? static_cast<int64_t>(m[3]) : g.height,
                left = static_cast<int64_t>(m[4]), right = static_cast<int64_t>(m[5]);
  run(m[1], 0, top * g.width);
  for (int64_t y = top; y < bottom; ++y) {
    run(m[1], y * g.width, y * g.width + left);
    run(0, y * g.width + left, y * g.width + right);
    run(m[1], y * g.width + right, (y + 1) * g.width);
  }
  run(m[1], bottom * g.width, plane);
}

// each(p) for every plane of images (B, C, H, W).
template <class Each>
KernelPtr for_planes(CpuBackend& cpu, const Shape& s, const Each& each) {
  const Chunks chunks = chunk_rows(s[0] * s[1], s[2] * s[3]);
  return make_kernel([&cpu, chunks, each] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      for (int64_t p = first; p < last; ++p) each(p);
    });
  });
}

}  // namespace

KernelPtr lower(CpuBackend& cpu, const NoAttributes<Mix>&, const Operands& io) {
  const Shape& s = io.in[Mix::kPixels].shape;  // (B, C, H, W)
  const MixArgs args{.x = static_cast<const uint8_t*>(io.in[Mix::kPixels].data),
                     .mix = f32_only(io.in[Mix::kMix]),
                     .y = f32_only(io.out[Mix::kY]),
                     .channels = s[1],
                     .height = s[2],
                     .width = s[3]};
  return for_planes(cpu, s, [&cpu, args](int64_t p) { mix_plane(*cpu.simd().embed, args, p); });
}

namespace {

struct TakeArgs {
  const uint8_t* images;
  const ImageRow* rows;
  const uint8_t* noise;  // may be null
  uint8_t* out;
  int64_t channels, height, width;
};

// Columns [right, right + width) of a line, zeros where it has none.
void take_line(const uint8_t* line, int64_t right, bool mirror, uint8_t* out, int64_t width) {
  const int64_t begin = std::clamp<int64_t>(-right, 0, width),
                end = std::clamp<int64_t>(width - right, begin, width);
  std::fill_n(out, begin, uint8_t{0});
  std::copy(line + right + begin, line + right + end, out + begin);
  std::fill(out + end, out + width, uint8_t{0});
  if (mirror) std::reverse(out, out + width);
}

void erase_box(const TakeArgs& a, const ImageRow& row, int64_t c, uint8_t* plane) {
  const uint64_t seed = (uint64_t{row.seed_high} << 32) | row.seed_low,
                 index = (uint64_t{row.index_high} << 32) | row.index_low;
  const auto area = static_cast<uint32_t>(row.height * row.width);
  const uint32_t first = row.position + static_cast<uint32_t>(c) * ((area + 1) / 2);
  uint32_t pixel = 0, word = 0;
  for (int64_t y = row.top; y < row.top + row.height; ++y) {
    uint8_t* const to = plane + y * a.width + row.left;
    if (!a.noise) std::fill_n(to, row.width, static_cast<uint8_t>(row.colour >> (8 * c)));
    for (int64_t x = 0; x < row.width && a.noise; ++x, ++pixel) {
      word = pixel % 2 ? word >> 16 : stream_word(seed, row.stream, index, first + pixel / 2);
      to[x] = a.noise[c * 4096 + (word & 0xffff) / 16];
    }
  }
}

void take_plane(const TakeArgs& a, int64_t plane) {
  const int64_t size = a.height * a.width, c = plane % a.channels;
  const ImageRow& row = a.rows[plane / a.channels];
  uint8_t* const out = a.out + plane * size;
  if (row.image < 0) return static_cast<void>(std::fill_n(out, size, uint8_t{0}));
  const uint8_t* const image = a.images + (row.image * a.channels + c) * size;
  for (int64_t y = 0; y < a.height; ++y) {
    const int64_t from = y + row.down;
    if (from >= 0 && from < a.height)
      take_line(image + from * a.width, row.right, row.mirror != 0, out + y * a.width, a.width);
    else
      std::fill_n(out + y * a.width, a.width, uint8_t{0});
  }
  erase_box(a, row, c, out);
}

}  // namespace

KernelPtr lower(CpuBackend& cpu, const NoAttributes<TakeImages>&, const Operands& io) {
  const Shape& s = io.out[TakeImages::kY].shape;  // (B, C, H, W)
  const TakeArgs args{.images = io.in[TakeImages::kImages].u8(),
                      .rows = static_cast<const ImageRow*>(io.in[TakeImages::kRows].data),
                      .noise = operand(io.in, TakeImages::kNoise).u8(),
                      .out = io.out[TakeImages::kY].u8(),
                      .channels = s[1],
                      .height = s[2],
                      .width = s[3]};
  return for_planes(cpu, s, [args](int64_t p) { take_plane(args, p); });
}

KernelPtr lower(CpuBackend& cpu, const Patchify& op, const Operands& io) {
  const auto& [patch_h, patch_w, order] = op;
  const Shape& s = io.in[Patchify::kImage].shape;
  const PatchifyArgs args{.image = pixels(io.in[Patchify::kImage]),
                          .y = floats(io.out[Patchify::kY]),
                          .scale = f32_only(operand(io.in, Patchify::kScale)),
                          .shift = f32_only(operand(io.in, Patchify::kShift)),
                          .channels = s[1],
                          .height = s[2],
                          .width = s[3],
                          .patch_h = patch_h,
                          .patch_w = patch_w,
                          .order = order};
  cpu.reserve_per_thread(static_cast<size_t>(args.width) * sizeof(float));
  const Chunks chunks = chunk_rows(s[0] * s[2] / patch_h, s[1] * patch_h * s[3]);
  return make_kernel([&cpu, args, chunks] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int thread) {
      cpu.simd().embed->patchify(args, first, last,
                                 reinterpret_cast<float*>(cpu.thread_scratch(thread)));
    });
  });
}

KernelPtr lower(CpuBackend& cpu, const NoAttributes<Tokens>&, const Operands& io) {
  const int64_t tokens = io.out[Tokens::kY].shape[1], width = io.out[Tokens::kY].shape[2],
                patches = io.in[Tokens::kX].shape[1];
  struct Place {  // of one token
    Array tensor;
    int64_t at;
  };
  std::vector<Place> prefix;
  for (size_t i = Tokens::kPrefix; i < io.in.size(); ++i)
    for (int64_t t = 0; t < io.in[i].shape[1]; ++t) prefix.push_back({floats(io.in[i]), t * width});
  const Chunks chunks = chunk_rows(io.out[Tokens::kY].shape[0] * tokens, width);
  return make_kernel([&cpu, chunks, tokens, width, patches, prefix, x = floats(io.in[Tokens::kX]),
                      pos = f32_only(io.in[Tokens::kPos]), y = floats(io.out[Tokens::kY])] {
    const int64_t extra = tokens - patches;
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      for (int64_t r = first; r < last; ++r) {
        const int64_t b = r / tokens, t = r % tokens;
        const float* at = pos ? pos + t * width : nullptr;
        const Place from = t < extra ? prefix[static_cast<size_t>(t)]
                                     : Place{x, (b * patches + t - extra) * width};
        cpu.simd().embed->add_row(from.tensor, from.at, at, y, r * width, width);
      }
    });
  });
}

// One token at a time over all images, so that its gradients are summed in the order of the images.
KernelPtr lower(CpuBackend& cpu, const TokensBwd& op, const Operands& io) {
  const auto& [prefixes] = op;
  const Shape& s = io.in[TokensBwd::kDy].shape;  // (B, T, C)
  std::vector<float*> dprefix;                   // of each token
  for (size_t i = 0; i < prefixes.size(); ++i) {
    float* const d = f32_only(io.out[TokensBwd::kDprefix + i]);
    for (int64_t t = 0; t < prefixes[i]; ++t) dprefix.push_back(d ? d + t * s[2] : nullptr);
  }
  const Chunks chunks = chunk_rows(s[1], s[0] * s[2]);
  return make_kernel([&cpu, chunks, dprefix, images = s[0], tokens = s[1], width = s[2],
                      dy = floats(io.in[TokensBwd::kDy]), dx = floats(io.out[TokensBwd::kDx]),
                      dpos = f32_only(operand(io.out, TokensBwd::kDpos))] {
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
  const auto& [first, count] = op;
  const Shape s = as_tokens(io.in[Pool::kX].shape);
  const Chunks chunks = chunk_rows(s[0], count * s[2]);
  return make_kernel([&cpu, chunks, from = first, count = count, tokens = s[1], width = s[2],
                      x = floats(io.in[Pool::kX]), y = floats(io.out[Pool::kY])] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      for (int64_t b = first; b < last; ++b)
        cpu.simd().embed->mean_rows(x, (b * tokens + from) * width, count, width,
                                    static_cast<float>(count), y, b * width, width);
    });
  });
}

KernelPtr lower(CpuBackend& cpu, const PoolBwd& op, const Operands& io) {
  const auto& [first, count] = op;
  const Shape s = as_tokens(io.out[PoolBwd::kDx].shape);
  const Chunks chunks = chunk_rows(s[0] * s[1], s[2]);
  return make_kernel([&cpu, chunks, from = first, count = count, tokens = s[1], width = s[2],
                      dy = floats(io.in[PoolBwd::kDy]), dx = floats(io.out[PoolBwd::kDx])] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      for (int64_t r = first; r < last; ++r) {
        const int64_t b = r / tokens, t = r % tokens;
        if (t >= from && t < from + count)
          cpu.simd().embed->divide_row(dy, b * width, static_cast<float>(count), dx, r * width,
                                       width);
        else
          cpu.simd().elementwise->scale(dx, dx, 0, r * width, (r + 1) * width);
      }
    });
  });
}

}  // namespace vitrum::cpu
