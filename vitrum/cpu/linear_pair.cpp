// The two linear layers of an MLP as one kernel: a task takes a block of rows through both, so that
// what is between them is read while in the cache, and where nobody else wants it never stored.
#include "vitrum/cpu/gemm.h"
#include "vitrum/cpu/linear.h"

namespace vitrum::cpu {
namespace {

// One of the two.
struct Layer {
  Linear op;
  TensorView x, w, bias, rng, y, saved;
  PackedB packed;
  int64_t at = 0;  // its packed weights in shared scratch, in floats
  DropSite site{};

  Layer(const Linear& op_, const Operands& io)
      : op(op_),
        x(io.in[0]),
        w(io.in[1]),
        bias(io.in[2]),
        rng(io.in[3]),
        y(io.out[0]),
        saved(operand(io.out, 1)),
        packed{w.shape[1], w.shape[0]} {}
  LinearEpilogueArgs epilogue() {
    if (op.drop > 0) site = drop_site(random_state(rng), op.drop, op.site);
    return {.y = floats(y),
            .saved = floats(saved),
            .bias = bias.f32(),
            .act = op.act,
            .drop = op.drop > 0 ? &site : nullptr,
            .width = packed.columns};
  }
};

class LinearPairKernel final : public Kernel {
 public:
  LinearPairKernel(CpuBackend& cpu, const Linear& first, const Operands& of_first,
                   const Linear& second, const Operands& of_second)
      : cpu_(cpu),
        first_(first, of_first),
        second_(second, of_second),
        blocks_{first_.x.shape.rows(), rows_per_task(first_.packed.columns)},
        past_(exceeds_caches(blocks_.total * hidden())) {
    second_.at = static_cast<int64_t>(first_.packed.bytes() / sizeof(float));
    cpu.reserve_shared(first_.packed.bytes() + second_.packed.bytes());
    cpu.reserve_per_thread(
        static_cast<size_t>((blocks_.size + 1) * hidden() + 16 + second_.packed.columns) *
        sizeof(float));
  }
  void launch() override;

 private:
  auto packing(const Layer& layer) {
    return TaskPart{layer.packed.panels(), [this, &layer](int64_t p, int) {
                      const int64_t column = p * kPanel, depth = layer.packed.depth;
                      cpu_.simd().gemm->pack_panel(layer.w.f32() + column * depth, /*bf16=*/false,
                                                   depth,
                                                   /*transposed=*/true, depth,
                                                   std::min(kPanel, layer.packed.columns - column),
                                                   shared_ + layer.at + column * depth, kPanel);
                    }};
  }

  // The rows between the layers take a third of the second-level cache.
  static int64_t rows_per_task(int64_t hidden) {
    return std::clamp<int64_t>(100'000 / hidden / 48 * 48, 48, 96);
  }
  int64_t hidden() const { return first_.packed.columns; }

  // Panels [p, last) of a layer's product.
  void product(const Layer& layer, const float* a, int64_t rows, int64_t p, int64_t last, float* c,
               int64_t ldc) {
    const PackedB& b = layer.packed;
    for (; p < last; ++p)
      cpu_.simd().gemm->panel(a, b.depth, b.panel(shared_ + layer.at, p), kPanel, c + p * kPanel,
                              ldc, rows, b.depth, std::min(kPanel, b.columns - p * kPanel), false);
  }

  void block(const LinearEpilogueArgs& first, const LinearEpilogueArgs& second, int64_t row,
             int64_t rows, int thread) {
    auto* between = reinterpret_cast<float*>(cpu_.thread_scratch(thread));
    float* factors = between + blocks_.size * hidden();
    const Chunks groups{first_.packed.panels(), 2};  // a row of draws is two panels
    for (int64_t g = 0; g < groups.count(); ++g) {
      const int64_t column = groups.first(g) * kPanel,
                    columns = std::min(hidden(), groups.last(g) * kPanel) - column;
      product(first_, first_.x.f32() + row * first_.packed.depth, rows, groups.first(g),
              groups.last(g), between, hidden());
      cpu_.simd().linear->epilogue_through(first, between + column, hidden(), row, rows, column,
                                           columns, factors, past_);
    }
    const int64_t n = second_.packed.columns;
    float* y = second_.y.f32() + row * n;
    product(second_, between, rows, 0, second_.packed.panels(), y, n);
    if (second.bias || second.drop)
      cpu_.simd().linear->epilogue(second, y, n, row, rows, 0, n, factors);
  }

  CpuBackend& cpu_;
  Layer first_, second_;
  Chunks blocks_;
  bool past_;  // what is between is kept, and does not fit into the caches
  float* shared_ = nullptr;
};

void LinearPairKernel::launch() {
  shared_ = reinterpret_cast<float*>(cpu_.shared_scratch());
  run_parts(cpu_, packing(first_), packing(second_));
  const LinearEpilogueArgs first = first_.epilogue(), second = second_.epilogue();
  for_chunks(cpu_, blocks_, [&](int64_t from, int64_t to, int64_t, int thread) {
    block(first, second, from, to - from, thread);
  });
}

bool all_f32(const Operands& io) {
  const auto f32 = [](const TensorView& v) { return v.dtype == DType::kF32; };
  return std::all_of(io.in.begin(), io.in.begin() + 3, f32) &&
         std::all_of(io.out.begin(), io.out.end(), f32);
}

// Both layers' weights are read by every task, and should stay near.
constexpr int64_t kMostWeights = 1 << 18;
// Wider gradients are better packed once for all panels of dw than read in place by each.
constexpr int64_t kNarrow = 128;

}  // namespace

size_t CpuBackend::joins(std::span<const ChainNode> chain) const {
  if (chain.size() < 2 || chain[1].operand != 0 || chain[1].result != 0) return 1;
  const Op &first = *chain[0].op, &second = *chain[1].op;
  const Operands &of_first = chain[0].io, &of_second = chain[1].io;
  const bool forward =
                 std::holds_alternative<Linear>(first) && std::holds_alternative<Linear>(second),
             backward = std::holds_alternative<LinearBwd>(first) &&
                        std::holds_alternative<LinearBwd>(second);
  if ((!forward && !backward) || !all_f32(of_first) || !all_f32(of_second)) return 1;
  const auto w = [&](const Operands& io) { return io.in[forward ? 1 : 2].shape; };
  if (std::max(w(of_first).numel(), w(of_second).numel()) > kMostWeights) return 1;
  const bool joined = backward ? std::get<LinearBwd>(first).act == Act::kNone && chain[1].only &&
                                     std::max(w(of_first)[0], w(of_second)[1]) <= kNarrow
                               : std::get<Linear>(second).act == Act::kNone &&
                                     of_first.in[0].shape.rows() > kFewRows &&
                                     !has_few_rows(of_first) && !has_few_rows(of_second);
  return joined ? 2 : 1;
}

KernelPtr CpuBackend::lower_joined(std::span<const ChainNode> joined) {
  const Operands &of_first = joined[0].io, &of_second = joined[1].io;
  if (const auto* linear = std::get_if<Linear>(joined[0].op))
    return std::make_unique<LinearPairKernel>(*this, *linear, of_first,
                                              std::get<Linear>(*joined[1].op), of_second);
  return lower_joined_bwd(*this, std::get<LinearBwd>(*joined[0].op), of_first,
                          std::get<LinearBwd>(*joined[1].op), of_second);
}

}  // namespace vitrum::cpu
