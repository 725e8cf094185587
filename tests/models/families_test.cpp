// Today's families against the frameworks they come from (tools/golden/families_golden.py).
#include <gtest/gtest.h>

#include "tests/support/dialect_model.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/vit_of.h"
#include "vitrum/models/registry.h"
#include "vitrum/weights/convert.h"

namespace vitrum {
namespace {

using test::largest_difference;
using test::LoadedModel;

std::string golden(const std::string& name) {
  return VITRUM_SOURCE_DIR "/tests/golden/families/" + name;
}
std::vector<float> expected(const std::string& name) {
  static const auto file = open_tensors(golden("expected.safetensors"));
  return read_floats(*file, file->at(name));
}

std::vector<float> answer(const std::string& dir, int side) {
  ModelSpec spec = resolve_model(dir);
  set_image_size(spec, side, side);
  LoadedModel model(spec);
  load_weights(dir, spec, model.store);
  return model.forward(expected("image." + std::to_string(side)));
}

class Families : public ::testing::TestWithParam<const char*> {};

TEST_P(Families, AnswerAsTheirFrameworkDoes) {
  // timm has a rule of its own for FlexiViT's positions at other sizes.
  const bool flexible = std::string_view(GetParam()) == "flexivit";
  for (const int side : flexible ? std::vector{12} : std::vector{12, 20})
    EXPECT_LT(largest_difference(answer(golden(GetParam()), side),
                                 expected(std::string(GetParam()) + "." + std::to_string(side))),
              1e-5f)
        << side;
}

TEST_P(Families, ConvertKeepsTheModel) {
  const TempDir dir;
  convert_model(golden(GetParam()), "", dir / "timm", "timm");
  EXPECT_EQ(resolve_model(dir / "timm").config, resolve_model(golden(GetParam())).config);
  EXPECT_EQ(answer(dir / "timm", 12), answer(golden(GetParam()), 12));
}

INSTANTIATE_TEST_SUITE_P(Golden, Families,
                         ::testing::Values("deit3", "dinov2", "registers", "flexivit", "clip",
                                           "dinov2-hf", "dinov2-hf-head"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(Dinov2, RoundTripThroughTransformersKeepsEveryBit) {
  for (const char* name : {"dinov2", "dinov2-hf", "dinov2-hf-head"}) {
    const TempDir dir;
    convert_model(golden(name), "", dir / "hf", "hf");
    EXPECT_EQ(answer(dir / "hf", 12), answer(golden(name), 12)) << name;
  }
}

TEST(Dinov2, TransformersHaveNoPlaceForOtherHeads) {
  const TempDir dir;
  EXPECT_ERROR(convert_model(golden("registers"), "", dir / "hf", "hf"), ErrorKind::kInput,
               "with registers");
  EXPECT_ERROR(convert_model(golden("deit3"), "", dir / "hf", "hf"), ErrorKind::kInput,
               "no position");
}

// timm's own numbers, of models made on its meta device.
TEST(FamilyPresets, Counts) {
  const std::pair<const char*, int64_t> counts[] = {
      {"deit3_small_patch16_224", 22059496},
      {"deit3_medium_patch16_224", 38849512},
      {"deit3_base_patch16_224", 86585320},
      {"deit3_base_patch16_384", 86877160},
      {"deit3_large_patch16_224", 304374760},
      {"deit3_huge_patch14_224", 632126440},
      {"vit_small_patch14_dinov2", 22056192},
      {"vit_base_patch14_dinov2", 86579712},
      {"vit_large_patch14_dinov2", 304367616},
      {"vit_small_patch14_reg4_dinov2", 22057344},
      {"vit_base_patch14_reg4_dinov2", 86582016},
      {"vit_large_patch14_reg4_dinov2", 304370688},
      {"flexivit_small", 22061416},
      {"flexivit_base", 86589160},
      {"flexivit_large", 304355304},
      {"vit_base_patch32_clip_224", 87849728},
      {"vit_base_patch16_clip_224", 86193152},
      {"vit_large_patch14_clip_224", 303966976},
      {"vit_large_patch14_clip_336", 304294656},
      {"vit_huge_patch14_clip_224", 632077824},
      {"vit_base_patch16_clip_quickgelu_224", 86193152},
      {"vit_large_patch14_clip_quickgelu_224", 303966976}};
  for (const auto& [name, count] : counts) {
    const ModelConfig& c = find_preset(name).config;
    Graph g;
    model(Scope(g), g.input("image", {1, c.channels(), c.image_h(), c.image_w()}), c);
    int64_t total = 0;
    for (const ParamSpec& p : g.params) total += p.shape.numel();
    EXPECT_EQ(total, count) << name;
  }
}

}  // namespace
}  // namespace vitrum
