#include "vitrum/graph/functional.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "vitrum/core/error.h"

namespace vitrum {

// What a low-rank adapter adds to its layer: scale * B A x, with A as PyTorch starts a layer and B
// zero, so that it starts as nothing. The factor is applied where the fewest values are.
static Value adapter(Scope s, Value x, int64_t out, const LoraSpec& lora) {
  Graph& g = s.graph();
  Value a = (s / "lora_A").param("weight", {lora.rank, x.dim(-1)}, Init::fan_in(x.dim(-1)), true),
        b = (s / "lora_B").param("weight", {out, lora.rank}, Init::zeros(), true);
  x = dropout(s / "lora_dropout", x, lora.drop);
  const Shape low = x.shape().with_last(lora.rank);
  x = g.emit(s.path() + ".lora_A", Linear{}, {x, a, Value(), Value()}, {low});
  if (lora.scale() != 1) {
    const std::vector<float> factors(static_cast<size_t>(lora.rank), lora.scale());
    Value scale = g.constant(s.path() + ".lora_scale", {lora.rank}, factors);
    x = g.emit(s.path() + ".lora_scale", ChannelScale{}, {x, scale}, {low});
  }
  return g.emit(s.path() + ".lora_B", Linear{}, {x, b, Value(), Value()},
                {x.shape().with_last(out)});
}

Value linear(Scope s, Value x, int64_t out, const LinearOptions& options) {
  if (out <= 0) fail_usage("{}: a linear layer needs at least one output, not {}", s.path(), out);
  Value w = s.param("weight", {out, x.dim(-1)}, options.weight_init, /*decay=*/true);
  Value b = options.bias ? s.param("bias", {out}, options.bias_init, /*decay=*/false) : Value();
  if (b) s.graph().params[static_cast<size_t>(s.graph().info(b).param)].held = options.held;
  Value y = s.graph().emit(s.path(), Linear{}, {x, w, b, Value()}, {x.shape().with_last(out)});
  const LoraSpec& lora = s.graph().lora;
  return lora.adapts(s.path()) ? y + adapter(s, x, out, lora) : y;
}

Value layer_norm(Scope s, Value x, float eps, bool bias, float start) {
  Value w = s.param("weight", {x.dim(-1)}, Init::constant(start), /*decay=*/false);
  Value b = bias ? s.param("bias", {x.dim(-1)}, Init::zeros(), /*decay=*/false) : Value();
  return s.graph().emit(s.path(), LayerNorm{eps}, {x, w, b}, {x.shape()});
}

Value activation(Value x, Act act) {
  Graph& g = x.graph();
  return act == Act::kNone ? x : g.emit(g.info(x).name + ".act", Activation{act}, {x}, {x.shape()});
}

Value attention(Scope s, Value qkv, int64_t heads, float drop) {
  return attention(s, qkv, heads, drop, Value(), Value());
}

Value attention(Scope s, Value qkv, int64_t heads, float drop, Value bias, Value mask) {
  Graph& g = s.graph();
  if (qkv.dim(-1) % 3 != 0 || heads <= 0 || (qkv.dim(-1) / 3) % heads != 0)
    fail_usage("{}: width {} is not divisible by {} heads", s.path(), qkv.dim(-1) / 3, heads);
  const bool drops = drop > 0 && g.mode == Mode::kTraining;
  const Attention op{.heads = heads, .drop = drops ? drop : 0, .site = drops ? g.next_site() : 0};
  std::vector<Value> in = {qkv, drops ? g.rng() : Value()};
  if (bias || mask) in.insert(in.end(), {bias, mask});
  return g.emit(s.path(), op, in, {qkv.shape().with_last(qkv.dim(-1) / 3)});
}

Value attend_pool(Scope s, Value kv, Value query, int64_t heads) {
  const int64_t width = query.dim(-1);
  if (kv.dim(-1) != 2 * width || heads <= 0 || width % heads != 0)
    fail_usage("{}: keys and values {} wide do not fit a query of {} in {} heads", s.path(),
               kv.dim(-1), width, heads);
  return s.graph().emit(s.path(), AttendPool{.heads = heads}, {kv, query}, {{kv.dim(0), width}});
}

// Gradients of parameters are added up, which ops do for those of their operands that are weights;
// positions are, so the token is the position of one that is zero.
Value as_token(Scope s, Value param) {
  std::vector<float> zeros(static_cast<size_t>(param.shape().numel()), 0.f);
  Value zero = s.graph().constant(s.path() + ".zero", param.shape(), std::move(zeros));
  return s.graph().emit(s.path(), Tokens{}, {zero, param}, {param.shape()});
}

Value lookup(Scope s, Value table, Value ids) {
  Shape rows = ids.shape();
  rows.append(table.dim(-1));
  return s.graph().emit(s.path(), Lookup{}, {table, ids}, {rows});
}

Value relative_bias_table(Scope s, int64_t window_h, int64_t window_w, int64_t heads,
                          int64_t prefix) {
  const int64_t rows = (2 * window_h - 1) * (2 * window_w - 1) + (prefix > 0 ? 3 : 0);
  return s.param("relative_position_bias_table", {rows, heads}, Init::normal(0.02f),
                 /*decay=*/false);
}

Value relative_bias(Scope s, Value table, int64_t window_h, int64_t window_w, int64_t prefix) {
  Graph& g = s.graph();
  const int64_t tokens = prefix + window_h * window_w;
  Value bias =
      g.emit((s / "relative_position_bias").path(), RelativeBias{window_h, window_w, prefix},
             {table}, {{table.dim(1), tokens, tokens}});
  g.info(bias).exact = true;
  return bias;
}

Value rotate(Scope s, Value qkv, Value table, int64_t heads, int64_t prefix, bool halves) {
  const int64_t width = qkv.dim(-1) / 3;
  if (heads <= 0 || width % heads != 0 || width / heads % 2 != 0)
    fail_usage("{}: heads of {} values in {} are no pairs to rotate", s.path(), width, heads);
  if (table.dim(0) != qkv.dim(1) - prefix || table.dim(1) != width / heads)
    fail("{}: angles {} do not fit {}", s.path(), table.shape().str(), qkv.shape().str());
  return s.graph().emit(s.path(), Rotate{.heads = heads, .prefix = prefix, .halves = halves},
                        {qkv, table}, {qkv.shape()});
}

Value gate(Value x, Act act) {
  Graph& g = x.graph();
  if (x.dim(-1) % 2 != 0) fail("{}: {} has no two halves", g.info(x).name, x.shape().str());
  return g.emit(g.info(x).name + ".gate", Gate{act}, {x}, {x.shape().with_last(x.dim(-1) / 2)});
}

Value gather_tokens(const std::string& name, Value x, int64_t tokens, std::vector<int32_t> from,
                    Shape shape) {
  const int64_t width = x.dim(-1);
  assert(x.shape().rows() % tokens == 0);
  assert(x.shape().rows() / tokens * static_cast<int64_t>(from.size()) * width == shape.numel());
  return x.graph().emit(name, GatherTokens{tokens, width, std::move(from)}, {x}, {shape});
}

Value operator+(Value a, Value b) {
  Graph& g = a.graph();
  if (a.shape() != b.shape())
    fail("add: {} {} and {} {} differ in shape", g.info(a).name, a.shape().str(), g.info(b).name,
         b.shape().str());
  Value sum = g.emit(g.info(b).name + ".add", Add{}, {a, b}, {a.shape()});
  g.info(sum).exact = g.info(a).exact && g.info(b).exact;  // a sum of losses is a loss
  return sum;
}

Value average(Value a, Value b) {
  Graph& g = a.graph();
  Value sum = a + b;
  const int64_t width = a.dim(-1);
  Value half = g.constant(g.info(a).name + ".half", {width},
                          std::vector<float>(static_cast<size_t>(width), 0.5f));
  Value mean = g.emit(g.info(a).name + ".average", ChannelScale{}, {sum, half}, {a.shape()});
  g.info(mean).exact = g.info(sum).exact;
  return mean;
}

Value layer_scale(Scope s, Value x, float start) {
  Value gamma = s.param("gamma", {x.dim(-1)}, Init::constant(start), /*decay=*/false);
  return s.graph().emit(s.path(), ChannelScale{}, {x, gamma}, {x.shape()});
}

Value dropout(Scope s, Value x, float drop) {
  Graph& g = s.graph();
  if (drop <= 0 || g.mode != Mode::kTraining) return x;
  return g.emit(s.path(), Dropout{.drop = drop, .site = g.next_site()}, {x, g.rng()}, {x.shape()});
}

Value drop_path(Scope s, Value x, float drop) {
  Graph& g = s.graph();
  if (drop <= 0 || g.mode != Mode::kTraining) return x;
  return g.emit(s.path(), DropPath{.drop = drop, .site = g.next_site()}, {x, g.rng()}, {x.shape()});
}

TokenChoice choose_tokens(Graph& g, int64_t prefix, int64_t patches, float drop) {
  // From the rate that was asked for: as a float it may leave one more.
  const double share = 1 - std::nearbyint(static_cast<double>(drop) * 1e6) / 1e6;
  const auto kept = static_cast<int64_t>(static_cast<double>(patches) * share);
  return {.prefix = prefix, .kept = std::max<int64_t>(1, kept), .site = g.next_site()};
}

Value keep_tokens(Scope s, Value x, int64_t prefix, float drop) {
  Graph& g = s.graph();
  if (drop <= 0 || g.mode != Mode::kTraining) return x;
  const int64_t patches = x.dim(1) - prefix;
  if (patches <= 0) fail_usage("{}: no tokens of {} are patches", s.path(), x.dim(1));
  return keep_tokens(s, x, choose_tokens(g, prefix, patches, drop));
}

Value keep_tokens(Scope s, Value x, const TokenChoice& choice) {
  return s.graph().emit(s.path(), KeepTokens{choice}, {x, s.graph().rng()},
                        {{x.dim(0), choice.count(x.dim(1)), x.dim(2)}});
}

Value place_tokens(Scope s, Value x, int64_t tokens, const TokenChoice& choice, Value fill) {
  assert(x.dim(1) == choice.count(tokens));
  return s.graph().emit(s.path(), PlaceTokens{choice}, {x, s.graph().rng(), fill},
                        {{x.dim(0), tokens, x.dim(2)}});
}

Value module_output(Scope s, Value x) {
  s.graph().modules.emplace_back(s.path(), x.id());
  return x;
}

// Pixels are 0..255 (u8); mean and std are in units of 0..1, as every framework states them.
Value normalize(Value pixels, const std::vector<float>& mean, const std::vector<float>& std) {
  Graph& g = pixels.graph();
  const int64_t channels = pixels.dim(1);
  std::vector<float> scale, shift;
  for (size_t c = 0; c < static_cast<size_t>(channels); ++c) {
    const double m = mean.empty() ? 0 : mean[c % mean.size()],
                 s = std.empty() ? 1 : std[c % std.size()];
    scale.push_back(static_cast<float>(1.0 / (255.0 * s)));
    shift.push_back(static_cast<float>(-m / s));
  }
  Value a = g.constant("normalize.scale", {channels}, scale),
        b = g.constant("normalize.shift", {channels}, shift);
  return g.emit("normalize", Normalize{}, {pixels, a, b}, {pixels.shape()});
}

Value mix_pixels(Value pixels, Value mix) {
  Graph& g = pixels.graph();
  Value mixed = g.emit("mix", Mix{}, {pixels, mix}, {pixels.shape()});
  g.info(mixed).exact = true;  // eight bits are too few once two images are in them
  return mixed;
}

Value patchify(Value image, int64_t patch_h, int64_t patch_w, PatchOrder order) {
  const int64_t channels = image.dim(1), h = image.dim(2), w = image.dim(3);
  if (patch_h <= 0 || patch_w <= 0 || h % patch_h != 0 || w % patch_w != 0)
    fail_usage("image size {}x{} is not divisible by patch size {}x{}", h, w, patch_h, patch_w);
  return image.graph().emit(
      "patchify", Patchify{patch_h, patch_w, order}, {image, Value(), Value()},
      {{image.dim(0), (h / patch_h) * (w / patch_w), channels * patch_h * patch_w}});
}

Value patch_image(Value image, int64_t patch_h, int64_t patch_w) {
  Value x = patchify(image, patch_h, patch_w, PatchOrder::kChannelFirst);
  x.graph().info(x).shape = {image.dim(0), image.dim(2) / patch_h, image.dim(3) / patch_w,
                             x.dim(2)};
  return x;
}

Value add_tokens(Value x, const std::vector<Value>& prefix, Value positions) {
  int64_t tokens = x.dim(1);
  for (const Value& p : prefix) tokens += p.dim(1);
  std::vector<Value> in = {x, positions};
  in.insert(in.end(), prefix.begin(), prefix.end());
  return x.graph().emit("tokens", Tokens{}, in, {{x.dim(0), tokens, x.dim(2)}});
}

Value take_token(Value x, int64_t index) {
  return x.graph().emit("pool", Pool{index, 1}, {x}, {{x.dim(0), x.dim(2)}});
}

Value mean_tokens(Value x, int64_t first) { return mean_tokens(x, first, x.dim(1) - first); }

Value mean_tokens(Value x, int64_t first, int64_t count) {
  return x.graph().emit("pool", Pool{first, count}, {x}, {{x.dim(0), x.dim(2)}});
}

Value side_by_side(Value a, Value b) {
  const int64_t rows = a.dim(0), width = a.dim(1);
  const auto spread = [&](const char* name, Value x, std::vector<int32_t> from) {
    return x.graph().emit(name, GatherTokens{1, width, std::move(from)}, {x}, {{rows, 2 * width}});
  };
  return spread("left", a, {0, -1}) + spread("right", b, {-1, 0});
}

// Patches of one pixel.
Value channels_last(Value image) {
  return image.graph().emit("channels_last", Patchify{1, 1, PatchOrder::kChannelLast},
                            {image, Value(), Value()},
                            {{image.dim(0), image.dim(2), image.dim(3), image.dim(1)}});
}

static Shape windows(Scope s, Value x, const WindowOptions& window, int64_t channels) {
  const auto along = [&](int64_t size) {
    const int64_t room = size + 2 * window.padding - window.kernel;
    if (window.kernel <= 0 || window.stride <= 0 || window.padding < 0 || room < 0)
      fail_usage("{}: a window of {} pixels, padding {}, stride {} does not fit an image of {}x{}",
                 s.path(), window.kernel, window.padding, window.stride, x.dim(1), x.dim(2));
    return room / window.stride + 1;
  };
  return {x.dim(0), along(x.dim(1)), along(x.dim(2)), channels};
}

Value conv2d(Scope s, Value x, int64_t out, const WindowOptions& window) {
  const int64_t k = window.kernel;
  const Shape y = windows(s, x, window, out);
  // He et al.: the deviation that keeps the size of gradients through a ReLU.
  const Init init =
      Init::normal(static_cast<float>(std::sqrt(2.0 / static_cast<double>(out * k * k))));
  Value w = s.param("weight", {out, x.dim(-1), k, k}, init, /*decay=*/true);
  return s.graph().emit(s.path(), Conv2d{.stride = window.stride, .padding = window.padding},
                        {x, w, Value(), Value(), Value(), Value(), Value()}, {y});
}

Value max_pool(Scope s, Value x, const WindowOptions& window) {
  if (window.padding > window.kernel / 2)
    fail_usage("{}: padding {} is more than half of a window of {}", s.path(), window.padding,
               window.kernel);
  return s.graph().emit(s.path(), MaxPool{window.kernel, window.stride, window.padding}, {x},
                        {windows(s, x, window, x.dim(-1))});
}

Value batch_norm(Scope s, Value x, float eps, float momentum) {
  Graph& g = s.graph();
  const Shape channels{x.dim(-1)};
  Value w = s.param("weight", channels, Init::constant(1), /*decay=*/false);
  Value b = s.param("bias", channels, Init::zeros(), /*decay=*/false);
  Value mean = s.buffer("running_mean", channels, Init::zeros());
  Value var = s.buffer("running_var", channels, Init::constant(1));
  if (g.mode == Mode::kInference)
    return g.emit(s.path(), FrozenBatchNorm{.eps = eps}, {x, w, b, mean, var, Value()},
                  {x.shape()});
  Value y = g.emit(s.path(), BatchNorm{.eps = eps}, {x, w, b, g.sample_weight, Value()},
                   {x.shape(), channels, channels});
  const std::vector<ValueId> out = g.nodes.back().out;
  for (const size_t statistic : {BatchNorm::kMean, BatchNorm::kVar})
    g.values[static_cast<size_t>(out[statistic])].exact = true;
  const int64_t samples = x.dim(0);
  // No part of a recompute unit: what happens once a batch is not recomputed.
  g.nodes.push_back({.op = RunningStats{.momentum = momentum,
                                        .samples = samples,
                                        .positions = x.shape().rows() / samples},
                     .in = {out[BatchNorm::kMean], out[BatchNorm::kVar], g.sample_weight.id()},
                     .out = {mean.id(), var.id()},
                     .name = s.path() + ".running"});
  return y;
}

Value mean_pixels(Value x) {
  return x.graph().emit("pool", Pool{0, x.dim(1) * x.dim(2)}, {x}, {{x.dim(0), x.dim(-1)}});
}

Value depthwise_conv(Scope s, Value x, int64_t kernel) {
  if (kernel <= 0 || kernel % 2 == 0)
    fail_usage("{}: a window of {} pixels has no middle", s.path(), kernel);
  const int64_t channels = x.dim(-1);
  Value w = s.param("weight", {channels, 1, kernel, kernel}, Init::normal(0.02f), /*decay=*/true);
  Value b = s.param("bias", {channels}, Init::zeros(), /*decay=*/false);
  return s.graph().emit(s.path(), DepthwiseConv{.padding = kernel / 2}, {x, w, b}, {x.shape()});
}

Value response_norm(Scope s, Value x, float eps) {
  Value w = s.param("weight", {x.dim(-1)}, Init::zeros(), /*decay=*/false);
  Value b = s.param("bias", {x.dim(-1)}, Init::zeros(), /*decay=*/false);
  return s.graph().emit(s.path(), ResponseNorm{eps}, {x, w, b}, {x.shape()});
}

Value cosine_heads(Scope s, Value qkv, int64_t heads) {
  if (heads <= 0 || qkv.dim(-1) % (3 * heads) != 0)
    fail_usage("{}: width {} is not divisible by {} heads", s.path(), qkv.dim(-1) / 3, heads);
  const float start = std::log(10.f);
  Value scale = s.param("logit_scale", {heads, 1, 1}, Init::constant(start), /*decay=*/false);
  return s.graph().emit((s / "unit").path(), UnitHeads{.heads = heads, .parts = 3, .unit = 2},
                        {qkv, scale}, {qkv.shape()});
}

Value cross_entropy(Value logits, Value target, Value weight, float smoothing) {
  return cross_entropy(logits, target, weight, LossForm{.smoothing = smoothing});
}

Value cross_entropy(Value logits, Value target, Value weight, const LossForm& form) {
  Graph& g = logits.graph();
  Value loss = g.emit("loss", CrossEntropy{form}, {logits, target, weight}, {{1}});
  g.info(loss).exact = true;
  return loss;
}

Value argmax(Value x) {
  Graph& g = x.graph();
  Value index = g.emit("argmax", Argmax{}, {x}, {{x.dim(0)}});
  g.info(index).dtype = DType::kI32;
  return index;
}

Value log_softmax(Value x, float tau) {
  Graph& g = x.graph();
  Value y = g.emit("log_softmax", LogSoftmax{.tau = tau}, {x}, {x.shape()});
  g.info(y).exact = true;
  return y;
}

void train_metrics(Value loss, Value logits, Value target, Value weight, Value totals) {
  Graph& g = loss.graph();
  g.nodes.push_back({.op = TrainMetrics{},
                     .in = {loss.id(), logits.id(), target.id(), weight.id()},
                     .out = {totals.id()},
                     .name = "metrics"});
}

}  // namespace vitrum
