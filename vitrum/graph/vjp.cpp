// Reverse-mode differentiation of a traced graph: one vjp() overload per differentiable op.
#include <map>
#include <optional>

#include "vitrum/core/error.h"
#include "vitrum/graph/act.h"
#include "vitrum/graph/functional.h"
#include "vitrum/graph/passes.h"

namespace vitrum {
namespace {

class Differentiator {
 public:
  Differentiator(Graph& g, Recompute policy)
      : g_(g), policy_(policy), forward_size_(g.nodes.size()) {}

  void run(Value loss) {
    mark_trainable();
    loss_ = loss.id();
    walk_back();
  }

  std::vector<Value> run(Value of, Value seed, std::span<const Value> wrt) {
    needed_.assign(g_.values.size(), false);
    for (Value v : wrt) needed_[static_cast<size_t>(v.id())] = true;
    grad_[of.id()] = seed;
    walk_back();
    std::vector<Value> gradients;
    for (Value v : wrt) gradients.push_back(grad_.at(v.id()));
    return gradients;
  }

 private:
  void walk_back() {
    spread_needed();
    index_producers();
    for (node_ = forward_size_; node_-- > 0;) {
      if (!reached()) continue;
      if (policy_ == Recompute::kBlock) enter_region(g_.nodes[node_].region);
      std::visit([&](const auto& op) { vjp(op); }, Op(g_.nodes[node_].op));
    }
  }

  // ---- what needs a gradient, and which node a value comes from ----
  void mark_trainable() {
    needed_.assign(g_.values.size(), false);
    for (size_t v = 0; v < g_.values.size(); ++v)
      if (g_.values[v].role == Role::kParam)
        needed_[v] = g_.params[static_cast<size_t>(g_.values[v].param)].trainable;
  }
  void spread_needed() {
    for (const Node& node : g_.nodes)
      for (ValueId in : node.in)
        if (in != kAbsent && needed_[static_cast<size_t>(in)])
          for (ValueId out : node.out)
            if (out != kAbsent) needed_[static_cast<size_t>(out)] = true;
  }
  void index_producers() {
    for (size_t i = 0; i < forward_size_; ++i)
      for (ValueId out : g_.nodes[i].out)
        if (out != kAbsent) producer_[out] = i;
  }
  bool reached() const {
    const std::vector<ValueId>& out = g_.nodes[node_].out;
    if (out[0] == loss_) return true;
    for (ValueId v : out)
      if (grad_.contains(v)) return true;
    return false;
  }

  // ---- reading the forward pass: every value goes through kept(), which is where recomputation
  // happens ----
  const Node& here() const { return g_.nodes[node_]; }
  Value original(size_t k) { return {&g_, here().in[k]}; }
  Value in(size_t k) { return kept(here().in[k]); }
  Value out(size_t k) { return kept(here().out[k]); }
  Value dy(size_t k = 0) {
    auto it = grad_.find(here().out[k]);
    return it == grad_.end() ? Value() : it->second;
  }
  Value kept(ValueId v) {
    if (v == kAbsent) return {};
    if (auto it = copy_of_.find(v); it != copy_of_.end()) return {&g_, it->second};
    if (policy_ == Recompute::kNone) return {&g_, v};
    const std::optional<Value> again = cheap_again(v);
    if (again) copy_of_[v] = again->id();
    return again ? *again : Value(&g_, v);
  }

