// Gradients against central differences, in f64 on the reference backend: op by op, then whole
// models; for each recompute policy, fused and plain.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <set>

#include "vitrum/core/philox.h"
#include "vitrum/graph/functional.h"
#include "vitrum/graph/passes.h"
#include "vitrum/models/convnext.h"
#include "vitrum/models/swin.h"
#include "vitrum/models/swin_v2.h"
#include "vitrum/models/vit.h"
#include "vitrum/reference/reference.h"
#include "vitrum/runtime/program.h"

namespace vitrum {
namespace {

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
void expect_gradients_match(Lab& lab, int64_t samples) {
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
void expect_gradients_large(Lab& lab) {
  const auto gradients = lab.gradients();
  for (size_t p = 0; p < gradients.size(); ++p) {
    if (lab.specs()[p].buffer) continue;
    double most = 0;
    for (double g : gradients[p]) most = std::max(most, std::abs(g));
    EXPECT_GT(most, 20 * kAbsolute) << lab.specs()[p].name;
  }
}

// Every way to compile a graph must give the bits of the plain one.
void expect_same_bits(const std::function<Lab(bool fused, Recompute)>& make) {
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

LinearOptions no_bias() { return {.bias = false}; }

std::vector<Trial> trials() {
  const auto plain = [](Scope, Value x) { return x; };
  // What a batch norm takes off, a bias before it, has no gradient: something in between.
  const auto curved_norm = [](Scope s, Value x) {
    return batch_norm(s / "op", activation(x, Act::kGelu));
  };
  return {
      {"linear", [](Scope s, Value x) { return linear(s / "op", x, kWidth); }},
      {"linear_no_bias",
       [](Scope s, Value x) { return linear(s / "op", x, 2 * kWidth, no_bias()); }},
      {"gelu", [](Scope s, Value x) { return activation(linear(s / "op", x, 7), Act::kGelu); }},
      {"gelu_tanh",
       [](Scope s, Value x) { return activation(linear(s / "op", x, 7), Act::kGeluTanh); }},
      {"relu", [](Scope s, Value x) { return activation(linear(s / "op", x, 7), Act::kRelu); }},
      {"gelu_drop",
       [](Scope s, Value x) {
         return dropout(s, activation(linear(s / "op", x, 7), Act::kGelu), 0.3f);
       }},
      {"relu_drop",
       [](Scope s, Value x) {
         return dropout(s, activation(linear(s / "op", x, 7, no_bias()), Act::kRelu), 0.3f);
       }},
      {"activation_alone",  // not after a linear layer, so never fused with one
       [](Scope s, Value x) { return activation(layer_scale(s / "op", x, 1), Act::kGelu); }},
      {"layer_norm", [](Scope s, Value x) { return layer_norm(s / "op", x, 1e-6f); }},
      {"layer_norm_no_bias",
       [](Scope s, Value x) { return layer_norm(s / "op", x, 1e-2f, false); }},
      {"pre_norm",  // the sum goes on beside the norm: two gradients meet
       [](Scope s, Value x) {
         Value sum = x + linear(s / "op", x, kWidth);
         return sum + linear(s / "op2", layer_norm(s / "norm", sum, 1e-6f), kWidth);
       }},
      {"post_norm",
       [](Scope s, Value x) {
         return layer_norm(s / "norm", x + linear(s / "op", x, kWidth), 1e-6f, false);
       }},
      {"add_itself", [](Scope s, Value x) { return (x = linear(s / "op", x, kWidth)) + x; }},
      {"attention",
       [](Scope s, Value x) { return attention(s, linear(s / "qkv", x, 3 * kWidth), 2); }},
      {"attention_drop",
       [](Scope s, Value x) {
         return attention(s, linear(s / "qkv", x, 3 * kWidth, no_bias()), 3, 0.3f);
       }},
      {"attention_bias",
       [](Scope s, Value x) {  // windows of 1 x 5
         return attention(s, linear(s / "qkv", x, 3 * kWidth), 2, 0,
                          relative_bias(s, relative_bias_table(s, 1, kTokens, 2), 1, kTokens),
                          Value());
       }},
      {"attention_mask",
       [](Scope s, Value x) {
         std::vector<float> data(3 * kTokens * kTokens, 0.f);
         for (size_t i = 0; i < data.size(); i += 4) data[i] = -100;
         Value mask = s.graph().constant("mask", {3, kTokens, kTokens}, data);
         return attention(s, linear(s / "qkv", x, 3 * kWidth), 3, 0.3f,
                          relative_bias(s, relative_bias_table(s, kTokens, 1, 3), kTokens, 1),
                          mask);
       }},
      {"attention_mask_alone",
       [](Scope s, Value x) {
         std::vector<float> data(3 * kTokens * kTokens, 0.f);
         for (size_t i = 0; i < data.size(); i += 4) data[i] = -100;
         Value mask = s.graph().constant("mask", {3, kTokens, kTokens}, data);
         return attention(s, linear(s / "qkv", x, 3 * kWidth), 3, 0, Value(), mask);
       }},
      {"attention_bias_prefix",
       [](Scope s, Value x) {  // one token before a window of 2 x 2
         return attention(s, linear(s / "qkv", x, 3 * kWidth), 2, 0,
                          relative_bias(s, relative_bias_table(s, 2, 2, 2, 1), 2, 2, 1), Value());
       }},
      {"rotate",
       [](Scope s, Value x) {  // heads of two and of six values
         const auto turned = [&](const char* name, int64_t heads, bool halves) {
           std::vector<float> angles;
           for (int64_t i = 0; i < (kTokens - 1) * kWidth / heads; ++i)
             angles.push_back(std::sin(0.7f * static_cast<float>(i)));
           Value table = s.graph().constant(name, {kTokens - 1, kWidth / heads}, std::move(angles));
           Value qkv = linear(s / name, x, 3 * kWidth);
           return attention(s / name, rotate(s / name, qkv, table, heads, 1, halves), heads);
         };
         Value neighbours = turned("neighbours", 3, false);
         return neighbours + turned("halves", 1, true);
       }},
      {"gate", [](Scope s, Value x) { return gate(linear(s / "op", x, 14), Act::kSilu); }},
      {"attend_pool",
       [](Scope s, Value x) {
         Value latent = s.param("latent", {1, 1, kWidth}, Init::zeros(), false);
         Value q = linear(s / "q", as_token(s / "token", latent), kWidth);
         return attend_pool(s, linear(s / "kv", x, 2 * kWidth), q, 3);
       }},
      {"gather_tokens",
       [](Scope s, Value x) {
         x = layer_norm(s / "norm", x, 1e-6f);
         return gather_tokens("windows", x, kTokens, {4, 2, -1, 0, 3, -1}, {kBatch, 6, kWidth});
       }},
      {"layer_scale", [](Scope s, Value x) { return layer_scale(s / "op", x, 1); }},
      {"dropout", [](Scope s, Value x) { return dropout(s, layer_scale(s / "op", x, 1), 0.4f); }},
      {"linear_drop",
       [](Scope s, Value x) { return dropout(s, linear(s / "op", x, kWidth), 0.4f); }},
      {"drop_path",
       [](Scope s, Value x) { return x + drop_path(s, linear(s / "op", x, kWidth), 0.5f); }},
      {"keep_tokens",
       [](Scope s, Value x) { return keep_tokens(s, linear(s / "op", x, kWidth), 1, 0.5f); }},
      {"tokens_positions",
       [](Scope s, Value x) {
         return add_tokens(x, {}, s.param("pos", {1, kTokens, kWidth}, Init::zeros(), false));
       }},
      {"tokens_prefix",
       [](Scope s, Value x) {
         return add_tokens(x, {s.param("cls", {1, 1, kWidth}, Init::zeros(), false)}, Value());
       }},
      {"tokens_both",
       [](Scope s, Value x) {
         Value a = s.param("cls", {1, 1, kWidth}, Init::zeros(), false);
         Value b = s.param("dist", {1, 1, kWidth}, Init::zeros(), false);
         return add_tokens(x, {a, b},
                           s.param("pos", {1, kTokens + 2, kWidth}, Init::zeros(), false));
       }},
      {"take_token",
       [](Scope s, Value x) {
         return take_token(attention(s, linear(s / "qkv", x, 3 * kWidth), 1), 2);
       }},
      {"mean_tokens", [](Scope, Value x) { return mean_tokens(x, 1); }},
      {"convolution",
       [](Scope s, Value x) { return conv2d(s / "op", x, 7, {.kernel = 3, .padding = 1}); },
       {},
       false,
       true},
      {"convolution_stride",
       [](Scope s, Value x) {
         return conv2d(s / "op", x, 7, {.kernel = 3, .stride = 2, .padding = 1});
       },
       {},
       false,
       true},
      {"convolution_pixel",
       [](Scope s, Value x) {
         return conv2d(s / "op", x, 7, {.kernel = 1, .stride = 2, .padding = 0});
       },
       {},
       false,
       true},
      {"max_pool",
       [](Scope s, Value x) {
         return max_pool(s / "op", x, {.kernel = 3, .stride = 2, .padding = 1});
       },
       {},
       false,
       true},
      {"depthwise_convolution",
       [](Scope s, Value x) { return depthwise_conv(s / "op", x, 3); },
       {},
       false,
       true},
      {"depthwise_convolution_large",  // its windows are larger than the image
       [](Scope s, Value x) { return depthwise_conv(s / "op", x, 7); },
       {},
       false,
       true},
      {"response_norm",
       [](Scope s, Value x) { return response_norm(s / "op", activation(x, Act::kGelu), 1e-2f); },
       {},
       false,
       true},
      {"cosine_heads",
       [](Scope s, Value x) {
         return attention(s, cosine_heads(s, linear(s / "qkv", x, 3 * kWidth), 2), 2);
       }},
      {"sigmoid",
       [](Scope s, Value x) { return activation(linear(s / "op", x, 7), Act::kSigmoid); }},
      {"batch_norm", curved_norm},
      {"batch_norm_padded", curved_norm, {}, false, false, true},
      {"batch_norm_relu",
       [curved_norm](Scope s, Value x) { return activation(curved_norm(s, x), Act::kRelu); },
       {},
       false,
       true},
      {"batch_norm_add", [curved_norm](Scope s, Value x) { return curved_norm(s, x) + x; }},
      {"residual",  // all of a ResNet's block: the skip is a norm too
       [](Scope s, Value x) {
         Value skip = batch_norm(s / "skip_norm", linear(s / "skip", x, 7, no_bias()));
         x = activation(x, Act::kGelu);
         x = conv2d(s / "conv", x, 7, {.kernel = 3, .padding = 1});
         return activation(batch_norm(s / "norm", x) + skip, Act::kRelu);
       },
       {},
       false,
       true,
       true},
      {"average",
       [](Scope s, Value x) {
         Value a = linear(s / "a", x, kWidth), b = linear(s / "b", x, kWidth);
         return average(a, b);
       }},
      {"smoothing", plain, {.smoothing = 0.1f}},
      {"soft_targets", plain, {}, true},
      {"soft_targets_smoothing", plain, {.smoothing = 0.2f}, true},
      {"tau_and_scale", plain, {.tau = 2, .scale = 1.5f}},
      {"binary", plain, {.kind = LossKind::kBinary, .scale = 4}},
      {"binary_smoothing", plain, {.smoothing = 0.1f, .kind = LossKind::kBinary, .scale = 4}},
      {"binary_soft", plain, {.kind = LossKind::kBinary, .scale = 4}, true},
      // Uniform "log-probabilities": exp(t) does not add up to 1, nor need it.
      {"divergence", plain, {.kind = LossKind::kDivergence, .tau = 2, .scale = 3}, true},
      {"two_losses", plain, {.scale = 0.5f}, false, false, false, true},
  };
}

// The op's input comes out of a linear layer, so that its own gradient shows in that layer's
// parameters.
Lab::Model around(const Body& body) {
  return [body](Scope s, Value x) {
    x = linear(s / "in", x, kWidth);
    RecomputeUnit unit(s.graph());
    x = body(s, x);
    if (x.shape().rank() == 3) x = mean_tokens(x, 0);
    if (x.shape().rank() == 4) x = mean_pixels(x);
    return linear(s / "head", x, kClasses);
  };
}
Lab lab_of(const Trial& trial, bool fused, Recompute policy) {
  const Shape input = trial.image ? Shape{kBatch, 6, 5, 4} : Shape{kBatch, kTokens, 4};
  return Lab(around(trial.body), input, trial, fused, policy);
}

class OpGradient : public ::testing::TestWithParam<Trial> {};

TEST_P(OpGradient, MatchesDifferences) {
  Lab lab = lab_of(GetParam(), false, Recompute::kNone);
  expect_gradients_match(lab, 1000);
  expect_gradients_large(lab);
}

TEST_P(OpGradient, FusedMatchesDifferences) {
  Lab lab = lab_of(GetParam(), true, Recompute::kNone);
  expect_gradients_match(lab, 1000);
}

TEST_P(OpGradient, SameBitsHoweverItIsCompiled) {
  expect_same_bits([](bool fused, Recompute policy) { return lab_of(GetParam(), fused, policy); });
}

INSTANTIATE_TEST_SUITE_P(Grid, OpGradient, ::testing::ValuesIn(trials()),
                         [](const auto& info) { return std::string(info.param.name); });

template <size_t... I>
std::set<size_t> differentiable_ops(std::index_sequence<I...>) {
  std::set<size_t> ops;
  ((NoGradient<std::variant_alternative_t<I, Op>> ? void() : void(ops.insert(I))), ...);
  ops.erase(Op(Normalize{}).index()),
      ops.erase(Op(Patchify{}).index());  // they only ever see pixels
  return ops;
}

TEST(OpGradient, EveryRuleHasATrial) {
  std::set<size_t> seen;
  for (const Trial& trial : trials())
    for (bool fused : {false, true}) {
      const Lab lab = lab_of(trial, fused, Recompute::kNone);
      seen.insert(lab.ops().begin(), lab.ops().end());
    }
  for (const size_t op : differentiable_ops(std::make_index_sequence<std::variant_size_v<Op>>()))
    EXPECT_TRUE(seen.contains(op)) << "op " << op;
}

TEST(Gradient, AddsUpOverRuns) {
  Lab lab = lab_of(trials()[0], true, Recompute::kNone);
  const auto once = lab.gradients(), thrice = lab.gradients(3);
  for (size_t p = 0; p < once.size(); ++p)
    for (size_t i = 0; i < once[p].size(); ++i) EXPECT_NEAR(thrice[p][i], 3 * once[p][i], 1e-12);
}

TEST(Gradient, FrozenParametersGetNone) {
  const Lab::Model model = around(trials()[0].body);
  const Shape input{kBatch, kTokens, 4};
  const auto all = Lab(model, input, {}, true, Recompute::kNone).gradients();
  Lab lab(model, input, {}, true, Recompute::kNone, {"in.weight", "op.bias"});
  const auto some = lab.gradients();
  for (size_t p = 0; p < all.size(); ++p) {
    const std::string& name = lab.specs()[p].name;
    const bool frozen = name == "in.weight" || name == "op.bias";
    EXPECT_EQ(some[p], frozen ? std::vector<double>{} : all[p]) << name;
  }
}

ViTConfig small_vit() {
  return {.image_h = 8,
          .image_w = 12,
          .patch_h = 4,
          .patch_w = 4,
          .channels = 2,
          .width = 8,
          .depth = 2,
          .heads = 2,
          .mlp_width = 12,
          .classes = 5};
}

// Windows of 2 x 2 over 5 x 3, then 3 x 2 tokens: shifted, masked, filled up and merged at odd
// sizes.
SwinConfig small_swin() {
  return {.image_h = 10,
          .image_w = 6,
          .patch_h = 2,
          .patch_w = 2,
          .channels = 2,
          .width = 4,
          .depths = {2, 2},
          .heads = {2, 2},
          .window_h = 2,
          .window_w = 2,
          .mlp_ratio = 1.5f,
          .classes = 5};
}

// The same windows, and a stage that has fewer tokens than one.
SwinV2Config small_swin_v2() {
  SwinV2Config cfg;
  static_cast<SwinConfig&>(cfg) = small_swin();
  cfg.depths = {2, 2, 1}, cfg.heads = {2, 2, 2}, cfg.pretrained_windows = {0, 3, 3};
  cfg.window_h = cfg.window_w = 3, cfg.image_w = 8;
  return cfg;
}

// 5 x 3 pixels behind the stem, of which the second stage leaves one line out.
ConvNeXtConfig small_convnext() {
  return {.image_h = 11,
          .image_w = 6,
          .channels = 2,
          .classes = 5,
          .patch_h = 2,
          .patch_w = 2,
          .depths = {2, 1},
          .widths = {4, 6},
          .kernel = 3,
          .mlp_ratio = 1.5f,
          .layer_scale = 0.5f};
}

struct ModelTrial {
  const char* name;
  Lab::Model model;
  Shape input;

  ModelTrial(const char* name, const ViTConfig& cfg)
      : name(name),
        model([cfg](Scope s, Value image) { return vit(s, image, cfg); }),
        input{2, cfg.channels, cfg.image_h, cfg.image_w} {}
  ModelTrial(const char* name, const SwinConfig& cfg)
      : name(name),
        model([cfg](Scope s, Value image) { return swin(s, image, cfg); }),
        input{2, cfg.channels, cfg.image_h, cfg.image_w} {}
  ModelTrial(const char* name, const SwinV2Config& cfg)
      : name(name),
        model([cfg](Scope s, Value image) { return swin_v2(s, image, cfg); }),
        input{2, cfg.channels, cfg.image_h, cfg.image_w} {}
  ModelTrial(const char* name, const ConvNeXtConfig& cfg)
      : name(name),
        model([cfg](Scope s, Value image) { return convnext(s, image, cfg); }),
        input{2, cfg.channels, cfg.image_h, cfg.image_w} {}
};
std::vector<ModelTrial> model_trials() {
  ViTConfig pre = small_vit(), post = small_vit(), mean = small_vit();
  pre.drop_path = 0.3f, pre.patch_drop = 0.5f, pre.layer_scale = 0.5f, pre.act = Act::kGeluTanh;
  pre.drop_pos = pre.drop_attn = pre.drop_proj = pre.drop_act = pre.drop_mlp = 0.1f;
  post.pre_norm = false, post.act = Act::kRelu, post.patch_order = PatchOrder::kChannelLast;
  post.drop_attn = post.drop_proj = post.drop_act = post.drop_mlp = 0.1f;
  mean.patch_drop = 0.4f, mean.class_token = false, mean.pool = ViTPool::kMean,
  mean.sincos_positions = true;
  mean.qkv_bias = mean.proj_bias = mean.mlp_bias = mean.norm_bias = false;
  ViTConfig floored = small_vit();
  floored.image_h += 1, floored.image_w += floored.patch_w - 1, floored.floor_patches = true;
  ViTConfig registers = small_vit(), clip = small_vit();
  registers.registers = 3, registers.prefix_positions = false, registers.layer_scale = 0.5f;
  registers.pool = ViTPool::kTokenAndMean, registers.act = Act::kSilu, registers.patch_drop = 0.4f;
  clip.norm_pre = true, clip.patch_bias = false, clip.act = Act::kQuickGelu;
  ViTConfig dinov3 = small_vit(), eva = small_vit(), beit = small_vit();
  dinov3.width = 16, dinov3.rope = Rope::kDinov3, dinov3.rope_theta = 100, dinov3.registers = 2;
  dinov3.k_bias = dinov3.learned_positions = false, dinov3.pool = ViTPool::kNormedMean;
  eva.width = 8, eva.rope = Rope::kEva, eva.k_bias = false, eva.pool = ViTPool::kMean;
  eva.gated = eva.attn_norm = eva.mlp_norm = true, eva.act = Act::kSilu;
  beit.distance_bias = DistanceBias::kEach, beit.k_bias = beit.learned_positions = false;
  beit.layer_scale = 0.5f, beit.pool = ViTPool::kMean;
  ViTConfig shared = beit;
  shared.distance_bias = DistanceBias::kShared, shared.drop_attn = 0.1f;
  ViTConfig siglip = small_vit();
  siglip.class_token = false, siglip.pool = ViTPool::kMap, siglip.act = Act::kGeluTanh;
  siglip.drop_act = siglip.drop_mlp = 0.1f;
  SwinConfig dropping = small_swin();
  dropping.drop_path = 0.1f, dropping.qkv_bias = false, dropping.pad_first = true;
  dropping.drop_attn = dropping.drop_proj = dropping.drop_act = dropping.drop_mlp = 0.1f;
  SwinV2Config filled = small_swin_v2();
  filled.pad_first = true, filled.shrink_windows = false,
  filled.drop_path = filled.drop_attn = 0.1f;
  ConvNeXtConfig second = small_convnext();
  second.response_norm = true, second.layer_scale = 0, second.drop_path = 0.1f;
  return {{"swin_v2", small_swin_v2()},
          {"swin_v2_filled", filled},
          {"convnext", small_convnext()},
          {"convnext_v2", second},
          {"swin", small_swin()},
          {"swin_dropout", dropping},
          {"plain", small_vit()},
          {"pre_norm_dropout", pre},
          {"post_norm_relu", post},
          {"mean_pool", mean},
          {"floor_patches", floored},
          {"registers", registers},
          {"clip", clip},
          {"dinov3", dinov3},
          {"eva", eva},
          {"beit", beit},
          {"beit_shared", shared},
          {"siglip", siglip}};
}

class ModelGradient : public ::testing::TestWithParam<ModelTrial> {
 protected:
  static Lab lab(bool fused, Recompute policy) {
    return Lab(GetParam().model, GetParam().input, {.form = {.smoothing = 0.1f}}, fused, policy);
  }
};

TEST_P(ModelGradient, MatchesDifferences) {
  Lab model = lab(true, Recompute::kNone);
  expect_gradients_match(model, 12);
  expect_gradients_large(model);
}

TEST_P(ModelGradient, SameBitsHoweverItIsCompiled) { expect_same_bits(lab); }

INSTANTIATE_TEST_SUITE_P(Models, ModelGradient, ::testing::ValuesIn(model_trials()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace vitrum
