#include "vitrum/explain/attention_program.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "vitrum/core/all_finite.h"
#include "vitrum/core/error.h"

namespace vitrum {
namespace {

template <class T>
const Node* find(const Graph& g) {
  const auto at = std::find_if(g.nodes.begin(), g.nodes.end(),
                               [](const Node& n) { return std::holds_alternative<T>(n.op); });
  return at == g.nodes.end() ? nullptr : &*at;
}

// Where the tokens lie, as the graph says: cut by Patchify, preceded by Tokens' prefix, and read by
// Pool.
TokenGrid grid_of(const Graph& g) {
  const Node* patchify = find<Patchify>(g);
  const auto& cut = std::get<Patchify>(patchify->op);
  const Shape& image = g.values[static_cast<size_t>(patchify->in[Patchify::kImage])].shape;
  TokenGrid grid{.rows = image[2] / cut.patch_h, .columns = image[3] / cut.patch_w};
  for (const Node& node : g.nodes)
    for (size_t i = Tokens::kPrefix; std::holds_alternative<Tokens>(node.op) && i < node.in.size();
         ++i)
      grid.prefix += g.values[static_cast<size_t>(node.in[i])].shape[1];
  std::set<int64_t> read;  // each once: a model may pool tokens together and one by one
  for (const Node& node : g.nodes)
    if (const auto* pool = std::get_if<Pool>(&node.op))
      for (int64_t t = pool->first; t < std::min(pool->first + pool->count, grid.prefix); ++t)
        read.insert(t);
  grid.readout.assign(read.begin(), read.end());
  return grid;
}

// Where the tokens of one layer lie: GatherTokens nodes before it merge patches, and the one that
// feeds its qkv cuts windows.
void place_tokens(const Graph& g, const AttentionSite& site, const TokenGrid& first,
                  LayerAttention& layer) {
  layer.grid = first, layer.size = site.qkv.dim(1);
  const Node* gather = nullptr;
  ValueId qkv = site.qkv.id(), into_qkv = kAbsent;
  for (const Node& node : g.nodes)  // cosine attention has unit heads in between
    if (std::holds_alternative<UnitHeads>(node.op) && node.out[UnitHeads::kY] == qkv)
      qkv = node.in[UnitHeads::kX];
  for (const Node& node : g.nodes)
    if (std::holds_alternative<Linear>(node.op) && node.out[Linear::kY] == qkv)
      into_qkv = node.in[Linear::kX];
  for (const Node& node : g.nodes) {
    if (node.out[0] == qkv) break;
    const auto* op = std::get_if<GatherTokens>(&node.op);
    if (!op) continue;
    if (node.out[GatherTokens::kY] == into_qkv) gather = &node;
    if (g.values[static_cast<size_t>(node.out[GatherTokens::kY])].shape[-1] == 4 * op->width)
      layer.grid.rows = (layer.grid.rows + 1) / 2,
      layer.grid.columns = (layer.grid.columns + 1) / 2;
  }
  if (gather) {
    const auto& from = std::get<GatherTokens>(gather->op).from;
    layer.place.assign(from.begin(), from.end());
  } else {
    layer.place.resize(static_cast<size_t>(layer.size));
    std::iota(layer.place.begin(), layer.place.end(), int64_t{0});
  }
  layer.windows = static_cast<int64_t>(layer.place.size()) / layer.size;
}

}  // namespace

AttentionProgram::AttentionProgram(const ModelSpec& model, ParamStore& store,
                                   const AttentionOptions& options)
    : model_(trace(graph_, model, 1)),
      pool_(find_pool()),
      sites_(record(options)),
      program_(compile(store, options)),
      logits_(static_cast<size_t>(model_.logits.dim(-1))) {
  const auto reads_seed = [&](const Node& n) {
    return seed_ && std::find(n.in.begin(), n.in.end(), seed_.id()) != n.in.end();
  };
  forward_ = static_cast<size_t>(
      std::find_if(graph_.nodes.begin(), graph_.nodes.end(), reads_seed) - graph_.nodes.begin());
}

std::vector<AttentionProgram::Site> AttentionProgram::record(const AttentionOptions& options) {
  const std::vector<AttentionSite> found = attention_sites(graph_);
  if (found.empty()) fail_usage("the model has no attention to look at");
  std::vector<int64_t> wanted = options.layers;
  if (wanted.empty()) {
    wanted.resize(found.size());
    std::iota(wanted.begin(), wanted.end(), int64_t{0});
  }
  const TokenGrid grid = grid_of(graph_);
  std::vector<Site> sites;
  for (const int64_t layer : wanted) {
    if (layer < 0 || layer >= static_cast<int64_t>(found.size()))
      fail_usage("layer {} does not exist; the model has layers 0 to {}", layer, found.size() - 1);
    Site site{found[static_cast<size_t>(layer)], {}, {}, {}};
    const std::vector<std::string> name = {site.name + ".probs"};
    site.weights = tap(graph_, name)[0];
    site.form = {.name = site.name, .number = layer, .heads = site.heads};
    place_tokens(graph_, site, grid, site.form);
    sites.push_back(std::move(site));
  }
  return sites;
}

Program AttentionProgram::compile(ParamStore& store, const AttentionOptions& options) {
  fuse(graph_);
  // Layers of eight bits have no gradient: what a model looks at is computed in f32 then.
  CompileOptions compiled{.compute = options.compute == DType::kI8     ? DType::kF32
                                     : options.compute == DType::kE4M3 ? DType::kBF16
                                                                       : options.compute};
  for (const Site& site : sites_) compiled.taps.push_back(site.weights);
  if (pool_.heads > 0) compiled.taps.insert(compiled.taps.end(), {pool_.query, pool_.kv});
  if (options.gradient) {
    seed_ = graph_.input("seed", model_.logits.shape(), DType::kF32, /*exact=*/true);
    std::vector<Value> outputs;
    for (const Site& site : sites_) outputs.push_back(site.y);
    const std::vector<Value> dy = differentiate(graph_, model_.logits, seed_, outputs);
    for (size_t i = 0; i < sites_.size(); ++i) {
      Site& site = sites_[i];
      site.gradient =
          graph_.emit(site.name + ".probs.grad", AttentionProbsGrad{.heads = site.heads},
                      {dy[i], site.qkv}, {site.weights.shape()});
      graph_.info(site.gradient).exact = true;
      compiled.taps.push_back(site.gradient);
    }
  }
  return Program(graph_, std::vector{model_.features, model_.logits}, store, compiled);
}

void AttentionProgram::run(const uint8_t* pixels) {
  program_.upload(model_.image, pixels);
  program_.run(0, forward_);
  program_.download(logits_.data(), model_.logits);
}

void AttentionProgram::run_backward(int64_t target) {
  std::vector<float> seed(logits_.size(), 0.f);
  seed.at(static_cast<size_t>(target)) = 1;
  program_.upload(seed_, seed.data());
  program_.run(forward_, program_.kernels());
}

AttentionProgram::QueryPool AttentionProgram::find_pool() {
  const Node* node = find<AttendPool>(graph_);
  if (!node) return {};
  const auto& [heads] = std::get<AttendPool>(node->op);
  return {{&graph_, node->in[AttendPool::kQ]}, {&graph_, node->in[AttendPool::kKv]}, heads};
}

// The mean of all heads' attention weights.
std::vector<double> AttentionProgram::pool_shares() const {
  const std::vector<float> query = read(pool_.query), kv = read(pool_.kv);
  const size_t width = query.size(), heads = static_cast<size_t>(pool_.heads), head = width / heads,
               tokens = kv.size() / (2 * width);
  std::vector<double> shares(tokens, 0.0), weights(tokens);
  for (size_t h = 0; h < heads; ++h) {
    for (size_t t = 0; t < tokens; ++t) {
      const auto key = kv.begin() + static_cast<ptrdiff_t>(2 * width * t + h * head);
      weights[t] = std::inner_product(key, key + static_cast<ptrdiff_t>(head),
                                      query.begin() + static_cast<ptrdiff_t>(h * head), 0.0) /
                   std::sqrt(static_cast<double>(head));
    }
    const double most = std::ranges::max(weights);
    double sum = 0;
    for (double& w : weights) sum += w = std::exp(w - most);
    for (size_t t = 0; t < tokens; ++t) shares[t] += weights[t] / sum / static_cast<double>(heads);
  }
  return shares;
}

std::vector<float> AttentionProgram::read(Value v) const {
  std::vector<float> values(static_cast<size_t>(v.shape().numel()));
  if (program_[v].dtype == DType::kBF16) {
    std::vector<uint16_t> narrow(values.size());
    program_.download(narrow.data(), v);
    std::ranges::transform(narrow, values.begin(), from_bf16);
  } else {
    program_.download(values.data(), v);
  }
  if (!all_finite(values))
    fail(
        "attention weights or their gradients are NaN or infinite: the model's weights may be "
        "damaged; `vitrum forward --trace` finds the layer");
  return values;
}

LayerAttention AttentionProgram::layer(size_t i) const {
  LayerAttention out = sites_[i].form;
  out.weights = read(sites_[i].weights);
  if (pool_.heads > 0) out.grid.shares = pool_shares();
  if (sites_[i].gradient) out.gradient = read(sites_[i].gradient);
  return out;
}

std::vector<LayerAttention> AttentionProgram::all() const {
  std::vector<LayerAttention> layers;
  for (size_t i = 0; i < sites_.size(); ++i) layers.push_back(layer(i));
  return layers;
}

}  // namespace vitrum
