// Tokens in windows: their order, and the bias by distance inside a window.
#include "vitrum/cpu/backend.h"

namespace vitrum::cpu {
namespace {

// The pairs of a head, (T, T), in runs whose rows of the table follow each other.
struct PairRuns {
  int64_t window_h, window_w, prefix;

  // use(first pair, its row of the table, how many pairs, by how much the row changes each time)
  template <class Use>
  void each(const Use& use) const {
    const int64_t patches = window_h * window_w, tokens = prefix + patches,
                  distances = (2 * window_h - 1) * (2 * window_w - 1);
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t row = t * tokens, patch = t - prefix;
      if (prefix > 0) use(row, distances + (patch < 0 ? 2 : 1), prefix, 0);
      if (patch < 0)
        use(row + prefix, distances, patches, 0);
      else
        for (int64_t y = 0; y < window_h; ++y)
          use(row + prefix + y * window_w,
              (patch / window_w - y + window_h - 1) * (2 * window_w - 1) + patch % window_w +
                  window_w - 1,
              window_w, -1);
    }
  }
};

// Tokens that stay neighbours: `count` from `from` on (none where it is -1) go to `to`.
struct Run {
  int64_t to, from, count;
};
std::vector<Run> runs_of(const std::vector<int32_t>& from) {
  std::vector<Run> runs;
  for (size_t i = 0; i < from.size(); ++i) {
    const Run* last = runs.empty() ? nullptr : &runs.back();
    const bool goes_on =
        last && (last->from < 0 ? from[i] < 0 : from[i] == last->from + last->count);
    if (goes_on)
      ++runs.back().count;
    else
      runs.push_back({static_cast<int64_t>(i), from[i], 1});
  }
  return runs;
}

}  // namespace

// A head's column of the table is turned round first, so that the runs of its bias are copies.
KernelPtr lower(CpuBackend& cpu, const RelativeBias& op, const Operands& io) {
  const auto& [window_h, window_w, prefix] = op;
  const TensorView &table = io.in[RelativeBias::kTable], &bias = io.out[RelativeBias::kBias];
  const int64_t heads = bias.shape[0], square = bias.shape[1] * bias.shape[2],
                rows = table.shape[0];
  cpu.reserve_per_thread(static_cast<size_t>(rows) * sizeof(float));
  return make_kernel([&cpu, runs = PairRuns{window_h, window_w, prefix}, heads, square, rows,
                      table = f32_only(table), bias = f32_only(bias)] {
    cpu.pool().run(heads, [&](int64_t head, int thread) {
      auto* upwards = reinterpret_cast<float*>(cpu.thread_scratch(thread));
      for (int64_t row = 0; row < rows; ++row) upwards[rows - 1 - row] = table[row * heads + head];
      runs.each([&](int64_t pair, int64_t row, int64_t count, int64_t step) {
        const float* from = upwards + rows - 1 - row;
        float* to = bias + head * square + pair;
        if (step == 0)
          std::fill_n(to, count, *from);
        else
          std::copy_n(from, count, to);
      });
    });
  });
}

// A head's sums are made in scratch, in the order of the pairs.
KernelPtr lower(CpuBackend& cpu, const RelativeBiasBwd& op, const Operands& io) {
  const auto& [window_h, window_w, prefix] = op;
  if (!io.out[RelativeBiasBwd::kDtable]) return make_kernel([] {});
  const int64_t heads = io.in[RelativeBiasBwd::kDy].shape[0],
                square =
                    io.in[RelativeBiasBwd::kDy].shape[1] * io.in[RelativeBiasBwd::kDy].shape[2],
                rows = io.out[RelativeBiasBwd::kDtable].shape[0];
  cpu.reserve_per_thread(static_cast<size_t>(rows) * sizeof(float));
  return make_kernel([&cpu, runs = PairRuns{window_h, window_w, prefix}, heads, square, rows,
                      dy = f32_only(io.in[RelativeBiasBwd::kDy]),
                      dtable = f32_only(io.out[RelativeBiasBwd::kDtable])] {
    cpu.pool().run(heads, [&](int64_t head, int thread) {
      auto* sums = reinterpret_cast<float*>(cpu.thread_scratch(thread));
      std::fill_n(sums, rows, 0.f);
      runs.each([&](int64_t pair, int64_t row, int64_t count, int64_t step) {
        for (int64_t i = 0; i < count; ++i) sums[row + step * i] += dy[head * square + pair + i];
      });
      for (int64_t row = 0; row < rows; ++row) dtable[row * heads + head] += sums[row];
    });
  });
}

KernelPtr lower(CpuBackend& cpu, const GatherTokens& op, const Operands& io) {
  const auto& [tokens, width, from] = op;
  const int64_t images = io.in[GatherTokens::kX].shape.numel() / (tokens * width),
                taken = static_cast<int64_t>(from.size());
  std::vector<Run> runs = runs_of(from);
  const auto count = static_cast<int64_t>(runs.size());
  const Chunks chunks = chunk_rows(images * count, taken * width / std::max<int64_t>(1, count));
  return make_kernel([&cpu, chunks, count, taken, width = width, given = tokens,
                      runs = std::move(runs), x = floats(io.in[GatherTokens::kX]),
                      y = floats(io.out[GatherTokens::kY])] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      for (int64_t i = first; i < last; ++i) {
        const Run& run = runs[static_cast<size_t>(i % count)];
        const int64_t image = i / count, to = (image * taken + run.to) * width;
        if (run.from < 0)
          cpu.simd().elementwise->scale(y, y, 0, to, to + run.count * width);
        else
          cpu.simd().embed->add_row(x, (image * given + run.from) * width, nullptr, y, to,
                                    run.count * width);
      }
    });
  });
}

}  // namespace vitrum::cpu
