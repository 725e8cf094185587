#include "vitrum/train/step.h"

#include <algorithm>
#include <array>
#include <utility>

#include "vitrum/core/error.h"
#include "vitrum/core/philox.h"
#include "vitrum/graph/functional.h"
#include "vitrum/train/exchange_views.h"
#include "vitrum/train/lora.h"
#include "vitrum/train/loss.h"
#include "vitrum/train/param_rules.h"
#include "vitrum/train/pretraining.h"
#include "vitrum/train/setup.h"

namespace vitrum {
namespace {

std::vector<Segment> segments_of(const ParamStore& store, const Recipe& recipe) {
  std::vector<Segment> segments;
  const std::vector<double> factors = lr_factors(store.specs(), recipe);
  for (size_t i = 0; i < store.specs().size(); ++i) {
    const ParamSpec& spec = store.specs()[i];
    const bool decays = spec.decay || !recipe.no_decay;
    if (spec.trainable)
      segments.push_back({.offset = store.offset(i),
                          .size = spec.shape.numel(),
                          .lr_scale = static_cast<float>(factors[i]),
                          .decay = decays ? static_cast<float>(recipe.decay()) : 0.f});
  }
  return segments;
}

// Below a head that learns alone, the model is what it is in use: nothing drops.
Mode mode_of(const Recipe& recipe) { return recipe.head_only ? Mode::kInference : Mode::kTraining; }

}  // namespace

TrainStep::TrainStep(const ModelSpec& model, const Recipe& recipe, DType compute, Backend& backend,
                     InputStage from, Link* link)
    : model_(model),
      recipe_(recipe),
      compute_(compute),
      from_(from),
      link_(link),
      seed_(static_cast<uint64_t>(recipe.seed)),
      forward_graph_(std::in_place, mode_of(recipe)),
      values_(record()),
      store_(filled(backend)),
      backward_(compile_backward()),
      share_(make_share()),
      update_(recipe, share_, compute, store_, *forward_graph_, link),
      tree_(store_, share_, link),
      weights_(static_cast<size_t>(recipe.slice_size())) {
  if (sliced()) averages_.emplace(store_);
}

WorkShare TrainStep::make_share() {
  Communicator* const comm = link_ ? &link_->comm() : nullptr;
  const WorkShare share(comm, recipe_, segments_of(store_, recipe_), store_.elements(Arena::kGrad));
  if (comm) store_.keep_moments(share.elements().first, share.elements().last);
  return share;
}

TrainStep::ForwardValues TrainStep::record_pretraining() {
  Graph& g = *forward_graph_;
  const Value weight = g.input("weight", {recipe_.slice_size()}, DType::kF32, /*exact=*/true);
  const TracedMae mae = trace_mae(g, model_, mae_for(recipe_, model_), weight);
  freeze_params(g.params, model_.config, recipe_);
  const Value totals = g.state("metrics", {3}, DType::kF64);
  train_metrics(mae.loss, Value(), Value(), weight, totals);
  return {.image = mae.image, .weight = weight, .loss = mae.loss, .totals = totals, .rng = g.rng()};
}

TrainStep::ForwardValues TrainStep::record() {
  if (recipe_.task == Task::kMae) return record_pretraining();
  Graph& g = *forward_graph_;
  const int64_t batch = recipe_.slice_size();
  const bool mixed = mix_for(recipe_).any();
  const Value weight = g.input("weight", {batch}, DType::kF32, /*exact=*/true);
  g.sample_weight = weight;
  const TracedModel student = trace(g, model_, batch, from_, mixed);
  freeze_params(g.params, model_.config, recipe_);
  freeze_all_but_adapters(g.params, model_);
  const Shape shape = student.logits.shape();
  const Value target = mixed ? g.input("target", shape, DType::kF32, /*exact=*/true)
                             : g.input("target", {batch}, DType::kI32);
  Value teacher;
  if (recipe_.teacher) teacher = g.input("teacher", shape, DType::kF32, /*exact=*/true);
  const Value loss = training_loss(recipe_, student, {target, weight, teacher});
  const Value totals = g.state("metrics", {3}, DType::kF64);
  train_metrics(loss, student.logits, target, weight, totals);
  return {student.image, student.logits, target,  weight,     teacher,
          loss,          totals,         g.rng(), student.mix};
}

// Before anything is derived from the weights: a bf16 copy, an average.
ParamStore TrainStep::filled(Backend& backend) {
  ParamStore store(*forward_graph_, backend);
  if (recipe_.weights.empty())
    store.initialize(seed_);
  else
    loaded_ = load_weights(
        recipe_.weights, model_, store,
        {.pos_resample = recipe_.pos_resample, .head = recipe_.head_init, .seed = seed_});
  if (recipe_.task == Task::kMae && !recipe_.weights.empty())
    loaded_.adapted.push_back(load_stored_decoder(recipe_, model_, store));
  if (recipe_.weights.empty() && recipe_.head_init != HeadInit::kKeep)
    for (size_t i = 0; i < store.specs().size(); ++i)
      if (in_head(model_.config, store.specs()[i].name))
        store.write(i, new_head(store.specs()[i], recipe_.head_init, seed_));
  for (const size_t i : zero_params(store.specs(), recipe_))
    store.write(i, std::vector<float>(static_cast<size_t>(store.specs()[i].shape.numel())));
  return store;
}

Program TrainStep::compile_backward() {
  fuse(*forward_graph_);
  differentiate(*forward_graph_, values_.loss, recipe_.recompute);
  std::vector<Value> outputs = {values_.loss};
  if (values_.logits) outputs.push_back(values_.logits);
  CompileOptions options{.compute = compute_};
  const std::array given = {values_.image, values_.teacher, values_.mix};
  for (size_t i = 0; i < given.size(); ++i) {
    if (!given[i]) continue;
    const ValueInfo& info = forward_graph_->info(given[i]);
    TensorView memory{inputs_[i].data(), info.shape, info.dtype};
    if (!memory) inputs_[i] = store_.backend().allocate(memory.bytes());
    memory.data = inputs_[i].data();
    options.shared.push_back({given[i], memory});
  }
  return Program(*forward_graph_, outputs, store_, options);
}

void TrainStep::set_patch_drop(float drop) {
  auto* vit = model_.config.as<ViTConfig>();
  if (!vit || vit->patch_drop == drop) return;
  vit->patch_drop = drop;
  store_.backend().wait();
  pass_.reset(), whole_.reset(), after_leaves_.reset(), perturbing_.reset();
  backward_.reset();  // first: there may not be room for both
  forward_graph_.emplace(mode_of(recipe_));
  values_ = record();
  backward_.emplace(compile_backward());
}

void TrainStep::upload(const Batch& batch, int64_t images, int64_t micro_step) {
  const auto at = static_cast<uint64_t>(micro_step);
  const auto count = static_cast<std::ptrdiff_t>(batch.count);
  std::fill(weights_.begin(), weights_.begin() + count, 1.f / static_cast<float>(images));
  std::fill(weights_.begin() + count, weights_.end(), 0.f);
  if (images_)
    images_->upload(batch);
  else
    backward_->upload(values_.image, batch.pixels().data());
  upload_targets(batch);
  backward_->upload(values_.weight, weights_.data());
  const RandomState random{static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32),
                           static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32)};
  backward_->upload(values_.rng, &random);
  if (teacher_) teacher_->upload(batch);
}

