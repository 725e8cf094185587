// Patch dropout: which tokens of an image the model goes on with.
#include "vitrum/cpu/backend.h"

namespace vitrum::cpu {
namespace {

struct Choice {
  int64_t prefix, tokens, kept;  // of an image; `kept` with the prefix
  uint32_t site;
  int64_t patches() const { return tokens - prefix; }
  // A number for each patch, and as many to sort them in.
  size_t scratch_bytes() const { return 2 * static_cast<size_t>(patches()) * sizeof(uint64_t); }
};

// Calls use(token, whether it is kept) for the tokens of image b in their order.
template <class Use>
void choose(const Choice& c, const RandomState& rng, int64_t b, std::byte* scratch,
            const Use& use) {
  auto* drawn = reinterpret_cast<uint64_t*>(scratch);
  uint64_t* sorted = drawn + c.patches();
  const int64_t per_row = wide_draws_per_row(c.patches());
  // With the token below the draw no two are equal.
  for (int64_t t = 0; t < c.patches(); ++t)
    drawn[t] = uint64_t{draw32(rng, c.site, per_row, b, t)} << 32 | static_cast<uint64_t>(t);
  std::copy_n(drawn, c.patches(), sorted);
  const int64_t last = c.kept - c.prefix - 1;  // of those that stay
  if (last >= 0) std::nth_element(sorted, sorted + last, sorted + c.patches());
  for (int64_t t = 0; t < c.prefix; ++t) use(t, true);
  for (int64_t t = 0; t < c.patches(); ++t)
    use(c.prefix + t, last >= 0 && drawn[t] <= sorted[last]);
}

// body(image, thread) over all images, each thread with its scratch.
template <class Body>
KernelPtr over_images(CpuBackend& cpu, const Choice& choice, const Shape& s, const Body& body) {
  cpu.reserve_per_thread(choice.scratch_bytes());
  return make_kernel([&cpu, body, chunks = chunk_rows(s[0], s[1] * s[2])] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int thread) {
      for (int64_t b = first; b < last; ++b) body(b, thread);
    });
  });
}

}  // namespace

KernelPtr lower(CpuBackend& cpu, const KeepTokens& op, const Operands& io) {
  const auto& [prefix, site] = op;
  const Choice choice{prefix, io.in[KeepTokens::kX].shape[1], io.out[KeepTokens::kY].shape[1],
                      site};
  return over_images(
      cpu, choice, io.in[KeepTokens::kX].shape,
      [&cpu, choice, width = io.in[KeepTokens::kX].shape[2], rng = io.in[KeepTokens::kRng],
       x = floats(io.in[KeepTokens::kX]),
       y = floats(io.out[KeepTokens::kY])](int64_t b, int thread) {
        int64_t from = b * choice.tokens, to = b * choice.kept;
        choose(choice, random_state(rng), b, cpu.thread_scratch(thread), [&](int64_t t, bool kept) {
          if (!kept) return;
          cpu.simd().embed->add_row(x, (from + t) * width, nullptr, y, to++ * width, width);
        });
      });
}

KernelPtr lower(CpuBackend& cpu, const KeepTokensBwd& op, const Operands& io) {
  const auto& [prefix, site] = op;
  const Choice choice{prefix, io.out[KeepTokensBwd::kDx].shape[1],
                      io.in[KeepTokensBwd::kDy].shape[1], site};
  return over_images(
      cpu, choice, io.out[KeepTokensBwd::kDx].shape,
      [&cpu, choice, width = io.out[KeepTokensBwd::kDx].shape[2], rng = io.in[KeepTokensBwd::kRng],
       dy = floats(io.in[KeepTokensBwd::kDy]),
       dx = floats(io.out[KeepTokensBwd::kDx])](int64_t b, int thread) {
        int64_t from = b * choice.kept;
        choose(choice, random_state(rng), b, cpu.thread_scratch(thread), [&](int64_t t, bool kept) {
          const int64_t to = (b * choice.tokens + t) * width;
          if (kept)
            cpu.simd().embed->add_row(dy, from++ * width, nullptr, dx, to, width);
          else
            cpu.simd().elementwise->scale(dx, dx, 0, to, to + width);
        });
      });
}

}  // namespace vitrum::cpu
