// The real binary, from the outside: exit codes, streams, JSON, messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/temp_dir.h"
#include "vitrum/core/files.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::vector<std::string> kVerbs = {
    "train",  "finetune", "distill", "classify", "embed",      "eval",    "summary", "models",
    "data",   "bench",    "doctor",  "version",  "download",   "export",  "forward", "convert",
    "report", "explain",  "serve",   "man",      "completion", "pretrain"};

struct Outcome {
  int code = -1;
  std::string out, err;
};

// `arguments` as a shell would take them; `prefix` may set environment variables.
Outcome vitrum(const std::string& arguments, const std::string& prefix = "") {
  const TempDir dir;
  const std::string command = prefix + " " VITRUM_BINARY " " + arguments + " </dev/null >" +
                              (dir / "out") + " 2>" + (dir / "err");
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(dir / "out"),
          read_file(dir / "err")};
}

// The command fails with this code, says so in one line on stderr, and prints nothing else.
void expect_failure(int code, const std::string& part, const std::string& arguments,
                    const std::string& prefix = "") {
  const Outcome o = vitrum(arguments, prefix);
  EXPECT_EQ(o.code, code) << arguments << "\n" << o.err;
  EXPECT_EQ(o.out, "") << arguments;
  EXPECT_THAT(o.err, AllOf(StartsWith("vitrum: "), HasSubstr(part))) << arguments;
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
}

json json_of(const std::string& arguments) {
  const Outcome o = vitrum(arguments);
  EXPECT_EQ(o.code, 0) << arguments << "\n" << o.err;
  return json::parse(o.out);
}

// Long names and large models included.
TEST(Cli, ColumnsOfModelsStayApart) {
  const Outcome o = vitrum("models");
  std::istringstream lines(o.out);
  std::string header, line;
  std::getline(lines, header);
  while (std::getline(lines, line)) {
    if (line.starts_with(' ')) continue;  // a remark
    std::istringstream fields(line);
    std::string name, parameters;
    fields >> name >> parameters;
    EXPECT_EQ(line.size(), header.size()) << line;
    EXPECT_FALSE(parameters.empty() || !std::isdigit(parameters[0])) << line;
  }
}

void expect_keys(const json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    EXPECT_TRUE(object.contains(key)) << key << " in " << object.dump().substr(0, 200);
}

std::string big_endian(std::initializer_list<uint32_t> words) {
  std::string bytes;
  for (uint32_t w : words)
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(w >> shift);
  return bytes;
}

// Four training and three test images of 4 x 6 pixels, in MNIST's format.
void write_digits(const std::string& dir) {
  const auto write = [&](const std::string& split, uint32_t count) {
    write_file_atomic(dir + "/" + split + "-images-idx3-ubyte",
                      big_endian({0x803, count, 4, 6}) + std::string(24 * count, '\x7f'));
    write_file_atomic(dir + "/" + split + "-labels-idx1-ubyte",
                      big_endian({0x801, count}) + std::string("\1\2\3\4", count));
  };
  write("train", 4), write("t10k", 3);
}

void write_model(const std::string& dir, float patch_drop = 0) {
  ModelSpec spec{
      .architecture = "vit_small28", .config = ViTConfig{}, .preprocess = {}, .labels = {}};
  spec.config = ViTConfig{.patch_h = 2,
                          .patch_w = 3,
                          .channels = 1,
                          .width = 8,
                          .depth = 1,
                          .heads = 2,
                          .mlp_width = 8,
                          .classes = 10,
                          .patch_drop = patch_drop};
  set_image_size(spec, 4, 6);
  Graph g;
  model(Scope(g), g.input("x", {1, 1, 4, 6}), spec.config);
  const auto backend = make_backend({.device = "reference"});
  ParamStore store(g, *backend);
  store.initialize(0);
  save_model_dir(dir, spec, store);
}

