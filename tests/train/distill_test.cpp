// Distillation: losses and gradients against PyTorch, teachers that fit and those that do not, kept
// answers, and going on after a stop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "tests/support/cuda.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_run.h"
#include "vitrum/core/files.h"
#include "vitrum/infer/predictor.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/train/step.h"
#include "vitrum/train/trainer.h"
#include "vitrum/weights/model_config.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum::test {
namespace {

// ---- against timm and PyTorch ----

constexpr int64_t kBatch = 4, kSteps = 10;

class Golden {
 public:
  std::vector<float> f32(const std::string& name) const { return read<float>(name); }
  template <class T>
  std::vector<T> read(const std::string& name) const {
    const auto bytes = file_.bytes(file_.at(name));
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  ModelSpec model() const {
    const ViTConfig c{.image_h = 8,
                      .image_w = 12,
                      .patch_h = 4,
                      .patch_w = 4,
                      .width = 16,
                      .depth = 1,
                      .heads = 2,
                      .mlp_width = 32,
                      .classes = 5,
                      .distilled = true};
    ModelSpec spec{.architecture = "golden", .config = c, .preprocess = {}, .labels = {}};
    spec.preprocess.mean = spec.preprocess.std = {0.5f, 0.5f, 0.5f};
    return spec;
  }
  static Recipe recipe(const std::string& kind) {
    Recipe r;
    r.batch_size = kBatch, r.label_smoothing = 0.1, r.weight_decay = 0.05;
    r.teacher = "golden", r.alpha = 0.3, r.tau = 2.5;
    r.loss = kind.starts_with("bce") ? TaskLoss::kBce : TaskLoss::kCrossEntropy;
    r.distillation = kind == "soft" ? Distillation::kSoft : Distillation::kHard;
    return r;
  }
  Batch batch() const {
    const std::vector<uint8_t> pixels = read<uint8_t>("pixels");
    Batch b{.count = kBatch,
            .storage = allocate_host(pixels.size()),
            .labels = read<int32_t>("labels"),
            .indices = {0, 1, 2, 3},
            .errors = {}};
    std::memcpy(b.storage.data(), pixels.data(), pixels.size());
    return b;
  }
  void fill(ParamStore& store) const {
    for (size_t i = 0; i < store.specs().size(); ++i)
      store.write(i, f32("param." + store.specs()[i].name));
  }

 private:
  SafetensorsFile file_{VITRUM_SOURCE_DIR "/tests/golden/deit_distill.safetensors"};
};

// |ours - theirs| over |theirs|; tensors that are zero but for rounding count against `floor`.
double relative(const std::vector<float>& ours, const std::vector<float>& theirs, double floor) {
  EXPECT_EQ(ours.size(), theirs.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < theirs.size(); ++i) {
    difference += std::pow(static_cast<double>(ours[i]) - static_cast<double>(theirs[i]), 2);
    size += std::pow(static_cast<double>(theirs[i]), 2);
  }
  return std::sqrt(difference) / std::max(std::sqrt(size), floor);
}

// Gradients before the first of ten steps, and each step's loss.
void expect_ten_steps(Backend& backend, const std::string& kind, double tolerance) {
  const Golden golden;
  TrainStep step(golden.model(), Golden::recipe(kind), DType::kF32, backend);
  golden.fill(step.store());
  backend.upload(step.teacher_views().logits, golden.f32("teacher").data());
  const Batch batch = golden.batch();
  const std::vector<float> losses = golden.f32("losses." + kind);
  for (int64_t i = 0; i < kSteps; ++i) {
    step.backward(batch, kBatch, i);
    if (i == 0)
      for (size_t p = 0; p < step.store().specs().size(); ++p) {
        const std::string& name = step.store().specs()[p].name;
        EXPECT_LE(relative(step.store().read(p, Arena::kGrad),
                           golden.f32("grad." + kind + "." + name), 1e-4),
                  tolerance)
            << name;
      }
    step.update(1e-3, i);
    EXPECT_NEAR(step.results().at(0).loss, losses[static_cast<size_t>(i)], tolerance / 5)
        << "step " << i;
  }
  EXPECT_LT(losses[kSteps - 1], losses[0] - 0.01f);  // there was something to learn
}

class DistillGolden : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(DistillGolden, TenSteps) {
  const auto [device, kind] = GetParam();
  expect_ten_steps(*make_backend({.device = device}), kind, 1e-4);
}

TEST(DistillGolden, TenStepsOnACard) {
  SKIP_WITHOUT_CUDA();
  const auto card = cuda(/*exact=*/true);
  for (const char* kind : {"hard", "soft", "bce_hard"}) expect_ten_steps(*card, kind, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(PyTorch, DistillGolden,
                         testing::Combine(testing::Values("reference", "cpu"),
                                          testing::Values("hard", "soft", "bce_hard")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param);
                         });

TEST(DistillGolden, HeadsAndFeatures) {
  const Golden golden;
  const auto backend = make_backend({.device = "cpu"});
  Graph g(Mode::kInference);
  const TracedModel model = trace(g, golden.model(), kBatch);
  fuse(g);
  ParamStore store(g, *backend);
  golden.fill(store);
  const std::array outputs = {model.logits, model.cls, model.dist, model.features};
  const std::array names = {"logits", "cls", "dist", "features"};
  Program program(g, outputs, store);
  program.upload(model.image, golden.batch().pixels().data());
  program.run();
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::vector<float> expected = golden.f32(names[i]);
    std::vector<float> got(expected.size());
    program.download(got.data(), outputs[i]);
    EXPECT_LE(relative(got, expected, 0), 1e-5) << names[i];
  }
}

// ---- runs ----

// A data set with a student that has the token and a teacher: the tiny model after two epochs.
class Distill : public testing::Test {
 protected:
  Distill() {
    ModelSpec student = resolve_model(tiny_.recipe().model);
    student.config.as<ViTConfig>()->distilled = true;
    write_model("student", student);
    Recipe recipe = tiny_.recipe();
    recipe.epochs = 2;
    Trainer(recipe, tiny_.options("teacher")).run();
  }
  void write_model(const std::string& name, const ModelSpec& spec) const {
    ensure_directory(tiny_ / name);
    write_file_atomic(tiny_ / (name + "/config.json"), model_config_text(spec));
  }
  Recipe recipe() const {
    Recipe r = tiny_.recipe();
    r.model = tiny_ / "student", r.teacher = tiny_ / "teacher/best";
    return r;
  }
  EpochMetrics run(const Recipe& recipe, const std::string& out) const {
    return Trainer(recipe, tiny_.options(out)).run().last;
  }
  // The teacher's directory once more, with another config.
  std::string teacher_with(const std::string& name,
                           const std::function<void(ModelSpec&)>& change) const {
    ModelSpec spec = resolve_model(tiny_ / "teacher/best");
    change(spec);
    write_model(name, spec);
    std::filesystem::copy_file(tiny_ / "teacher/best/model.safetensors",
                               tiny_ / (name + "/model.safetensors"));
    return tiny_ / name;
  }
  std::string bytes(const std::string& name) const { return read_text(tiny_ / name); }

