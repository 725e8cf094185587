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

// Muon is for matrices that map activations to activations; embeddings, stems, heads, norms and
// biases are left to AdamW. A convolution's kernel is the matrix (out, everything else), unless it
// has one channel for each: then it mixes nothing, and is no matrix.
bool uses_muon(const ParamSpec& p) {
  const bool depthwise = p.shape.rank() == 4 && p.shape[1] == 1;
  return p.shape.rank() >= 2 && !depthwise && p.decay && p.name.ends_with(".weight") &&
         in_block(p.name) && !p.name.starts_with("stem.");
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

}  // namespace

// Writes the nodes of one program. Arenas are seen from this process's first element on.
class Update::Recorder {
 public:
  Recorder(Graph& g, Update& update, const Recipe& recipe, DType compute)
      : g_(g),
        update_(update),
        store_(update.store_),
        share_(update.share_),
        recipe_(recipe),
        hyper_(recipe.hyper()),
        narrow_(compute == DType::kBF16),
        gradients_(part(Arena::kGrad)) {}

  std::unique_ptr<Program> compile(Value output) {
    return std::make_unique<Program>(g_, std::span(&output, 1), store_, options_);
  }

  // Global norm, and the factor that clips it.
  Norms norms(double max_norm) {
    const Value norms = g_.add_value({.name = "clip", .shape = {2}, .exact = true});
    ClipScale clip{.max_norm = static_cast<float>(max_norm), .of_sums = update_.in_blocks(recipe_)};
    ValueId of = gradients_;
    if (clip.of_sums) {
      const ValueId own = value("own squares", update_.squares(share_.blocks()));
      add("squares", BlockSquares{.segments = share_.segments()}, {gradients_}, {own});
      of = value("squares", update_.squares({0, share_.all_blocks()}));
    }
    const size_t kernels = g_.nodes.size();
    add("clip", clip, {of}, {norms.id()});
    return {norms, kernels};
  }

  // The weights, and whatever a forward pass changes, to their other place or back from it.
  void copy(const Graph& forward, bool aside) {
    const auto one = [&](ValueId here, ValueId there) {
      add(aside ? "aside" : "back", Copy{}, {aside ? here : there}, {aside ? there : here});
    };
    one(whole(Arena::kMaster), whole(Arena::kSamBackup));
    for (const ValueInfo& v : forward.values)
      if (v.role == Role::kState)
        one(g_.state(v.name, v.shape, v.dtype).id(),
            g_.state("aside/" + v.name, v.shape, v.dtype).id());
  }

  void perturb(Value norms) {
    add("perturb", Perturb{.rho = static_cast<float>(recipe_.sam), .segments = share_.segments()},
        {norms.id()}, {gradients_, part(Arena::kMaster), part(Arena::kCompute, narrow_)});
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
        {gradients_, part(Arena::kMaster), part(Arena::kMoment1, first),
         part(Arena::kMoment2, second), part(Arena::kEma, recipe_.ema > 0),
         part(Arena::kCompute, narrow_)});
  }

  // Muon for the matrices, AdamW for the rest.
  void muon(Value rates, Value clip) {
    std::vector<Segment> own, others;
    Orthogonalize op{
        .momentum = hyper_.momentum, .nesterov = hyper_.nesterov, .bf16 = narrow_, .matrices = {}};
    for (Segment s : share_.segments()) {
      const ParamSpec& spec = spec_at(store_, share_.elements().first + s.offset);
      if (uses_muon(spec)) {
        own.push_back(s);
        op.matrices.push_back(matrix_of(s, spec.shape, recipe_.muon_scale));
      } else {
        if (recipe_.adamw_lr) s.lr_scale *= static_cast<float>(*recipe_.adamw_lr / recipe_.lr);
        others.push_back(s);
      }
    }
    add("muon", std::move(op), {clip.id()}, {gradients_, part(Arena::kMoment1)});
    step(OptimizerKind::kMuon, std::move(own), rates, Value());
    step(OptimizerKind::kAdamW, std::move(others), rates, clip);
  }

 private:
  ValueId whole(Arena which) {
    return g_.arena(which, store_.elements(which), store_.dtype(which)).id();
  }
  // What this process updates of an arena.
  ValueId part(Arena which, bool used = true) {
    if (!used) return kAbsent;
    const Stretch own = share_.elements();
    return value("arena", store_.part(which, own.first, own.size()));
  }
  ValueId value(const char* name, const TensorView& view) {
    for (const Shared& known : options_.shared)
      if (known.view.data == view.data && known.view.shape == view.shape &&
          known.view.dtype == view.dtype)
        return known.value.id();
    options_.shared.push_back({g_.input(name, view.shape, view.dtype, /*exact=*/true), view});
    return options_.shared.back().value.id();
  }
  void add(std::string name, Op op, std::vector<ValueId> in, std::vector<ValueId> out) {
    g_.nodes.push_back(
        {.op = std::move(op), .in = std::move(in), .out = std::move(out), .name = std::move(name)});
  }

  Graph& g_;
  Update& update_;
  ParamStore& store_;
  const WorkShare& share_;
  const Recipe& recipe_;
  const Hyper hyper_;
  const bool narrow_;
  CompileOptions options_;
  const ValueId gradients_;
};