std::vector<Program*> TrainStep::parts() {
  std::vector<Program*> parts;
  if (images_) parts.push_back(&images_->program());
  if (teacher_ && teacher_->program()) parts.push_back(teacher_->program());
  parts.push_back(&*backward_);
  return parts;
}

TrainStep::Pass TrainStep::pass() {
  Pass pass{.before = {}, .backward = backward_->sequence().kernels()};
  const auto add = [&](const Kernels& own) {
    pass.before.insert(pass.before.end(), own.begin(), own.end());
  };
  if (images_) add(images_->program().sequence().kernels());
  Program* const teacher = teacher_ ? teacher_->program() : nullptr;
  if (!teacher) return pass;
  SideStream* const side = teacher_->side();
  if (!side) return add(teacher->sequence().kernels()), pass;
  pass.before.push_back(side->start());
  add(teacher->side_kernels());
  std::shared_ptr<Kernel>& reader =
      pass.backward[backward_->first_to_read(view(values_.teacher)).value_or(0)];
  reader = in_a_row({side->end(), reader});
  return pass;
}

Kernels TrainStep::Pass::all() const {
  Kernels all = before;
  all.insert(all.end(), backward.begin(), backward.end());
  return all;
}

void TrainStep::read_loss() {
  backward_->download_later(&reading_.emplace_back(), values_.loss);
  ++shares_.back();
}

void TrainStep::read_norm() {
  store_.backend().download_later(&reading_.emplace_back(), update_.norm());
  shares_.push_back(0);
}

