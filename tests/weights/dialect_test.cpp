// Other frameworks' files: names, layouts, and fitting a model to another use. Expected values are
// those frameworks' own (tools/golden/dialect_golden.py).
#include "vitrum/weights/dialect.h"

#include <gtest/gtest.h>

#include "tests/support/dialect_model.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/vit_of.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

using test::dialect_file;
using test::dialect_spec;
using test::expected_values;
using test::largest_difference;
using test::LoadedModel;

constexpr float kTolerance = 1e-5f;

struct Source {
  const char *file, *dialect;
};
constexpr Source kSources[] = {{"timm", "timm"},
                               {"hf", "hf"},
                               {"hf5.safetensors", "hf"},
                               {"torchvision.safetensors", "torchvision"},
                               {"torchvision-legacy.pth", "torchvision"},
                               {"google.npz", "npz"}};

ModelSpec spec_of(const Source& source) {
  const std::string path = dialect_file(source.file);
  if (is_model_dir(path)) return resolve_model(path);
  ModelSpec spec = dialect_spec();
  vit_of(spec).eps = find_dialect(spec.config, source.dialect).eps;
  vit_of(spec).act = find_dialect(spec.config, source.dialect).act;
  return spec;
}

// A safetensors file made of another one's tensors.
class EditedFile {
 public:
  EditedFile() = default;
  explicit EditedFile(const std::string& name) {
    const auto file = open_tensors(dialect_file(name));
    for (const TensorInfo& t : file->tensors()) {
      const auto bytes = file->bytes(t);
      add(t.name, t.shape, t.dtype, {bytes.begin(), bytes.end()});
    }
  }
  void add(const std::string& name, const Shape& shape, DType dtype, std::vector<std::byte> bytes) {
    tensors_.push_back({name, shape, dtype, std::move(bytes)});
  }
  void add(const std::string& name, const Shape& shape) {
    add(name, shape, DType::kF32, std::vector<std::byte>(static_cast<size_t>(shape.numel()) * 4));
  }
  void remove(const std::string& name) {
    std::erase_if(tensors_, [&](const Tensor& t) { return t.name == name; });
  }
  std::string write(const TempDir& dir) {
    std::vector<NamedTensor> named;
    for (Tensor& t : tensors_) named.push_back({t.name, {t.bytes.data(), t.shape, t.dtype}});
    write_safetensors(dir / "edited.safetensors", named);
    return dir / "edited.safetensors";
  }

 private:
  struct Tensor {
    std::string name;
    Shape shape;
    DType dtype;
    std::vector<std::byte> bytes;
  };
  std::vector<Tensor> tensors_;
};

TEST(Dialects, EachFileHoldsTheSameBits) {
  LoadedModel first(spec_of(kSources[0]));
  load_weights(dialect_file("timm"), spec_of(kSources[0]), first.store);
  for (const Source& source : kSources) {
    LoadedModel model(spec_of(source));
    const LoadReport report = load_weights(dialect_file(source.file), spec_of(source), model.store);
    EXPECT_EQ(report.dialect, source.dialect) << source.file;
    EXPECT_TRUE(report.adapted.empty()) << source.file;
    EXPECT_EQ(model.all_values(), first.all_values()) << source.file;
  }
}

// big_vision counts the modules of a block by kind, and keeps the optimiser beside the weights.
TEST(Dialects, BigVisionNamesAreReadToo) {
  const auto renamed = [](std::string name) {
    for (const auto& [from, to] : std::initializer_list<std::pair<const char*, const char*>>{
             {"MultiHeadDotProductAttention_1", "MultiHeadDotProductAttention_0"},
             {"LayerNorm_2", "LayerNorm_1"},
             {"MlpBlock_3", "MlpBlock_0"},
             {"Transformer/posembed_input/", ""}})
      if (const size_t at = name.find(from); at != name.npos)
        name.replace(at, std::string_view(from).size(), to);
    return name;
  };
  LoadedModel first(spec_of(kSources[5]));
  load_weights(dialect_file("google.npz"), spec_of(kSources[5]), first.store);
  for (const char* prefix : {"", "params/", "params/img/", "opt/target/"}) {
    const TempDir dir;
    EditedFile file;
    const auto google = open_tensors(dialect_file("google.npz"));
    for (const TensorInfo& t : google->tensors()) {
      const auto bytes = google->bytes(t);
      const std::string name = std::string(prefix) == "opt/target/" ? t.name : renamed(t.name);
      file.add(prefix + name, t.shape, t.dtype, {bytes.begin(), bytes.end()});
    }
    if (*prefix) file.add("opt/state/step", {1});
    LoadedModel model(spec_of(kSources[5]));
    EXPECT_EQ(load_weights(file.write(dir), spec_of(kSources[5]), model.store).dialect, "npz");
    EXPECT_EQ(model.all_values(), first.all_values()) << prefix;
    file.add("params/t/embedding", {1});
    EXPECT_ERROR(load_weights(file.write(dir), spec_of(kSources[5]), model.store),
                 ErrorKind::kInput, "params/t/embedding");
  }
}

