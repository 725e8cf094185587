// From each dialect to each other, and the files that takes.
#include "vitrum/weights/convert.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/dialect_model.h"
#include "tests/support/expect_error.h"
#include "tests/support/file_calls.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"
#include "tests/support/vit_of.h"
#include "vitrum/core/files.h"
#include "vitrum/weights/npz.h"
#include "vitrum/weights/pytorch.h"
#include "vitrum/weights/write_tensors.h"
#include "vitrum/weights/zip_write.h"

namespace vitrum {
namespace {

using test::dialect_file;
using test::dialect_spec;
using test::LoadedModel;

std::vector<std::vector<float>> weights_of(const std::string& path) {
  LoadedModel model(dialect_spec());
  load_weights(path, dialect_spec(), model.store);
  return model.all_values();
}

TEST(Convert, EachDialectToEachOtherKeepsEveryBit) {
  const TempDir dir;
  const auto start = weights_of(dialect_file("timm"));
  for (const char* source : {"timm", "hf"})
    for (const auto& [to, target] :
         {std::pair("timm", "timm"), std::pair("hf", "hf"), std::pair("timm", "timm.pth"),
          std::pair("hf", "hf.safetensors"), std::pair("torchvision", "tv.pth"),
          std::pair("torchvision", "tv.safetensors"), std::pair("npz", "google.npz")}) {
      const std::string path = dir / (std::string(source) + "-" + target);
      const Converted done = convert_model(dialect_file(source), {}, path, to);
      EXPECT_EQ(done.tensors, static_cast<int64_t>(open_tensors(std::filesystem::is_directory(path)
                                                                    ? path + "/model.safetensors"
                                                                    : path)
                                                       ->tensors()
                                                       .size()));
      EXPECT_EQ(weights_of(path), start) << path;
    }
  EXPECT_EQ(convert_model(dir / "timm-hf", {}, dir / "back", "timm").tensors, 32);
  const ModelSpec back = resolve_model(dir / "back"), first = resolve_model(dialect_file("timm"));
  EXPECT_EQ(back.config, first.config);
  EXPECT_EQ(back.preprocess.mean, first.preprocess.mean);
  EXPECT_EQ(back.preprocess.interpolation, first.preprocess.interpolation);
  EXPECT_EQ(back.preprocess.resize, 13) << "12 pixels / 0.9, as transformers states it";
}

TEST(Convert, HalfPrecisionStaysHalf) {
  const TempDir dir;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const auto source = open_tensors(dialect_file("timm/model.safetensors"));
    std::vector<std::vector<uint16_t>> data;
    std::vector<NamedTensor> tensors;
    uint16_t next = 1;
    for (const TensorInfo& t : source->tensors()) {
      data.emplace_back(static_cast<size_t>(t.shape.numel()));
      for (uint16_t& bits : data.back()) bits = next++ & 0x3fff;
      tensors.push_back({t.name, {data.back().data(), t.shape, dtype}});
    }
    ensure_directory(dir / "half");
    write_safetensors(dir / "half/model.safetensors", tensors);
    write_file_atomic(dir / "half/config.json", read_file(dialect_file("timm/config.json")));
    std::string from = dir / "half";
    for (const char* to : {"hf", "timm"}) {
      const std::string target = dir / (std::string(to) + std::string(name_of(dtype)));
      convert_model(from, {}, target, to);
      from = target;
    }
    const auto back = open_tensors(from + "/model.safetensors");
    for (const NamedTensor& t : tensors) {
      const TensorInfo& found = back->at(t.name);
      EXPECT_EQ(found.dtype, dtype);
      EXPECT_EQ(std::memcmp(back->bytes(found).data(), t.tensor.data, found.bytes), 0) << t.name;
    }
    // NumPy has f16 but not bf16.
    convert_model(dir / "half", {}, dir / "half.npz", "npz");
    EXPECT_EQ(open_tensors(dir / "half.npz")->tensors()[0].dtype,
              dtype == DType::kF16 ? DType::kF16 : DType::kF32);
    EXPECT_EQ(weights_of(dir / "half.npz"), weights_of(dir / "half"));
  }
}

TEST(Convert, SaysWhatDoesNotFit) {
  const TempDir dir;
  const std::string timm = dialect_file("timm");
  EXPECT_ERROR(convert_model(timm, {}, dir / "x", "torchvision"), ErrorKind::kUsage, ".pth");
  EXPECT_ERROR(convert_model(timm, {}, dir / "x.pth", "npz"), ErrorKind::kUsage, ".npz");
  EXPECT_ERROR(convert_model("vit_b_16", {}, dir / "x", "hf"), ErrorKind::kUsage, "preset");
  EXPECT_ERROR(convert_model(dialect_file("google.npz"), {}, dir / "x", "hf"), ErrorKind::kInput,
               "--arch");
  std::filesystem::copy(timm, dir / "same");
  EXPECT_ERROR(convert_model(dir / "same", {}, dir / "same/", "timm"), ErrorKind::kUsage,
               "the model itself");
  EXPECT_ERROR(convert_model(dir / "same/model.safetensors", "vit_b_16", dir / "same", "timm"),
               ErrorKind::kUsage, "the model itself");
  const auto notes = convert_model(dialect_file("hf"), {}, dir / "x.npz", "npz").notes;
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_EQ(notes[0], "Google computes LayerNorm with eps 1e-06, the model with 1e-12");
  EXPECT_EQ(notes[1], "Google computes gelu_tanh, the model gelu");

  const auto refuse = [&](const char* part, auto change) {
    ModelSpec spec = dialect_spec();
    change(vit_of(spec));
    LoadedModel model(spec);
    save_model_dir(dir / "odd", spec, model.store);
    EXPECT_ERROR(convert_model(dir / "odd", {}, dir / "odd.npz", "npz"), ErrorKind::kInput, part);
  };
  refuse("that pools by the mean", [](ViTConfig& c) { c.pool = ViTPool::kMean; });
  refuse("with LayerScale", [](ViTConfig& c) { c.layer_scale = 0.1f; });
  refuse("channel last", [](ViTConfig& c) { c.patch_order = PatchOrder::kChannelLast; });
}

// A model without biases leaves with zeros for them, computing the same.
// Killed between two of its files, it leaves no model rather than the weights of one with the
// config of another.
TEST(Convert, AModelThatIsReplacedIsNeverMixed) {
  const TempDir dir;
  convert_model(dialect_file("timm"), {}, dir / "out", "hf");
  std::vector<std::string> replaced;
  const test::FileCalls calls([&](const std::string& name) {
    replaced.push_back(name);
    EXPECT_FALSE(std::filesystem::exists(dir / "out/config.json")) << name;
    const bool other = std::filesystem::exists(dir / "out/preprocessor_config.json");
    EXPECT_EQ(other, name == "config.json") << name;
  });
  convert_model(dialect_file("timm"), {}, dir / "out", "hf");
  EXPECT_EQ(replaced, (std::vector<std::string>{"model.safetensors", "preprocessor_config.json",
                                                "config.json"}));
}

TEST(Convert, BiasesThatAreMissingAreZero) {
  const TempDir dir;
  ModelSpec spec = dialect_spec();
  ViTConfig& c = vit_of(spec);
  c.head_bias = c.norm_bias = c.mlp_bias = c.proj_bias = c.qkv_bias = false;
  c.eps = 1e-5f;
  LoadedModel odd(spec);
  save_model_dir(dir / "odd", spec, odd.store);
  for (const auto& [to, target] : {std::pair("hf", "hf"), std::pair("timm", "timm"),
                                   std::pair("torchvision", "tv.pth"), std::pair("npz", "g.npz")}) {
    const Converted done = convert_model(dir / "odd", {}, dir / target, to);
    const bool says_eps = std::string_view(to) == "hf" || std::string_view(to) == "timm";
    EXPECT_EQ(done.notes.size(), says_eps ? 0u : std::string_view(to) == "npz" ? 2u : 1u) << to;
    ModelSpec full = says_eps ? resolve_model(dir / target) : dialect_spec();
    EXPECT_TRUE(vit_of(full).head_bias && vit_of(full).norm_bias);
    LoadedModel loaded(full);
    load_weights(dir / target, full, loaded.store);
    for (size_t i = 0; i < loaded.store.specs().size(); ++i) {
      const std::string& name = loaded.store.specs()[i].name;
      const auto values = loaded.store.read(i, Arena::kMaster);
      const auto& all = odd.store.specs();
      const auto own = std::ranges::find(all, name, &ParamSpec::name);
      EXPECT_EQ(values, own == all.end() ? std::vector<float>(values.size())
                                         : odd.store.read(static_cast<size_t>(own - all.begin()),
                                                          Arena::kMaster))
          << to << " " << name;
    }
  }
  EXPECT_EQ(vit_of(resolve_model(dir / "hf")).eps, 1e-5f);
  // Where timm has no argument for eps it has a model of that eps.
  const std::string config = read_file(dir / "timm/config.json");
  EXPECT_THAT(config, testing::HasSubstr("\"architecture\": \"vit_base_patch16_clip_224\""));
  EXPECT_THAT(config, testing::HasSubstr("\"pre_norm\": false"));
  vit_of(spec).eps = 1e-12f;
  save_model_dir(dir / "odd", spec, odd.store);
  const auto notes = convert_model(dir / "odd", {}, dir / "again", "timm").notes;
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0], "timm computes LayerNorm with eps 1e-06, the model with 1e-12");
  EXPECT_THAT(read_file(dir / "again/config.json"),
              testing::Not(testing::HasSubstr("\"architecture\": \"vitrum_vit\"")));
}