void TrainStep::backward(const Batch& batch, int64_t images, int64_t micro_step) {
  upload(batch, images, micro_step);
  if (link_ && !perturbed_) begin_leaf(micro_step % recipe_.leaves());
  if (one_launch()) return;
  if (trace_) {
    for (Program* part : parts()) part->run_traced(trace_);
  } else {
    if (!pass_) pass_ = store_.backend().prepare(pass().all());
    pass_->run();
  }
  if (perturbed_) return;
  link_ ? read_leaf() : read_loss();
}

void TrainStep::fold(int64_t leaf) {
  if (!sliced()) return;
  tree_.fold(leaf, trace_);
  if (!perturbed_ && share_.leaves().size() > 1) averages_->after(leaf, share_.leaves());
}

// With a link the device adds up no metrics: they are put together from all leaves in order,
// whoever had them.
void TrainStep::begin_leaf(int64_t leaf) {
  if (!sums_) backward_->download(&sums_.emplace(), values_.totals);
  const LeafSums zeros;
  backward_->upload(values_.totals, &zeros);
  leaf_ = leaf;
}

void TrainStep::read_leaf() {
  const Stretch own = share_.leaves();
  const size_t steps = shares_.size() - 1;
  const size_t place =
      steps * static_cast<size_t>(own.size()) + static_cast<size_t>(leaf_ - own.first);
  while (leaves_.size() <= place) leaves_.emplace_back();
  backward_->download_later(&leaves_[place], values_.totals);
  leaf_ = -1;
}

void TrainStep::gather_leaves(std::vector<StepResult>& steps) {
  if (!sums_) backward_->download(&sums_.emplace(), values_.totals);
  const auto count = static_cast<int64_t>(steps.size());
  leaves_.resize(static_cast<size_t>(count * share_.leaves().size()));
  std::vector<LeafSums> all(static_cast<size_t>(count * recipe_.leaves()));
  std::vector<std::span<std::byte>> parts;
  const auto first = [&](int r) { return all.begin() + count * share_.leaves(r).first; };
  for (int r = 0; r < share_.ranks(); ++r)
    parts.push_back(std::as_writable_bytes(
        std::span(first(r), static_cast<size_t>(count * share_.leaves(r).size()))));
  std::copy(leaves_.begin(), leaves_.end(), first(share_.rank()));
  leaves_.clear();
  all_gather(link_->comm(), parts);
  for (int64_t i = 0; i < count; ++i)
    for (int r = 0; r < share_.ranks(); ++r) {
      const int64_t own = share_.leaves(r).size();
      for (auto leaf = first(r) + i * own; leaf != first(r) + (i + 1) * own; ++leaf) {
        sums_->loss += leaf->loss, sums_->correct += leaf->correct, sums_->images += leaf->images;
        steps[static_cast<size_t>(i)].loss += static_cast<double>(static_cast<float>(leaf->loss));
      }
    }
  backward_->upload(values_.totals, &*sums_);
  if (recipe_.sam > 0)  // as of what was put aside in the last step
    store_.backend().upload(store_.state("aside/metrics", {3}, DType::kF64), &*sums_);
}

int TrainStep::sum(int brought) {
  if (!link_) return brought;
  tree_.forget();
  return largest_of(link_->comm(), brought);
}

// Averages of parameters are those of who updates them; running statistics those of rank 0, which
// has the first leaf.
void TrainStep::share_averages() {
  if (!share_.comm()) return;
  Communicator& comm = *share_.comm();
  if (recipe_.ema > 0) {
    std::vector<TensorView> parts;
    for (int r = 0; r < comm.size(); ++r)
      parts.push_back(
          store_.part(Arena::kEma, share_.elements(r).first, share_.elements(r).size()));
    all_gather_views(comm, store_.backend(), parts);
  }
  std::vector<RankView> sends, receives;
  for (size_t i = 0; i < store_.specs().size(); ++i) {
    if (!store_.specs()[i].buffer) continue;
    const TensorView view = store_.view(i, Arena::kMaster);
    for (int r = 1; comm.first() && r < comm.size(); ++r) sends.push_back({r, view});
    if (!comm.first()) receives.push_back({0, view});
  }
  exchange_views(comm, store_.backend(), sends, receives);
}

