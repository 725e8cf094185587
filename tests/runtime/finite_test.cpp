// Runs that are made kernel by kernel: what is not finite is found where it comes from.
#include "vitrum/runtime/finite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "tests/support/cuda.h"
#include "tests/support/data_files.h"
#include "tests/support/expect_error.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_run.h"
#include "vitrum/core/files.h"
#include "vitrum/infer/model_program.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/weights/npy.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                kInfinity = std::numeric_limits<float>::infinity();

TEST(Finite, CountsInEveryFloatingType) {
  const auto backend = make_backend({.device = "reference"});
  const std::vector<float> f32 = {1, kNan, -kInfinity, 3e38f};
  const std::vector<double> f64 = {1, static_cast<double>(kNan), 1e300};
  const std::vector<uint16_t> halves = {0x7f80, 0xffc0, 0x7f7f, 0x7c00, 0x3c00};
  const std::vector<int32_t> whole = {-1};
  const auto count = [&](const auto& values, DType dtype) {
    const Shape shape{static_cast<int64_t>(values.size())};
    return count_not_finite(
        *backend, {const_cast<void*>(static_cast<const void*>(values.data())), shape, dtype});
  };
  EXPECT_EQ(count(f32, DType::kF32), 2);
  EXPECT_EQ(count(f64, DType::kF64), 1);
  EXPECT_EQ(count(halves, DType::kBF16), 2);
  EXPECT_EQ(count(halves, DType::kF16), 4);
  EXPECT_EQ(count(whole, DType::kI32), 0);
}

// A model whose second block has one weight that is not a number.
void expect_found(Backend& backend, DType compute) {
  const ModelSpec spec = test::tiny_rgb_model();
  Graph g(Mode::kInference);
  const TracedModel traced = trace(g, spec, 2);
  fuse(g);
  ParamStore store(g, backend);
  store.initialize(1);
  Program program(g, std::span(&traced.logits, 1), store, {.compute = compute});
  std::vector<std::byte> pixels(program[traced.image].bytes(), std::byte{100});
  program.upload(traced.image, pixels.data());
  size_t kernels = 0;
  const auto check = [&](const Program::Step& step, double seconds) {
    EXPECT_EQ(step.number, kernels++);
    EXPECT_GE(seconds, 0);
    require_finite(backend, step, "here: ");
  };
  program.run_traced(check);
  EXPECT_EQ(kernels, program.kernels());
  kernels = 0;
  const auto param = static_cast<size_t>(store.index("blocks.1.attn.proj.weight"));
  std::vector<float> weights = store.read(param);
  weights[7] = kNan;
  store.write(param, weights);
  store.refresh_compute();
  EXPECT_ERROR(program.run_traced(check), ErrorKind::kFailed,
               "here: Linear of 'blocks.1.attn.proj'");
  EXPECT_LT(kernels, program.kernels());
  kernels = 0;
  EXPECT_ERROR(program.run_traced(check), ErrorKind::kFailed,
               "so are values of its operand blocks.1.attn.proj.weight (48, 48)");
}

TEST(Finite, TheFirstKernelIsNamed) {
  for (const char* device : {"reference", "cpu"})
    for (const DType compute : {DType::kF32, DType::kBF16})
      expect_found(*make_backend({.device = device}), compute);
}

TEST(Finite, TheFirstKernelIsNamedOnACard) {
  SKIP_WITHOUT_CUDA();
  for (const DType compute : {DType::kF32, DType::kBF16})
    expect_found(*make_backend({.device = "cuda"}), compute);
}

// Every kernel of a step, and the same result as without looking.
TEST(Finite, ATracedRunIsTheSameRun) {
  const test::TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.max_steps = 4, recipe.ema = 0.9, recipe.sam = 0.05;
  Trainer(recipe, tiny.options("plain")).run();
  RunOptions options = tiny.options("traced");
  size_t kernels = 0;
  options.trace = [&](const Program::Step&, double) { ++kernels; };
  Trainer(recipe, options).run();
  EXPECT_GT(kernels, 300u);
  EXPECT_EQ(test::read_text(tiny / "traced/last/model.safetensors"),
            test::read_text(tiny / "plain/last/model.safetensors"));
}

