#include "vitrum/serve/served_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/sha.h"
#include "vitrum/data/encode_png.h"
#include "vitrum/data/orientation.h"
#include "vitrum/explain/explain_photo.h"
#include "vitrum/infer/describe.h"
#include "vitrum/train/model_card.h"
#include "vitrum/weights/checkpoint.h"

namespace vitrum::serve {
namespace {

// Twelve hexadecimal digits of the digest of everything the answers of a loaded model depend on:
// configuration, preprocessing and weights, by name. Other weights that lie beside them do not
// count.
std::string digest_of(const std::string& model) {
  namespace fs = std::filesystem;
  const std::string weights = weights_path(model);
  const bool sharded = weights.ends_with(".json");
  std::vector<fs::path> files = {weights};
  std::error_code ignored;
  if (fs::is_directory(model, ignored))
    for (fs::directory_iterator at(model, ignored), end; at != end; at.increment(ignored)) {
      const std::string ending = at->path().extension();
      const bool counts =
          ending == ".json" || (sharded && (ending == ".safetensors" || ending == ".bin"));
      if (counts && at->path() != weights && at->is_regular_file(ignored))
        files.push_back(at->path());
    }
  std::sort(files.begin(), files.end());
  std::string all;
  for (const auto& file : files) {
    const MappedFile mapped(file.string());
    const auto bytes = mapped.bytes();
    all += file.filename().string() + " " +
           sha256({reinterpret_cast<const char*>(bytes.data()), bytes.size()}) + "\n";
  }
  return sha256(all).substr(0, 12);
}

std::vector<std::shared_ptr<Predictor>> load(const std::string& path,
                                             const std::vector<PredictorOptions>& replicas) {
  std::vector<std::shared_ptr<Predictor>> out;
  for (const PredictorOptions& options : replicas)
    out.push_back(std::make_shared<Predictor>(path, options));
  return out;
}

// What the README.md beside the weights says.
std::optional<StatedAccuracy> accuracy_of(const std::string& model) {
  const std::string path = model + "/README.md";
  if (!std::filesystem::is_regular_file(path)) return std::nullopt;
  try {
    return stated_accuracy(read_file(path));
  } catch (const Error&) {  // not worth a model
    return std::nullopt;
  }
}

std::string card_of(const std::string& name, const std::string& version, const std::string& path,
                    Engine& engine) {
  JsonWriter json;
  json.begin_object()
      .field("id", name)
      .field("object", "model")
      .field("owned_by", "vitrum")
      .field("version", version);
  describe(json, engine.predictor());
  json.field("max_batch", engine.most());
  if (const auto stated = accuracy_of(path))
    json.field("accuracy", stated->accuracy).field("data", stated->data);
  describe_labels(json, engine.predictor());
  return json.end_object().str();
}

}  // namespace

ImageSlot::ImageSlot(const Predictor& predictor)
    : pixels(Preprocessor(predictor.input()).bytes()),
      logits(static_cast<size_t>(predictor.classes())),
      features(static_cast<size_t>(predictor.dimension())) {}

ServedModel::ServedModel(std::string name, const std::string& path,
                         const std::vector<PredictorOptions>& replicas, const EngineOptions& engine)
    : name_(std::move(name)),
      engine_(load(path, replicas), engine),
      version_(digest_of(path)),
      card_(card_of(name_, version_, path, engine_)) {}

std::string ServedModel::label(int index) const {
  const std::vector<std::string>& labels = spec().labels;
  const auto i = static_cast<size_t>(index);
  return i < labels.size() ? labels[i] : std::to_string(index);
}

std::unique_ptr<ImageSlot> ServedModel::take_slot() {
  if (auto slot = slots_.take()) return slot;
  return std::make_unique<ImageSlot>(engine_.predictor());
}

std::string ServedModel::explain(const Image& image, int orientation, const std::string& method) {
  const std::lock_guard lock(explain_mutex_);
  Predictor& predictor = engine_.predictor();
  const Preprocess preprocess = preprocess_of(spec());
  Preprocessor preprocessor(preprocess);
  std::vector<uint8_t> pixels(preprocessor.bytes());
  preprocessor.apply(image, pixels);
  const bool gradient = method == "gradient" && predictor.classes() > 0;
  std::vector<LayerAttention> layers;
  Prediction best;
  {
    const SharedDevice::Turn turn(predictor.device());
    if (!attention_)
      attention_ = std::make_unique<AttentionProgram>(
          spec(), predictor.store(),
          AttentionOptions{.gradient = predictor.classes() > 0, .compute = predictor.precision()});
    attention_->run(pixels.data());
    if (predictor.classes() > 0)
      best = top_predictions(attention_->logits(), spec().labels, 1).front();
    if (gradient) attention_->run_backward(best.index);
    layers = attention_->all();
  }
  try {
    predictor.weights().check_intact();
  } catch (const Error&) {  // which names the file; clients are not told where models lie
    fail_exhausted("the model could not run");
  }
  ThreadPool pool(1);
  const ExplainedPhoto photo{image, orientation, best.label};
  const ExplainOptions options{.attention = false,
                               .rollout = !gradient,
                               .gradient = gradient,
                               .layer = {},
                               .head = {},
                               .rolled = {},
                               .target = best.label};
  const Explanation found = explain_photo(photo, preprocess, layers, options, pool);
  if (found.pictures.empty()) fail("no picture of {}", method);
  return encode_png(found.pictures.front().image, pool);
}

}  // namespace vitrum::serve
