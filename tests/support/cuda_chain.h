// Nodes on the card that the CUDA backend computes together, and the same nodes one by one.
#pragma once
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/cuda.h"
#include "vitrum/core/e4m3.h"
#include "vitrum/core/philox.h"
#include "vitrum/runtime/backend.h"

namespace vitrum::test {

// Tensors on the card, filled with noise.
class Card {
 public:
  Card() : backend_(cuda(/*exact=*/true)) {}
  Backend& backend() { return *backend_; }

  TensorView noise(const Shape& shape, DType dtype, float mean = 0) {
    const auto count = static_cast<size_t>(shape.numel());
    constexpr size_t kPeriod = 1'000'003;  // large tensors repeat themselves, in no row alike
    std::vector<float> wide(count);
    for (size_t i = 0; i < count; ++i)
      wide[i] = i < kPeriod ? mean + static_cast<float>(random_.normal()) : wide[i - kPeriod];
    if (dtype == DType::kF32) return keep(shape, dtype, wide.data());
    if (dtype == DType::kE4M3) {
      std::vector<uint8_t> bytes(count);
      for (size_t i = 0; i < count; ++i) bytes[i] = to_e4m3(4 * wide[i]);
      return keep(shape, dtype, bytes.data());
    }
    std::vector<uint16_t> narrow(count);
    for (size_t i = 0; i < count; ++i) narrow[i] = to_bf16(wide[i]);
    return keep(shape, dtype, narrow.data());
  }
  TensorView rng() {
    const RandomState state{1, 2, 3, 0};
    return keep({4}, DType::kI32, &state);
  }
  std::vector<float> read(const TensorView& view) const {
    const auto count = static_cast<size_t>(view.shape.numel());
    std::vector<float> wide(count);
    if (view.dtype == DType::kF32) {
      backend_->download(wide.data(), view);
      return wide;
    }
    if (view.dtype == DType::kE4M3) {
      std::vector<uint8_t> bytes(count);
      backend_->download(bytes.data(), view);
      for (size_t i = 0; i < count; ++i) wide[i] = from_e4m3(bytes[i]);
      return wide;
    }
    std::vector<uint16_t> narrow(count);
    backend_->download(narrow.data(), view);
    for (size_t i = 0; i < count; ++i) wide[i] = from_bf16(narrow[i]);
    return wide;
  }
  TensorView copy(const TensorView& view) {
    const std::vector<float> values = read(view);
    return keep(view.shape, view.dtype, values.data());
  }
  void run(Kernels kernels) { backend_->prepare(std::move(kernels))->run(), backend_->wait(); }

 private:
  TensorView keep(const Shape& shape, DType dtype, const void* from) {
    const TensorView view{nullptr, shape, dtype};
    Buffer& buffer = buffers_.emplace_back(backend_->allocate(view.bytes()));
    const TensorView filled{buffer.data(), shape, dtype};
    backend_->upload(filled, from);
    return filled;
  }
  std::unique_ptr<Backend> backend_;
  std::vector<Buffer> buffers_;
  PhiloxStream random_{7, 1, 0};
};

// A chain of nodes over numbered values, run node by node or as one kernel.
class Chain {
 public:
  explicit Chain(Card& card) : card_(card) {}

  size_t value(const TensorView& view) {
    apart_.push_back(view), joined_.push_back(view);
    return apart_.size() - 1;
  }
  // What a node writes; `inside`: the joined kernel has no memory for it.
  size_t result(const Shape& shape, DType dtype, bool inside) {
    apart_.push_back(card_.noise(shape, dtype));
    joined_.push_back(inside ? TensorView{nullptr, shape, dtype} : card_.noise(shape, dtype));
    return apart_.size() - 1;
  }
  // What a node adds to: the same noise before either run.
  size_t sum(const Shape& shape) {
    apart_.push_back(card_.noise(shape, DType::kF32));
    joined_.push_back(card_.copy(apart_.back()));
    return apart_.size() - 1;
  }
  void add(Op op, std::vector<size_t> in, std::vector<size_t> out, size_t operand = 0,
           size_t result = 0, bool only = true) {
    nodes_.push_back({std::move(op), std::move(in), std::move(out), operand, result, only});
  }
  size_t size() const { return nodes_.size(); }
  // No parameter will change.
  void freeze() { packed_ = std::make_unique<PackedParams>(); }