  // A LayerNorm or activation output can be had again without a matrix product; the same kernels on
  // the same inputs give the same bits. With kBlock this serves values that cross a block's border.
  std::optional<Value> cheap_again(ValueId v) {
    const auto it = producer_.find(v);
    if (it == producer_.end()) return {};
    const Node node = g_.nodes[it->second];
    const std::string name = node.name + ".again";
    if (const auto* norm = std::get_if<LayerNorm>(&node.op))
      return emit_again(name, *norm,
                        {kept(node.in[LayerNorm::kX]),
                         {&g_, node.in[LayerNorm::kWeight]},
                         {&g_, node.in[LayerNorm::kBias]}});
    if (const auto* norm = std::get_if<AddLayerNorm>(&node.op);
        norm && v == node.out[AddLayerNorm::kY]) {
      const auto& [eps] = *norm;
      return emit_again(name, LayerNorm{eps},
                        {kept(node.out[AddLayerNorm::kSum]),
                         {&g_, node.in[AddLayerNorm::kWeight]},
                         {&g_, node.in[AddLayerNorm::kBias]}});
    }
    if (const auto* gate = std::get_if<Gate>(&node.op))
      return g_.emit(name, *gate, {kept(node.in[Gate::kX])}, {Value(&g_, v).shape()});
    if (const auto* gather = std::get_if<GatherTokens>(&node.op))
      return g_.emit(name, *gather, {kept(node.in[GatherTokens::kX])}, {Value(&g_, v).shape()});
    if (const auto* linear = std::get_if<Linear>(&node.op)) {
      const auto& [act, drop, site] = *linear;
      if (policy_ != Recompute::kCheap || slope_from(act) != SlopeFrom::kInput) return {};
      Value y = emit_again(name, Activation{act}, {saved_of(it->second)});
      return drop > 0 ? emit_again(name, Dropout{drop, site}, {y, {&g_, node.in[Linear::kRng]}})
                      : y;
    }
    return {};
  }
  Value emit_again(const std::string& name, Op op, std::vector<Value> in) {
    return g_.emit(name, std::move(op), in, {in[0].shape()});
  }

  // Entering a block on the way back: its forward nodes are recorded once more, reading only kept
  // values. Its outputs that others still hold are not replaced for them; drop_dead() removes
  // clones nobody reads.
  void enter_region(int region) {
    if (region == region_) return;
    region_ = region;
    copy_of_.clear(), clone_.clear();
    if (region < 0) return;
    for (size_t i = 0; i < forward_size_; ++i) {
      if (g_.nodes[i].region != region) continue;
      Node clone = g_.nodes[i];
      clone.region = -1, clone.name += ".again";
      for (ValueId& v : clone.in) v = kept(v).id();
      for (ValueId& v : clone.out) {
        if (v == kAbsent) continue;
        const ValueId fresh = g_.add_value(g_.values[static_cast<size_t>(v)]).id();
        copy_of_[v] = fresh, v = fresh;
      }
      g_.nodes.push_back(std::move(clone));
      clone_[i] = g_.nodes.size() - 1;
    }
  }

  // An extra output of a forward node (or of its clone), added when a rule first asks for it.
  Value aux(size_t node, size_t k, Shape shape, const char* what, bool exact) {
    const auto it = clone_.find(node);
    const size_t at = it == clone_.end() ? node : it->second;
    if (g_.nodes[at].out.size() <= k) g_.nodes[at].out.resize(k + 1, kAbsent);
    if (g_.nodes[at].out[k] == kAbsent)
      g_.nodes[at].out[k] =
          g_.add_value({.name = g_.nodes[at].name + "." + what, .shape = shape, .exact = exact})
              .id();
    return {&g_, g_.nodes[at].out[k]};
  }
  Value saved_of(size_t node) {
    const Value y(&g_, g_.nodes[node].out[Linear::kY]);
    return aux(node, Linear::kSaved, y.shape(), "saved", g_.info(y).exact);
  }

