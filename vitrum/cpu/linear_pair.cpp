// The two linear layers of an MLP as one kernel: a task takes a block of rows through both, so that
// what is between them is read while in the cache, and where nobody else wants it never stored.
#include "vitrum/cpu/byte_layer.h"
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
        x(io.in[Linear::kX]),
        w(io.in[Linear::kWeight]),
        bias(io.in[Linear::kBias]),
        rng(io.in[Linear::kRng]),
        y(io.out[Linear::kY]),
        saved(operand(io.out, Linear::kSaved)),
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

bool near(const Shape& w1, const Shape& w2) {
  return std::max(w1.numel(), w2.numel()) <= kMostWeights;
}

bool joins(const Linear& first, const Operands& of_first, const Linear& second,
           const Operands& of_second) {
  [[maybe_unused]] const auto& [act1, drop1, site1] = first;
  const auto& [act2, drop2, site2] = second;
  return near(of_first.in[Linear::kWeight].shape, of_second.in[Linear::kWeight].shape) &&
         act2 == Act::kNone && of_first.in[Linear::kX].shape.rows() > kSmallM &&
         !has_small_m(of_first) && !has_small_m(of_second);
}

bool joins(const LinearBwd& first, const Operands& of_first, const LinearBwd& second,
           const Operands& of_second) {
  const auto& [act1, drop1, site1] = first;
  [[maybe_unused]] const auto& [act2, drop2, site2] = second;
  const Shape &w1 = of_first.in[LinearBwd::kWeight].shape,
              &w2 = of_second.in[LinearBwd::kWeight].shape;
  return near(w1, w2) && act1 == Act::kNone && std::max(w1[0], w2[1]) <= kNarrow;
}

// Whether both nodes are of this kind, the second read what the first computes, and they go
// together.
template <class Layer>
bool joins(const ChainNode& first, const ChainNode& second, size_t result, size_t operand) {
  const auto *one = std::get_if<Layer>(first.op), *two = std::get_if<Layer>(second.op);
  return one && two && second.result == result && second.operand == operand && all_f32(first.io) &&
         all_f32(second.io) && joins(*one, first.io, *two, second.io);
}

}  // namespace

size_t CpuBackend::joins(std::span<const ChainNode> chain) const {
  if (chain.size() < 2) return 1;
  if (const size_t count = byte_chain(chain, pool_.threads()); count > 1) return count;
  const bool forward = cpu::joins<Linear>(chain[0], chain[1], Linear::kY, Linear::kX),
             backward = chain[1].only &&
                        cpu::joins<LinearBwd>(chain[0], chain[1], LinearBwd::kDx, LinearBwd::kDy);
  return forward || backward ? 2 : 1;
}

KernelPtr CpuBackend::lower_joined(std::span<const ChainNode> joined) {
  const Operands &of_first = joined[0].io, &of_second = joined[1].io;
  const auto is_bytes = [](const ChainNode& n) { return std::holds_alternative<QLinear>(*n.op); };
  if (std::ranges::any_of(joined, is_bytes)) return lower_byte_chain(*this, joined);
  if (const auto* linear = std::get_if<Linear>(joined[0].op))
    return std::make_unique<LinearPairKernel>(*this, *linear, of_first,
                                              std::get<Linear>(*joined[1].op), of_second);
  return lower_joined_bwd(*this, std::get<LinearBwd>(*joined[0].op), of_first,
                          std::get<LinearBwd>(*joined[1].op), of_second);
}

}  // namespace vitrum::cpu
