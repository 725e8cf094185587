// What parameters say of how large numbers can become, and which layers are of e4m3 for it.
#include "vitrum/graph/bounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "vitrum/core/e4m3.h"
#include "vitrum/core/philox.h"
#include "vitrum/graph/functional.h"
#include "vitrum/infer/model_program.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {
namespace {

constexpr int64_t kTokens = 5, kWidth = 32;

// norm -> qkv -> attention, and norm -> fc1 with GELU, run on rows that go to extremes.
class Bounded : public testing::Test {
 protected:
  Bounded() {
    const Scope s(g_);
    x_ = g_.input("x", {1, kTokens, kWidth});
    norm_ = layer_norm(s / "norm", x_, 1e-6f);
    const Value qkv = linear(s / "qkv", norm_, 3 * kWidth);
    attended_ = attention(s / "attn", qkv, 2);
    hidden_ = gelu(s, linear(s / "fc1", norm_, 2 * kWidth));
    store_ = std::make_unique<ParamStore>(g_, *backend_);
    PhiloxStream draw(3, 1, 0);
    for (size_t i = 0; i < g_.params.size(); ++i) {
      std::vector<float> values(static_cast<size_t>(g_.params[i].shape.numel()));
      for (float& v : values) v = 0.7f * static_cast<float>(draw.normal());
      store_->write(i, values);
    }
  }
  static Value gelu(const Scope& s, Value x) {
    return s.graph().emit("act", Activation{.act = Act::kGelu}, {x}, {x.shape()});
  }
  std::vector<float> largest(std::span<const Value> of) {
    const std::array outputs = {of[0], of[1], of[2]};
    Program program(g_, outputs, *store_);
    std::vector<float> most(of.size(), 0);
    for (int turn = 0; turn < 64; ++turn) {
      PhiloxStream draw(5, static_cast<uint32_t>(turn), 0);
      std::vector<float> rows(kTokens * kWidth);
      for (size_t i = 0; i < rows.size(); ++i)  // from even rows to those of one number
        rows[i] = static_cast<float>(std::pow(draw.normal(), 1 + turn % 32));
      program.upload(x_, rows.data()), program.run();
      for (size_t i = 0; i < of.size(); ++i) {
        std::vector<float> y(static_cast<size_t>(of[i].shape().numel()));
        program.download(y.data(), of[i]);
        for (const float v : y) most[i] = std::max(most[i], std::abs(v));
      }
    }
    return most;
  }

