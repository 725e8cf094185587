#include "vitrum/train/step.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "vitrum/core/error.h"
#include "vitrum/core/philox.h"
#include "vitrum/graph/functional.h"
#include "vitrum/train/loss.h"

namespace vitrum {
namespace {

ParamStore initialized(const Graph& g, Backend& backend, uint64_t seed) {
  ParamStore store(g, backend);
  store.initialize(seed);
  return store;
}

// The average starts as a copy of the weights and forgets them quickly at first, so that short runs
// are not an average over random weights.
double ema_decay(double decay, int64_t step) {
  const auto t = static_cast<double>(step);
  return std::min(decay, (1 + t) / (10 + t));
}

std::vector<Segment> segments_of(const ParamStore& store, const Recipe& recipe) {
  std::vector<Segment> segments;
  for (size_t i = 0; i < store.specs().size(); ++i) {
    const ParamSpec& spec = store.specs()[i];
    const bool decays = spec.decay || !recipe.no_decay;
    if (spec.trainable)
      segments.push_back({.offset = store.offset(i),
                          .size = spec.shape.numel(),
                          .decay = decays ? static_cast<float>(recipe.decay()) : 0.f});
  }
  return segments;
}

}  // namespace

TrainStep::TrainStep(const ModelSpec& model, const Recipe& recipe, DType compute, Backend& backend)
    : seed_(static_cast<uint64_t>(recipe.seed)),
      beta1_(recipe.betas[0]),
      beta2_(recipe.betas[1]),
      ema_(recipe.ema),
      values_(record(model, recipe)),
      store_(initialized(forward_graph_, backend, seed_)),
      backward_(compile_backward(recipe, compute)),
      hyper_(record_update(recipe, compute)),
      update_(update_graph_, std::span(&hyper_.clip, 1), store_),
      weights_(static_cast<size_t>(recipe.batch_size)) {}

TrainStep::ForwardValues TrainStep::record(const ModelSpec& model, const Recipe& recipe) {
  Graph& g = forward_graph_;
  const int64_t batch = recipe.batch_size;
  const TracedModel student = trace(g, model, batch);
  const Value target = g.input("target", {batch}, DType::kI32);
  const Value weight = g.input("weight", {batch}, DType::kF32, /*exact=*/true);
  Value teacher;
  if (recipe.teacher)
    teacher = g.input("teacher", student.logits.shape(), DType::kF32, /*exact=*/true);
  const Value loss = training_loss(recipe, student, {target, weight, teacher});
  const Value totals = g.state("metrics", {3}, DType::kF64);
  train_metrics(loss, student.logits, target, weight, totals);
  return {student.image, student.logits, target, weight, teacher, loss, totals, g.rng()};
}

Program TrainStep::compile_backward(const Recipe& recipe, DType compute) {
  fuse(forward_graph_);
  differentiate(forward_graph_, values_.loss, recipe.recompute);
  const std::array outputs = {values_.loss, values_.logits};
  return Program(forward_graph_, outputs, store_, {.compute = compute});
}

TrainStep::UpdateValues TrainStep::record_update(const Recipe& recipe, DType compute) {
  Graph& g = update_graph_;
  const bool adaptive = recipe.optimizer != OptimizerKind::kSgd;
  const auto arena = [&](Arena which, bool used) {
    return used ? g.arena(which, store_.elements(), store_.dtype(which)).id() : kAbsent;
  };
  const ValueId gradients = arena(Arena::kGrad, true);
  const Value hyper = g.input("hyper", {4}, DType::kF32, /*exact=*/true);
  const Value clip = g.add_value({.name = "clip", .shape = {2}, .exact = true});
  g.nodes.push_back({.op = ClipScale{.max_norm = static_cast<float>(recipe.clip_norm)},
                     .in = {gradients},
                     .out = {clip.id()},
                     .name = "clip"});
  OptimizerStep step{.kind = recipe.optimizer,
                     .beta1 = adaptive ? recipe.betas[0] : recipe.momentum,
                     .beta2 = recipe.betas[1],
                     .eps = static_cast<float>(recipe.eps),
                     .segments = segments_of(store_, recipe)};
  g.nodes.push_back({.op = std::move(step),
                     .in = {hyper.id(), clip.id()},
                     .out = {gradients, arena(Arena::kMaster, true),
                             arena(Arena::kMoment1, adaptive || recipe.momentum > 0),
                             arena(Arena::kMoment2, adaptive), arena(Arena::kEma, recipe.ema > 0),
                             arena(Arena::kCompute, compute == DType::kBF16)},
                     .name = "optimizer"});
  return {hyper, clip};
}

void TrainStep::backward(const Batch& batch, int64_t images, int64_t micro_step) {
  const auto at = static_cast<uint64_t>(micro_step);
  const auto count = static_cast<std::ptrdiff_t>(batch.count);
  std::fill(weights_.begin(), weights_.begin() + count, 1.f / static_cast<float>(images));
  std::fill(weights_.begin() + count, weights_.end(), 0.f);
  backward_.upload(values_.image, batch.pixels().data());
  backward_.upload(values_.target, batch.labels.data());
  backward_.upload(values_.weight, weights_.data());
  const RandomState random{static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32),
                           static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32)};
  backward_.upload(values_.rng, &random);
  if (teacher_) teacher_->run(batch);
  backward_.run();
  backward_.download_later(&reading_.emplace_back(), values_.loss);
  ++shares_.back();
}

void TrainStep::update(double lr, int64_t step) {
  const auto t = static_cast<double>(step + 1);
  const std::array<float, 4> hyper = {
      static_cast<float>(lr), static_cast<float>(1 - std::pow(beta1_, t)),
      static_cast<float>(1 - std::pow(beta2_, t)), static_cast<float>(ema_decay(ema_, step))};
  update_.upload(hyper_.hyper, hyper.data());
  update_.run();
  const TensorView norm{update_[hyper_.clip].data, {1}, DType::kF32};
  store_.backend().download_later(&reading_.emplace_back(), norm);
  shares_.push_back(0);
}

std::vector<StepResult> TrainStep::results() {
  store_.backend().wait();
  std::vector<StepResult> all(shares_.size() - 1);
  for (size_t i = 0; i < all.size(); ++i) {
    for (; shares_[i] > 0; --shares_[i], reading_.pop_front())
      all[i].loss += static_cast<double>(reading_.front());
    all[i].norm = static_cast<double>(reading_.front());
    reading_.pop_front();
  }
  shares_.erase(shares_.begin(), shares_.end() - 1);
  return all;
}

TrainTotals TrainStep::totals() {
  std::array<double, 3> sums{};
  backward_.download(sums.data(), values_.totals);
  return {sums[0], static_cast<int64_t>(sums[1]), static_cast<int64_t>(sums[2])};
}

void TrainStep::clear_totals() {
  const std::array<double, 3> zeros{};
  backward_.upload(values_.totals, zeros.data());
}

}  // namespace vitrum
