// Predictions from images: what a program that embeds Vitrum needs. See examples/classify.cpp.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "vitrum/core/spares.h"
#include "vitrum/data/decode.h"
#include "vitrum/data/input_size.h"
#include "vitrum/data/preprocess.h"
#include "vitrum/infer/cost_table.h"
#include "vitrum/infer/model_program.h"
#include "vitrum/infer/shared_device.h"
#include "vitrum/weights/frozen_weights.h"

namespace vitrum {

struct PredictorOptions {
  std::string arch = {};                     // the preset a bare weight file is for
  std::optional<InputSize> image_size = {};  // another than the model's: positions are resampled
  std::optional<int64_t> patch_size = {};    // of a ViT: its patches are resized as FlexiViT's
  // Images keep their shapes, with no more patches than that, where the model can do so.
  std::optional<int64_t> max_patches = {};
  std::string device = "auto";  // as --device
  int threads = 0;              // 0: every core this process may use
  // kF32, kBF16, kI8 or kE4M3; empty: what suits the device, and eight bits where weights are
  // stored in those that it is fast in.
  std::optional<DType> precision = {};
  KeepsFloat keeps_float = {};   // in eight bits: layers that stay floats; empty: the file's
  bool e4m3_everywhere = false;  // in fp8: also where a card is faster in bf16 (infer/prepare.h)
  int64_t max_batch = 16;        // images taken at once; a CPU computes fewer
  DecodeOptions decode = {};
  std::vector<std::string> taps = {};  // values inside the model to give out: see graph/taps.h
  // A device of other models too, instead of one of its own: then `device` and `threads` are its.
  std::shared_ptr<SharedDevice> shared_device = {};
};

// One image that is preprocessed already, and where its answer goes.
struct PredictorRow {
  const uint8_t* pixels = nullptr;               // (C, H, W)
  float *logits = nullptr, *features = nullptr;  // (classes), (dimension); null: not wanted
  std::span<float* const> taps = {};             // as many as tap_shapes(), or none
  bool finite = true;                            // whether the answer is; set by the run
  InputSize size = {};                           // where images keep their shapes; else 0
};

class Engine;
struct Job;

struct Prediction {
  int index = 0;      // of the class
  std::string label;  // the model's own, or the index
  float probability = 0;
};

// The `count` most probable classes, the best first; of equal ones the lower index. Fewer where
// there are fewer.
std::vector<Prediction> top_predictions(std::span<const float> logits,
                                        const std::vector<std::string>& labels, size_t count);

// A model that is ready to run. Every member may be called from several threads at once: decoding
// and preprocessing happen in the thread that calls, and images of calls that come together are
// computed together, with all the model's own threads. On a CPU, results are the same bits whatever
// the batch, the place in it, the number of threads and what else is running.
class Predictor {
 public:
  // `model` is a model directory, or a weight file where options.arch says of what.
  explicit Predictor(const std::string& model, const PredictorOptions& options = {});
  ~Predictor();

  const ModelSpec& model() const { return spec_; }
  const Backend& backend() const { return device_->backend(); }
  DType precision() const { return precision_; }
  const FrozenWeights& weights() const { return weights_; }
  SharedDevice& device() { return *device_; }
  // For programs of one's own on the same weights; they run during a turn of the device, and what
  // they answer is for check_answer().
  ParamStore& store() { return weights_.store(); }
  // Behind every run: fails where the weights were cut short meanwhile, and where the answer is not
  // finite, naming the weights that are not.
  void check_answer(std::span<const float> answer) const;
  int64_t max_batch() const { return options_.max_batch; }
  int64_t images_at_once() const { return at_once_; }         // of those, computed together
  Engine& engine() { return *engine_; }                       // through which all calls below go
  int64_t classes() const { return spec_.config.classes(); }  // 0: the model has no head
  int64_t dimension() const { return feature_width(spec_.config); }  // of the features
  // What the taps give for each image; attention in windows has a first dimension for them.
  const std::vector<Shape>& tap_shapes() const { return tap_shapes_; }

  // An image file, the bytes of one (data/decode.h says which), or pixels.
  std::vector<Prediction> classify(const std::string& path, size_t top_k = 5);
  std::vector<Prediction> classify(std::span<const uint8_t> encoded, size_t top_k = 5);
  std::vector<Prediction> classify(const Image& image, size_t top_k = 5);