// Gradients apart, which are zero before a step.
std::vector<TensorView> TrainStep::moved_by_batches() {
  std::vector<TensorView> all;
  for (size_t i = 0; i < store_.specs().size(); ++i)
    if (store_.specs()[i].buffer) all.push_back(store_.view(i, Arena::kMaster));
  for (const auto& [name, view] : store_.states()) all.push_back(view);
  return all;
}

void TrainStep::begin() {
  if (kept_.empty())
    for (const TensorView& view : moved_by_batches())
      kept_.push_back({view, std::vector<std::byte>(view.bytes())});
  for (Kept& kept : kept_) store_.backend().download_later(kept.bytes.data(), kept.view);
}

void TrainStep::abandon() {
  Backend& backend = store_.backend();
  backend.wait();
  tree_.forget();
  for (; shares_.back() > 0; --shares_.back()) reading_.pop_back();
  if (std::exchange(perturbed_, false)) {
    std::vector<std::byte> weights(store_.arena(Arena::kSamBackup).bytes());
    backend.download(weights.data(), store_.arena(Arena::kSamBackup));
    backend.upload(store_.arena(Arena::kMaster), weights.data());
    store_.refresh_compute();
  }
  for (const Kept& kept : kept_) backend.upload(kept.view, kept.bytes.data());
  const TensorView gradients = store_.arena(Arena::kGrad);
  backend.upload(gradients, std::vector<std::byte>(gradients.bytes()).data());
}

void TrainStep::run(const Batch& batch, double lr, int64_t step) {
  if (trace_ || link_) return backward(batch, batch.count, step), fold(0), sum(), update(lr, step);
  upload(batch, batch.count, step);
  update_.upload(lr, step);
  if (!whole_) {
    Kernels all = pass().all();
    const Kernels& update = update_.program().sequence().kernels();
    all.insert(all.end(), update.begin(), update.end());
    whole_ = store_.backend().prepare(std::move(all));
  }
  whole_->run();
  read_loss();
  read_norm();
}

void TrainStep::perturb() {
  if (link_ && !perturbing_) {
    Kernels kernels;
    tree_.add_sum(kernels, *backward_), update_.add_perturb(kernels);
    perturbing_ = store_.backend().prepare(std::move(kernels));
  }
  perturbing_ ? perturbing_->run() : update_.perturb(trace_);
  perturbed_ = true;
}

// Labels, or with mixed images the shares of two labels each.
void TrainStep::upload_targets(const Batch& batch) {
  if (!values_.target) return;
  if (!values_.mix) return backward_->upload(values_.target, batch.labels.data());
  const Shape image = values_.image.shape();
  targets_.resize(static_cast<size_t>(values_.target.shape().numel()));
  mix_targets(batch.labels, batch.mix, static_cast<int>(image[2]), static_cast<int>(image[3]),
              values_.logits.dim(1), targets_);
  backward_->upload(values_.mix, batch.mix.data());
  backward_->upload(values_.target, targets_.data());
}

// What is left of a step: its only leaf too, where that has waited. One without images has left no
// gradient.
void TrainStep::launch_step() {
  const bool waiting = leaf_ >= 0;
  std::unique_ptr<Sequence>& sequence = waiting ? whole_ : after_leaves_;
  if (!sequence) {
    Kernels kernels;
    if (waiting) {
      const Pass own = pass();
      kernels = own.before;
      tree_.add_backward_and_sum(kernels, *backward_, own.backward);
    } else {
      tree_.add_sum(kernels, *backward_);
    }
    update_.add_update(kernels);
    sequence = store_.backend().prepare(std::move(kernels));
  }
  sequence->run();
  if (waiting) read_leaf();
}

void TrainStep::update(double lr, int64_t step) {
  if (link_)
    update_.upload(lr, step), launch_step();
  else
    update_.run(lr, step, trace_);
  read_norm();
  perturbed_ = false;
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
  if (link_ && !all.empty()) gather_leaves(all);
  shares_.erase(shares_.begin(), shares_.end() - 1);
  return all;
}

TrainTotals TrainStep::totals() {
  if (sums_)
    return {sums_->loss, static_cast<int64_t>(sums_->correct), static_cast<int64_t>(sums_->images)};
  std::array<double, 3> sums{};
  backward_->download(sums.data(), values_.totals);
  return {sums[0], static_cast<int64_t>(sums[1]), static_cast<int64_t>(sums[2])};
}

void TrainStep::clear_totals() {
  const std::array<double, 3> zeros{};
  backward_->upload(values_.totals, zeros.data());
  if (sums_) sums_ = LeafSums{};
}

}  // namespace vitrum
