// Attention maps against PyTorch and NumPy (tools/golden/explain_golden.py), on a model that was
// trained to find something, and on matrices whose answer is known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/support/expect_error.h"
#include "tests/support/training_graph.h"
#include "vitrum/core/philox.h"
#include "vitrum/data/decode.h"
#include "vitrum/data/encode_png.h"
#include "vitrum/explain/attention_program.h"
#include "vitrum/explain/explain_weights.h"
#include "vitrum/explain/principal.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

ModelSpec spec_of(const ModelConfig& config) {
  ModelSpec spec;
  spec.config = config;
  spec.preprocess.mean = spec.preprocess.std = {0.5f, 0.5f, 0.5f};
  return spec;
}

// ---- golden ----

class Golden {
 public:
  Golden(const std::string& model, const ModelConfig& config)
      : model_(model), spec_(spec_of(config)) {}

  std::vector<float> read(const std::string& name) const {
    const TensorInfo& t = file_.at(model_ + "." + name);
    std::vector<float> values(static_cast<size_t>(t.shape.numel()));
    file_.copy_to(t, {values.data(), t.shape, DType::kF32});
    return values;
  }
  int64_t height() const { return spec_.config.image_h(); }
  int64_t width() const { return spec_.config.image_w(); }
  std::vector<uint8_t> pixels() const {
    const auto bytes = file_.bytes(file_.at(model_ + ".pixels"));
    std::vector<uint8_t> values(bytes.size());
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<LayerAttention> run(Backend& backend, std::vector<float>* logits) const {
    Graph g;
    trace(g, spec_, 1);
    ParamStore store(g, backend);
    for (size_t i = 0; i < store.specs().size(); ++i)
      store.write(i, read("param." + store.specs()[i].name));
    AttentionProgram program(spec_, store, {.gradient = true});
    program.run(pixels().data());
    program.run_backward(2);
    *logits = program.logits();
    return program.all();
  }

 private:
  std::string model_;
  ModelSpec spec_;
  SafetensorsFile file_{std::string(VITRUM_SOURCE_DIR) + "/tests/golden/explain.safetensors"};
};

void expect_near(std::span<const double> got, const std::vector<float>& expected, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], tolerance) << what << " at " << i;
}

void expect_golden(const Golden& golden, Backend& backend) {
  std::vector<float> logits;
  const std::vector<LayerAttention> layers = golden.run(backend, &logits);
  expect_near(std::vector<double>(logits.begin(), logits.end()), golden.read("logits"), 2e-5,
              "logits");
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerAttention& layer = layers[i];
    const std::string number = "." + std::to_string(i);
    const auto compare = [&](const std::vector<float>& got, const std::string& what) {
      expect_near(std::vector<double>(got.begin(), got.end()), golden.read(what + number),
                  what == "probs" ? 1e-6 : 1e-5, what + number);
    };
    compare(layer.weights, "probs"), compare(layer.gradient, "grads");
    expect_near(attention_map(layer, HeadFusion::kMean).values, golden.read("map" + number), 1e-6,
                "map" + number);
    expect_near(mean_distances(layer, golden.height(), golden.width()),
                golden.read("distances" + number), 1e-4, "distances" + number);
  }
  const std::pair<const char*, HeadFusion> fusions[] = {
      {"mean", HeadFusion::kMean}, {"max", HeadFusion::kMax}, {"min", HeadFusion::kMin}};
  for (const auto& [name, fusion] : fusions)
    for (const int discard : {0, 60})
      expect_near(rollout(layers, {fusion, discard / 100.0}).values,
                  golden.read("rollout." + std::string(name) + "." + std::to_string(discard)), 2e-6,
                  name);
  expect_near(gradient_relevance(layers).values, golden.read("gradient"), 1e-5, "relevance");
}