  const std::unique_ptr<Backend> backend_ = make_backend({.device = "reference"});
  Graph g_{Mode::kInference};
  Value x_, norm_, attended_, hidden_;
  std::unique_ptr<ParamStore> store_;
};

TEST_F(Bounded, NothingIsLarger) {
  const ParamValues values = [&](size_t param) { return store_->read(param); };
  const Bounds bounds(g_, values);
  const std::array of = {norm_, attended_, hidden_};
  std::vector<float> most;
  for (const Value v : of) {
    ASSERT_TRUE(bounds.has(v.id()));
    most.push_back(*bounds.most(v.id()));
  }
  EXPECT_FALSE(bounds.has(x_.id()));
  EXPECT_FALSE(bounds.most(x_.id()));
  // A sigmoid is a half where there is nothing.
  const Value open = g_.emit("open", Activation{.act = Act::kSigmoid}, {norm_}, {norm_.shape()});
  EXPECT_FALSE(bounds.has(open.id()));
  const std::vector<float> seen = largest(of);
  for (size_t i = 0; i < of.size(); ++i) {
    EXPECT_LE(seen[i], most[i]) << i;
    EXPECT_GT(8 * seen[i], most[i]) << i << ": a bound that says little";
  }
  EXPECT_GT(1.5f * seen[0], most[0]) << "a row of one number comes near to it";
}

// A norm that leaves its bias, whatever it is given: every number is known, but for the eighth that
// rounding may add.
TEST_F(Bounded, AreTightWhereNothingMoves) {
  store_->write(static_cast<size_t>(store_->index("norm.weight")),
                std::vector<float>(kWidth, 0.0f));
  const ParamValues values = [&](size_t param) { return store_->read(param); };
  const Bounds bounds(g_, values);
  const std::array of = {norm_, attended_, hidden_};
  const std::vector<float> seen = largest(of);
  EXPECT_EQ(*bounds.most(norm_.id()), seen[0]);
  EXPECT_GT(*bounds.most(attended_.id()), seen[1]);
  EXPECT_LT(*bounds.most(attended_.id()), 1.14f * seen[1]);
  EXPECT_GE(*bounds.most(hidden_.id()), seen[2]);
}

TEST_F(Bounded, ChannelsByThemselves) {
  const ParamValues values = [&](size_t param) { return store_->read(param); };
  const Bounds bounds(g_, values);
  float most = 0;
  for (int64_t c = 0; c < kWidth; ++c) {
    const auto one = bounds.most(norm_.id(), {c, 1});
    most = std::max(most, *one);
    const auto gamma = store_->read(static_cast<size_t>(store_->index("norm.weight"))),
               beta = store_->read(static_cast<size_t>(store_->index("norm.bias")));
    EXPECT_FLOAT_EQ(*one, std::sqrt(32.0f) * std::abs(gamma[static_cast<size_t>(c)]) +
                              std::abs(beta[static_cast<size_t>(c)]));
  }
  EXPECT_EQ(most, *bounds.most(norm_.id()));
}

// What comes out of attention is a mean of values: queries and keys only say which.
TEST_F(Bounded, AttentionByItsValues) {
  const auto most = [&](size_t part, float factor) {
    const ParamValues values = [&](size_t param) {
      std::vector<float> v = store_->read(param);
      if (store_->specs()[param].name.starts_with("qkv"))
        for (size_t i = part * v.size() / 3; i < (part + 1) * v.size() / 3; ++i) v[i] *= factor;
      return v;
    };
    return *Bounds(g_, values).most(attended_.id());
  };
  const float plain = most(0, 1);
  EXPECT_EQ(most(0, 8), plain);
  EXPECT_EQ(most(1, 8), plain);
  EXPECT_FLOAT_EQ(most(2, 8), 8 * plain);
}

// ---- the pass ----

std::vector<std::string> layers_of(const char* preset, const KeepsFloat& keeps = {}) {
  Graph g(Mode::kInference);
  trace(g, resolve_model(preset), 1);
  fuse(g);
  ActivationScales scales;
  const std::vector<std::string> layers = quantize_e4m3(g, nullptr, scales, keeps);
  size_t rounded = 0, found = 0;
  for (const Node& node : g.nodes) {
    rounded += std::holds_alternative<ToE4M3>(node.op);
    const auto* layer = std::get_if<QLinear>(&node.op);
    if (!layer) continue;
    ++found;
    EXPECT_GT(layer->scale, 0) << node.name;
    EXPECT_EQ(g.values[static_cast<size_t>(node.in[QLinear::kX])].dtype, DType::kE4M3);
  }
  EXPECT_EQ(found, layers.size());
  EXPECT_LE(rounded, layers.size());
  return layers;
}

TEST(E4M3Pass, TakesLayersBehindNorms) {
  EXPECT_EQ(layers_of("vit_base_patch16_224").size(), 48u);
  EXPECT_EQ(layers_of("vit_tiny_patch16_224").size(), 48u);
  EXPECT_EQ(layers_of("swin_tiny_patch4_window7_224").size(), 48u);
  // Behind the gated MLP's product nothing is bounded by one norm and one layer.
  for (const std::string& layer : layers_of("vit_small_patch16_dinov3.lvd1689m"))
    EXPECT_EQ(layer.find("patch_embed"), layer.npos) << layer;
  // Response norms stand before the second layer of a block; the first has its norm.
  EXPECT_EQ(layers_of("convnext_tiny").size(), 36u);
  EXPECT_EQ(layers_of("convnextv2_tiny").size(), 18u);
  // Norms of Swin V2 stand behind their layers, which read the sum: but for the first attention of
  // a stage, which reads the norm before the stage.
  EXPECT_EQ(layers_of("swinv2_tiny_window8_256").size(), 8u);
  EXPECT_EQ(layers_of("resnet50").size(), 0u);
}

TEST(E4M3Pass, KeepsWhatItShould) {
  const auto kept = layers_of("vit_tiny_patch16_224", [](const std::string& layer) {
    return layer.ends_with("fc1") || layer == "blocks.3.attn.qkv";
  });
  EXPECT_EQ(kept.size(), 35u);
}

// Scales are those of the parameters, and once known not made again.
TEST(E4M3Pass, ScalesFollowFromParameters) {
  Graph g(Mode::kInference);
  const Scope s(g);
  Value x = layer_norm(s / "norm", g.input("x", {1, 4, 32}), 1e-6f);
  linear(s / "blocks" / 0 / "fc", x, 32);
  int read = 0;
  const ParamValues values = [&](size_t param) {
    ++read;
    return std::vector<float>(static_cast<size_t>(g.params[param].shape.numel()), 2.0f);
  };
  ActivationScales known = {};
  ASSERT_EQ(quantize_e4m3(g, values, known).size(), 1u);
  const float bound = std::sqrt(32.0f) * 2 + 2;
  EXPECT_EQ(known.at("blocks.0.fc"), activation_scale(bound));
  EXPECT_GT(read, 0);
  for (const Node& node : g.nodes)
    if (const auto* layer = std::get_if<QLinear>(&node.op)) {
      EXPECT_EQ(layer->scale, activation_scale(bound));
    }
}

}  // namespace
}  // namespace vitrum
