// The training loop: epochs, evaluation, checkpoints, and stopping without losing anything.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "vitrum/core/laps.h"
#include "vitrum/core/progress.h"
#include "vitrum/data/loader.h"
#include "vitrum/infer/evaluator.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/runtime/link.h"
#include "vitrum/train/checkpoint.h"
#include "vitrum/train/feature_cache.h"
#include "vitrum/train/interrupt.h"
#include "vitrum/train/pretraining.h"
#include "vitrum/train/recipe.h"
#include "vitrum/train/run_dir.h"
#include "vitrum/train/saver.h"
#include "vitrum/train/setup.h"
#include "vitrum/train/step.h"

namespace vitrum {

struct RunOptions {
  std::string out;  // the run directory; "": the first free runs/<name>-N
  std::string name = "run";
  bool resume = false;  // go on with what `out` holds
  DeviceOptions device;
  bool quiet = false;  // no progress
  // Every step kernel by kernel, failing at the first whose result is not finite; this is told of
  // each.
  Program::Trace trace = {};
  std::shared_ptr<FeatureCache> features = std::make_shared<FeatureCache>();
  // Of several processes, each of which has a Trainer: rank 0 alone has the run directory. It
  // outlives the trainer.
  Communicator* comm = nullptr;
};

struct TrainResult {
  int signal = 0;  // what stopped the run before its end: SIGINT, SIGTERM
  EpochMetrics last;
  double best_accuracy = 0;  // of a pretraining the negative of the lowest loss
  int64_t best_epoch = 0;
};

struct TrainHooks {
  std::function<void(const EpochMetrics&, bool best)> epoch;  // once it is on disk
  std::function<void(int64_t step, double loss)> step;  // after each optimiser step, counted from 1
  // Once, as soon as a few steps were measured: how long the run will take from its start on.
  std::function<void(double seconds)> estimate;
  // On the thread that writes, after a save: for what shows the run as it is on disk.
  std::function<void()> saved;
};

// How training images reach the model: order, preprocessing, augmentation. `threads` as in
// DeviceOptions.
LoaderConfig loader_config(const Recipe& recipe, const ModelSpec& model, const Dataset& data,
                           int threads);
// The same for images to evaluate on: each once, in order and as it is. A batch larger than the
// data would be padding.
LoaderConfig test_config(LoaderConfig config, const Recipe& recipe, int64_t images);
int64_t eval_batch(const Recipe& recipe, int64_t images);

// trainer_setup.cpp has what comes before the first step, trainer.cpp the loop.
class Trainer {
 public:
  // Opens data and model and builds the programs before it touches the run directory.
  Trainer(const Recipe& recipe, const RunOptions& options);

  TrainResult run(const TrainHooks& hooks = {});

  const std::string& directory() const { return run_; }
  const Recipe& recipe() const { return recipe_; }  // precision resolved
  const ModelSpec& model() const { return model_; }
  const TrainData& data() const { return data_; }
  const TrainPosition& position() const { return at_; }
  const Teacher* teacher() const { return step_.teacher(); }  // null where there is none
  ParamStore& store() { return step_.store(); }
  Backend& backend() const { return *backend_; }
  const Schedule& schedule() const { return schedule_; }
  bool pretrains() const { return recipe_.task == Task::kMae; }
  int64_t slice_size() const { return train_loader_.config().batch_size; }
  int64_t batch_size() const { return slice_size() * recipe_.slices; }
  int processes() const { return comm() ? comm()->size() : 1; }
  int64_t total_steps() const { return schedule_.total_steps; }
  int64_t total_epochs() const;
  int64_t activation_bytes() const {
    return step_.plan().bytes + (teacher() ? teacher()->activation_bytes() : 0);
  }
  const LoadReport& loaded() const { return step_.loaded(); }
  bool keeps_features() const { return features_.has_value(); }
  bool keeps_images() const { return train_loader_.config().rows; }  // those to train with
  int64_t image_bytes() const { return image_bytes_; }               // of all images on the device
  bool finished() const;
  const Laps& laps() const { return laps_; }  // where this process's time went