TEST(Explain, EqualsPyTorch) {
  const Golden token("token", ViTConfig{.image_h = 16,
                                        .image_w = 16,
                                        .patch_h = 4,
                                        .patch_w = 4,
                                        .width = 16,
                                        .depth = 2,
                                        .heads = 2,
                                        .mlp_width = 64,
                                        .classes = 5});
  const Golden mean("mean", ViTConfig{.image_h = 8,
                                      .image_w = 16,
                                      .patch_h = 4,
                                      .patch_w = 4,
                                      .width = 24,
                                      .depth = 2,
                                      .heads = 3,
                                      .mlp_width = 24,
                                      .classes = 4,
                                      .class_token = false,
                                      .pool = ViTPool::kMean});
  const Golden swin("swin", SwinConfig{.image_h = 16,
                                       .image_w = 16,
                                       .patch_h = 2,
                                       .patch_w = 2,
                                       .width = 8,
                                       .depths = {2, 2},
                                       .heads = {1, 2},
                                       .window_h = 4,
                                       .window_w = 4,
                                       .mlp_ratio = 1,
                                       .classes = 4});
  for (const char* device : {"reference", "cpu"}) {
    const auto backend = make_backend({.device = device});
    SCOPED_TRACE(device);
    expect_golden(token, *backend);
    expect_golden(mean, *backend);
    expect_golden(swin, *backend);
  }
}

TEST(Explain, OneLayerIsReadAlone) {
  const ModelSpec spec = spec_of(ViTConfig{.image_h = 16,
                                           .image_w = 16,
                                           .patch_h = 8,
                                           .patch_w = 8,
                                           .width = 24,
                                           .depth = 3,
                                           .heads = 3,
                                           .mlp_width = 24,
                                           .classes = 2});
  const auto backend = make_backend({});
  Graph g;
  trace(g, spec, 1);
  ParamStore store(g, *backend);
  store.initialize(1);
  const std::vector<uint8_t> pixels(3 * 16 * 16, 99);
  AttentionProgram all(spec, store), one(spec, store, {.layers = {2}});
  all.run(pixels.data()), one.run(pixels.data());
  ASSERT_EQ(one.layers(), 1u);
  EXPECT_EQ(one.layer(0).name, "blocks.2.attn");
  EXPECT_EQ(one.layer(0).number, 2);
  EXPECT_EQ(one.layer(0).weights, all.layer(2).weights);
  EXPECT_EQ(one.logits(), all.logits());
  EXPECT_ERROR(AttentionProgram(spec, store, {.layers = {3}}), ErrorKind::kUsage,
               "layer 3 does not exist; the model has layers 0 to 2");
}

TEST(Explain, AsksTheTokensThatTheHeadReads) {
  ViTConfig config{.image_h = 16,
                   .image_w = 16,
                   .patch_h = 8,
                   .patch_w = 8,
                   .width = 24,
                   .depth = 1,
                   .heads = 3,
                   .mlp_width = 24,
                   .classes = 2};
  const auto backend = make_backend({});
  const auto grid = [&] {
    Graph g;
    trace(g, spec_of(config), 1);
    ParamStore store(g, *backend);
    return AttentionProgram(spec_of(config), store).layer(0).grid;
  };
  EXPECT_THAT(grid().readout, testing::ElementsAre(0));
  config.distilled = true;
  EXPECT_EQ(grid().prefix, 2);
  EXPECT_THAT(grid().readout, testing::ElementsAre(0, 1));
  config.distilled = false, config.pool = ViTPool::kMean;  // a class token that nobody reads
  EXPECT_EQ(grid().prefix, 1);
  EXPECT_THAT(grid().readout, testing::IsEmpty());
}

// ---- matrices whose answer is known ----

LayerAttention layer_of(TokenGrid grid, std::vector<float> weights, int64_t heads = 1) {
  LayerAttention layer{.grid = grid, .heads = heads, .size = grid.tokens()};
  for (int64_t t = 0; t < layer.size; ++t) layer.place.push_back(t);
  layer.weights = std::move(weights);
  return layer;
}

