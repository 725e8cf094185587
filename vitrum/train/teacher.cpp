#include "vitrum/train/teacher.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>

#include "vitrum/core/all_finite.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/progress.h"

namespace vitrum {
namespace {

void turn_left_right(std::span<uint8_t> pixels, int64_t width) {
  for (auto row = pixels.begin(); row != pixels.end(); row += width) std::reverse(row, row + width);
}

}  // namespace

ModelSpec teacher_for(const Recipe& recipe, const ModelSpec& student) {
  const std::string& path = *recipe.teacher;
  if (!has_weights(path))
    fail_input(
        "teacher '{}': no such model directory or weight file; a preset has not learned yet: {}",
        path, how_to_get(path));
  if (is_model_dir(path + "/best"))
    fail_input("teacher '{0}' is a run; its model is {0}/best", path);
  if (!is_model_dir(path) && !recipe.teacher_arch)
    fail_usage("teacher '{}' does not say what model it is; name its preset with teacher_arch",
               path);
  ModelSpec teacher = resolve_model(path, recipe.teacher_arch.value_or(""));
  const ModelConfig &theirs = teacher.config, &ours = student.config;
  if (theirs.classes() != ours.classes())
    fail_input("teacher '{}' has {} classes, the student {}", path, theirs.classes(),
               ours.classes());
  if (theirs.channels() != ours.channels())
    fail_input("teacher '{}' takes images of {} channels, the student of {}", path,
               theirs.channels(), ours.channels());
  if (theirs.image_h() != ours.image_h() || theirs.image_w() != ours.image_w())
    fail_input(
        "teacher '{}' takes images of {}x{}, the student of {}x{}; both see the same pixels: "
        "set image_size, or take another teacher",
        path, theirs.image_h(), theirs.image_w(), ours.image_h(), ours.image_w());
  return teacher;
}

Teacher::Teacher(const Recipe& recipe, const ModelSpec& student, DType compute, Backend& backend,
                 const TeacherViews& views)
    : spec_(teacher_for(recipe, student)),
      path_(*recipe.teacher),
      digest_(teacher_digest(path_, spec_)),
      views_(views),
      backend_(backend),
      model_(trace(graph_, spec_, views.pixels.shape[0], InputStage::kPixels,
                   static_cast<bool>(views.mix))),
      weights_(std::make_unique<FrozenWeights>(path_, spec_, graph_, backend)),
      side_(backend.side_stream()),
      program_(compile(compute, weights_->store())) {}

Teacher::Teacher(const ModelSpec& preset, DType compute, Backend& backend,
                 const TeacherViews& views)
    : spec_(preset),
      views_(views),
      backend_(backend),
      model_(trace(graph_, spec_, views.pixels.shape[0], InputStage::kPixels,
                   static_cast<bool>(views.mix))),
      random_(std::make_unique<ParamStore>(graph_, backend)),
      side_(backend.side_stream()) {
  random_->initialize(0);
  random_->freeze();
  program_.emplace(compile(compute, *random_));
}

Program Teacher::compile(DType compute, ParamStore& store) {
  fuse(graph_);
  const std::array outputs = {model_.logits};
  CompileOptions options{.compute = compute,
                         .shared = {{model_.image, views_.pixels}, {model_.logits, views_.logits}},
                         .side = side_.get()};
  if (views_.mix) options.shared.push_back({model_.mix, views_.mix});
  return Program(graph_, outputs, store, options);
}

void Teacher::upload(const Batch& batch) {
  if (weights_) weights_->check_intact();  // what the batch before was computed with
  if (!file_) return;
  file_->rows(batch.indices, batch.mirrored, rows_);
  backend_.upload(views_.logits, rows_.data());
}

void Teacher::note_in(const std::string& run) const {
  const std::string path = run + "/state/teacher.sha256";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    ensure_directory(run + "/state");
    return write_file_atomic(path, digest_ + "\n");
  }
  if (read_file(path, 2 * digest_.size()) != digest_ + "\n")
    fail_input(
        "teacher '{}' has other weights than when '{}' was started; a resumed run needs the same "
        "teacher",
        path_, run);
}

void Teacher::use_file(const std::string& path, const Dataset& data, const LoaderConfig& plain,
                       bool flips, bool quiet) {
  TeacherLogitsKey key =
      teacher_logits_key(digest_, spec_.config.classes(), data, plain.preprocess);
  key.flips = flips;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    write_teacher_logits(path, key, answers(data, plain, flips, quiet));
  file_.emplace(path, key);
  program_.reset(), weights_.reset();
}

std::vector<float> Teacher::answers(const Dataset& data, const LoaderConfig& plain, bool flips,
                                    bool quiet) {
  const auto classes = static_cast<size_t>(views_.logits.shape[1]);
  const size_t each = flips ? 2 : 1;
  std::vector<float> all(static_cast<size_t>(data.size()) * each * classes);
  rows_.resize(static_cast<size_t>(views_.logits.shape.numel()));
  Loader loader(data, plain);
  Progress progress("teacher", loader.batches(), quiet);
  Batch batch;
  loader.start(0);
  for (int64_t done = 0; loader.next(batch); progress.update(++done)) {
    for (size_t turn = 0; turn < each; ++turn) {
      if (turn > 0) turn_left_right(batch.pixels(), views_.pixels.shape[3]);
      backend_.upload(views_.pixels, batch.pixels().data());
      program_->run();
      backend_.download(rows_.data(), views_.logits);
      for (size_t i = 0; i < static_cast<size_t>(batch.count); ++i) {
        const std::span<const float> row(&rows_[i * classes], classes);
        const auto image = static_cast<size_t>(batch.indices[i]);
        if (!all_finite(row))
          fail_input("teacher '{}' has no finite answer to {}", path_, data.name(batch.indices[i]));
        std::copy(row.begin(), row.end(), &all[(image * each + turn) * classes]);
      }
    }
  }
  progress.clear();
  weights_->check_intact();
  return all;
}

}  // namespace vitrum