 private:
  // The recipe, once the part before is done.
  const Recipe& after(const char* part) { return laps_.end(part), recipe_; }
  Communicator* comm() const { return options_.comm; }
  bool writes() const {
    return !comm() || comm()->first();
  }  // whether the run directory is its own
  void open_run();
  // That all processes are about to do the same.
  void compare_processes() const;
  void resume();
  // Before programs are made, and after: kernels that are chosen by timing are chosen by the first
  // process, in the first of a run's parts.
  std::shared_ptr<Link> connect();
  void settle_choices();
  void set_teacher(std::unique_ptr<Teacher> teacher);
  void set_trace();
  // With features, or rows of images that the device keeps, in place of the images.
  LoaderConfig fed(LoaderConfig config, const Dataset& images) const;
  bool on_device(const LoaderConfig& config, const Dataset& images) const;
  void set_images();
  DType compute() const { return features_ ? DType::kF32 : compute_for(recipe_); }
  // What the model leaves out in an epoch: where images are no longer augmented, they are whole.
  float patch_drop(int64_t epoch) const;
  ModelSpec last_model() const;  // as it is trained in the last epoch
  InputStage source() const { return features_ ? InputStage::kFeatures : InputStage::kPixels; }
  Recipe step_recipe() const;  // with a batch no larger than the data
  void fill_features(const InterruptGuard& interrupt, const TrainHooks& hooks);
  // All return false where a signal stopped them.
  bool train_epoch(const InterruptGuard& interrupt, const TrainHooks& hooks);
  bool close_epoch(const InterruptGuard& interrupt, const TrainHooks& hooks);
  bool train_step(const InterruptGuard& interrupt, Progress& progress);
  // Of the batches of one step, which sees so many images.
  bool add_gradients(int64_t images, const InterruptGuard& interrupt, Progress& progress);
  void estimate(const TrainHooks& hooks, Progress& progress);
  void take_results(const TrainHooks& hooks);
  // The signal that all processes have agreed to stop for; with one, the one that came.
  int signal(const InterruptGuard& interrupt) const {
    return comm() ? agreed_ : interrupt.signal();
  }
  void agree(const InterruptGuard& interrupt);
  void save(const TrainPosition& at, bool last);
  void check_finite(const char* what, double x, int64_t step) const;
  std::shared_ptr<const Evaluation> evaluate(const InterruptGuard& interrupt);
  EpochMetrics metrics(const Evaluation* evaluation);
  // Fails where a weight is not finite. Null in a process that does not write.
  std::shared_ptr<Snapshot> checked_snapshot();
  void keep_what_is_done(const TrainHooks& hooks);
  static void report(const std::vector<ClosedEpoch>& epochs, const TrainHooks& hooks);
  int64_t steps_per_epoch() const { return schedule_.steps_per_epoch; }
  int64_t epoch_end() const;
  bool ema() const { return recipe_.ema > 0; }
  // More is better, of an epoch that was judged; null: there are no test images.
  double score(const Evaluation* evaluation, const EpochMetrics& row) const;
  bool has_test() const { return data_.test().size() > 0; }
  // What the test loader has: where there are no test images, it is never asked.
  const Dataset& tested() const { return has_test() ? data_.test() : data_.train(); }

  // A step given to the device whose results were not read yet.
  struct Given {
    int64_t step, images;  // steps count from 1
    double lr;
  };

  // In place of the images, where only the head learns.
  struct Features {
    FeatureDataset train, test;
  };

  LoaderConfig train_turns(LoaderConfig config) const;
  LoaderConfig test_turns(LoaderConfig config) const;

  static std::optional<Features> features_for(const Recipe& recipe, const ModelSpec& model,
                                              const TrainData& data);

  Laps laps_;
  RunOptions options_;
  std::unique_ptr<Backend> backend_;
  Recipe recipe_;
  TrainData data_;
  ModelSpec model_;
  std::optional<Features> features_;
  Loader train_loader_, test_loader_;
  Schedule schedule_;
  std::shared_ptr<Link> link_;  // null with one process
  TrainStep step_;
  std::optional<Evaluator> evaluator_;
  std::optional<MaskedEvaluator> masked_;  // in its place, where there are no labels
  std::string run_;
  std::unique_ptr<RunLock> lock_;
  TrainPosition at_;
  std::unique_ptr<Saver> saver_;  // null in a process that does not write
  int agreed_ = 0;
  std::vector<Batch> batches_;
  std::vector<Given> given_;
  std::vector<std::shared_ptr<Snapshot>> snapshots_;  // those nobody else holds are free
  double last_loss_ = 0;
  // Of this run: when its first step began and ended, and how many there were since.
  std::optional<std::chrono::steady_clock::time_point> began_, measured_from_;
  int64_t measured_steps_ = 0;
  bool estimated_ = false;
  int64_t image_bytes_ = 0;
};

}  // namespace vitrum