TEST(Explain, DistancesOfKnownPatterns) {
  const TokenGrid grid{.rows = 1, .columns = 3, .prefix = 1, .readout = {0}};
  std::vector<float> itself(16, 0.f), next(16, 0.f), class_token(16, 0.f);
  for (size_t t = 0; t < 4; ++t) {
    itself[t * 4 + t] = 1;
    next[t * 4 + (t == 3 ? 2 : t + 1)] = 1;
    class_token[t * 4] = 0.9f, class_token[t * 4 + 3] = 0.1f;
  }
  std::vector<float> weights = itself;
  weights.insert(weights.end(), next.begin(), next.end());
  weights.insert(weights.end(), class_token.begin(), class_token.end());
  const std::vector<double> d = mean_distances(layer_of(grid, weights, 3), 10, 60);
  EXPECT_DOUBLE_EQ(d[0], 0);
  EXPECT_DOUBLE_EQ(d[1], 20);
  EXPECT_NEAR(d[2], (40 + 20 + 0) / 3.0, 1e-6);  // only what goes to patches counts
}

// A model in windows: what was merged is spread again, and windows that are shifted or padded reach
// the right patches.
TEST(Explain, FollowsWindowsThroughMergedPatches) {
  const TokenGrid fine{.rows = 2, .columns = 4}, coarse{.rows = 1, .columns = 2};
  LayerAttention first{.grid = fine, .windows = 3, .heads = 1, .size = 4};
  first.place = {0, 4, 7, 3, 1, 2, 5, 6, -1, -1, -1, -1};  // wrapped round, as a shift does
  for (int w = 0; w < 3; ++w)
    for (int t = 0; t < 4; ++t)  // everyone looks at the first place of the window
      for (int u = 0; u < 4; ++u) first.weights.push_back(u == 0 ? 1.f : 0.f);
  LayerAttention second{.grid = coarse, .windows = 1, .heads = 1, .size = 2, .place = {0, 1}};
  second.weights = {0.f, 1.f, 0.f, 1.f};  // everyone looks at the right half
  EXPECT_THAT(attention_map(first, HeadFusion::kMean).values,
              testing::ElementsAre(0.5, 0.5, 0, 0, 0, 0, 0, 0));
  const PatchMap map = rollout(std::vector{first, second});
  // 1/4 is left of the left half and 3/4 of the right one, a quarter for each patch; half of each
  // share stays, and half goes to patch 0 or 1, of whose windows four patches are in both halves.
  const double left = 1 / 16.0, right = 3 / 16.0;
  EXPECT_THAT(map.values,
              testing::ElementsAre(left / 2 + left + right, left / 2 + left + right, right / 2,
                                   right / 2, left / 2, left / 2, right / 2, right / 2));
}

TEST(Explain, PrincipalComponentsOfAKnownMixture) {
  // Samples along three directions with deviations 5, 2 and 1, in 40 dimensions or in 6.
  for (const auto& [rows, columns] : {std::pair<size_t, size_t>{20, 40}, {200, 6}}) {
    PhiloxStream draw(1, 0, rows);
    std::vector<float> samples(rows * columns, 3.f);
    for (size_t r = 0; r < rows; ++r) {
      samples[r * columns + 1] += static_cast<float>(r % 2 ? 5 : -5);
      samples[r * columns + 3] += static_cast<float>(r / 2 % 2 ? 2 : -2);
      samples[r * columns] += static_cast<float>(r / 4 % 2 ? 1 : -1);
    }
    const Components c = principal_components(samples, rows, columns, 3);
    ASSERT_EQ(c.variances.size(), 3u);
    const size_t axis[] = {1, 3, 0};
    for (size_t i = 0; i < 3; ++i)
      for (size_t j = 0; j < columns; ++j)
        EXPECT_NEAR(c.vectors[i * columns + j], j == axis[i] ? 1 : 0, rows == 200 ? 1e-7 : 0.1);
    EXPECT_NEAR(c.variances[0], 25, 1e-5);
  }
  EXPECT_EQ(principal_components(std::vector<float>(6, 1.f), 2, 3, 28).variances.size(), 2u);
}

