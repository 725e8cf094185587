#include "vitrum/graph/functional.h"

#include "vitrum/core/error.h"

namespace vitrum {

Value linear(Scope s, Value x, int64_t out, const LinearOptions& options) {
  if (out <= 0) fail_usage("{}: a linear layer needs at least one output, not {}", s.path(), out);
  Value w = s.param("weight", {out, x.dim(-1)}, options.weight_init, /*decay=*/true);
  Value b = options.bias ? s.param("bias", {out}, options.bias_init, /*decay=*/false) : Value();
  return s.graph().emit(s.path(), Linear{}, {x, w, b, Value()}, {x.shape().with_last(out)});
}

Value layer_norm(Scope s, Value x, float eps, bool bias) {
  Value w = s.param("weight", {x.dim(-1)}, Init::constant(1), /*decay=*/false);
  Value b = bias ? s.param("bias", {x.dim(-1)}, Init::zeros(), /*decay=*/false) : Value();
  return s.graph().emit(s.path(), LayerNorm{eps}, {x, w, b}, {x.shape()});
}

Value activation(Value x, Act act) {
  Graph& g = x.graph();
  return act == Act::kNone ? x : g.emit(g.info(x).name + ".act", Activation{act}, {x}, {x.shape()});
}

Value attention(Scope s, Value qkv, int64_t heads, float drop) {
  Graph& g = s.graph();
  if (qkv.dim(-1) % 3 != 0 || heads <= 0 || (qkv.dim(-1) / 3) % heads != 0)
    fail_usage("{}: width {} is not divisible by {} heads", s.path(), qkv.dim(-1) / 3, heads);
  const bool drops = drop > 0 && g.mode == Mode::kTraining;
  const Attention op{.heads = heads, .drop = drops ? drop : 0, .site = drops ? g.next_site() : 0};
  return g.emit(s.path(), op, {qkv, drops ? g.rng() : Value()},
                {qkv.shape().with_last(qkv.dim(-1) / 3)});
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

Value patchify(Value image, int64_t patch_h, int64_t patch_w, PatchOrder order) {
  const int64_t channels = image.dim(1), h = image.dim(2), w = image.dim(3);
  if (patch_h <= 0 || patch_w <= 0 || h % patch_h != 0 || w % patch_w != 0)
    fail_usage("image size {}x{} is not divisible by patch size {}x{}", h, w, patch_h, patch_w);
  return image.graph().emit(
      "patchify", Patchify{patch_h, patch_w, order}, {image, Value(), Value()},
      {{image.dim(0), (h / patch_h) * (w / patch_w), channels * patch_h * patch_w}});
}

Value add_tokens(Value x, const std::vector<Value>& prefix, Value positions) {
  const int64_t tokens = x.dim(1) + static_cast<int64_t>(prefix.size());
  std::vector<Value> in = {x, positions};
  in.insert(in.end(), prefix.begin(), prefix.end());
  return x.graph().emit("tokens", Tokens{}, in, {{x.dim(0), tokens, x.dim(2)}});
}

Value take_token(Value x, int64_t index) {
  return x.graph().emit("pool", Pool{index, 1}, {x}, {{x.dim(0), x.dim(2)}});
}

Value mean_tokens(Value x, int64_t first) {
  return mean_tokens(x, first, x.dim(1) - first);
}

Value mean_tokens(Value x, int64_t first, int64_t count) {
  return x.graph().emit("pool", Pool{first, count}, {x}, {{x.dim(0), x.dim(2)}});
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