  // ---- writing the backward pass ----
  // Appends `op`; wrt[i] is the forward value whose gradient output i is (kAbsent: nobody's).
  void backward(Op op, std::vector<Value> ins,
                std::vector<ValueId> wrt) {  // by value: nodes may move
    Node node{.op = std::move(op), .in = {}, .out = {}, .name = here().name + ".bwd"};
    for (Value v : ins) node.in.push_back(v.id());
    for (ValueId v : wrt) node.out.push_back(wanted(v) ? gradient_value(v).id() : kAbsent);
    const std::vector<ValueId> out = node.out;
    g_.nodes.push_back(std::move(node));
    for (size_t i = 0; i < wrt.size(); ++i)
      if (out[i] != kAbsent && g_.values[static_cast<size_t>(out[i])].role == Role::kTemp)
        accumulate(wrt[i], {&g_, out[i]});
  }
  bool wanted(ValueId v) const { return v != kAbsent && needed_[static_cast<size_t>(v)]; }
  // Gradients of parameters are added to; where what an op takes for one was computed, the sum
  // begins here. No other node may have given v a gradient before.
  void start_at_zero(ValueId v) {
    const ValueInfo info = g_.values[static_cast<size_t>(v)];
    if (!wanted(v) || info.role == Role::kParam) return;
    const Value zero = gradient_value(v);
    const int64_t rows = info.shape[0];
    GatherTokens none{rows, info.shape.numel() / rows,
                      std::vector<int32_t>(static_cast<size_t>(rows), -1)};
    g_.nodes.push_back({.op = std::move(none),
                        .in = {kept(v).id()},
                        .out = {zero.id()},
                        .name = here().name + ".zero"});
    started_[v] = zero;
  }
  Value gradient_value(ValueId v) {
    const ValueInfo info = g_.values[static_cast<size_t>(v)];
    if (const auto at = started_.find(v); at != started_.end()) return at->second;
    if (info.role != Role::kParam)
      return g_.add_value({.name = info.name + ".grad", .shape = info.shape, .exact = info.exact});
    auto [it, fresh] = param_grad_.try_emplace(v);
    if (fresh)
      it->second = g_.add_value({.name = info.name + ".grad",
                                 .shape = info.shape,
                                 .role = Role::kGrad,
                                 .exact = true,
                                 .param = info.param});
    return it->second;
  }
  // What a parameter holds at zero does not learn.
  void clear_held(ValueId v) {
    if (!wanted(v) || g_.values[static_cast<size_t>(v)].role != Role::kParam) return;
    const int param = g_.values[static_cast<size_t>(v)].param;
    const auto [first, count] = g_.params[static_cast<size_t>(param)].held;
    if (count == 0) return;
    g_.nodes.push_back({.op = ClearRange{.first = first, .count = count},
                        .in = {},
                        .out = {gradient_value(v).id()},
                        .name = here().name + ".held"});
  }
  void accumulate(ValueId v, Value d) {
    if (!wanted(v)) return;
    auto [it, fresh] = grad_.try_emplace(v, d);
    if (!fresh) it->second = it->second + d;
  }