TEST(Dialects, LogitsAreTheFrameworksOwn) {
  for (const Source& source : kSources)
    for (const int64_t size : {12, 20}) {
      ModelSpec spec = spec_of(source);
      set_image_size(spec, size, size);
      LoadedModel model(spec);
      const LoadReport report = load_weights(dialect_file(source.file), spec, model.store);
      EXPECT_EQ(report.adapted.size(), size == 12 ? 0u : 1u);
      const std::string side = std::to_string(size);
      EXPECT_LT(
          largest_difference(model.forward(expected_values("image." + side)),
                             expected_values("logits." + std::string(source.dialect) + "." + side)),
          kTolerance)
          << source.file << " at " << side;
    }
}

TEST(Dialects, PositionsAreResampledAsInEachFramework) {
  struct Case {
    const char* name;
    Grid from, to;
  };
  const std::pair<const char*, PositionRule> rules[] = {
      {"bicubic_antialias", PositionRule::kBicubicAntialias},
      {"bicubic", PositionRule::kBicubic},
      {"bicubic_align_corners", PositionRule::kBicubicAlignCorners},
      {"bilinear", PositionRule::kBilinear},
      {"zoom", PositionRule::kZoom}};
  for (const Case& c : {Case{"3x3-5x5", {3, 3}, {5, 5}}, Case{"6x6-4x4", {6, 6}, {4, 4}},
                        Case{"2x3-5x4", {2, 3}, {5, 4}}, Case{"4x4-1x7", {4, 4}, {1, 7}}})
    for (const auto& [name, rule] : rules) {
      const std::string at = fmt::format("positions.{}.", c.name);
      const std::vector<float> in = expected_values(at + "input");
      std::vector<float> out = resample_positions(in, 1, 3, c.from, c.to, rule);
      ASSERT_EQ(out.size(), static_cast<size_t>(3 * (1 + c.to.rows * c.to.columns)));
      EXPECT_TRUE(std::equal(in.begin(), in.begin() + 3, out.begin())) << "the class token's";
      out.erase(out.begin(), out.begin() + 3);
      EXPECT_LT(largest_difference(out, expected_values(at + name)), kTolerance)
          << c.name << " " << name;
    }
}

TEST(Dialects, PositionsAreResampledAsAskedFor) {
  ModelSpec spec = spec_of(kSources[0]);
  LoadedModel small(spec);
  load_weights(dialect_file("timm"), spec, small.store);
  set_image_size(spec, 8, 20);
  LoadedModel model(spec);
  for (const auto& [asked, rule] : {std::pair(PosResample::kBilinear, PositionRule::kBilinear),
                                    std::pair(PosResample::kBicubic, PositionRule::kBicubic)}) {
    load_weights(dialect_file("timm"), spec, model.store, {.pos_resample = asked});
    EXPECT_EQ(model.values("pos_embed"),
              resample_positions(small.values("pos_embed"), 1, 8, {3, 3}, {2, 5}, rule));
  }
  EXPECT_ERROR(parse_pos_resample("cubic"), ErrorKind::kUsage, "expected auto, bilinear");
}

TEST(Dialects, OtherChannelsAreTimms) {
  const TempDir dir;
  EditedFile file("torchvision.safetensors");
  file.remove("conv_proj.weight");
  const std::vector<float> weight = expected_values("channels.3");
  const auto bytes = std::as_bytes(std::span(weight));
  file.add("conv_proj.weight", {8, 3, 4, 4}, DType::kF32, {bytes.begin(), bytes.end()});
  const std::string path = file.write(dir);
  for (const int64_t channels : {1, 2, 4, 5}) {
    ModelSpec spec = dialect_spec();
    spec.preprocess.mean = {0.1f, 0.2f, 0.6f}, spec.preprocess.std = {1, 2, 3};
    set_channels(spec, channels);
    EXPECT_EQ(spec.preprocess.mean.size(), static_cast<size_t>(channels));
    LoadedModel model(spec);
    EXPECT_EQ(load_weights(path, spec, model.store).adapted.size(), 1u);
    EXPECT_LT(largest_difference(model.values("patch_embed.proj.weight"),
                                 expected_values("channels." + std::to_string(channels))),
              kTolerance)
        << channels;
  }
}