TEST(Explain, PositionSimilarity) {
  const Positions p{2, 3, 2, {1, 0, 0, 2, 0, 0, -1, 0, 3, 4, 2, 0}};
  const std::vector<float> cosines = position_cosines(p);
  EXPECT_THAT(std::vector<float>(cosines.begin(), cosines.begin() + 6),
              testing::ElementsAre(1, 0, 0, -1, testing::FloatEq(0.6f), 1));
  // The middle of 2 x 3 is row 1, column 1.
  EXPECT_THAT(centre_similarity(p).values, testing::ElementsAre(3, 8, 0, -3, 25, 6));
}

// ---- pictures ----

// A map with one bright patch lights up the photo where that patch came from, after resize and
// crop.
TEST(Explain, OverlaysLieWhereThePatchesWere) {
  Image grey;
  grey.reshape(3, 300, 600);
  std::fill(grey.pixels.begin(), grey.pixels.end(), uint8_t{128});
  const Preprocess preprocess{.height = 96,
                              .width = 96,
                              .crop_pct = 0.8,
                              .crop_mode = CropMode::kCenter};  // 120 x 240, then the middle
  const ShownPhoto shown = show_photo(grey, preprocess, 600);
  EXPECT_NEAR(shown.seen.top, 30, 1e-9);
  EXPECT_NEAR(shown.seen.left, 180, 1e-9);
  EXPECT_NEAR(shown.seen.height, 240, 1e-9);
  EXPECT_NEAR(shown.seen.width, 240, 1e-9);
  PatchMap map{6, 6, std::vector<double>(36, 0.0)};
  map.values[2 * 6 + 4] = 1;  // patches of 40 pixels: rows 110 to 150, columns 340 to 380
  const Image out = overlay(shown, map, {0, 1});
  double weight = 0, x_mean = 0, y_mean = 0;
  for (int y = 0; y < out.height; ++y)
    for (int x = 0; x < out.width; ++x) {
      const int green = out.plane(1)[y * out.width + x];
      if (green < 100) continue;
      weight += green, x_mean += green * (x + 0.5), y_mean += green * (y + 0.5);
    }
  ASSERT_GT(weight, 0);
  EXPECT_NEAR(x_mean / weight, 360, 1);
  EXPECT_NEAR(y_mean / weight, 130, 1);
  const auto at = [&](int y, int x) { return out.plane(1)[y * out.width + x]; };
  EXPECT_NEAR(at(130, 360), 137, 2);  // the photo in a little light
  EXPECT_NEAR(at(150, 200), 38, 2);   // seen, not looked at
  EXPECT_LT(at(200, 20), 36);         // not seen by the model: nearly paper
}

// Colours stay where the map is high and go where it is low.
TEST(Explain, WhatIsLookedAtKeepsItsColours) {
  const auto drawn = [](Rgb colour, double value) {
    const ShownPhoto photo{blank(8, 8, colour), {0, 0, 8, 8}};
    const Image out = overlay(photo, {1, 1, {value}}, {0, 1});
    return Rgb{out.plane(0)[27], out.plane(1)[27], out.plane(2)[27]};
  };
  const Rgb high = drawn({200, 60, 20}, 1), low = drawn({200, 60, 20}, 0);
  EXPECT_NEAR(high.r, 200, 16);
  EXPECT_NEAR(high.g, 60, 20);
  EXPECT_NEAR(high.b, 20, 16);
  EXPECT_EQ(low.r, low.b) << "grey";
  EXPECT_LT(low.r, 40);
  EXPECT_GT(drawn({0, 0, 0}, 1).r, drawn({0, 0, 0}, 0).r + 20) << "black shows it too";
}

