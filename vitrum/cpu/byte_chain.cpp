// Layers of eight bits and the norms between them as one kernel: proj, norm, fc1, fc2, norm, qkv of
// a ViT. There a row depends on no other, so a task takes a block of rows through all of them: what
// is between them is read while it is in the cache, threads wait for each other once, and what
// nobody else reads has no memory but a block's.
#include <algorithm>
#include <optional>
#include <variant>

#include "vitrum/core/ceil_div.h"
#include "vitrum/cpu/byte_layer.h"

namespace vitrum::cpu {
namespace {

// The rows of a block: for fewer, weights would be read more often than what is between is worth.
constexpr int64_t kMostRows = 208;
// So many rows a thread are worth reading all weights for.
constexpr int64_t kLeastRows = 48;

// Where a value is: in the graph's memory, or only a block's rows of it in a thread's.
struct Place {
  TensorView view;
  int64_t local = -1;  // where, in floats a row; else in the graph's memory

  bool exists() const { return view.data || local >= 0; }
  // Of row `row`; a block has `rows`.
  Array at(float* block, int64_t row, int64_t rows) const {
    if (!exists()) return {};
    const int64_t width = view.shape[-1];
    return {local >= 0 ? block + local * rows : view.f32() + row * width, DType::kF32};
  }
};

struct NormStep {
  Place a, b, sum, y;  // b, sum: of AddLayerNorm
  const float *w, *bias;
  int64_t width;
  float eps;
};
struct LayerStep {
  std::unique_ptr<ByteLayer> layer;
  Place x, y;
};
using Step = std::variant<NormStep, LayerStep>;

// Places of values in the order in which they are met; one that is only between the nodes has room
// of its own from the node that writes it to the last that reads it.
class Places {
 public:
  explicit Places(std::span<const ChainNode> chain) : chain_(chain) {}

  Place of(const TensorView& view, int32_t id, size_t node) {
    if (id < 0 || view.data) return {view};
    for (const Known& k : known_)
      if (k.id == id) return {view, k.at};
    const int64_t width = view.shape[-1];
    int64_t at = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (const Known& k : known_)
        if (k.last >= node && at < k.at + k.width && k.at < at + width)
          at = k.at + k.width, moved = true;
    }
    known_.push_back({id, at, width, last_reader(id)});
    most_ = std::max(most_, at + width);
    return {view, at};
  }
  int64_t width() const { return most_; }  // of all rooms together

 private:
  struct Known {
    int32_t id;
    int64_t at, width;
    size_t last;
  };
  size_t last_reader(int32_t id) const {
    size_t last = 0;
    for (size_t i = 0; i < chain_.size(); ++i)
      for (const auto* ids : {&chain_[i].in, &chain_[i].out})
        if (std::ranges::find(*ids, id) != ids->end()) last = i;
    return last;
  }

  std::span<const ChainNode> chain_;
  std::vector<Known> known_;
  int64_t most_ = 0;
};

class ByteChain final : public Kernel {
 public:
  ByteChain(CpuBackend& cpu, std::span<const ChainNode> chain) : cpu_(cpu) {
    Places places(chain);
    for (size_t i = 0; i < chain.size(); ++i)
      std::visit([&](const auto& op) { add(op, chain[i], i, places); }, *chain[i].op);
    rows_ = chain[0].io.out[0].shape.rows();
    // As many blocks for each thread, of whole groups of rows.
    const int64_t threads = cpu.pool().threads();
    blocks_ = round_up(ceil_div(rows_, kMostRows), threads);
    blocks_ = std::min(blocks_, groups());
    const int64_t most = std::min(rows_, ceil_div(groups(), blocks_) * kByteRowsAtOnce);
    int64_t words = 0, widest = 0;
    for (const Step& step : steps_)
      if (const auto* s = std::get_if<LayerStep>(&step))
        words = std::max(words, s->layer->rows_words(most));
      else
        widest = std::max(widest, std::get<NormStep>(step).width);
    packed_at_ = round_up(places.width() * most, 16) + 16;
    sums_at_ = packed_at_ + words;
    row_at_ = sums_at_ + round_up(ByteLayer::sums_words(most), 16);
    cpu.reserve_per_thread(static_cast<size_t>(row_at_ + round_up(widest, 16)) * sizeof(float));
  }

  void launch() override {
    for (Step& step : steps_)
      if (auto* s = std::get_if<LayerStep>(&step)) s->layer->begin();
    cpu_.pool().run(blocks_, [&](int64_t block, int thread) {
      const int64_t first = groups() * block / blocks_ * kByteRowsAtOnce,
                    last = std::min(rows_, groups() * (block + 1) / blocks_ * kByteRowsAtOnce);
      auto* scratch = reinterpret_cast<float*>(cpu_.thread_scratch(thread));
      for (Step& step : steps_)
        std::visit([&](auto& s) { run(s, first, last - first, scratch); }, step);
    });
  }

 private:
  int64_t groups() const { return ceil_div(rows_, kByteRowsAtOnce); }