  TinyRun tiny_;
};

TEST_F(Distill, EveryKindOfStudentLearns) {
  for (const char* model : {"student", "model"})
    for (const Distillation kind : {Distillation::kHard, Distillation::kSoft}) {
      Recipe r = recipe();
      r.model = tiny_ / model, r.distillation = kind, r.tau = 2, r.epochs = 2;
      const std::string out = std::string(model) + std::to_string(static_cast<int>(kind));
      Trainer trainer(r, tiny_.options(out));
      std::vector<double> losses;
      trainer.run({.epoch = {}, .step = [&](int64_t, double loss) { losses.push_back(loss); }});
      EXPECT_LT(losses.back(), losses.front()) << out;
    }
}

TEST_F(Distill, StoppedAndResumedIsTheSameRun) {
  Recipe r = recipe();
  r.batch_size = 8, r.accumulate = 2, r.ema = 0.9, r.augment = "crop-flip";
  r.distillation = Distillation::kSoft, r.checkpoint_every = 1;
  r.patch_drop = 0.5, r.augment_off = 0.34;
  run(r, "whole");
  const auto expected = outcome(tiny_ / "whole");
  for (const int64_t stop : {1, 4, 6, 10, 12}) {
    const std::string out = "cut" + std::to_string(stop);
    const TrainHooks hooks{.epoch = {}, .step = [stop](int64_t step, double) {
                             if (step == stop) raise(SIGINT);
                           }};
    EXPECT_EQ(Trainer(r, tiny_.options(out)).run(hooks).signal, SIGINT);
    tiny_.resumed(out, 2).run();
    for (const auto& [name, text] : outcome(tiny_ / out))
      EXPECT_TRUE(expected.at(name) == text) << name << " differs after step " << stop;
  }
}

// The teacher reads and writes the student's memory there; precomputed answers come from the host.
TEST_F(Distill, OnACard) {
  SKIP_WITHOUT_CUDA();
  for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
    Recipe r = recipe();
    r.distillation = Distillation::kSoft, r.precision = precision, r.epochs = 1;
    r.model = tiny_ / "student";
    const auto losses = [&](const std::string& out, const char* device) {
      RunOptions options = tiny_.options(out + std::to_string(static_cast<int>(precision)));
      options.device.device = device;
      std::vector<double> all;
      Trainer(r, options).run({.epoch = {}, .step = [&](int64_t, double loss) {
                                 all.push_back(loss);
                               }});
      return all;
    };
    const std::vector<double> host = losses("host", "cpu"), card = losses("card", "cuda");
    ASSERT_EQ(card.size(), host.size());
    for (size_t i = 0; i < host.size(); ++i) EXPECT_NEAR(card[i], host[i], 0.02 * host[i]) << i;
    ASSERT_EQ(setenv("VITRUM_SIDE_STREAM", "0", 1), 0);
    EXPECT_EQ(losses("in a row", "cuda"), card);  // the teacher first, not beside the student
    ASSERT_EQ(unsetenv("VITRUM_SIDE_STREAM"), 0);
    r.teacher_logits = tiny_ / ("card" + std::to_string(static_cast<int>(precision)) + ".logits");
    const std::vector<double> kept = losses("kept", "cuda");
    for (size_t i = 0; i < card.size(); ++i) EXPECT_NEAR(kept[i], card[i], 1e-3 * card[i]) << i;
  }
}

TEST_F(Distill, KeptAnswersAreTheTeachers) {
  Recipe r = recipe();
  run(r, "asked");
  r.teacher_logits = tiny_ / "answers.safetensors";
  run(r, "written");
  const std::string file = bytes("answers.safetensors");
  run(r, "read");
  EXPECT_EQ(bytes("answers.safetensors"), file);
  for (const char* name : {"written", "read"})
    EXPECT_TRUE(bytes(std::string(name) + "/last/model.safetensors") ==
                bytes("asked/last/model.safetensors"))
        << name;

  Predictor teacher(*r.teacher, {.device = "cpu", .threads = 1, .precision = DType::kF32});
  const DataSplits data = open_data(r.data);
  const SafetensorsFile answers(*r.teacher_logits);
  const TensorInfo& logits = answers.at("logits");
  ASSERT_EQ(logits.shape, (Shape{TinyRun::kTrain, 10}));
  std::vector<float> stored(static_cast<size_t>(logits.shape.numel())), expected(10);
  std::memcpy(stored.data(), answers.bytes(logits).data(), stored.size() * sizeof(float));
  for (const int64_t i : {int64_t{0}, TinyRun::kTrain - 1}) {
    const Image image = data.train->read(i);
    teacher.run(image.pixels, expected, {});
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), stored.begin() + i * 10)) << i;
  }
}

