#include "vitrum/train/update.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace vitrum {
namespace {

// The average starts as a copy of the weights and forgets them quickly at first, so that short runs
// are not an average over random weights.
double ema_decay(double decay, int64_t step) {
  const auto t = static_cast<double>(step);
  return std::min(decay, (1 + t) / (10 + t));
}

// Muon is for matrices that map activations to activations; embeddings, heads, norms and biases are
// left to AdamW. A convolution's kernel is the matrix (out, everything else).
bool uses_muon(const ParamSpec& p) {
  return p.shape.rank() >= 2 && p.decay && p.name.ends_with(".weight") && in_block(p.name);
}

MatrixSegment matrix_of(const Segment& s, const Shape& shape, MuonScale scale) {
  const int64_t rows = shape[0], columns = s.size / rows;
  const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
  const double factor = scale == MuonScale::kOriginal ? std::sqrt(std::max(1.0, r / c))
                                                      : 0.2 * std::sqrt(std::max(r, c));
  return {s.offset, rows, columns, static_cast<float>(factor)};
}

const ParamSpec& spec_at(const ParamStore& store, int64_t offset) {
  size_t i = 0;
  while (store.offset(i) != offset) ++i;
  return store.specs()[i];
}

// Writes the nodes of one program.
class Recorder {
 public:
  Recorder(Graph& g, ParamStore& store, const Recipe& recipe, DType compute)
      : g_(g),
        store_(store),
        recipe_(recipe),
        hyper_(recipe.hyper()),
        narrow_(compute == DType::kBF16),
        gradients_(arena(Arena::kGrad)) {}

  // Global norm, and the factor that clips it.
  Value norms(double max_norm) {
    const Value norms = g_.add_value({.name = "clip", .shape = {2}, .exact = true});
    add("clip", ClipScale{.max_norm = static_cast<float>(max_norm)}, {gradients_}, {norms.id()});
    return norms;
  }

  // The weights, and whatever a forward pass changes, to their other place or back from it.
  void copy(const Graph& forward, bool aside) {
    const auto one = [&](ValueId here, ValueId there) {
      add(aside ? "aside" : "back", Copy{}, {aside ? here : there}, {aside ? there : here});
    };
    one(arena(Arena::kMaster), arena(Arena::kSamBackup));
    for (const ValueInfo& v : forward.values)
      if (v.role == Role::kState)
        one(g_.state(v.name, v.shape, v.dtype).id(),
            g_.state("aside/" + v.name, v.shape, v.dtype).id());
  }

  void perturb(const std::vector<Segment>& segments, Value norms) {
    add("perturb", Perturb{.rho = static_cast<float>(recipe_.sam), .segments = segments},
        {norms.id()}, {gradients_, arena(Arena::kMaster), arena(Arena::kCompute, narrow_)});
  }

  void step(OptimizerKind kind, std::vector<Segment> segments, Value rates, Value clip) {
    using enum OptimizerKind;
    const bool first = kind != kMuon && (kind != kSgd || hyper_.momentum > 0);
    const bool second = kind == kAdam || kind == kAdamW || kind == kLamb;
    OptimizerStep op{.kind = kind,
                     .beta1 = kind == kSgd ? hyper_.momentum : hyper_.beta1,
                     .beta2 = hyper_.beta2,
                     .eps = static_cast<float>(hyper_.eps),
                     .nesterov = hyper_.nesterov,
                     .segments = std::move(segments)};
    add("optimizer", std::move(op), {rates.id(), clip.id()},
        {gradients_, arena(Arena::kMaster), arena(Arena::kMoment1, first),
         arena(Arena::kMoment2, second), arena(Arena::kEma, recipe_.ema > 0),
         arena(Arena::kCompute, narrow_)});
  }

  // Muon for the matrices, AdamW for the rest.
  void muon(const std::vector<Segment>& segments, Value rates, Value clip) {
    std::vector<Segment> own, others;
    Orthogonalize op{
        .momentum = hyper_.momentum, .nesterov = hyper_.nesterov, .bf16 = narrow_, .matrices = {}};
    for (Segment s : segments) {
      const ParamSpec& spec = spec_at(store_, s.offset);
      if (uses_muon(spec)) {
        own.push_back(s);
        op.matrices.push_back(matrix_of(s, spec.shape, recipe_.muon_scale));
      } else {
        if (recipe_.adamw_lr) s.lr_scale *= static_cast<float>(*recipe_.adamw_lr / recipe_.lr);
        others.push_back(s);
      }
    }
    add("muon", std::move(op), {clip.id()}, {gradients_, arena(Arena::kMoment1)});
    step(OptimizerKind::kMuon, std::move(own), rates, Value());
    step(OptimizerKind::kAdamW, std::move(others), rates, clip);
  }

 private:
  ValueId arena(Arena which, bool used = true) {
    return used ? g_.arena(which, store_.elements(which), store_.dtype(which)).id() : kAbsent;
  }
  void add(std::string name, Op op, std::vector<ValueId> in, std::vector<ValueId> out) {
    g_.nodes.push_back(
        {.op = std::move(op), .in = std::move(in), .out = std::move(out), .name = std::move(name)});
  }

  Graph& g_;
  ParamStore& store_;
  const Recipe& recipe_;
  const Hyper hyper_;
  const bool narrow_;
  const ValueId gradients_;
};

}  // namespace

Update::Update(const Recipe& recipe, const std::vector<Segment>& segments, DType compute,
               ParamStore& store, const Graph& forward)
    : hyper_(recipe.hyper()), ema_(recipe.ema) {
  if (recipe.sam > 0) {
    Recorder record(perturb_graph_, store, recipe, compute);
    record.copy(forward, /*aside=*/true);
    const Value norms = record.norms(0);
    record.perturb(segments, norms);
    perturb_ = std::make_unique<Program>(perturb_graph_, std::span(&norms, 1), store);
  }
  Recorder record(graph_, store, recipe, compute);
  if (recipe.sam > 0) record.copy(forward, /*aside=*/false);
  rates_ = graph_.input("rates", {4}, DType::kF32, /*exact=*/true);
  clip_ = record.norms(hyper_.clip_norm);
  if (recipe.optimizer == OptimizerKind::kMuon)
    record.muon(segments, rates_, clip_);
  else
    record.step(recipe.optimizer, segments, rates_, clip_);
  update_ = std::make_unique<Program>(graph_, std::span(&clip_, 1), store);
}

void Update::upload(double lr, int64_t step) {
  const auto t = static_cast<double>(step + 1);
  const std::array<float, 4> rates = {
      static_cast<float>(lr), static_cast<float>(1 - std::pow(hyper_.beta1, t)),
      static_cast<float>(1 - std::pow(hyper_.beta2, t)), static_cast<float>(ema_decay(ema_, step))};
  update_->upload(rates_, rates.data());
}

TensorView Update::norm() const { return {(*update_)[clip_].data, {1}, DType::kF32}; }

}  // namespace vitrum
