// One run as a report shows it.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vitrum/infer/evaluator.h"
#include "vitrum/runtime/summary.h"
#include "vitrum/train/metrics_log.h"
#include "vitrum/train/setup.h"

namespace vitrum {

enum class RunState : uint8_t { kEmpty, kRunning, kStopped, kFinished };

// An image of the page. Pictures are data URLs, "" where there is none.
struct ReportTile {
  SampleResult result;  // of a training sample only index and label
  std::string name;     // the file, or its place in the data set
  std::string image, overlay;
  bool small = false;  // to be enlarged pixel by pixel
};

struct ReportModel {
  std::string name;
  std::vector<int64_t> image_size;  // channels, height, width
  std::vector<LayerSummary> layers;
};

struct ReportRun {
  std::string path, name;
  RunState state = RunState::kEmpty;
  int64_t epochs = 0;  // planned
  std::vector<EpochMetrics> metrics;
  std::vector<std::pair<std::string, std::string>> recipe;  // key, value as TOML
  std::string environment;                                  // JSON
  std::vector<SampleResult> samples;                        // of the last evaluation
  std::vector<std::string> classes;
  int64_t train_images = 0;  // 0: not known
  std::string evaluated;     // a digest of the test images: runs are compared where it is the same
  std::optional<ReportModel> model;
  std::vector<ReportTile> mistakes, uncertain, augmented;
  std::vector<ReportTile> confused;  // more of the pairs of classes that are mistaken most often
  std::string reconstructions;     // of a masked pretraining: a PNG of photos, hidden and filled in
  std::vector<std::string> notes;  // what is missing, and why
};

// Draws over an image what the model looked at for its guess.
using Overlay = std::function<Image(const Image& image, const SampleResult& result)>;

// What the directory holds, complete or not. Fails where it is not a run, or where a file is
// damaged rather than missing.
ReportRun read_run(const std::string& path);

// What occurred in the last evaluation, in the order of true and predicted classes.
Confusion confusion_of(const ReportRun& run);

// Opens the data of a run and adds its pictures; what cannot be had becomes a note.
void add_pictures(ReportRun& run, const Overlay& overlay = {}, int threads = 1);

// Where its model is, "" where none is saved yet.
std::string model_of_run(const std::string& path);

// The same with data that is open already.
void add_test_images(ReportRun& run, const Dataset& test, const Overlay& overlay = {},
                     int threads = 1);
void add_training_samples(ReportRun& run, const Recipe& recipe, const ModelSpec& model,
                          const Dataset& train, int threads = 1);

}  // namespace vitrum