TEST(Finite, TracesOnTheCommandLine) {
  using testing::AllOf;
  using testing::HasSubstr;
  const TempDir dir;
  test::write_tiny_model(dir / "model", test::tiny_rgb_model());
  const std::vector<float> zeros(3 * 32 * 32);
  write_npy(dir / "x.npy", {1, 3, 32, 32}, zeros);
  const std::vector<std::string> forward = {"forward", "--model",     dir / "model", "--trace",
                                            "--input", dir / "x.npy", "--output",    dir / "y.npy"};
  const test::Finished good = test::run_vitrum(forward, dir / "run");
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_THAT(good.err, AllOf(HasSubstr("Linear (1, 17, 96)"), HasSubstr("kernel by kernel")));
  // The last bytes of the file are of one of its tensors.
  std::string file = test::read_text(dir / "model/model.safetensors");
  file.replace(file.size() - 4, 4, std::string("\0\0\xc0\x7f", 4));
  write_file_atomic(dir / "model/model.safetensors", file);
  const test::Finished bad = test::run_vitrum(forward, dir / "run");
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.err, AllOf(HasSubstr("are NaN or infinite"), HasSubstr("operand")));

  const test::TinyRun tiny;
  const test::Finished train = test::run_vitrum(
      {"train", "--model", tiny / "model", "--data", tiny.recipe().data, "--out", dir / "out",
       "--trace", "--batch-size", "16", "--lr", "1e6", "--set", "optimizer=sgd", "--epochs", "9"},
      dir / "run");
  EXPECT_EQ(train.code, 1);
  EXPECT_THAT(train.err, testing::ContainsRegex("step [0-9]+: .* NaN or infinite"));
}

// Weights that are no numbers are named, whatever is done with them.
TEST(Finite, DamagedModels) {
  using testing::HasSubstr;
  const test::TempDir dir;
  test::write_tiny_model(dir / "model", test::tiny_rgb_model());
  for (const char* name : {"train/crane, bird/1.png", "test/crane, bird/1.png"})
    test::write_file(dir / ("data/" + std::string(name)),
                     test::encode_png(test::gradient(3, 40, 30)));
  const std::string photo = dir / "data/train/crane, bird/1.png", data = "folder:" + (dir / "data");
  const std::string path = dir / "model/model.safetensors", good = test::read_text(path);
  const auto damage = [&](const std::string& tensor) {
    const SafetensorsFile file(path);
    const size_t at = static_cast<size_t>(file.bytes(file.at(tensor)).data() -
                                          file.bytes(file.tensors()[0]).data());
    size_t start = good.size();
    for (const TensorInfo& t : file.tensors()) start -= t.bytes;
    std::string bad = good;
    bad.replace(start + at, 4, std::string("\0\0\xc0\x7f", 4));
    write_file_atomic(path, bad);
  };
  const auto expect = [&](int code, const char* part, std::vector<std::string> arguments) {
    const test::Finished o = test::run_vitrum(arguments, dir / "run");
    EXPECT_EQ(o.code, code) << arguments[0] << ": " << o.err;
    EXPECT_THAT(o.err, HasSubstr(part)) << arguments[0];
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  };
  const std::string model = dir / "model";
  damage("blocks.0.mlp.fc1.weight");
  expect(3, "blocks.0.mlp.fc1.weight holds NaN", {"classify", photo, "--model", model});
  expect(3, "blocks.0.mlp.fc1.weight holds NaN", {"eval", "--data", data, "--model", model, "-q"});
  expect(3, "blocks.0.mlp.fc1.weight holds NaN",
         {"embed", photo, "--model", model, "--output", dir / "f.npy"});
  expect(3, "blocks.0.mlp.fc1.weight holds NaN",
         {"explain", photo, "--model", model, "--output", dir / "e"});
  expect(3, "blocks.0.mlp.fc1.weight holds NaN",
         {"finetune", "--weights", model, "--data", data, "--out", dir / "r"});
  ModelSpec student = test::tiny_rgb_model();
  test::write_tiny_model(dir / "student", student);
  expect(3, "blocks.0.mlp.fc1.weight holds NaN",
         {"distill", "--model", dir / "student", "--teacher", model, "--data", data, "--set",
          "num_classes=7", "--out", dir / "r"});
  EXPECT_FALSE(std::filesystem::exists(dir / "r"));
  damage("pos_embed");
  expect(3, "pos_embed holds NaN",
         {"explain", "--weights", "--model", model, "--output", dir / "e"});
}

}  // namespace
}  // namespace vitrum