  void run_apart() {
    Kernels kernels;
    for (const ChainNode& node : nodes(apart_))
      kernels.push_back(card_.backend().lower(*node.op, node.io));
    card_.run(std::move(kernels));
  }
  bool joins() const { return card_.backend().joins(nodes(joined_)) == nodes_.size(); }
  bool adds_columns() const { return card_.backend().adds_columns(nodes(joined_)); }
  void run_joined(const TensorView& column_sums = {}) {
    std::vector<ChainNode> all = nodes(joined_);
    all.back().io.column_sums = column_sums;
    Kernels kernels;
    kernels.push_back(all.size() > 1 ? card_.backend().lower_joined(all)
                                     : card_.backend().lower(*all[0].op, all[0].io));
    card_.run(std::move(kernels));
  }
  TensorView view(size_t value) const { return apart_[value]; }
  std::vector<float> apart(size_t value) const { return card_.read(apart_[value]); }
  std::vector<float> joined(size_t value) const { return card_.read(joined_[value]); }

 private:
  struct Recorded {
    Op op;
    std::vector<size_t> in, out;
    size_t operand, result;
    bool only;
  };
  std::vector<ChainNode> nodes(const std::vector<TensorView>& views) const {
    std::vector<ChainNode> all;
    for (const Recorded& node : nodes_) {
      ChainNode one{
          .op = &node.op, .result = node.result, .operand = node.operand, .only = node.only};
      for (size_t id : node.in) one.io.in.push_back(views[id]);
      for (size_t id : node.out) one.io.out.push_back(views[id]);
      for (size_t id : node.in) one.in.push_back(number(id));
      for (size_t id : node.out) one.out.push_back(number(id));
      one.io.packed = packed_.get();
      for (auto [ids, to] : {std::pair{&node.in, &one.in}, {&node.out, &one.out}})
        for (size_t id : *ids)
          to->push_back(views[id].shape.rank() == 0 ? -1 : static_cast<int32_t>(id));
      all.push_back(std::move(one));
    }
    return all;
  }
  int32_t number(size_t id) const { return apart_[id] ? static_cast<int32_t>(id) : -1; }

  Card& card_;
  std::vector<TensorView> apart_, joined_;
  std::vector<Recorded> nodes_;
  std::unique_ptr<PackedParams> packed_;
};

inline GatherTokens another_order(int64_t tokens, int64_t width) {
  GatherTokens op;
  op.tokens = tokens, op.width = width;
  for (int64_t t = 0; t < tokens; ++t)  // 5 and the number of tokens have no divisor in common
    op.from.push_back(static_cast<int32_t>((t * 5 + 3) % tokens));
  return op;
}

// Sums over rows are added up in another order.
inline void expect_near(const std::vector<float>& got, const std::vector<float>& expected) {
  double squares = 0;
  for (float x : expected) squares += static_cast<double>(x) * static_cast<double>(x);
  const double rms = std::sqrt(squares / static_cast<double>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], 1e-5 * (rms + std::abs(static_cast<double>(expected[i]))))
        << i;
}
inline std::vector<float> plus_columns(std::vector<float> sums, const std::vector<float>& of) {
  for (size_t i = 0; i < of.size(); ++i) sums[i % sums.size()] += of[i];
  return sums;
}

constexpr int64_t kImages = 9, kTokens = 12;

// A product added up in another order may be rounded the other way here and there.
inline void expect_alike(const std::vector<float>& got, const std::vector<float>& expected,
                         double most = 1e-3) {
  double squares = 0, errors = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double e = expected[i], off = got[i] - e;
    squares += e * e, errors += off * off;
  }
  EXPECT_LT(std::sqrt(errors), most * std::sqrt(squares));
  const double rms = std::sqrt(squares / static_cast<double>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], 0.05 * (rms + std::abs(static_cast<double>(expected[i]))))
        << i;
}

}  // namespace vitrum::test
