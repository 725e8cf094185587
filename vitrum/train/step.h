// One optimiser step: a backward program that adds into the gradients, and an update program that
// uses them up.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "vitrum/data/loader.h"
#include "vitrum/infer/model_program.h"
#include "vitrum/infer/resident_images.h"
#include "vitrum/runtime/link.h"
#include "vitrum/runtime/program.h"
#include "vitrum/train/gradient_tree.h"
#include "vitrum/train/recipe.h"
#include "vitrum/train/teacher.h"
#include "vitrum/train/update.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

struct TrainTotals {
  double loss = 0;  // the sum of the optimiser steps' mean losses
  int64_t correct = 0, images = 0;
};

struct StepResult {
  double loss = 0;  // mean over the step's images
  double norm = 0;  // of the gradients, before clipping
};

// What a leaf adds to the metrics.
struct LeafSums {
  double loss = 0, correct = 0, images = 0;
};

class TrainStep {
 public:
  // Parameters start as the recipe's weights, or its seed, say. kFeatures trains the head alone, on
  // batches whose pixels are the bytes of features. With `link`, each process does its share of a
  // step's leaves and of the update: all call the same functions in the same order.
  TrainStep(const ModelSpec& model, const Recipe& recipe, DType compute, Backend& backend,
            InputStage from = InputStage::kPixels, Link* link = nullptr);

  // Adds the gradient of one leaf, which is a batch or a slice of one. `images` is how many the
  // whole optimiser step sees, `micro_step` how many leaves came before in the run.
  void backward(const Batch& batch, int64_t images, int64_t micro_step);

  // After each leaf of a step, in order, or in the place of one that is beyond the data: what the
  // leaves give is added together in an order of its own where the recipe has slices.
  void fold(int64_t leaf);
  // After the last of them, and before perturb() or update(), which add together what the processes
  // have. Returns the largest number that any of them has brought, a signal perhaps.
  int sum(int brought = 0);

  // Around the batches of a step that may be given up before update(): abandon() leaves everything
  // as it was at begin(), gradients, weights that perturb() moved, running statistics and totals
  // too.
  void begin();
  void abandon();

  // SAM: the gradients of the batches since update() make the weights worse, and are cleared. The
  // same batches follow again; what they find is taken from the weights as they were.
  void perturb();

  // Clips, moves the weights, averages them and clears the gradients; `step` counts from 0.
  void update(double lr, int64_t step);

  // A whole step on one batch, the same as backward() and update(): one launch on a device that has
  // such. For one process.
  void run(const Batch& batch, double lr, int64_t step);

  // From now on with this share of the patches left out: the backward program is made again, over
  // the same parameters and inputs. Others' views of them stay valid.
  void set_patch_drop(float drop);

  // Of every step since the last call, in order. Waits for the device: the fewer calls, the less it
  // idles. All processes call it after the same step.
  std::vector<StepResult> results();

  // From now on kernel by kernel; an empty function ends that.
  void set_trace(Program::Trace trace) { trace_ = std::move(trace); }
  // The teacher, one backward and one update, kernel by kernel, on whatever was given last.
  void run_traced(const Program::Trace& after) {
    if (teacher_ && teacher_->program()) teacher_->program()->run_traced(after);
    backward_->run_traced(after);
    update_.program().run_traced(after);
  }

  TrainTotals totals();  // since clear_totals()
  void clear_totals();

  // Before the first batch, where the recipe has a teacher: it is asked for each batch.
  TeacherViews teacher_views() const {
    return {view(values_.image), view(values_.teacher),
            values_.mix ? view(values_.mix) : TensorView{}};
  }
  void set_teacher(std::unique_ptr<Teacher> teacher) { teacher_ = std::move(teacher); }
  const Teacher* teacher() const { return teacher_.get(); }

  // Before the first batch, where batches have rows in place of pixels: who makes pixels of them.
  TensorView pixels() const { return view(values_.image); }
  void set_images(std::unique_ptr<ResidentImages> images) { images_ = std::move(images); }

  // Before what every process must have of others is read: averages, running statistics.
  void share_averages();

  const WorkShare& share() const { return share_; }
  ParamStore& store() { return store_; }
  const LoadReport& loaded() const { return loaded_; }  // empty where the model starts from scratch
  const Plan& plan() const { return backward_->plan(); }

 private:
  struct ForwardValues {
    Value image = {}, logits = {}, target = {}, weight = {}, teacher = {}, loss = {}, totals = {},
          rng = {}, mix = {};
  };
  ForwardValues record();
  ForwardValues record_pretraining();
  ParamStore filled(Backend& backend);
  Program compile_backward();
  TensorView view(Value v) const { return (*backward_)[v]; }
  void upload(const Batch& batch, int64_t images, int64_t micro_step);
  void upload_targets(const Batch& batch);
  std::vector<Program*> parts();  // of backward(), in order
  // The same as kernels, the teacher's beside the student's forward pass where the device can: what
  // comes before the backward program, and that.
  struct Pass {
    Kernels before, backward;
    Kernels all() const;
  };
  Pass pass();
  std::vector<TensorView> moved_by_batches();
  WorkShare make_share();
  void begin_leaf(int64_t leaf);
  void read_leaf();
  void gather_leaves(std::vector<StepResult>& steps);
  void read_loss();
  void read_norm();
  bool sliced() const { return recipe_.slices > 1; }
  // With a link: whether a process's only leaf waits for the update, with which it is one launch.
  bool one_launch() const {
    return link_ && share_.leaves().size() == 1 && recipe_.sam == 0 && !trace_;
  }
  void launch_step();

  ModelSpec model_;
  const Recipe recipe_;
  const DType compute_;
  const InputStage from_;
  Link* const link_;
  uint64_t seed_;
  std::optional<Graph> forward_graph_;
  LoadReport loaded_;
  ForwardValues values_;
  ParamStore store_;
  std::array<Buffer, 3> inputs_;  // those that others write: they outlive a backward program
  std::optional<Program> backward_;
  const WorkShare share_;
  Update update_;
  GradientTree tree_;
  std::optional<RunningAverages> averages_;  // where slices move them
  std::unique_ptr<ResidentImages> images_;
  std::unique_ptr<Teacher> teacher_;
  std::unique_ptr<Sequence> pass_;   // of backward(); made when first wanted, as the next ones are
  std::unique_ptr<Sequence> whole_;  // of run(), or of a single leaf
  // With a link: what comes after the last leaf, and what comes before SAM's second pass.
  std::unique_ptr<Sequence> after_leaves_, perturbing_;
  struct Kept {
    TensorView view;
    std::vector<std::byte> bytes;
  };
  std::vector<Kept> kept_;  // as it was at begin()
  Program::Trace trace_;
  bool perturbed_ = false;
  // With a link: what this process's leaves gave since the last results(), and all of them before.
  std::deque<LeafSums> leaves_;
  std::optional<LeafSums> sums_;  // empty: they are on the device alone
  int64_t leaf_ = -1;             // that was computed last, and was not read yet
  std::vector<float> weights_, targets_;
  std::deque<float> reading_;  // for each step its batches' shares of the loss, then its norm
  std::vector<int64_t> shares_ = {0};  // how many batches each step had, the one under way last
};

}  // namespace vitrum