// Two answers an image; they serve a run without flips, too.
TEST_F(Distill, KeptAnswersToFlippedImagesAreTheTeachers) {
  Recipe r = recipe();
  r.augment = "flip", r.distillation = Distillation::kSoft;
  run(r, "asked");
  r.teacher_logits = tiny_ / "answers.safetensors";
  run(r, "written");
  const std::string file = bytes("answers.safetensors");
  run(r, "read");
  EXPECT_EQ(SafetensorsFile(*r.teacher_logits).at("logits").shape, (Shape{TinyRun::kTrain, 2, 10}));
  for (const char* name : {"written", "read"})
    EXPECT_TRUE(bytes(std::string(name) + "/last/model.safetensors") ==
                bytes("asked/last/model.safetensors"))
        << name;
  Recipe plain = recipe();
  plain.distillation = Distillation::kSoft;
  run(plain, "plain_asked");
  plain.teacher_logits = r.teacher_logits;
  run(plain, "plain_read");
  EXPECT_TRUE(bytes("plain_read/last/model.safetensors") ==
              bytes("plain_asked/last/model.safetensors"));
  EXPECT_FALSE(bytes("plain_read/last/model.safetensors") == bytes("read/last/model.safetensors"));
  EXPECT_EQ(bytes("answers.safetensors"), file);
}

TEST_F(Distill, TheTeacherHasItsOwnNormalisation) {
  Recipe r = recipe();
  r.distillation = Distillation::kSoft, r.max_steps = 1;
  const double plain = run(r, "plain").train_loss;
  r.teacher = teacher_with("shifted", [](ModelSpec& spec) {
    spec.preprocess.mean = {0.7f}, spec.preprocess.std = {0.1f};
  });
  EXPECT_NE(run(r, "shifted_run").train_loss, plain);
}