TEST(Convert, CommandLine) {
  const TempDir dir;
  auto done = test::run_vitrum(
      {"convert", dialect_file("timm"), dir / "hf", "--to", "hf", "--json"}, dir.path());
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(done.out, "{\"tensors\":40,\"bytes\":6892}\n");
  EXPECT_TRUE(is_model_dir(dir / "hf"));
  done = test::run_vitrum({"convert", dialect_file("timm"), dir / "hf"}, dir.path());
  EXPECT_EQ(done.code, 2);
  done = test::run_vitrum({"convert", dir / "none", dir / "hf", "--to", "hf"}, dir.path());
  EXPECT_EQ(done.code, 3);
  done = test::run_vitrum({"convert", dialect_file("google.npz"), dir / "out", "--to", "hf",
                           "--arch", "vit_base_patch16_224"},
                          dir.path());
  EXPECT_EQ(done.code, 3);
  EXPECT_THAT(done.err, testing::HasSubstr("does not fit the model"));
  EXPECT_FALSE(std::filesystem::exists(dir / "out"));
}

TEST(ZipWriter, LongFormIsReadBack) {
  const TempDir dir;
  const std::vector<float> values = {1, 2, 3};
  for (const bool zip64 : {false, true}) {
    ZipWriter zip(dir / "a.zip", zip64);
    zip.add("first", "text");
    const ZipWriter::Bytes parts[] = {std::as_bytes(std::span(values)),
                                      std::as_bytes(std::span(values))};
    zip.add("folder/second", parts);
    zip.add("empty", "");
    zip.commit();
    const ZipFile file(dir / "a.zip");
    ASSERT_EQ(file.members().size(), 3u);
    EXPECT_EQ(file.find("empty")->data.size(), 0u);
    EXPECT_EQ(std::memcmp(file.find("first")->data.data(), "text", 4), 0);
    const auto second = file.find("folder/second")->data;
    ASSERT_EQ(second.size(), 24u);
    EXPECT_EQ(std::memcmp(second.data() + 12, values.data(), 12), 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(second.data()) % 64, 0u) << "so that it can be mapped";
  }
}

TEST(WriteTensors, EveryFloatTypeAndShapeComesBack) {
  const TempDir dir;
  std::vector<double> data(24);
  std::memset(data.data(), 1, 8 * data.size());
  std::vector<NamedTensor> tensors = {{"scalar", {data.data(), {}, DType::kF32}},
                                      {"a.b", {data.data(), {2, 3, 4}, DType::kF64}},
                                      {"half", {data.data(), {1, 5}, DType::kF16}}};
  write_npz(dir / "a.npz", tensors);
  tensors.push_back({"brain", {data.data(), {7}, DType::kBF16}});
  write_pth(dir / "a.pth", tensors);
  for (const char* name : {"a.npz", "a.pth"}) {
    const auto file = open_tensors(dir / name);
    for (const NamedTensor& t : tensors) {
      if (t.name == "brain" && std::string(name) == "a.npz") continue;
      const TensorInfo& found = file->at(t.name);
      EXPECT_EQ(found.shape, t.tensor.shape) << t.name;
      EXPECT_EQ(found.dtype, t.tensor.dtype) << t.name;
      EXPECT_EQ(std::memcmp(file->bytes(found).data(), data.data(), found.bytes), 0);
    }
  }
}

}  // namespace
}  // namespace vitrum