  // ---- the rules ----
  void vjp(const Linear& op) {
    const auto& [act, drop, site] = op;
    const SlopeFrom from = slope_from(act);
    Value saved = from == SlopeFrom::kInput    ? saved_of(node_)
                  : from == SlopeFrom::kOutput ? out(Linear::kY)
                                               : Value();
    backward(LinearBwd{.act = act, .drop = drop, .site = site},
             {dy(), in(Linear::kX), in(Linear::kWeight), saved, original(Linear::kRng)},
             {here().in[Linear::kX], here().in[Linear::kWeight], here().in[Linear::kBias]});
    clear_held(here().in[Linear::kBias]);
  }
  void vjp(const Activation& op) {
    const auto& [act] = op;
    backward(ActivationBwd{.act = act}, {dy(), in(Activation::kX)}, {here().in[Activation::kX]});
  }
  void vjp(const LayerNorm& op) {
    [[maybe_unused]] const auto& [eps] = op;  // rstd has it
    const Shape rows{original(LayerNorm::kX).shape().rows()};
    Value x = in(LayerNorm::kX), mean = aux(node_, LayerNorm::kMean, rows, "mean", true),
          rstd = aux(node_, LayerNorm::kRstd, rows, "rstd", true);
    backward(LayerNormBwd{}, {dy(), x, in(LayerNorm::kWeight), mean, rstd, Value()}, here().in);
  }
  void vjp(const AddLayerNorm& op) {
    [[maybe_unused]] const auto& [eps] = op;  // rstd has it
    const ValueId a = here().in[AddLayerNorm::kA], b = here().in[AddLayerNorm::kB];
    Value from_norm = dy(AddLayerNorm::kY), from_sum = dy(AddLayerNorm::kSum), d = from_sum;
    if (from_norm) {
      const Shape rows{original(AddLayerNorm::kA).shape().rows()};
      Value sum = out(AddLayerNorm::kSum),
            mean = aux(node_, AddLayerNorm::kMean, rows, "mean", true),
            rstd = aux(node_, AddLayerNorm::kRstd, rows, "rstd", true);
      // It goes in as dskip; what comes out is the gradient of the sum.
      grad_.erase(here().out[AddLayerNorm::kSum]);
      backward(LayerNormBwd{}, {from_norm, sum, in(AddLayerNorm::kWeight), mean, rstd, from_sum},
               {here().out[AddLayerNorm::kSum], here().in[AddLayerNorm::kWeight],
                here().in[AddLayerNorm::kBias]});
      d = dy(AddLayerNorm::kSum);
    }
    accumulate(a, d), accumulate(b, d);
  }
  void vjp(const Attention& op) {
    const auto& [heads, drop, site] = op;
    const Value qkv = in(Attention::kQkv);
    Value y = out(Attention::kY);
    Value lse = aux(node_, Attention::kLse, {qkv.dim(0), heads, qkv.dim(1)}, "lse", true);
    std::vector<Value> ins = {dy(), qkv, y, lse, original(Attention::kRng)};
    std::vector<ValueId> wrt = {here().in[Attention::kQkv]};
    if (here().in.size() > Attention::kBias) {
      ins.insert(ins.end(), {in(Attention::kBias), original(Attention::kMask)});
      wrt.push_back(here().in[Attention::kBias]);
    }
    backward(AttentionBwd{.heads = heads, .drop = drop, .site = site}, ins, wrt);
  }
  void vjp(const RelativeBias& op) {
    const auto& [window_h, window_w, prefix] = op;
    start_at_zero(here().in[RelativeBias::kTable]);
    backward(RelativeBiasBwd{.window_h = window_h, .window_w = window_w, .prefix = prefix}, {dy()},
             {here().in[RelativeBias::kTable]});
  }
  void vjp(const Rotate& op) {
    const auto& [heads, prefix, halves, inverse] = op;
    backward(Rotate{heads, prefix, halves, !inverse}, {dy(), original(Rotate::kTable)},
             {here().in[Rotate::kQkv]});
  }
  void vjp(const Gate& op) {
    const auto& [act] = op;
    backward(GateBwd{.act = act}, {dy(), in(Gate::kX)}, {here().in[Gate::kX]});
  }
  void vjp(const GatherTokens& op) {
    const auto& [tokens, width, from] = op;
    GatherTokens back{static_cast<int64_t>(from.size()), width,
                      std::vector<int32_t>(static_cast<size_t>(tokens), -1)};
    for (size_t i = 0; i < from.size(); ++i)
      if (from[i] >= 0) back.from[static_cast<size_t>(from[i])] = static_cast<int32_t>(i);
    backward(std::move(back), {dy()}, {here().in[GatherTokens::kX]});
  }
  // A sum of losses has no gradient value: that of the loss is 1, and its terms know.
  void vjp(const NoAttributes<Add>&) {
    Value d = dy();
    accumulate(here().in[Add::kA], d), accumulate(here().in[Add::kB], d);
  }
  void vjp(const NoAttributes<ChannelScale>&) {
    backward(ChannelScaleBwd{}, {dy(), in(ChannelScale::kX), in(ChannelScale::kGamma)}, here().in);
  }
  // Dropping is linear with a mask that depends only on the site, so the gradient is dropped the
  // same way.
  void vjp(const Dropout& op) {
    [[maybe_unused]] const auto& [drop, site] = op;
    backward(op, {dy(), original(Dropout::kRng)}, {here().in[Dropout::kX]});
  }
  void vjp(const DropPath& op) {
    [[maybe_unused]] const auto& [drop, site] = op;
    backward(op, {dy(), original(DropPath::kRng)}, {here().in[DropPath::kX]});
  }
  void vjp(const KeepTokens& op) {
    const auto& [choice] = op;
    backward(PlaceTokens{choice}, {dy(), original(KeepTokens::kRng), Value()},
             {here().in[KeepTokens::kX]});
  }
  void vjp(const PlaceTokens& op) {
    const auto& [choice] = op;
    const ValueId fill = here().in[PlaceTokens::kFill];
    if (fill != kAbsent) start_at_zero(fill);
    backward(KeepTokens{choice}, {dy(), original(PlaceTokens::kRng)},
             {here().in[PlaceTokens::kX], fill});
  }
  void vjp(const NoAttributes<Tokens>&) {
    TokensBwd back;
    for (size_t i = Tokens::kPrefix; i < here().in.size(); ++i)
      back.prefix.push_back(Value(&g_, here().in[i]).dim(1));
    if (const ValueId pos = here().in[Tokens::kPos]; pos != kAbsent) start_at_zero(pos);
    backward(std::move(back), {dy()}, here().in);
  }
  void vjp(const Pool& op) {
    const auto& [first, count] = op;
    backward(PoolBwd{.first = first, .count = count}, {dy()}, {here().in[Pool::kX]});
  }
  void vjp(const AttendPool& op) {
    const auto& [heads] = op;
    backward(AttendPoolBwd{.heads = heads}, {dy(), in(AttendPool::kKv), in(AttendPool::kQ)},
             here().in);
  }
  void vjp(const Conv2d& op) {
    const auto& [stride, padding, eps, act] = op;
    if (act != Act::kNone || here().in[Conv2d::kNormWeight] != kAbsent) refuse();
    backward(Conv2dBwd{.stride = stride, .padding = padding},
             {dy(), in(Conv2d::kX), in(Conv2d::kWeight)},
             {here().in[Conv2d::kX], here().in[Conv2d::kWeight]});
  }
  void vjp(const MaxPool& op) {
    const auto& [kernel, stride, padding] = op;
    backward(MaxPoolBwd{.kernel = kernel, .stride = stride, .padding = padding},
             {dy(), in(MaxPool::kX)}, {here().in[MaxPool::kX]});
  }
  void vjp(const DepthwiseConv& op) {
    const auto& [padding] = op;
    backward(DepthwiseConvBwd{.padding = padding},
             {dy(), in(DepthwiseConv::kX), in(DepthwiseConv::kWeight)}, here().in);
  }
  void vjp(const ResponseNorm& op) {
    const auto& [eps] = op;
    const Value x = in(ResponseNorm::kX),
                length = aux(node_, ResponseNorm::kLength, {x.dim(0), x.dim(-1)}, "length", true);
    backward(ResponseNormBwd{.eps = eps}, {dy(), x, in(ResponseNorm::kWeight), length}, here().in);
  }
  void vjp(const UnitHeads& op) {
    const auto& [heads, parts, unit] = op;
    backward(UnitHeadsBwd{.heads = heads, .parts = parts, .unit = unit},
             {dy(), in(UnitHeads::kX), in(UnitHeads::kScale)}, here().in);
  }
  void vjp(const BatchNorm& op) {
    const auto& [eps, act] = op;
    const ValueId skip = here().in[BatchNorm::kSkip];
    const bool relu = act == Act::kRelu;
    const Shape channels = original(BatchNorm::kWeight).shape();
    const Value d = dy(), x = in(BatchNorm::kX), y = relu ? out(BatchNorm::kY) : Value();
    const Value mean = aux(node_, BatchNorm::kMean, channels, "mean", true),
                var = aux(node_, BatchNorm::kVar, channels, "var", true);
    backward(BatchNormBwd{.eps = eps, .act = act},
             {d, x, in(BatchNorm::kWeight), mean, var, y, original(BatchNorm::kSampleWeight)},
             {here().in[BatchNorm::kX], here().in[BatchNorm::kWeight], here().in[BatchNorm::kBias],
              relu ? skip : kAbsent});
    if (skip != kAbsent && !relu) accumulate(skip, d);
  }
  void vjp(const CrossEntropy& op) {
    const auto& [form] = op;
    Value logits = in(CrossEntropy::kLogits), lse;
    if (has_softmax(form.kind)) lse = aux(node_, CrossEntropy::kLse, {logits.dim(0)}, "lse", true);
    // A target may be exact where what is computed again would not be.
    backward(CrossEntropyBwd{.form = form},
             {logits, original(CrossEntropy::kTarget), original(CrossEntropy::kSampleWeight), lse},
             {here().in[CrossEntropy::kLogits]});
  }
  void vjp(const NoAttributes<Normalize>&) { refuse(); }
  void vjp(const Patchify&) { refuse(); }
  template <NoGradient T>
  void vjp(const T&) {
    refuse();
  }
  // Pixels are inputs: nothing below them is ever needed, so these rules are unreachable from a
  // parameter.
  void refuse() { fail("differentiate: {} has no gradient", here().name); }

  Graph& g_;
  Recompute policy_;
  size_t forward_size_, node_ = 0;
  ValueId loss_ = kAbsent;
  std::vector<bool> needed_;
  std::map<ValueId, size_t> producer_;
  std::map<ValueId, Value> grad_, param_grad_;
  std::map<ValueId, Value> started_;  // see start_at_zero()
  int region_ = -1;
  std::map<ValueId, ValueId> copy_of_;
  std::map<size_t, size_t> clone_;
};

}  // namespace

void differentiate(Graph& g, Value loss, Recompute policy) { Differentiator(g, policy).run(loss); }

std::vector<Value> differentiate(Graph& g, Value of, Value seed, std::span<const Value> wrt) {
  return Differentiator(g, Recompute::kNone).run(of, seed, wrt);
}

}  // namespace vitrum