Update::Update(const Recipe& recipe, const WorkShare& share, DType compute, ParamStore& store,
               const Graph& forward, Link* link)
    : share_(share), link_(link), store_(store), hyper_(recipe.hyper()), ema_(recipe.ema) {
  if (in_blocks(recipe))
    squares_ = store.backend().allocate(static_cast<size_t>(share.all_blocks()) * sizeof(double));
  if (recipe.sam > 0) {
    Recorder record(perturb_graph_, *this, recipe, compute);
    record.copy(forward, /*aside=*/true);
    perturb_norms_ = record.norms(0);
    record.perturb(perturb_norms_.norms);
    perturb_ = record.compile(perturb_norms_.norms);
  }
  Recorder record(graph_, *this, recipe, compute);
  if (recipe.sam > 0) record.copy(forward, /*aside=*/false);
  rates_ = graph_.input("rates", {4}, DType::kF32, /*exact=*/true);
  norms_ = record.norms(hyper_.clip_norm);
  if (recipe.optimizer == OptimizerKind::kMuon)
    record.muon(rates_, norms_.norms);
  else
    record.step(recipe.optimizer, share.segments(), rates_, norms_.norms);
  update_ = record.compile(norms_.norms);
  if (!share.comm() || compute != DType::kBF16) return;
  const auto arena = [&](Arena which) {
    return round_graph_.arena(which, store.elements(which), store.dtype(which)).id();
  };
  round_graph_.nodes.push_back({.op = Copy{},
                                .in = {arena(Arena::kMaster)},
                                .out = {arena(Arena::kCompute)},
                                .name = "rounding"});
  round_ = std::make_unique<Program>(round_graph_, std::span<const Value>(), store);
}

TensorView Update::squares(Stretch blocks) const {
  return {squares_.data() + static_cast<size_t>(blocks.first) * sizeof(double),
          {blocks.size()},
          DType::kF64};
}

// Up to the sums of squares, which all processes need of each other, and on; then the weights.
void Update::add(Kernels& to, const Program& program, const Norms& norms) {
  const Kernels& own = program.sequence().kernels();
  const auto middle = own.begin() + static_cast<std::ptrdiff_t>(norms.kernels);
  to.insert(to.end(), own.begin(), middle);
  std::vector<TensorView> parts;
  for (int r = 0; r < share_.ranks(); ++r) parts.push_back(squares(share_.blocks(r)));
  exchange(to, parts);
  to.insert(to.end(), middle, own.end());
  parts.clear();
  for (int r = 0; r < share_.ranks(); ++r) {
    const Stretch part = share_.elements(r);
    parts.push_back(store_.part(Arena::kMaster, part.first, part.size()));
  }
  exchange(to, parts);
  if (!round_) return;
  const Kernels& round = round_->sequence().kernels();
  to.insert(to.end(), round.begin(), round.end());
}

void Update::exchange(Kernels& to, const std::vector<TensorView>& parts) const {
  to.push_back(link_->exchange(gather_views(link_->comm(), parts)));
  to.push_back(link_->arrived());
}

void Update::upload(double lr, int64_t step) {
  const auto t = static_cast<double>(step + 1);
  const std::array<float, 4> rates = {
      static_cast<float>(lr), static_cast<float>(1 - std::pow(hyper_.beta1, t)),
      static_cast<float>(1 - std::pow(hyper_.beta2, t)), static_cast<float>(ema_decay(ema_, step))};
  update_->upload(rates_, rates.data());
}

TensorView Update::norm() const { return {(*update_)[norms_.norms].data, {1}, DType::kF32}; }

}  // namespace vitrum