TEST_F(Distill, AChangedTeacherIsNoticed) {
  Recipe r = recipe();
  r.max_steps = 2, r.checkpoint_every = 1;
  run(r, "first");
  const auto resume = [&] {
    RunOptions options = tiny_.options("first");
    options.resume = true;
    Recipe longer = recipe_of_run(tiny_ / "first");
    longer.max_steps = 3;
    Trainer(longer, options).run();
  };
  // The same weights, written anew, are the same teacher.
  write_file_atomic(tiny_ / "teacher/best/model.safetensors",
                    bytes("teacher/best/model.safetensors"));
  resume();
  std::string other = bytes("teacher/best/model.safetensors");
  other.back() = static_cast<char>(other.back() ^ 1);
  write_file_atomic(tiny_ / "teacher/best/model.safetensors", other);
  EXPECT_ERROR(resume(), ErrorKind::kInput, "has other weights than when");
  std::filesystem::remove(tiny_ /
                          "first/state/teacher.sha256");  // of a run from before it was kept
  resume();
}

TEST_F(Distill, AnswersOfOthersAreRefused) {
  Recipe r = recipe();
  r.max_steps = 1, r.teacher_logits = tiny_ / "answers.safetensors";
  run(r, "first");
  Recipe held = r;
  held.holdout = 0.2;
  EXPECT_ERROR(run(held, "held"), ErrorKind::kInput, "this run needs");
  Recipe other = r;
  other.teacher = teacher_with("other", [](ModelSpec& spec) {
    spec.preprocess.mean = {0.7f}, spec.preprocess.std = {0.1f};
  });
  EXPECT_ERROR(run(other, "another"), ErrorKind::kInput, "of another teacher");
  Recipe augmented = r;
  augmented.augment = "crop-flip";
  EXPECT_ERROR(run(augmented, "augmented"), ErrorKind::kUsage, "augment");
  Recipe flipped = r;  // the file has no answers to flipped images
  flipped.augment = "flip";
  EXPECT_ERROR(run(flipped, "flipped"), ErrorKind::kInput, "this run needs");
  Recipe model = r;
  model.teacher_logits = tiny_ / "teacher/best/model.safetensors";
  EXPECT_ERROR(run(model, "model_file"), ErrorKind::kInput, "holds no teacher's logits");
  EXPECT_FALSE(std::filesystem::exists(tiny_ / "another"));  // refused before anything is made
  // Labels in another order are other data.
  const std::string labels = tiny_ / "train-labels-idx1-ubyte";
  std::string text = read_text(labels);
  std::swap(text[text.size() - 1], text[text.size() - 2]);
  write_file_atomic(labels, text);
  EXPECT_ERROR(run(r, "reordered"), ErrorKind::kInput, "of other images");
}

TEST_F(Distill, TeachersThatDoNotFitAreRefused) {
  const auto refused = [&](const std::string& teacher, ErrorKind kind, const char* part) {
    Recipe r = recipe();
    r.teacher = teacher;
    EXPECT_ERROR(run(r, "refused"), kind, part);
    EXPECT_FALSE(std::filesystem::exists(tiny_ / "refused"));
  };
  Recipe wide = tiny_.recipe();
  wide.num_classes = 12, wide.max_steps = 1;
  run(wide, "wide");
  refused(tiny_ / "wide/best", ErrorKind::kInput, "has 12 classes, the student 10");
  Recipe large = tiny_.recipe();
  large.image_size = 16, large.max_steps = 1;
  run(large, "large");
  refused(tiny_ / "large/best", ErrorKind::kInput, "takes images of 16x16, the student of 8x8");
  refused("vit_small28", ErrorKind::kInput, "a preset has not learned");
  refused(tiny_ / "nowhere", ErrorKind::kInput, "no such model directory");
  refused(tiny_ / "teacher/best/model.safetensors", ErrorKind::kUsage, "teacher_arch");
  Recipe taken_back = recipe();
  taken_back.teacher = "", taken_back.max_steps = 1;
  EXPECT_EQ(Trainer(taken_back, tiny_.options("alone")).teacher(), nullptr);
  Recipe none = tiny_.recipe();
  none.teacher_logits = "answers";
  EXPECT_ERROR(check_recipe(none), ErrorKind::kUsage, "no teacher");
}

}  // namespace
}  // namespace vitrum::test
