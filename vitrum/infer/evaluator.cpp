#include "vitrum/infer/evaluator.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "vitrum/core/ceil_div.h"
#include "vitrum/core/error.h"

namespace vitrum {

namespace {

double log_sum_exp(std::span<const float> x) {
  const double top = static_cast<double>(*std::max_element(x.begin(), x.end()));
  double sum = 0;
  for (const float v : x) sum += std::exp(static_cast<double>(v) - top);
  return top + std::log(sum);
}

// How many classes are preferred to `label`. A NaN, its own or another's, counts against it.
int64_t rank_of(std::span<const float> logits, size_t label) {
  const float own = logits[label];
  int64_t rank = 0;
  for (size_t k = 0; k < logits.size(); ++k)
    rank += k != label && (!(logits[k] <= own) || (logits[k] == own && k < label));
  return rank;
}

// The most probable class but `taken`; of equal ones the lowest.
size_t best_class(std::span<const float> logits, size_t taken) {
  size_t best = taken == 0 && logits.size() > 1 ? 1 : 0;
  for (size_t k = best + 1; k < logits.size(); ++k)
    if (k != taken && logits[k] > logits[best]) best = k;
  return best;
}

const ModelSpec& require_head(const ModelSpec& spec) {
  if (spec.config.classes() == 0) fail_usage("{} has no head to evaluate", spec.architecture);
  return spec;
}

// What the model says about one batch.
struct Answers {
  int64_t count = 0;
  std::vector<int32_t> labels;
  std::vector<int64_t> indices;
  std::vector<float> logits;

  void resize(size_t images, size_t numbers) {
    labels.resize(images), indices.resize(images), logits.resize(numbers);
  }
  void take(const Batch& batch) {
    count = batch.count;
    std::copy(batch.labels.begin(), batch.labels.end(), labels.begin());
    std::copy(batch.indices.begin(), batch.indices.end(), indices.begin());
  }
  void add_to(EvaluationTotals& totals, std::vector<SampleResult>& samples) const {
    const size_t outputs = logits.size() / labels.size();
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      const auto row = std::span(logits).subspan(i * outputs, outputs);
      totals.add(row, labels[i]);
      if (static_cast<int64_t>(samples.size()) <= Evaluation::kMostSamples)
        samples.push_back(result_of(row, labels[i], indices[i]));
    }
  }
};

// Everybody's to rank 0.
void gather(Communicator& comm, std::vector<Answers>& answers) {
  std::vector<Communicator::Send> sends;
  std::vector<Communicator::Receive> receives;
  const auto each = [](Answers& a, const auto& visit) {
    visit(std::as_writable_bytes(std::span(&a.count, 1)));
    visit(std::as_writable_bytes(std::span(a.labels)));
    visit(std::as_writable_bytes(std::span(a.indices)));
    visit(std::as_writable_bytes(std::span(a.logits)));
  };
  if (comm.first())
    for (int r = 1; r < comm.size(); ++r)
      each(answers[static_cast<size_t>(r)], [&](std::span<std::byte> bytes) {
        receives.push_back({r, bytes});
      });
  else
    each(answers[static_cast<size_t>(comm.rank())], [&](std::span<std::byte> bytes) {
      sends.push_back({0, bytes});
    });
  comm.exchange(sends, receives);
}

}  // namespace

SampleResult result_of(std::span<const float> logits, int label, int64_t index) {
  const double total = log_sum_exp(logits);
  const auto probability = [&](size_t k) {
    return std::exp(static_cast<double>(logits[k]) - total);
  };
  const size_t guess = best_class(logits, logits.size()), second = best_class(logits, guess);
  return {.index = index,
          .label = label,
          .guess = static_cast<int>(guess),
          .second = static_cast<int>(second),
          .probability = probability(guess),
          .second_probability = probability(second),
          .label_probability = probability(static_cast<size_t>(label))};
}

void EvaluationTotals::add(std::span<const float> logits, int64_t label) {
  const auto truth = static_cast<size_t>(label);
  const int64_t rank = rank_of(logits, truth);
  const auto guess =
      static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  classes_ = std::max(classes_, std::max(truth, guess) + 1);
  ++confusion_[{static_cast<int>(truth), static_cast<int>(guess)}];
  ++images_, top1_ += rank < 1, top5_ += rank < 5;
  loss_ += log_sum_exp(logits) - static_cast<double>(logits[truth]);
}