  template <class Other>
  void add(const Other&, const ChainNode&, size_t, Places&) {}  // byte_chain() takes no others
  void add(const QLinear& op, const ChainNode& node, size_t i, Places& places) {
    const Place x = places.of(node.io.in[QLinear::kX], node.in[QLinear::kX], i),
                y = places.of(node.io.out[QLinear::kY], node.out[QLinear::kY], i);
    steps_.push_back(LayerStep{std::make_unique<ByteLayer>(cpu_, op, node.io), x, y});
  }
  template <class Norm>
  NormStep norm(const Norm& op, const ChainNode& node, size_t x, size_t i, Places& places) const {
    const auto& [eps] = op;
    return {.a = places.of(node.io.in[x], node.in[x], i),
            .b = {},
            .sum = {},
            .y = places.of(node.io.out[Norm::kY], node.out[Norm::kY], i),
            .w = f32_only(node.io.in[Norm::kWeight]),
            .bias = f32_only(operand(node.io.in, Norm::kBias)),
            .width = node.io.in[x].shape[-1],
            .eps = eps};
  }
  void add(const LayerNorm& op, const ChainNode& node, size_t i, Places& places) {
    steps_.push_back(norm(op, node, LayerNorm::kX, i, places));
  }
  void add(const AddLayerNorm& op, const ChainNode& node, size_t i, Places& places) {
    NormStep step = norm(op, node, AddLayerNorm::kA, i, places);
    step.b = places.of(node.io.in[AddLayerNorm::kB], node.in[AddLayerNorm::kB], i);
    step.sum = places.of(node.io.out[AddLayerNorm::kSum], node.out[AddLayerNorm::kSum], i);
    steps_.push_back(step);
  }

  void run(const NormStep& s, int64_t row, int64_t rows, float* scratch) {
    const LayerNormArgs args{.a = s.a.at(scratch, row, rows),
                             .b = s.b.at(scratch, row, rows),
                             .sum = s.sum.at(scratch, row, rows),
                             .y = s.y.at(scratch, row, rows),
                             .w = s.w,
                             .bias = s.bias,
                             .mean = nullptr,
                             .rstd = nullptr,
                             .width = s.width,
                             .eps = s.eps};
    cpu_.simd().norm->forward(args, 0, rows, scratch + row_at_);
  }
  void run(const LayerStep& s, int64_t row, int64_t rows, float* scratch) {
    auto* packed = reinterpret_cast<uint32_t*>(scratch + packed_at_);
    const Array x = s.x.at(scratch, row, rows);
    for (int64_t i = 0; i < rows; i += kBand)
      s.layer->pack(x, i, std::min(kBand, rows - i), packed, rows, i);
    s.layer->multiply(packed, rows, s.y.at(scratch, row, rows), 0, 0, s.layer->columns(),
                      reinterpret_cast<int32_t*>(scratch + sums_at_));
  }

  CpuBackend& cpu_;
  std::vector<Step> steps_;
  int64_t rows_ = 0, blocks_ = 0;
  // In a thread's scratch, behind what is between the nodes: packed rows, sums, a row of a norm.
  int64_t packed_at_ = 0, sums_at_ = 0, row_at_ = 0;
};

// Whether a node is one of the chain; `hung`: by which operand it hangs on the one before.
bool fits(const ChainNode& node, std::optional<size_t> hung) {
  const auto f32 = [](const TensorView& v) {
    return v.shape.rank() == 0 || v.dtype == DType::kF32;
  };
  if (!std::ranges::all_of(node.io.out, f32)) return false;
  if (std::holds_alternative<QLinear>(*node.op))
    return f32(node.io.in[QLinear::kX]) && hung.value_or(QLinear::kX) == QLinear::kX;
  if (!std::ranges::all_of(node.io.in, f32)) return false;
  const auto no_statistics = [&](size_t first) {
    return std::ranges::all_of(std::span(node.out).subspan(std::min(first, node.out.size())),
                               [](int32_t id) { return id < 0; });
  };
  if (std::holds_alternative<LayerNorm>(*node.op))
    return hung.value_or(LayerNorm::kX) == LayerNorm::kX && no_statistics(LayerNorm::kMean);
  return std::holds_alternative<AddLayerNorm>(*node.op) &&
         hung.value_or(AddLayerNorm::kA) <= AddLayerNorm::kB && no_statistics(AddLayerNorm::kMean);
}

}  // namespace

size_t byte_chain(std::span<const ChainNode> chain, int threads) {
  size_t count = 0, layers = 0, end = 1;
  while (count < chain.size() &&
         fits(chain[count], count == 0 ? std::nullopt : std::optional(chain[count].operand))) {
    ++count;
    if (std::holds_alternative<QLinear>(*chain[count - 1].op)) ++layers, end = count;
  }
  const int64_t rows = chain[0].io.out.empty() ? 0 : chain[0].io.out[0].shape.rows();
  return layers > 0 && rows >= kLeastRows * threads ? end : 1;
}

KernelPtr lower_byte_chain(CpuBackend& cpu, std::span<const ChainNode> joined) {
  return std::make_unique<ByteChain>(cpu, joined);
}

}  // namespace vitrum::cpu
