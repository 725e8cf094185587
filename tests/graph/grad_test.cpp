// Op by op, see tests/support/gradient_lab.h.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/support/gradient_lab.h"
#include "vitrum/graph/functional.h"

namespace vitrum {
namespace {

using namespace test;

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
      {"keep_dropped_tokens",
       [](Scope s, Value x) {
         TokenChoice choice = choose_tokens(s.graph(), 1, kTokens - 1, 0.5f);
         choice.dropped = true;
         return keep_tokens(s, linear(s / "op", x, kWidth), choice);
       }},
      {"place_tokens",
       [](Scope s, Value x) {
         const TokenChoice choice = choose_tokens(s.graph(), 1, kTokens - 1, 0.5f);
         x = keep_tokens(s, linear(s / "op", x, kWidth), choice);
         Value fill = s.param("fill", {1, 1, kWidth}, Init::zeros(), false);
         return place_tokens(s / "place", x, kTokens, choice, fill);
       }},
      {"place_computed_tokens",  // a fill that is no parameter, in the place of what was kept
       [](Scope s, Value x) {
         const TokenChoice choice{.prefix = 1, .kept = 3, .site = 9, .dropped = true};
         Value fill = s.param("fill", {1, 1, kWidth}, Init::zeros(), false);
         fill = linear(s / "fill", as_token(s / "token", fill), kWidth);
         return place_tokens(s, linear(s / "op", x, kWidth), kTokens + 4, choice, fill);
       }},
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
      {"squares", plain, {.kind = LossKind::kSquare, .scale = 0.5f}, true},
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

}  // namespace
}  // namespace vitrum