TEST(Cli, HelpOpensWithExamples) {
  for (const std::string& verb : kVerbs) {
    const Outcome o = vitrum(verb + " --help");
    EXPECT_EQ(o.code, 0);
    EXPECT_EQ(o.err, "");
    EXPECT_THAT(o.out,
                AllOf(StartsWith("Examples:\n  vitrum " + verb), HasSubstr("Usage: vitrum " + verb),
                      HasSubstr("--json"), HasSubstr("--threads")));
    std::istringstream lines(o.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  }
  for (const char* all : {"--help", "-h", "help", ""}) {
    const Outcome o = vitrum(all);
    EXPECT_EQ(o.code, *all ? 0 : 2);
    for (const std::string& verb : kVerbs) EXPECT_THAT(o.out, HasSubstr("\n  " + verb + " "));
  }
  EXPECT_EQ(vitrum("help summary").out, vitrum("summary --help").out);
  EXPECT_EQ(vitrum("summary -h").code, 0) << "help needs no MODEL";
  EXPECT_THAT(vitrum("distill -h").out,
              HasSubstr("  vitrum distill --model deit_small_cifar --data cifar10:DIR --teacher "
                        "DIR \\\n      --distillation soft --tau 3\n"));
}

TEST(Cli, MistypedWordsGetTheNearestMatch) {
  expect_failure(2, "unknown verb 'sumary'; did you mean 'summary'?", "sumary vit_mnist");
  expect_failure(2, "did you mean '--batch'?", "bench --bacth 3");
  expect_failure(2, "did you mean '--threads'?", "models --thread=3");
  expect_failure(3, "did you mean 'vit_mnist'?", "summary vit_minst");
  expect_failure(3, "did you mean 'fashion-mnist'?", "data fasion-mnist");
  expect_failure(3, "did you mean 'folder:/'?", "data /");
  expect_failure(2, "did you mean 'parameters'?", "summary vit_mnist --columns name,parametres");
  expect_failure(2, "did you mean 'blocks.0'?", "summary vit_mnist --module block.0");
  expect_failure(2, "did you mean 'cpu'?", "bench --model vit_mnist --device cpus");
}

TEST(Cli, BadUsageIsExplained) {
  for (const char* options : {"-v", "-q --threads 2", "--"})
    expect_failure(2, "no verb is given; see `vitrum --help`", options);
  expect_failure(2, "summary needs MODEL", "summary");
  expect_failure(2, "eval needs --data", "eval --model x");
  expect_failure(2, "--batch: expected a whole number from 1 to 65536, not 'many'",
                 "summary vit_mnist --batch many");
  expect_failure(2, "not '0'", "summary vit_mnist --batch 0");
  expect_failure(2, "not '99999999999999999999'", "summary vit_mnist --batch=99999999999999999999");
  expect_failure(2, "--batch needs a value", "summary vit_mnist --batch");
  expect_failure(2, "unexpected argument 'b'", "summary vit_mnist b");
  expect_failure(2, "unknown option '-x'", "models -x");
  expect_failure(2, "expected auto, f32, bf16, int8, fp8, not 'f23'", "models --precision f23");
  expect_failure(2, "expected infer, train, pretrain, data, serve",
                 "bench --model vit_mnist --mode fast");
  expect_failure(2, "--model is required", "bench");
  expect_failure(2, "--slices 3: expected a power of two that divides --batch 32",
                 "bench --model vit_mnist --mode train --slices 3");
  expect_failure(2, "--slices is for --mode train", "bench --model vit_mnist --slices 2");
  expect_failure(2, "--teacher is for --mode train", "bench --model vit_mnist --teacher vit_mnist");
  expect_failure(2, "needs --url", "bench --mode serve");
  expect_failure(2, "expected max, or requests", "bench --mode serve --url http://a --rate fast");
  expect_failure(2, "preset without weights", "eval --model vit_mnist --data x");
  expect_failure(2, "--max-size: expected a number from 0", "download a/b --max-size -1");
  expect_failure(2, "--max-size 0: expected GB", "download a/b --max-size 0");
  expect_failure(2, "are for `vitrum data download NAME`", "data mnist:x --to y");
  expect_failure(2, "expected cuda or cuda:N", "bench --model vit_mnist --device cuda:x");
  expect_failure(2, "no model matches 'resnet'", "models resnet");
  expect_failure(2, "image size 225x225 is not divisible by patch size 16x16",
                 "summary vit_base_patch16_224 --image-size 225");
  expect_failure(2, "--image-size: expected N or HxW, each from 1 to 16384, not '224x'",
                 "summary vit_base_patch16_224 --image-size 224x");
}

TEST(Cli, OptionsComeFromTheEnvironmentToo) {
  EXPECT_EQ(json::parse(vitrum("summary vit_mnist --json", "VITRUM_BATCH=3").out)["batch"], 3);
  EXPECT_EQ(
      json::parse(vitrum("summary vit_mnist --json --batch 2", "VITRUM_BATCH=3").out)["batch"], 2);
  EXPECT_TRUE(json::accept(vitrum("version", "VITRUM_JSON=1").out));
  EXPECT_FALSE(json::accept(vitrum("version", "VITRUM_JSON=0").out));
  expect_failure(2, "VITRUM_BATCH: expected", "summary vit_mnist", "VITRUM_BATCH=x");
}

TEST(Cli, OptionsMayStandAnywhere) {
  EXPECT_TRUE(json::accept(vitrum("--json version").out));
  EXPECT_EQ(json_of("summary --batch=2 --json -qv -- vit_mnist")["batch"], 2);
  EXPECT_EQ(json_of("summary vit_mnist --batch 2 --batch 3 --json")["batch"], 3)
      << "the last one counts";
  EXPECT_THAT(vitrum("--version").out, StartsWith("vitrum "));
  const Outcome o = vitrum("summary -- --json");  // behind the dashes it is a model's name
  EXPECT_EQ(o.out, "");
  EXPECT_THAT(o.err, HasSubstr("'--json'"));
}

TEST(Cli, Models) {
  std::istringstream lines(vitrum("models --json 'vit_*_patch16_224'").out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const json model = json::parse(line);
    expect_keys(model, {"name", "family", "parameters", "macs", "image_size", "aliases"});
    if (model["name"] == "vit_base_patch16_224") {
      EXPECT_EQ(model["parameters"], 86'567'656);
      EXPECT_NEAR(model["macs"].get<double>(), 17.6e9, 0.1e9);
      EXPECT_EQ(model["aliases"][0], "vit_b_16");
    }
  }
  EXPECT_GE(count, 4);
  EXPECT_THAT(vitrum("models vit_b_16").out, HasSubstr("86,567,656"));
  EXPECT_THAT(vitrum("models --pretrained '*tiny*'").out, HasSubstr("timm/vit_tiny_patch16_224"));
  EXPECT_THAT(vitrum("models 'vit_lesson_*'").out, HasSubstr("a lesson on vision transformers"));
  EXPECT_THAT(json_of("models vit_notes_base_patch16_224 --json")["note"].get<std::string>(),
              HasSubstr("notes on the paper's equations"));
}

TEST(Cli, Summary) {
  const json all = json_of("summary vit_base_patch16_224 --num-classes 3 --json");
  expect_keys(all, {"model", "parameters", "trainable", "macs", "layers", "activation_bytes"});
  EXPECT_EQ(all["parameters"], 85'800'963);
  EXPECT_EQ(all["layers"][0]["output"], json({1, 3}));
  EXPECT_EQ(json_of("summary vit_notes_base_patch16_224 --module blocks.0 --json")["parameters"],
            7'087'872);
  EXPECT_EQ(json_of("summary minvit --json --depth 1")["layers"].back()["name"], "head");
  const Outcome table = vitrum("summary vit_base_patch16_224 --batch 32");
  EXPECT_THAT(table.out,
              AllOf(HasSubstr("86,567,656"), HasSubstr("32x197x768"), HasSubstr("7,087,872")));
  std::istringstream lines(table.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_THAT(vitrum("summary vit_mnist --columns name,macs").out, StartsWith("layer"));
}

TEST(Cli, SummaryShowsMemoryAndWhatLearns) {
  const json all = json_of("summary vit_base_patch16_224 --batch 8 --json");
  ASSERT_EQ(all["memory"].size(), 4u);
  const json& asked = all["memory"][0];
  EXPECT_EQ(asked["batch"], 8);
  EXPECT_EQ(asked["training_f32"]["arena"], all["training_activation_bytes"]);
  EXPECT_EQ(asked["training_f32"]["weights"], 16 * 86'567'656ll);
  EXPECT_EQ(asked["inference_f32"]["weights"], 4 * 86'567'656ll);
  EXPECT_LT(asked["inference_bf16"]["weights"], 2.1 * 86'567'656);
  EXPECT_LT(asked["training_bf16"]["arena"], asked["training_f32"]["arena"]);

  const json frozen = json_of(
      "summary vit_base_patch16_224 --batch 8 --freeze 'blocks.*' --freeze patch_embed --json");
  EXPECT_EQ(frozen["trainable"], 86'567'656 - 85'054'464 - 590'592);
  EXPECT_LT(frozen["training_activation_bytes"], all["training_activation_bytes"]);
  expect_failure(2, "freeze: 'blokcs' matches no parameter", "summary vit_mnist --freeze blokcs");

  const std::string table = vitrum("summary vit_base_patch16_224 --freeze blocks").out;
  EXPECT_THAT(table, AllOf(HasSubstr("1 to 11"), HasSubstr("11 x Block"), HasSubstr("partly"),
                           HasSubstr("85,054,464 frozen"), HasSubstr("batch 128")));
  EXPECT_THAT(vitrum("summary vit_base_patch16_224 --all").out, Not(HasSubstr("1 to 11")));
  EXPECT_THAT(vitrum("summary vit_mnist --columns name,kernel,percent,memory").out,
              AllOf(HasSubstr("weight"), HasSubstr("KiB"), HasSubstr("100.00")));
}

TEST(Cli, ComparesModels) {
  const Outcome table = vitrum("models --compare 'vit_*_patch16_224'");
  EXPECT_THAT(table.out, AllOf(HasSubstr("330.2 MiB"), HasSubstr("parameters")));
  EXPECT_LT(table.out.find("vit_tiny"), table.out.find("vit_base")) << "the cheapest first";
  std::istringstream lines(vitrum("models --compare --json").out);
  int64_t last = 0;
  for (std::string line; std::getline(lines, line);) {
    const json model = json::parse(line);
    expect_keys(model, {"name", "family", "parameters", "macs", "image_size", "bytes", "accuracy"});
    EXPECT_GE(model["macs"].get<int64_t>(), last);
    last = model["macs"];
  }
  EXPECT_GT(last, 0);
  expect_failure(3, "neither a model directory nor a preset", "models --compare vit_bse");
  expect_failure(2, "--data needs model directories", "models --compare vit_mnist --data mnist:.");
  expect_failure(2, "--data goes with --compare", "models --data mnist:.");
}

TEST(Cli, Doctor) {
  const json all = json_of("doctor --json");
  expect_keys(all, {"cpu", "isa", "backends", "versions", "threads", "bf16", "codecs"});
  EXPECT_EQ(all["codecs"].size(), 2u);  // TIFF; HEIC and AVIF: there, or what to install
  for (const json& codec : all["codecs"]) expect_keys(codec, {"name", "available", "detail"});
  expect_keys(all["versions"], {"vitrum", "compiler"});
  EXPECT_THAT(vitrum("doctor").out, AllOf(HasSubstr("backends"), HasSubstr("reference")));
}

TEST(Cli, SaysWhyTheCudaLibraryIsNotUsed) {
  const TempDir dir;
  write_file_atomic(dir / "junk.so", "no library");
  const auto asked = [&](const std::string& file) {
    return vitrum("bench --model vit_mnist --device cuda", "VITRUM_CUDA_LIBRARY=" + (dir / file));
  };
  EXPECT_EQ(asked("junk.so").code, 2);
  EXPECT_THAT(asked("junk.so").err, AllOf(HasSubstr("cannot be opened: "), HasSubstr("junk.so")));
  EXPECT_THAT(asked("nowhere.so").err, HasSubstr("is not installed (the package vitrum-cuda"));
}

TEST(Cli, Data) {
  const TempDir dir;
  write_digits(dir.path());
  const std::string data = "data mnist:" + dir.path();
  const json all = json_of(data + " --json --output " + (dir / "sheet.png"));
  EXPECT_EQ(all["train"], 4);
  EXPECT_EQ(all["test"], 3);
  EXPECT_EQ(all["classes"].size(), 10u);
  EXPECT_EQ(all["shape"], json({1, 4, 6}));
  EXPECT_THAT(read_file(dir / "sheet.png"), StartsWith("\x89PNG"));
  EXPECT_THAT(vitrum(data).out, HasSubstr("1x4x6"));

  const std::string images = read_file(dir / "train-images-idx3-ubyte");
  write_file_atomic(dir / "train-images-idx3-ubyte", images.substr(0, images.size() - 1));
  expect_failure(3, "train-images-idx3-ubyte", data);
  write_file_atomic(dir / "train-images-idx3-ubyte", "x" + images);
  expect_failure(3, "train-images-idx3-ubyte", data);
  expect_failure(3, "nowhere", "data mnist:/nowhere");
  expect_failure(3, "no-such-folder", "data folder:no-such-folder");
}

TEST(Cli, Eval) {
  const TempDir dir;
  write_digits(dir.path());
  write_model(dir / "model");
  const std::string command = "eval -q --model " + (dir / "model") + " --data mnist:" + dir.path();
  const json all = json_of(command + " --json --batch-size 2");
  expect_keys(all, {"images", "top1", "top5", "loss", "classes", "per_class", "confusion"});
  EXPECT_EQ(all["classes"], json({"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}));
  EXPECT_EQ(all["images"], 3);
  EXPECT_EQ(all["confusion"].size(), 10u);
  EXPECT_EQ(json_of(command + " --json --split train")["images"], 4);
  const Outcome text = vitrum(command);
  EXPECT_EQ(text.err, "");
  EXPECT_THAT(text.out, HasSubstr("top-1"));

  expect_failure(2, "unknown split 'tset'", command + " --split tset");
  std::filesystem::resize_file(dir / "model/model.safetensors", 100);
  expect_failure(3, "model.safetensors", command);
  write_file_atomic(dir / "model/config.json", "{}");
  expect_failure(3, "config.json", command);
}

TEST(Cli, Export) {
  const TempDir dir;
  write_model(dir / "model");
  const std::string command = "export --model " + (dir / "model") + " --output " + (dir / "m.onnx");
  const json all = json_of(command + " --json --external");
  expect_keys(all, {"opset", "nodes", "bytes", "output"});
  EXPECT_EQ(all["opset"], 17);
  EXPECT_TRUE(std::filesystem::exists(dir / "m.onnx.data"));
  const Outcome text = vitrum(command + " --normalize --image-size 12");
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.err, HasSubstr("opset 17"));
  expect_failure(2, "preset without weights", "export --model vit_mnist --output x.onnx");
  expect_failure(2, "not divisible", command + " --image-size 13");
  expect_failure(3, "no-such-folder/m.onnx",
                 "export --model " + (dir / "model") + " --output no-such-folder/m.onnx");
  std::filesystem::resize_file(dir / "model/model.safetensors", 100);
  expect_failure(3, "model.safetensors", command);
}

TEST(Cli, Bench) {
  const TempDir dir;
  write_model(dir / "model");
  for (const char* mode : {"infer", "train", "pretrain"}) {
    const json all = json_of("bench --json --trace --batch 2 --steps 1 --mode " +
                             std::string(mode) + " --model " + (dir / "model"));
    expect_keys(all,
                {"images_per_second", "milliseconds", "peak_bytes", "mfu", "gemm_peak_gflops"});
    EXPECT_GT(all["images_per_second"], 0);
    EXPECT_GT(all["mfu"], 0);
    ASSERT_GT(all["trace"].size(), 5u);
    expect_keys(all["trace"][0],
                {"kernel", "implementation", "times", "milliseconds", "macs", "bytes"});
    EXPECT_GT(all["peak_bytes"], 1 << 20);
  }
}

TEST(Cli, BenchCountsWhatIsComputed) {
  const TempDir dir;
  write_model(dir / "whole"), write_model(dir / "dropping", 0.5f);
  const auto macs = [&](const std::string& mode, const std::string& model) -> int64_t {
    return json_of("bench --json --batch 2 --steps 1 --mode " + mode + " --model " +
                   (dir / model))["macs"];
  };
  EXPECT_EQ(macs("infer", "dropping"), macs("infer", "whole"));
  // The last block's tokens that nobody reads are left out.
  EXPECT_LT(macs("infer", "whole"), macs("train", "whole"));
  EXPECT_LT(macs("train", "dropping"), macs("train", "whole"));
  EXPECT_NE(macs("pretrain", "whole"), macs("train", "whole"));  // a decoder, and fewer patches
}

TEST(Cli, OutputThatCannotBeWritten) {
  const std::string binary = VITRUM_BINARY;
  const auto status = [](const std::string& command) {
    return WEXITSTATUS(std::system(command.c_str()));
  };
  EXPECT_EQ(status(binary + " models >/dev/full 2>/dev/null"), 4);
  // A reader that leaves early is no failure.
  EXPECT_EQ(status("test \"$( { { " + binary + " models; echo $? >&3; } | true; } 3>&1 )\" = 0"),
            0);
  const TempDir dir;
  write_digits(dir.path());
  EXPECT_EQ(status("ulimit -f 0; " + binary + " data mnist:" + dir.path() + " --output " +
                   (dir / "sheet.png") + " >/dev/null 2>&1"),
            4);
  expect_failure(3, "no-such-folder/sheet.png",
                 "data mnist:" + dir.path() + " --output no-such-folder/sheet.png");
}

// What is said must not land in a file that happens to get the stream's number.
TEST(Cli, ClosedStreamsStayClosed) {
  const std::string binary = VITRUM_BINARY;
  const TempDir dir;
  write_digits(dir.path());
  write_model(dir / "model");
  const std::string command = binary + " train -v --model " + (dir / "model") +
                              " --data mnist:" + dir.path() + " --epochs 1 --batch-size 2 --out " +
                              (dir / "run");
  EXPECT_EQ(WEXITSTATUS(std::system((command + " <&- >&- 2>&-").c_str())), 1);
  for (const auto& file : std::filesystem::recursive_directory_iterator(dir / "run"))
    if (file.is_regular_file()) {
      EXPECT_THAT(read_file(file.path()), Not(HasSubstr("for activations"))) << file.path();
    }
}

TEST(Cli, NoColourInPipes) {
  EXPECT_EQ(vitrum("summary vit_minst").err.find('\033'), std::string::npos);
  EXPECT_EQ(vitrum("--help").out.find('\033'), std::string::npos);
}

}  // namespace
}  // namespace vitrum