TEST(Dialects, AnotherNumberOfClassesGivesANewHead) {
  ModelSpec spec = spec_of(kSources[1]);
  EXPECT_EQ(spec.labels, (std::vector<std::string>{"cat", "dog", "newt"}));
  LoadedModel stored(spec);
  load_weights(dialect_file("hf"), spec, stored.store);
  set_classes(spec, 5);
  EXPECT_TRUE(spec.labels.empty());
  for (const bool bias : {true, false}) {
    vit_of(spec).head_bias = bias;
    LoadedModel model(spec);
    const LoadReport report = load_weights(dialect_file("hf"), spec, model.store);
    EXPECT_EQ(report.adapted, std::vector<std::string>{"new head of 5 classes"});
    const std::vector<float> head = model.values("head.weight");
    double squares = 0;
    for (const float x : head) squares += static_cast<double>(x) * static_cast<double>(x);
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(head.size())), 0.02, 0.01);
    if (bias) {
      EXPECT_EQ(model.values("head.bias"), std::vector<float>(5, 0.f));
    }
    EXPECT_EQ(model.values("norm.weight"), stored.values("norm.weight"));
    load_weights(dialect_file("hf"), spec, model.store, {.head = HeadInit::kZero});
    EXPECT_EQ(model.values("head.weight"), std::vector<float>(40, 0.f));
  }
  set_classes(spec, 3);
  vit_of(spec).head_bias = true;
  LoadedModel model(spec);
  load_weights(dialect_file("hf"), spec, model.store, {.head = HeadInit::kNormal, .seed = 7});
  EXPECT_NE(model.values("head.weight"), stored.values("head.weight")) << "new where asked for";
  set_classes(spec, 0);
  LoadedModel features(spec);
  EXPECT_TRUE(load_weights(dialect_file("hf"), spec, features.store).adapted.empty());
}

TEST(Dialects, AllDifferencesAreNamedInTheFilesOwnWords) {
  const TempDir dir;
  EditedFile file("hf5.safetensors");
  file.remove("module.vit.layers.1.attention.k_proj.bias");
  file.remove("module.vit.layers.0.mlp.fc1.weight");
  file.add("module.vit.layers.0.mlp.fc1.weight", {16, 9});
  file.remove("module.vit.layernorm.bias");
  file.add("module.vit.layernorm.bias", {8}, DType::kI32, std::vector<std::byte>(32));
  file.add("module.vit.layers.2.mlp.fc1.bias", {16});
  file.add("module.vit.pooler.dense.weight", {8, 8});
  const std::string path = file.write(dir);
  LoadedModel model(dialect_spec());
  const auto before = model.all_values();
  for (const char* part : {"module.vit.layers.1.attention.k_proj.bias (8) is missing",
                           "module.vit.layers.0.mlp.fc1.weight is (16, 9), expected (16, 8)",
                           "module.vit.layernorm.bias is i32, expected floating-point numbers",
                           "\"module.vit.layers.2.mlp.fc1.bias\" (16) is not part of the model"})
    EXPECT_ERROR(load_weights(path, dialect_spec(), model.store), ErrorKind::kInput, part);
  try {
    load_weights(path, dialect_spec(), model.store);
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::Not(testing::HasSubstr("pooler"))) << "which is not needed";
  }
  EXPECT_EQ(model.all_values(), before) << "nothing is loaded where something is wrong";
}

TEST(Dialects, ALayerBeforeTheHeadIsRefusedUnlessTheHeadIsNew) {
  const TempDir dir;
  EditedFile file("google.npz");
  file.add("pre_logits/kernel", {8, 8});
  file.add("pre_logits/bias", {8});
  const std::string path = file.write(dir);
  ModelSpec spec = dialect_spec();
  LoadedModel model(spec);
  EXPECT_ERROR(load_weights(path, spec, model.store), ErrorKind::kInput,
               "\"pre_logits/kernel\" (8, 8) is a layer before the head");
  set_classes(spec, 9);
  LoadedModel other(spec);
  EXPECT_EQ(load_weights(path, spec, other.store).dialect, "npz");
}

TEST(Dialects, AFileWithoutAModelIsExplained) {
  const TempDir dir;
  const std::vector<float> x(4);
  const std::vector<NamedTensor> tensors = {
      {"conv1.weight", {const_cast<float*>(x.data()), {4}, DType::kF32}}};
  write_safetensors(dir / "resnet.safetensors", tensors);
  LoadedModel model(dialect_spec());
  EXPECT_ERROR(load_weights(dir / "resnet.safetensors", dialect_spec(), model.store),
               ErrorKind::kInput, "no model under names we know");
}