// A few patches that outshine all others leave light for the rest, and no ring round themselves.
TEST(Explain, OutliersLeaveLightForTheRest) {
  PatchMap map{14, 14, {}};
  for (int i = 0; i < 14 * 14; ++i) map.values.push_back(0.001 + 0.001 * (i % 14) / 13);
  for (const size_t corner : {0u, 1u, 13u, 14u, 182u, 195u, 194u, 181u}) map.values[corner] = 0.4;
  const ColourScale range = range_of(map);
  EXPECT_LT(range.high, 0.0021);
  const ShownPhoto photo{blank(140, 140, {180, 180, 180}), {0, 0, 140, 140}};
  const Image out = overlay(photo, map, range);
  const auto at = [&](int y, int x) { return out.plane(0)[y * 140 + x]; };
  EXPECT_GT(at(75, 125), 150) << "the brightest of the rest";
  EXPECT_LT(at(75, 5), 75);
  EXPECT_NEAR(at(5, 35), at(75, 35), 12) << "beside an outlier as elsewhere";
  PatchMap rare{10, 10, std::vector<double>(100, 0.0)};
  rare.values[44] = 1;  // where nothing else is, it is shown
  EXPECT_EQ(range_of(rare).high, 1);
}

TEST(Explain, PicturesSurviveLongTitlesAndOddLetters) {
  const Image picture = blank(20, 50);
  const Image out = with_title(picture, {"gr\xc3\xbc\xc3\x9f dich \xff " + std::string(300, 'W'),
                                         std::string(200, '|'), "low", "high"});
  EXPECT_EQ(out.width, 360);
  EXPECT_LE(text_width(fit_text("a long title", 10, 40), 10), 40);
  EXPECT_EQ(fit_text("short", 10, 400), "short");
}

TEST(Explain, ColoursGetLighterEvenly) {
  const auto lightness = [](Rgb c) {  // CIE L*
    const auto linear = [](uint8_t v) {
      const double x = v / 255.0;
      return x <= 0.04045 ? x / 12.92 : std::pow((x + 0.055) / 1.055, 2.4);
    };
    const double y = 0.2126 * linear(c.r) + 0.7152 * linear(c.g) + 0.0722 * linear(c.b);
    return 116 * std::cbrt(y) - 16;
  };
  const double first = lightness(colour_of(0)), last = lightness(colour_of(1));
  for (int i = 0; i <= 20; ++i)
    EXPECT_NEAR(lightness(colour_of(i / 20.0)), first + (last - first) * i / 20, 3) << i;
  EXPECT_EQ(colour_of(NAN).r, colour_of(0).r);
}

// ---- a model that was trained to find something ----

// Dim squares of three colours and one bright one, whose colour is the class. In the fourth class
// there is none: else a model need not look for the colour that is left over.
struct Squares {
  static constexpr int kSide = 24, kPatch = 6, kGrid = 4, kClasses = 4;

  std::vector<uint8_t> pixels;
  int patch = 0, label = 0;

  explicit Squares(uint64_t number) : pixels(3 * kSide * kSide) {
    PhiloxStream draw(5, 0, number);
    patch = static_cast<int>(draw.below(kGrid * kGrid)),
    label = static_cast<int>(draw.below(kClasses));
    if (label == 3) patch = -1;
    for (int p = 0; p < kGrid * kGrid; ++p) {
      const int colour = p == patch ? label : static_cast<int>(draw.below(3));
      for (int c = 0; c < 3; ++c)
        for (int i = 0; i < kPatch * kPatch; ++i) {
          const int y = p / kGrid * kPatch + i / kPatch, x = p % kGrid * kPatch + i % kPatch;
          const double level =
              (c == colour ? (p == patch ? 0.95 : 0.5) : 0.2) + 0.05 * draw.normal();
          pixels[static_cast<size_t>((c * kSide + y) * kSide + x)] =
              static_cast<uint8_t>(std::clamp(255 * level, 0.0, 255.0));
        }
    }
  }
};

