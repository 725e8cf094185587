// Gradients against central differences, in f64 on the reference backend, for each recompute
// policy, fused and plain.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <set>

#include "vitrum/core/philox.h"
#include "vitrum/graph/functional.h"
#include "vitrum/graph/passes.h"
#include "vitrum/reference/reference.h"
#include "vitrum/runtime/program.h"

namespace vitrum::test {

constexpr int64_t kBatch = 3, kTokens = 5, kWidth = 6, kClasses = 4;
constexpr double kEps = 1e-6, kAbsolute = 1e-5, kRelative = 1e-3;

// From (B, T, C), which depends on parameters, to (B, T, C) or (B, C) through the op under test.
using Body = std::function<Value(Scope, Value)>;
struct Trial {
  const char* name = "";
  Body body = {};
  LossForm form = {};
  bool soft_target = false;
  bool image = false;    // a rank of four: (B, H, W, C)
  bool padded = false;   // the last sample has weight 0
  bool teacher = false;  // a second loss, on the same logits, with the teacher's class
};

// A training graph with data, compiled for f64.
class Lab {
 public:
  using Model = std::function<Value(Scope, Value)>;  // input -> logits (B, K)

  Lab(const Model& model, Shape input, const Trial& trial, bool fused, Recompute policy,
      const std::set<std::string>& frozen = {})
      : graph_(Mode::kTraining) {
    Value x = graph_.input("x", input);
    Value weight = graph_.input("weight", {input[0]}, DType::kF32, true);
    graph_.sample_weight = weight;
    Value logits = model(Scope(graph_), x);
    const Shape target_shape = trial.soft_target ? logits.shape() : Shape{logits.dim(0)};
    Value target =
        graph_.input("target", target_shape, trial.soft_target ? DType::kF32 : DType::kI32, true);
    loss_ = cross_entropy(logits, target, weight, trial.form);
    Value teacher;
    if (trial.teacher) {
      teacher = graph_.input("teacher", logits.shape(), DType::kF32, true);
      loss_ = loss_ + cross_entropy(logits, argmax(teacher), weight, {.scale = 0.5f});
    }
    for (ParamSpec& p : graph_.params) p.trainable = !p.buffer && !frozen.contains(p.name);
    if (fused) fuse(graph_);
    for (const Node& node : graph_.nodes) ops_.insert(node.op.index());
    differentiate(graph_, loss_, policy);

    store_.emplace(graph_, *backend_, DType::kF64);
    for (size_t i = 0; i < store_->specs().size(); ++i)
      fill(store_->view(i, Arena::kMaster), 0.5, i);
    program_.emplace(graph_, std::span(&loss_, 1), *store_, CompileOptions{.compute = DType::kF64});
    fill((*program_)[x], 1, 1000);
    fill((*program_)[weight], 0.1, 1001, 0.5);
    if (trial.padded) (*program_)[weight].f64()[input[0] - 1] = 0;
    fill_target((*program_)[target], logits.dim(1));
    if (teacher) fill((*program_)[teacher], 2, 1002);
    const RandomState rng{.seed_low = 3, .seed_high = 1, .step_low = 8, .step_high = 0};
    for (size_t v = 0; v < graph_.values.size(); ++v)
      if (graph_.values[v].name == "rng" && graph_.values[v].role == Role::kInput)
        program_->upload({&graph_, static_cast<ValueId>(v)}, &rng);
  }

  double loss() {
    program_->run();
    return program_->read_scalar(loss_);
  }
  // Every parameter's gradient, from a clean gradient arena; nothing of one that does not learn.
  std::vector<std::vector<double>> gradients(int runs = 1) {
    const TensorView all = store_->arena(Arena::kGrad);
    std::fill_n(all.f64(), all.shape.numel(), 0.0);
    for (int i = 0; i < runs; ++i) loss();
    std::vector<std::vector<double>> grads;
    for (size_t i = 0; i < store_->specs().size(); ++i) {
      grads.emplace_back();
      if (!store_->has_room(i, Arena::kGrad)) continue;
      const TensorView g = store_->view(i, Arena::kGrad);
      grads.back().assign(g.f64(), g.f64() + g.shape.numel());
    }
    return grads;
  }
  double central_difference(size_t param, int64_t element) {
    double& p = store_->view(param, Arena::kMaster).f64()[element];
    const double start = p;
    p = start + kEps;
    const double above = loss();
    p = start - kEps;
    const double below = loss();
    p = start;
    return (above - below) / (2 * kEps);
  }
  const std::vector<ParamSpec>& specs() const { return store_->specs(); }
  const std::set<size_t>& ops() const { return ops_; }  // of the forward pass

 private:
  static void fill(TensorView to, double deviation, uint64_t key, double mean = 0) {
    PhiloxStream draw(17, 0, key);
    for (int64_t i = 0; i < to.shape.numel(); ++i) to.f64()[i] = mean + deviation * draw.normal();
  }
  static void fill_target(TensorView to, int64_t classes) {
    PhiloxStream draw(17, 1, 0);
    for (int64_t i = 0; i < to.shape.numel(); ++i) {
      if (to.dtype == DType::kI32)
        to.i32()[i] = static_cast<int32_t>(draw.below(static_cast<uint32_t>(classes)));
      if (to.dtype == DType::kF64)
        to.f64()[i] = draw.uniform();  // does not add up to 1: nor need it
    }
  }

  Graph graph_;
  Value loss_;
  std::set<size_t> ops_;
  std::unique_ptr<Backend> backend_ = make_reference_backend();
  std::optional<ParamStore> store_;
  std::optional<Program> program_;
};

// At most `samples` elements of each parameter, evenly spaced.
inline void expect_gradients_match(Lab& lab, int64_t samples) {
  const auto gradients = lab.gradients();
  for (size_t p = 0; p < gradients.size(); ++p) {
    const auto n = static_cast<int64_t>(gradients[p].size());
    const int64_t stride = std::max<int64_t>(1, n / samples);
    for (int64_t i = 0; i < n; i += stride) {
      const auto [first, count] = lab.specs()[p].held;
      const double got = gradients[p][static_cast<size_t>(i)];
      if (i >= first && i < first + count) {
        ASSERT_EQ(got, 0) << lab.specs()[p].name << " element " << i << " is held";
        continue;
      }
      const double expected = lab.central_difference(p, i);
      ASSERT_NEAR(got, expected, kAbsolute + kRelative * std::abs(expected))
          << lab.specs()[p].name << " element " << i;
    }
  }
}

// Gradients of nearly zero would agree with anything.
inline void expect_gradients_large(Lab& lab) {
  const auto gradients = lab.gradients();
  for (size_t p = 0; p < gradients.size(); ++p) {
    if (lab.specs()[p].buffer) continue;
    double most = 0;
    for (double g : gradients[p]) most = std::max(most, std::abs(g));
    EXPECT_GT(most, 20 * kAbsolute) << lab.specs()[p].name;
  }
}

// Every way to compile a graph must give the bits of the plain one.
inline void expect_same_bits(const std::function<Lab(bool fused, Recompute)>& make) {
  const auto plain = make(false, Recompute::kNone).gradients();
  for (bool fused : {false, true})
    for (Recompute policy : {Recompute::kNone, Recompute::kCheap, Recompute::kBlock}) {
      Lab lab = make(fused, policy);
      const auto gradients = lab.gradients();
      for (size_t p = 0; p < plain.size(); ++p)
        EXPECT_TRUE(gradients[p] == plain[p]) << lab.specs()[p].name << ", fused " << fused
                                              << ", recompute " << static_cast<int>(policy);
    }
}

}  // namespace vitrum::test
