// Tokens chosen by chance: patch dropout, and what a masked autoencoder sees.
#include "vitrum/cpu/backend.h"

namespace vitrum::cpu {
namespace {

// Calls use(token, whether it is chosen) for the tokens of image b in their order.
template <class Use>
void choose(const TokenChoice& choice, int64_t tokens, const RandomState& rng, int64_t b,
            std::byte* scratch, const Use& use) {
  const auto& [prefix, kept, site, dropped] = choice;
  const int64_t patches = tokens - prefix;
  auto* drawn = reinterpret_cast<uint64_t*>(scratch);
  uint64_t* sorted = drawn + patches;
  const int64_t per_row = wide_draws_per_row(patches);
  // With the token below the draw no two are equal.
  for (int64_t t = 0; t < patches; ++t)
    drawn[t] = uint64_t{draw32(rng, site, per_row, b, t)} << 32 | static_cast<uint64_t>(t);
  std::copy_n(drawn, patches, sorted);
  const int64_t last = kept - 1;  // of those that stay
  if (last >= 0) std::nth_element(sorted, sorted + last, sorted + patches);
  for (int64_t t = 0; t < prefix; ++t) use(t, !dropped);
  for (int64_t t = 0; t < patches; ++t)
    use(prefix + t, (last >= 0 && drawn[t] <= sorted[last]) != dropped);
}

// A number for each patch, and as many to sort them in.
void reserve_draws(CpuBackend& cpu, int64_t tokens) {
  cpu.reserve_per_thread(2 * static_cast<size_t>(tokens) * sizeof(uint64_t));
}

}  // namespace

KernelPtr lower(CpuBackend& cpu, const KeepTokens& op, const Operands& io) {
  const auto& [choice] = op;
  const Shape& s = io.in[KeepTokens::kX].shape;
  const int64_t tokens = s[1], width = s[2];
  const Chunks chunks = chunk_rows(s[0], tokens * width, /*most=*/32);
  float* rest = f32_only(operand(io.out, KeepTokens::kRest));
  reserve_draws(cpu, tokens);
  if (rest) cpu.reserve_shared(static_cast<size_t>(chunks.count() * width) * sizeof(float));
  return make_kernel([&cpu, choice = choice, tokens, width, chunks, rest,
                      rng = io.in[KeepTokens::kRng], x = floats(io.in[KeepTokens::kX]),
                      y = floats(io.out[KeepTokens::kY])] {
    auto* sums = rest ? reinterpret_cast<float*>(cpu.shared_scratch()) : nullptr;
    const EmbedKernels& rows = *cpu.simd().embed;
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t chunk, int thread) {
      float* sum = sums ? sums + chunk * width : nullptr;
      if (sum) std::fill_n(sum, width, 0.f);
      int64_t to = first * choice.count(tokens);
      for (int64_t b = first; b < last; ++b)
        choose(choice, tokens, random_state(rng), b, cpu.thread_scratch(thread),
               [&](int64_t t, bool chosen) {
                 const int64_t from = (b * tokens + t) * width;
                 if (chosen && y.data) rows.add_row(x, from, nullptr, y, to++ * width, width);
                 if (!chosen && sum) rows.sum_rows(x, from, 1, 0, sum, nullptr, width);
               });
    });
    if (rest) cpu.simd().elementwise->accumulate(rest, sums, chunks.count(), width, width);
  });
}

KernelPtr lower(CpuBackend& cpu, const PlaceTokens& op, const Operands& io) {
  const auto& [choice] = op;
  const Shape& s = io.out[PlaceTokens::kY].shape;
  const int64_t tokens = s[1], width = s[2];
  reserve_draws(cpu, tokens);
  return make_kernel([&cpu, choice = choice, tokens, width,
                      chunks = chunk_rows(s[0], tokens * width), rng = io.in[PlaceTokens::kRng],
                      x = floats(io.in[PlaceTokens::kX]),
                      fill = Array{f32_only(operand(io.in, PlaceTokens::kFill)), DType::kF32},
                      y = floats(io.out[PlaceTokens::kY])] {
    const EmbedKernels& rows = *cpu.simd().embed;
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int thread) {
      int64_t from = first * choice.count(tokens);
      for (int64_t b = first; b < last; ++b)
        choose(choice, tokens, random_state(rng), b, cpu.thread_scratch(thread),
               [&](int64_t t, bool chosen) {
                 const int64_t to = (b * tokens + t) * width;
                 if (chosen)
                   rows.add_row(x, from++ * width, nullptr, y, to, width);
                 else if (fill.data)
                   rows.add_row(fill, 0, nullptr, y, to, width);
                 else
                   cpu.simd().elementwise->scale(y, y, 0, to, to + width);
               });
    });
  });
}

}  // namespace vitrum::cpu
