// The teacher of a distillation: any model with the student's classes. It sees the student's
// pixels, augmented as they are, through its own mean and std.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vitrum/data/loader.h"
#include "vitrum/infer/model_program.h"
#include "vitrum/train/recipe.h"
#include "vitrum/train/teacher_logits.h"
#include "vitrum/weights/frozen_weights.h"

namespace vitrum {

// The student's inputs that a teacher reads and writes, on the device.
struct TeacherViews {
  TensorView pixels;  // (B, C, H, W) u8
  TensorView logits;  // (B, classes) f32
  TensorView mix;     // where the student's pixels are mixed: how
};

// The model that the recipe's `teacher` names; fails where the student cannot learn from it.
ModelSpec teacher_for(const Recipe& recipe, const ModelSpec& student);

class Teacher {
 public:
  Teacher(const Recipe& recipe, const ModelSpec& student, DType compute, Backend& backend,
          const TeacherViews& views);
  // A preset that has learned nothing, to measure how long it takes.
  Teacher(const ModelSpec& preset, DType compute, Backend& backend, const TeacherViews& views);

  // From now on logits come from the recipe's `teacher_logits`: what that file holds, or, where
  // there is none yet, what the teacher says to every image that `plain` loads in the order of
  // `data`; with `flips`, to that left-right as well.
  void use_file(const std::string& path, const Dataset& data, const LoaderConfig& plain, bool flips,
                bool quiet);

  // What writes the logits of the batch whose pixels the student was given; null where they come
  // from a file, and upload() has written them.
  Program* program() { return program_ ? &*program_ : nullptr; }
  // That the program is in, beside the student's forward pass; null where the device has none.
  SideStream* side() const { return side_.get(); }
  void upload(const Batch& batch);

  // Writes down in the run which weights the teacher has; fails where it had others before.
  void note_in(const std::string& run) const;

  const ModelSpec& model() const { return spec_; }
  int64_t activation_bytes() const { return program_ ? program_->plan().bytes : 0; }

 private:
  Program compile(DType compute, ParamStore& store);
  std::vector<float> answers(const Dataset& data, const LoaderConfig& plain, bool flips,
                             bool quiet);

  ModelSpec spec_;
  std::string path_;
  std::string digest_;  // of its weights
  TeacherViews views_;
  Backend& backend_;
  Graph graph_{Mode::kInference};
  TracedModel model_;
  std::unique_ptr<FrozenWeights> weights_;
  std::unique_ptr<ParamStore> random_;  // of a preset, in their place
  std::shared_ptr<SideStream> side_;
  std::optional<Program> program_;
  std::optional<TeacherLogits> file_;
  std::vector<float> rows_;  // of one batch, from the file
};

}  // namespace vitrum
