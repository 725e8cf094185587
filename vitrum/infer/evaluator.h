// Accuracy of a model on a data set: all images, the smaller last batch included.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "vitrum/data/loader.h"
#include "vitrum/infer/model_program.h"
#include "vitrum/infer/resident_images.h"
#include "vitrum/infer/tta.h"
#include "vitrum/runtime/communicator.h"

namespace vitrum {

// What the model made of one image.
struct SampleResult {
  int64_t index = 0;                     // in the data set
  int label = 0, guess = 0, second = 0;  // classes: the true one and the two most probable
  double probability = 0, second_probability = 0, label_probability = 0;
  bool operator==(const SampleResult&) const = default;
};
SampleResult result_of(std::span<const float> logits, int label, int64_t index);

// So many images of one class were taken for another, or for what they are. Pairs that never occur
// have no cell: with ten thousand classes nearly all of them.
struct ConfusionCell {
  int truth = 0, guess = 0;
  int64_t count = 0;
  bool operator==(const ConfusionCell&) const = default;
};
using Confusion = std::vector<ConfusionCell>;  // by truth, then guess

struct Evaluation {
  int64_t images = 0;
  double top1 = 0, top5 = 0, loss = 0;  // fractions; mean cross-entropy
  std::vector<double> per_class;        // NaN for a class without images
  Confusion confusion;
  std::vector<SampleResult> samples;  // in order, where there are no more than kMostSamples

  static constexpr int64_t kMostSamples = 100'000;
};

// Adds up what is needed for an Evaluation, image by image. The lowest index wins ties.
class EvaluationTotals {
 public:
  explicit EvaluationTotals(int64_t classes) : classes_(static_cast<size_t>(classes)) {}

  void add(std::span<const float> logits, int64_t label);
  Evaluation result() const;

 private:
  size_t classes_;  // a model with more outputs than classes makes them more
  std::map<std::pair<int, int>, int64_t> confusion_;
  int64_t images_ = 0, top1_ = 0, top5_ = 0;
  double loss_ = 0;
};

// `keep_going(batches done)` is asked before each batch; where it says no, the result so far is
// returned.
using KeepGoing = std::function<bool(int64_t)>;

class Evaluator {
 public:
  // `weights` is kMaster, or kEma for the averaged ones.
  Evaluator(const ModelSpec& model, ParamStore& store, int64_t batch, DType compute,
            Arena weights = Arena::kMaster, InputStage from = InputStage::kPixels);

  // Where the loader's batches have rows in place of pixels: who makes pixels of them.
  TensorView pixels() const { return program_.pixels(); }
  void set_images(std::unique_ptr<ResidentImages> images) { images_ = std::move(images); }
  void set_tta(Tta tta) { tta_ = tta; }  // of pixels only

  // With `comm` the loader has every size-th batch of this process, and all processes call this
  // (and are asked keep_going) together; rank 0 adds up what all have, in the order of the images,
  // and the others' result is empty.
  Evaluation run(Loader& loader, int64_t classes, const KeepGoing& keep_going = {},
                 Communicator* comm = nullptr);

  int64_t batch() const { return program_.batch(); }
  const Plan& plan() const { return program_.plan(); }

 private:
  // Fills the store's bf16 copy, which training keeps of its own weights, from another arena.
  struct Rounding {
    Rounding(ParamStore& store, Arena from);
    Graph graph;
    std::unique_ptr<Program> program;
  };

  Evaluation evaluate(Loader& loader, int64_t classes, const KeepGoing& keep_going,
                      Communicator* comm);
  void run_model(const Batch& batch);
  void read_answers(Batch& batch, std::vector<float>& logits);  // may mirror the batch

  ModelProgram program_;
  std::unique_ptr<Rounding> averages_, weights_;  // or null
  std::unique_ptr<ResidentImages> images_;
  size_t numbers_;  // logits of a batch
  Tta tta_ = Tta::kNone;
  std::vector<float> mirrored_;  // logits
};

}  // namespace vitrum