// Adam on the host: enough for a few thousand parameters.
void train(const ViTConfig& config, ParamStore& store, int steps) {
  constexpr int kBatch = 32;
  test::TrainingGraph graph(config, kBatch);
  Program program = graph.compile(store);
  const std::vector<float> weight(kBatch, 1.f / kBatch);
  program.upload(graph.weight, weight.data());
  std::vector<std::vector<double>> m(store.specs().size()), v(store.specs().size());
  for (int step = 1; step <= steps; ++step) {
    std::vector<float> image;
    std::vector<int32_t> labels;
    for (int b = 0; b < kBatch; ++b) {
      const Squares s(static_cast<uint64_t>(step * kBatch + b));
      for (uint8_t p : s.pixels) image.push_back((static_cast<float>(p) / 255 - 0.5f) / 0.5f);
      labels.push_back(s.label);
    }
    program.upload(graph.image, image.data());
    program.upload(graph.target, labels.data());
    program.run();
    const double rate = 4e-3 * std::min(1.0, 1.5 * (1 - static_cast<double>(step) / steps));
    for (size_t i = 0; i < m.size(); ++i) {
      std::vector<float> w = store.read(i), g = store.read(i, Arena::kGrad);
      m[i].resize(w.size()), v[i].resize(w.size());
      for (size_t k = 0; k < w.size(); ++k) {
        m[i][k] = 0.9 * m[i][k] + 0.1 * g[k], v[i][k] = 0.99 * v[i][k] + 0.01 * g[k] * g[k];
        w[k] -= static_cast<float>(rate * m[i][k] / (1 - std::pow(0.9, step)) /
                                   (std::sqrt(v[i][k] / (1 - std::pow(0.99, step))) + 1e-8));
      }
      store.write(i, w);
      store.write(i, std::vector<float>(w.size(), 0.f), Arena::kGrad);
    }
  }
}

TEST(Explain, PointsAtWhatTheModelWasTrainedToFind) {
  const ViTConfig config{.image_h = Squares::kSide,
                         .image_w = Squares::kSide,
                         .patch_h = Squares::kPatch,
                         .patch_w = Squares::kPatch,
                         .width = 24,
                         .depth = 2,
                         .heads = 2,
                         .mlp_width = 48,
                         .classes = Squares::kClasses,
                         .init = InitStyle::kLesson};
  const ModelSpec spec = spec_of(config);
  const auto backend = make_backend({});
  Graph g;
  trace(g, spec, 1);
  ParamStore store(g, *backend);
  store.initialize(1);
  train(config, store, 140);
  AttentionProgram program(spec, store, {.gradient = true});
  constexpr int kImages = 100;
  int right = 0, by_rollout = 0, by_gradient = 0;
  const auto brightest = [](const PatchMap& map) {
    return std::max_element(map.values.begin(), map.values.end()) - map.values.begin();
  };
  for (uint64_t number = 1'000'000, done = 0; done < kImages; ++number) {
    const Squares s(number);
    if (s.patch < 0) continue;
    ++done;
    program.run(s.pixels.data());
    const auto& logits = program.logits();
    right += std::max_element(logits.begin(), logits.end()) - logits.begin() == s.label;
    program.run_backward(s.label);
    const std::vector<LayerAttention> layers = program.all();
    by_rollout += brightest(rollout(layers)) == s.patch;
    by_gradient += brightest(gradient_relevance(layers)) == s.patch;
  }
  EXPECT_GE(right, 95);
  EXPECT_GE(by_rollout, 95);
  EXPECT_GE(by_gradient, 95);
}

}  // namespace
}  // namespace vitrum
