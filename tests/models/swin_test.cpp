// Swin: windows, sizes, other frameworks' files and configs. Expected values are those frameworks'
// own (tools/golden/swin_golden.py); gradients and losses are in golden_test.cpp.
#include "vitrum/models/swin.h"

#include <gtest/gtest.h>

#include "tests/support/dialect_model.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training_graph.h"
#include "vitrum/infer/predictor.h"
#include "vitrum/models/registry.h"
#include "vitrum/runtime/summary.h"
#include "vitrum/weights/convert.h"
#include "vitrum/weights/model_config.h"
#include "vitrum/weights/positions.h"

namespace vitrum {
namespace {

using test::largest_difference;
using test::LoadedModel;

std::string swin_file(const std::string& name) {
  return VITRUM_SOURCE_DIR "/tests/golden/swin/" + name;
}
std::vector<float> expected(const std::string& name) {
  static const auto file = open_tensors(swin_file("expected.safetensors"));
  return read_floats(*file, file->at(name));
}
SwinConfig& swin_of(ModelSpec& spec) { return *spec.config.as<SwinConfig>(); }
SwinConfig preset(const std::string& name) { return *find_preset(name).config.as<SwinConfig>(); }

int64_t parameters(const SwinConfig& c) {
  Graph g;
  swin(Scope(g), g.input("image", {1, c.channels, c.image_h, c.image_w}), c);
  return count_parameters(g).all;
}

TEST(Swin, PresetsCountExactly) {
  EXPECT_EQ(parameters(preset("swin_tiny_patch4_window7_224")), 28'288'354);
  EXPECT_EQ(parameters(preset("swin_small_patch4_window7_224")), 49'606'258);
  EXPECT_EQ(parameters(preset("swin_base_patch4_window7_224")), 87'768'224);
  EXPECT_EQ(parameters(preset("swin_base_patch4_window12_384")), 87'903'584);
  EXPECT_EQ(parameters(preset("swin_large_patch4_window7_224")), 196'532'476);
  EXPECT_LE(parameters(preset("swin_tiny_cifar")), 10'000'000);
}

// The first stage of this has 3 x 3 tokens in windows of 2 x 2.
SwinConfig three_by_three(bool pad_first) {
  return {.image_h = 3,
          .image_w = 3,
          .patch_h = 1,
          .patch_w = 1,
          .width = 2,
          .depths = {2},
          .heads = {1},
          .window_h = 2,
          .window_w = 2,
          .pad_first = pad_first};
}

TEST(Swin, WindowsAreFilledUpAndShifted) {
  const SwinWindows even = swin_windows(three_by_three(false), 0, false);
  EXPECT_EQ(even.count(), 4);
  EXPECT_EQ(even.places(), (std::vector<int32_t>{0, 1, 3, 4,    //
                                                 2, -1, 5, -1,  //
                                                 6, 7, -1, -1,  //
                                                 8, -1, -1, -1}));
  // timm turns the tokens round, then fills up; others fill up and turn all.
  const SwinWindows odd = swin_windows(three_by_three(false), 0, true);
  EXPECT_EQ(odd.shift_h, 1);
  EXPECT_EQ(odd.places(), (std::vector<int32_t>{4, 5, 7, 8,    //
                                                3, -1, 6, -1,  //
                                                1, 2, -1, -1,  //
                                                0, -1, -1, -1}));
  const SwinWindows padded = swin_windows(three_by_three(true), 0, true);
  EXPECT_EQ(padded.places(), (std::vector<int32_t>{4, 5, 7, 8,    //
                                                   -1, 3, -1, 6,  //
                                                   -1, -1, 1, 2,  //
                                                   -1, -1, -1, 0}));
}

// Backends join nodes that follow each other: backward, a layer and the norm before it must.
TEST(Swin, NormsFollowTheirLayersBackward) {
  const test::TrainingGraph training(find_preset("swin_tiny_patch4_window7_224").config, 1);
  const std::vector<Node>& nodes = training.g.nodes;
  const auto is = [&](size_t i, auto op) {
    return std::holds_alternative<decltype(op)>(nodes[i].op);
  };
  int layers = 0;
  for (size_t i = 2; i < nodes.size(); ++i) {
    if (!is(i, LayerNormBwd{})) continue;
    const size_t before = is(i - 1, GatherTokens{}) ? i - 2 : i - 1;
    layers += is(before, LinearBwd{}) && nodes[before].out[0] == nodes[before + 1].in[0];
  }
  EXPECT_EQ(layers, 2 * 12 + 3);  // qkv, fc1, and where patches are merged
}

TEST(Swin, MaskSeparatesWhatTheShiftBroughtTogether) {
  const SwinWindows odd = swin_windows(three_by_three(false), 0, true);
  const std::vector<float> mask = odd.mask();
  ASSERT_EQ(mask.size(), 4u * 4 * 4);
  const auto between = [&](int window, int a, int b) {
    return mask[static_cast<size_t>((window * 4 + a) * 4 + b)];
  };
  EXPECT_EQ(between(0, 0, 3), 0);  // the first window is whole
  EXPECT_EQ(between(1, 0, 2), 0);
  EXPECT_EQ(between(1, 0, 1), -100);  // the last two columns come from both ends
  EXPECT_EQ(between(2, 0, 1), 0);
  EXPECT_EQ(between(2, 0, 2), -100);
  EXPECT_EQ(between(3, 0, 3), -100);
  EXPECT_EQ(between(3, 2, 2), 0);
}

TEST(Swin, OneWindowThatHasAllIsNotShifted) {
  const SwinConfig c = preset("swin_tiny_patch4_window7_224");
  EXPECT_EQ(swin_windows(c, 3, true).shift_h, 0);
  EXPECT_EQ(swin_windows(c, 2, true).shift_h, 3);
  SwinConfig small = c;
  small.image_h = small.image_w = 128;  // 4 x 4 tokens in the last stage
  EXPECT_EQ(swin_windows(small, 3, false).window_h, 4);
  EXPECT_TRUE(shrinks(small));
  small.pad_first = true;
  EXPECT_EQ(swin_windows(small, 3, false).window_h, 7);
  EXPECT_TRUE(fills_up(small));
  EXPECT_FALSE(fills_up(c));
}

TEST(Swin, ImpossibleSizesAreNamed) {
  const auto expect = [](void (*change)(SwinConfig&), const char* part) {
    SwinConfig c = preset("swin_tiny_patch4_window7_224");
    change(c);
    EXPECT_ERROR(validate(c), ErrorKind::kUsage, part);
  };
  expect([](SwinConfig& c) { c.image_h = 226; }, "image size 226x224 is not divisible");
  expect([](SwinConfig& c) { c.image_h = c.image_w = 16; },
         "too small for 4 stages: at least 32x32");
  expect([](SwinConfig& c) { c.window_h = 0; }, "a window of 0x7 tokens");
  expect([](SwinConfig& c) { c.window_h = c.window_w = 100; }, "expected 1 to 4096 tokens");
  expect([](SwinConfig& c) { c.heads = {3, 6, 12}; }, "4 depths and 3 numbers of heads");
  expect([](SwinConfig& c) { c.heads[2] = 11; }, "the width 384 of stage 2 is not divisible by 11");
  expect([](SwinConfig& c) { c.depths[1] = 0; }, "stage 1 has 0 blocks");
  expect([](SwinConfig& c) { c.mlp_ratio = 0; }, "MLP ratio 0");
  expect([](SwinConfig& c) { c.drop_path = 1; }, "dropout probability");
}

struct Source {
  const char *file, *dialect, *logits;
};
class SwinFiles : public testing::TestWithParam<Source> {
 protected:
  static ModelSpec spec() {
    ModelSpec spec = resolve_model(swin_file("timm"));
    swin_of(spec).pad_first = GetParam().logits != std::string("timm");
    return spec;
  }
};

TEST_P(SwinFiles, ComputeWhatTheirFrameworksDo) {
  for (const int side : {32, 40}) {
    ModelSpec model = spec();
    set_image_size(model, side, side);
    LoadedModel loaded(model);
    const LoadReport report = load_weights(swin_file(GetParam().file), model, loaded.store);
    EXPECT_EQ(report.dialect, GetParam().dialect);
    EXPECT_TRUE(report.adapted.empty());
    const std::string at = "." + std::to_string(side);
    EXPECT_LT(largest_difference(loaded.forward(expected("image" + at)),
                                 expected("logits." + std::string(GetParam().logits) + at)),
              2e-5f)
        << side;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Dialects, SwinFiles,
    testing::Values(Source{"timm", "timm", "timm"}, Source{"microsoft.pth", "microsoft", "timm"},
                    Source{"hf", "hf", "hf"}, Source{"hf5.safetensors", "hf", "hf"},
                    Source{"torchvision.safetensors", "torchvision", "torchvision"}),
    [](const auto& info) {
      std::string name = info.param.file;
      std::replace(name.begin(), name.end(), '.', '_');
      return name;
    });

TEST(SwinConfigs, DirectoriesSayWhatTheyHold) {
  ModelSpec timm = resolve_model(swin_file("timm")), hf = resolve_model(swin_file("hf"));
  EXPECT_EQ(family_of(timm.config), "swin");
  EXPECT_EQ(swin_of(timm).depths, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(swin_of(timm).window_h, 4);
  EXPECT_FALSE(swin_of(timm).pad_first);
  EXPECT_TRUE(swin_of(hf).pad_first);
  swin_of(hf).pad_first = false, swin_of(hf).drop_path = swin_of(timm).drop_path;
  EXPECT_EQ(hf.config, timm.config);
}

TEST(SwinTables, AreResampledAsTheirFrameworksDo) {
  const std::vector<float> table = expected("table");
  const auto resampled = [&](int64_t window, PositionRule rule) {
    return resample_positions(table, 0, 2, {7, 7}, {2 * window - 1, 2 * window - 1}, rule);
  };
  for (const int64_t window : {3, 7, 12}) {
    const std::string w = std::to_string(window);
    EXPECT_LT(largest_difference(resampled(window, PositionRule::kGeometric),
                                 expected("table.timm." + w)),
              1e-5f)
        << window;
    EXPECT_LT(largest_difference(resampled(window, PositionRule::kBicubic),
                                 expected("table.bicubic." + w)),
              1e-5f)
        << window;
  }
}

TEST(SwinTables, FollowAnotherWindowAndFewerTokens) {
  ModelSpec spec = resolve_model(swin_file("timm"));
  swin_of(spec).window_h = swin_of(spec).window_w = 3;
  LoadedModel model(spec);
  const LoadReport report = load_weights(swin_file("timm"), spec, model.store);
  ASSERT_EQ(report.adapted.size(), 2u);
  EXPECT_EQ(report.adapted[0], "windows of stage 0 4x4 -> 3x3 (linear, as timm)");

  spec = resolve_model(swin_file("timm"));
  set_image_size(spec, 24, 24);  // 6 x 6 and 3 x 3 tokens
  LoadedModel small(spec);
  const LoadReport fewer = load_weights(swin_file("timm"), spec, small.store);
  EXPECT_EQ(fewer.adapted,
            (std::vector<std::string>{"windows of stage 1 4x4 -> 3x3 (linear, as timm)"}));
}

// A predictor reads the file in place; tables that do not fit are made anew there too.
TEST(SwinTables, FollowThePredictorsImageSize) {
  ModelSpec spec = resolve_model(swin_file("timm"));
  set_image_size(spec, 24, 24);
  LoadedModel loaded(spec);
  load_weights(swin_file("timm"), spec, loaded.store);
  Predictor predictor(swin_file("timm"), {.image_size = InputSize{24, 24}, .device = "reference"});
  ParamStore& store = predictor.store();
  for (size_t i = 0; i < store.specs().size(); ++i)
    EXPECT_EQ(store.read(i), loaded.store.read(i)) << store.specs()[i].name;
}

std::vector<std::vector<float>> weights_of(const std::string& path) {
  const ModelSpec spec = resolve_model(swin_file("timm"));
  LoadedModel model(spec);
  load_weights(path, spec, model.store);
  return model.all_values();
}

TEST(SwinConvert, EveryWayKeepsTheBits) {
  const TempDir dir;
  const auto all = weights_of(swin_file("timm"));
  convert_model(swin_file("timm"), "", dir / "hf", "hf");
  convert_model(dir / "hf", "", dir / "tv.safetensors", "torchvision");
  convert_model(dir / "hf", "", dir / "timm", "timm");
  EXPECT_EQ(weights_of(dir / "hf"), all);
  EXPECT_EQ(weights_of(dir / "tv.safetensors"), all);
  EXPECT_EQ(weights_of(dir / "timm"), all);
  ModelSpec back = resolve_model(dir / "timm");
  EXPECT_TRUE(swin_of(back).pad_first);
}

TEST(SwinConvert, SaysWhatATargetHasNot) {
  const TempDir dir;
  EXPECT_ERROR(convert_model(swin_file("timm"), "", dir / "x.npz", "npz"), ErrorKind::kUsage,
               "unknown dialect 'npz' of swin weights");
  ModelSpec spec = resolve_model(swin_file("timm"));
  set_image_size(spec, 24, 24);
  LoadedModel model(spec);
  save_model_dir(dir / "small", spec, model.store);
  EXPECT_ERROR(convert_model(dir / "small", "", dir / "hf", "hf"), ErrorKind::kInput,
               "has no Swin whose windows are smaller in later stages");
}

TEST(SwinConfigs, WrittenAndReadAgain) {
  ModelSpec spec = resolve_model(swin_file("timm"));
  swin_of(spec).mlp_ratio = 2.7, swin_of(spec).drop_attn = 0.2f, swin_of(spec).pad_first = true;
  EXPECT_EQ(parse_model_config(model_config_text(spec), "c").config, spec.config);
  swin_of(spec).drop_act = 0;
  const ModelSpec hf = parse_hf_config({hf_config_text(spec), "c"}, {"{}", "p"});
  EXPECT_EQ(hf.config, spec.config);
}

TEST(SwinConfigs, HostileOnesAreNamed) {
  const auto expect = [](const std::string& more, const char* part) {
    const std::string timm =
        R"({"architecture": "swin_tiny_patch4_window7_224", "model_args": {)" + more + "}}";
    EXPECT_ERROR(parse_model_config(timm, "d/config.json"), ErrorKind::kInput, part);
  };
  expect(R"("window_size": 0)", "window_size");
  expect(R"("window_size": [7, 7, 14, 7])", "window_size");
  expect(R"("window_size": 16384)", "too large to be meant");
  expect(R"("depths": [2, 2])", "2 depths and 4 numbers of heads");
  expect(R"("depths": "many")", "depths");
  expect(R"("depths": [2, 2, 1025, 2])", "depths");
  expect(R"("num_heads": [3, 6, 12, -1])", "num_heads");
  expect(R"("embed_dim": 65536, "depths": [1024, 1024, 1024, 1024])", "too large to be meant");
  expect(R"("img_size": 8)", "too small for 4 stages");
  expect(R"("always_partition": true)", "always_partition");
  expect(R"("windowsize": 7)", "windowsize");
  const auto expect_hf = [](const std::string& more, const char* part) {
    EXPECT_ERROR(parse_hf_config({R"({"model_type": "swin", )" + more + "}", "d/config.json"},
                                 {"{}", "d/preprocessor_config.json"}),
                 ErrorKind::kInput, part);
  };
  expect_hf(R"("use_absolute_embeddings": true)", "use_absolute_embeddings");
  expect_hf(R"("depths": [])", "0 depths");
  expect_hf(R"("window_size": 1e9)", "window_size");
}

}  // namespace
}  // namespace vitrum