Evaluation EvaluationTotals::result() const {
  const auto images = static_cast<double>(images_);
  Evaluation e{.images = images_,
               .top1 = static_cast<double>(top1_) / images,
               .top5 = static_cast<double>(top5_) / images,
               .loss = loss_ / images,
               .per_class = std::vector<double>(classes_),
               .confusion = {},
               .samples = {}};
  std::vector<int64_t> totals(classes_);
  for (const auto& [pair, count] : confusion_) {
    const auto [truth, guess] = pair;
    e.confusion.push_back({truth, guess, count});
    totals[static_cast<size_t>(truth)] += count;
    if (truth == guess) e.per_class[static_cast<size_t>(truth)] = static_cast<double>(count);
  }
  for (size_t k = 0; k < classes_; ++k)
    e.per_class[k] = totals[k] > 0 ? e.per_class[k] / static_cast<double>(totals[k])
                                   : std::numeric_limits<double>::quiet_NaN();
  return e;
}

Evaluator::Evaluator(const ModelSpec& model, ParamStore& store, int64_t batch, DType compute,
                     Arena weights, InputStage from)
    : program_(require_head(model), store, batch, {.compute = compute, .weights = weights}, from),
      numbers_(static_cast<size_t>(batch * model.config.classes())) {
  if (weights != Arena::kEma || compute != DType::kBF16) return;
  averages_ = std::make_unique<Rounding>(store, Arena::kEma);
  weights_ = std::make_unique<Rounding>(store, Arena::kMaster);
}

Evaluator::Rounding::Rounding(ParamStore& store, Arena from) {
  const auto arena = [&](Arena which) {
    return graph.arena(which, store.elements(which), store.dtype(which)).id();
  };
  graph.nodes.push_back(
      {.op = Copy{}, .in = {arena(from)}, .out = {arena(Arena::kCompute)}, .name = "rounding"});
  program = std::make_unique<Program>(graph, std::span<const Value>(), store);
}

void Evaluator::run_model(const Batch& batch) {
  if (!images_) return program_.run(batch.pixels().data());
  images_->upload(batch);
  images_->program().run();
  program_.run();
}

void Evaluator::read_answers(Batch& batch, std::vector<float>& logits) {
  run_model(batch);
  program_.read_logits(logits.data());
  if (tta_ == Tta::kNone) return;
  for (ImageRow& row : batch.rows) row.mirror = row.mirror == 0;
  mirror_lines(batch.pixels(), static_cast<size_t>(program_.pixels().shape[3]));
  run_model(batch);
  mirrored_.resize(logits.size());
  program_.read_logits(mirrored_.data());
  take_mean(logits, mirrored_);
}

Evaluation Evaluator::run(Loader& loader, int64_t classes, const KeepGoing& keep_going,
                          Communicator* comm) {
  if (averages_) averages_->program->run();
  Evaluation evaluation = evaluate(loader, classes, keep_going, comm);
  if (weights_) weights_->program->run();
  return evaluation;
}

// A round is a batch of every process.
Evaluation Evaluator::evaluate(Loader& loader, int64_t classes, const KeepGoing& keep_going,
                               Communicator* comm) {
  const int64_t ranks = comm ? comm->size() : 1, rounds = ceil_div(loader.batches(), ranks);
  std::vector<Answers> answers(static_cast<size_t>(ranks));
  Answers& own = answers[static_cast<size_t>(comm ? comm->rank() : 0)];
  for (Answers& a : answers) a.resize(static_cast<size_t>(batch()), numbers_);
  EvaluationTotals totals(classes);
  std::vector<SampleResult> samples;
  Batch batch;
  loader.start(0);
  for (int64_t round = 0;
       (!keep_going || keep_going(std::min(round * ranks, loader.batches()))) && round < rounds;
       ++round) {
    own.count = 0;
    if (loader.next(batch)) {
      read_answers(batch, own.logits);
      own.take(batch);
    }
    if (comm) gather(*comm, answers);
    if (comm && !comm->first()) continue;
    for (const Answers& a : answers) a.add_to(totals, samples);
  }
  if (comm && !comm->first()) return {};
  Evaluation evaluation = totals.result();
  if (static_cast<int64_t>(samples.size()) <= Evaluation::kMostSamples)
    evaluation.samples = std::move(samples);
  return evaluation;
}

}  // namespace vitrum