TEST(BareFile, SaysItsSizesAndItsFrameworkThePreprocessing) {
  const auto spec = [](const char* file, const char* arch) {
    return resolve_model(dialect_file(file), arch);
  };
  const TempDir dir;
  const auto torchvision = [&](int64_t patches, int64_t width = 192, int64_t patch = 16,
                               const char* arch = "vit_tiny_patch16_224") {
    EditedFile file;
    file.add("conv_proj.weight", {width, 3, patch, patch});
    file.add("encoder.pos_embedding", {1, patches * patches + 1, width});
    file.add("heads.head.weight", {5, width});
    file.add("heads.head.bias", {5});
    return resolve_model(file.write(dir), arch);
  };
  const ModelSpec vision = torchvision(14), large = torchvision(24);
  EXPECT_EQ(vit_of(vision).classes, 5);
  EXPECT_EQ(vision.config.image_h(), 224);
  EXPECT_EQ(vision.preprocess.mean[0], 0.485f);
  EXPECT_EQ(vision.preprocess.interpolation, "bilinear");
  EXPECT_EQ(vision.preprocess.resize, 256);
  EXPECT_EQ(large.config.image_h(), 384);
  EXPECT_EQ(large.preprocess.interpolation, "bicubic") << "SWAG's, by its size";
  EXPECT_EQ(large.preprocess.resize, 384);
  // One of torchvision's own is resized otherwise than all others.
  EXPECT_EQ(torchvision(14, 1024, 16, "vit_large_patch16_224").preprocess.resize, 242);
  EXPECT_EQ(torchvision(7, 1024, 32, "vit_large_patch32_224").preprocess.resize, 256);
  const ModelSpec google = spec("google.npz", "vit_base_patch16_224.augreg_in21k");
  EXPECT_EQ(vit_of(google).act, Act::kGeluTanh);
  EXPECT_EQ(google.preprocess.crop_mode, "squash");
  EXPECT_EQ(google.preprocess.interpolation, "bilinear");
  EXPECT_EQ(vit_of(spec("hf5.safetensors", "google/vit-base-patch16-224")).eps, 1e-12f);
  EXPECT_EQ(spec("timm/model.safetensors", "vit_tiny_patch16_224").preprocess.interpolation,
            "bicubic");
  EXPECT_TRUE(vision.preprocess.assumed);

  const std::string file = dialect_file("google.npz");
  EXPECT_ERROR(resolve_model(file), ErrorKind::kInput, "name it with --arch");
  EXPECT_ERROR(resolve_model(file, "vit_b_17"), ErrorKind::kInput, "did you mean 'vit_b_16'");
  EXPECT_ERROR(resolve_model(file + "x", "vit_b_16"), ErrorKind::kInput, "no such file");
  EXPECT_ERROR(resolve_model(dialect_file("timm"), "vit_b_16"), ErrorKind::kUsage, "of its own");
}

TEST(BareFile, AThousandClassesAreImageNets) {
  const TempDir dir;
  const auto spec = [&](int64_t classes) {
    EditedFile file;
    file.add("conv_proj.weight", {192, 3, 16, 16});
    file.add("encoder.pos_embedding", {1, 197, 192});
    file.add("heads.head.weight", {classes, 192});
    file.add("heads.head.bias", {classes});
    return resolve_model(file.write(dir), "vit_tiny_patch16_224");
  };
  const ModelSpec named = spec(1000);
  ASSERT_EQ(named.labels.size(), 1000u);
  ASSERT_EQ(named.class_ids.size(), 1000u);
  EXPECT_EQ(named.labels[0], "tench, Tinca tinca");
  EXPECT_EQ(named.class_ids[0], "n01440764");
  EXPECT_EQ(named.labels[281], "tabby, tabby cat");
  EXPECT_EQ(named.labels[999].substr(0, 14), "toilet tissue,");
  EXPECT_TRUE(std::is_sorted(named.class_ids.begin(), named.class_ids.end()));
  EXPECT_TRUE(spec(999).labels.empty());
  EXPECT_TRUE(spec(21843).labels.empty());
}

TEST(BareFile, OfAnotherModelIsRefused) {
  const ModelSpec spec = resolve_model(dialect_file("google.npz"), "vit_small28");
  LoadedModel model(spec);
  EXPECT_ERROR(load_weights(dialect_file("google.npz"), spec, model.store), ErrorKind::kInput,
               "embedding/bias is (8), expected (64)");
}

}  // namespace
}  // namespace vitrum