  // What the head sees: (dimension).
  std::vector<float> features(const std::string& path);
  std::vector<float> features(std::span<const uint8_t> encoded);
  std::vector<float> features(const Image& image);

  // How images become what the model takes. Those of a model for any shapes keep theirs, so that
  // preprocess_of(model()), for one size alone, is another.
  const Preprocess& input() const { return preprocess_; }
  // An image as the model takes it; the size is for its PredictorRow.
  InputSize preprocess(const Image& image, std::span<uint8_t> pixels) const;

  // Any number of images that are preprocessed already, (count, C, H, W) as preprocess_of(model())
  // says, to logits (count, classes) and features (count, dimension); an empty span is not filled.
  // `taps` has none, or one (count, tap_shapes()[i]) for each. Fails where an answer is NaN.
  void run(std::span<const uint8_t> pixels, std::span<float> logits, std::span<float> features,
           std::span<const std::span<float>> taps = {});
  // For images and answers that lie elsewhere, or have another form: `fill` writes the input of
  // images [first, first + batch) of a program, and `read` takes what it gave for them; both are
  // called in a turn of the device. check_answer() is for the caller.
  using Exchange = std::function<void(ModelProgram& program, size_t first)>;
  void run_batches(InputStage from, size_t images, const Exchange& fill, const Exchange& read);
  // For engines: images that lie anywhere, all of one size, as the first ones of a batch. A row
  // that is not finite says so, and leaves the others alone.
  void run_rows(std::span<PredictorRow> rows, int64_t batch);
  // Compiles the programs of every batch size, and times them.
  CostTable warm_up();

  // On a CPU with several threads there is a lane for each of them, with a program for one image.
  // Lanes run beside each other and beside a turn of the device, each on the thread that calls it:
  // where all threads have images, none waits for another.
  size_t lanes() const { return lanes_.size(); }
  void run_alone(PredictorRow& row, size_t number);
  // Compiles their programs, and times all of them at once: images per second.
  double warm_up_lanes();
  void drop_lanes();  // gives back their memory, until they run again

 private:
  struct Outputs {
    std::vector<float> logits, features;
  };
  Outputs run_one(const Image& image);
  void run_job(const std::shared_ptr<Job>& job, std::span<const float> answer);
  // Programs, and what they share, since one runs at a time.
  struct Room {
    Backend* backend = nullptr;
    SharedArena arena = {};
    // By input, its size where images keep their shapes, and batch size. Compiled when first
    // needed, and of shapes those kept that were needed last.
    struct Compiled {
      std::unique_ptr<ModelProgram> program;
      uint64_t used = 0;  // the higher, the later
    };
    std::map<std::tuple<InputStage, InputSize, int64_t>, Compiled> programs = {};
    uint64_t runs = 0;
    std::vector<float> logits = {}, features = {};  // of one batch
    std::vector<std::vector<float>> tapped = {};
  };
  struct Lane {
    explicit Lane(std::unique_ptr<Backend> its) : backend(std::move(its)) {
      room.backend = backend.get();
    }
    std::unique_ptr<Backend> backend;
    std::mutex turn;
    Room room;
    ModelProgram* program = nullptr;
  };
  // During a turn of the device, whoever's room it is: compiling packs weights, which all share.
  ModelProgram& program(Room& room, int64_t batch, InputStage from = InputStage::kPixels,
                        InputSize size = {});
  ModelProgram& program(Lane& lane);
  static void drop_oldest_shape(Room& room);
  void run(ModelProgram& program, Room& room, std::span<PredictorRow> rows);
  double time_alone(Lane& lane, double enough);

  std::string path_;
  PredictorOptions options_;
  ModelSpec spec_;
  ModelConfig stored_;  // as it is on disk: its image size may be another
  std::shared_ptr<SharedDevice> device_;
  Graph parameters_{Mode::kInference};
  int64_t macs_ = 0;  // of one image, without taps
  std::vector<Shape> tap_shapes_;
  FrozenWeights weights_;
  DType precision_;
  Preprocess preprocess_;
  mutable Spares<Preprocessor> preprocessors_;  // as many as were busy at once
  int64_t at_once_;
  // Only touched by who has a turn of the device. Its batch sizes are those of the engine's
  // CostTable, and in run_batches() powers of two.
  Room room_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace vitrum
