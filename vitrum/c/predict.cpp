#include "vitrum/c/predict.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "vitrum/c/structs.h"
#include "vitrum/core/all_finite.h"
#include "vitrum/core/shown.h"
#include "vitrum/infer/predict_all.h"

namespace vitrum::c {
namespace {

// One of the cores, until it is given back.
class Core {
 public:
  explicit Core(std::counting_semaphore<>& all) : all_(&all) { all.acquire(); }
  ~Core() { release(); }
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;
  void release() {
    if (all_) std::exchange(all_, nullptr)->release();
  }

 private:
  std::counting_semaphore<>* all_;
};

// As the model takes them, and how large it wants the image to be.
InputSize pixels_of(const Predictor& predictor, const Image& image, std::vector<uint8_t>& pixels) {
  pixels.resize(Preprocessor(predictor.input()).bytes());
  return predictor.preprocess(image, pixels);
}

// What was wrong with the inputs of this thread's last call.
struct InputErrors {
  const vitrum_model* model = nullptr;
  std::map<size_t, std::string> text;
};
InputErrors& input_errors() {
  thread_local InputErrors errors;
  return errors;
}

bool is_ready(const vitrum_input& in) {
  return in.source == VITRUM_FROM_PLANES || in.source == VITRUM_FROM_FLOATS;
}

// The inputs of one call and where their answers go.
class Inputs {
 public:
  Inputs(vitrum_model& model, const vitrum_input* inputs, size_t input_size, size_t count,
         float* logits, float* features, vitrum_status* each)
      : model_(model),
        inputs_(reinterpret_cast<const std::byte*>(inputs)),
        input_size_(input_size),
        count_(count),
        logits_(logits),
        features_(features),
        each_(each),
        classes_(static_cast<size_t>(model.predictor->classes())),
        width_(static_cast<size_t>(model.predictor->dimension())) {
    check();
  }

  size_t size() const { return count_; }
  vitrum_input input(size_t i) const {
    vitrum_input in = {};
    adopt(in, inputs_ + i * input_size_, input_size_, sizeof in, "vitrum_input");
    return in;
  }
  std::string name(size_t i) const {
    const vitrum_input in = input(i);
    if (in.source == VITRUM_FROM_FILE && in.data) return static_cast<const char*>(in.data);
    return count_ == 1 ? "image" : fmt::format("input {}", i);
  }
  Image decode(size_t i) const {
    const vitrum_input in = input(i);
    if (!in.data) fail_usage("data is NULL");
    switch (in.source) {
      case VITRUM_FROM_FILE: return read_image(static_cast<const char*>(in.data), model_.decode);
      case VITRUM_FROM_BYTES:
        return decode_image({static_cast<const uint8_t*>(in.data), in.bytes}, name(i),
                            model_.decode);
      case VITRUM_FROM_PIXELS:
        return image_of(
            {static_cast<const uint8_t*>(in.data), in.width, in.height, in.channels, in.stride},
            model_.decode.max_pixels);
    }
    fail_usage("source is {}; expected one of vitrum_source", in.source);
  }
  // Pixels or floats as the model takes them.
  const void* ready(size_t i) const {
    const vitrum_input in = input(i);
    if (!in.data) fail_usage("data is NULL");
    const ModelConfig& c = model_.predictor->model().config;
    const auto elements = static_cast<size_t>(c.channels() * c.image_h() * c.image_w());
    const bool floats = in.source == VITRUM_FROM_FLOATS;
    const size_t bytes = elements * (floats ? sizeof(float) : 1);
    if (in.bytes != 0 && in.bytes != bytes)
      fail_usage("{} bytes of {}; the model takes {}: ({}, {}, {})", in.bytes,
                 floats ? "floats" : "planes", bytes, c.channels(), c.image_h(), c.image_w());
    if (floats && !all_finite({static_cast<const float*>(in.data), elements}))
      fail_input("{} holds NaN or infinity", name(i));
    return in.data;
  }

  float* logits(size_t i) const { return logits_ ? logits_ + i * classes_ : nullptr; }
  float* features(size_t i) const { return features_ ? features_ + i * width_ : nullptr; }
  void answer(size_t i, std::span<const float> logits, std::span<const float> features) {
    if (logits_) std::copy(logits.begin(), logits.end(), this->logits(i));
    if (features_) std::copy(features.begin(), features.end(), this->features(i));
    done(i);
  }
  void done(size_t i) {
    if (each_) each_[i] = VITRUM_OK;
  }
  void refuse(size_t i, const Problem& problem) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    if (logits_) std::fill_n(logits(i), classes_, kNan);
    if (features_) std::fill_n(features(i), width_, kNan);
    if (each_) each_[i] = static_cast<vitrum_status>(problem.kind);
    input_errors().text.emplace(i, one_line(problem.text));
    if (!failed_ || i < first_) failed_ = true, first_ = i, kind_ = problem.kind;
  }
  // The status of the call, remembered.
  vitrum_status result() const {
    return failed_ ? remember(kind_, input_errors().text[first_].c_str()) : VITRUM_OK;
  }

 private:
  void check() const {
    if (count_ == 0) return;
    given(inputs_, "inputs");
    const size_t row = std::max({input_size_, sizeof(float) * classes_, sizeof(float) * width_});
    if (count_ > static_cast<size_t>(PTRDIFF_MAX) / std::max<size_t>(row, 1))
      fail_usage("count is {}, more than memory holds", count_);
    input(0);  // is the size of an element one?
    if (logits_ && classes_ == 0)
      fail_usage("{} has no head to classify with; ask for features",
                 model_.predictor->model().architecture);
  }

  vitrum_model& model_;
  const std::byte* inputs_;
  size_t input_size_, count_;
  float *logits_, *features_;
  vitrum_status* each_;
  size_t classes_, width_;
  bool failed_ = false;
  size_t first_ = 0;
  ErrorKind kind_ = ErrorKind::kFailed;
};

// Several images for predict_all, which decodes them ahead. Remembers what was wrong with which.
class InputImages final : public Dataset {
 public:
  InputImages(const Inputs& inputs, std::vector<size_t> chosen)
      : inputs_(inputs), chosen_(std::move(chosen)), kinds_(chosen_.size(), ErrorKind::kInput) {}

  size_t input(int64_t index) const { return chosen_[static_cast<size_t>(index)]; }
  ErrorKind kind(int64_t index) const { return kinds_[static_cast<size_t>(index)]; }

  int64_t size() const override { return static_cast<int64_t>(chosen_.size()); }
  ImageSize image_size() const override { return {.channels = 3}; }
  const std::vector<std::string>& classes() const override { return classes_; }
  int label(int64_t) const override { return 0; }
  std::string name(int64_t index) const override { return inputs_.name(input(index)); }
  void read_into(int64_t index, Image& image) const override {
    try {
      image = inputs_.decode(input(index));
    } catch (...) {
      const Problem problem = current_problem();
      kinds_[static_cast<size_t>(index)] = problem.kind;
      throw Error(ErrorKind::kInput, problem.text);  // what a loader goes on after
    }
  }

 private:
  const Inputs& inputs_;
  std::vector<size_t> chosen_;
  std::vector<std::string> classes_;
  mutable std::vector<ErrorKind> kinds_;  // each written by the one thread that reads its image
};

void run_images(vitrum_model& model, Inputs& inputs, std::vector<size_t> chosen) {
  const InputImages images(inputs, std::move(chosen));
  predict_all(*model.predictor, images, {.threads = model.threads, .tolerant = true},
              [&](const PredictedSample& sample) {
                const size_t i = images.input(sample.index);
                if (sample.error.empty())
                  inputs.answer(i, sample.logits, sample.features);
                else
                  inputs.refuse(i, {images.kind(sample.index), std::string(sample.error)});
                return true;
              });
}

// Planes or floats, which need no decoding.
void run_ready(vitrum_model& model, Inputs& inputs, InputStage stage, std::span<const size_t> all) {
  std::vector<size_t> chosen;
  std::vector<const void*> data;
  for (const size_t i : all) try {
      data.push_back(inputs.ready(i));
      chosen.push_back(i);
    } catch (const Error& e) {
      inputs.refuse(i, {e.kind(), e.what()});
    }
  const Predictor& p = *model.predictor;
  const auto classes = static_cast<size_t>(p.classes()), width = static_cast<size_t>(p.dimension());
  std::vector<float> logits, features;
  const auto fill = [&](ModelProgram& program, size_t first) {
    for (size_t k = 0; k < static_cast<size_t>(program.batch()); ++k)
      program.upload_image(k, data[first + k]);
  };
  const auto read = [&](ModelProgram& program, size_t first) {
    const auto batch = static_cast<size_t>(program.batch());
    logits.resize(batch * classes), features.resize(batch * width);
    if (classes > 0) program.read_logits(logits.data());
    program.read_features(features.data());
    p.check_answer(classes > 0 ? logits : features);
    for (size_t k = 0; k < batch; ++k)
      inputs.answer(chosen[first + k], std::span(logits).subspan(k * classes, classes),
                    std::span(features).subspan(k * width, width));
  };
  model.predictor->run_batches(stage, chosen.size(), fill, read);
}

void run(vitrum_model& model, Inputs& inputs) {
  std::vector<size_t> images, planes, floats;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const vitrum_input in = inputs.input(i);
    (!is_ready(in) ? images : in.source == VITRUM_FROM_PLANES ? planes : floats).push_back(i);
  }
  // What fails as a whole fails for each that has no answer yet.
  const auto attempt = [&](const std::vector<size_t>& which, const auto& body) {
    if (which.empty()) return;
    try {
      body();
    } catch (...) {
      const Problem problem = current_problem();
      for (const size_t i : which) inputs.refuse(i, problem);
    }
  };
  attempt(images, [&] {
    if (images.size() > 1) return run_images(model, inputs, images);
    const size_t i = images.front();
    const auto decode = [&] { return inputs.decode(i); };
    predict_image(model, decode, inputs.logits(i), inputs.features(i));
    inputs.done(i);
  });
  attempt(planes, [&] { run_ready(model, inputs, InputStage::kPixels, planes); });
  attempt(floats, [&] { run_ready(model, inputs, InputStage::kNormalized, floats); });
}

}  // namespace

void predict_image(vitrum_model& model, const std::function<Image()>& decode, float* logits,
                   float* features) {
  Predictor& predictor = *model.predictor;
  const SharedDevice::Caller caller(predictor.device());
  Core core(model.cores);
  std::vector<uint8_t> pixels;
  const InputSize size = pixels_of(predictor, decode(), pixels);
  // Where callers compute in lanes each goes on with its core; else others decode meanwhile.
  if (!model.coalesces || predictor.lanes() == 0) core.release();
  const auto job = std::make_shared<Job>();
  job->rows.push_back(
      {.pixels = pixels.data(), .logits = logits, .features = features, .size = size});
  if (model.coalesces)
    predictor.engine().run(job);
  else
    predictor.run_rows(job->rows, 1);
  if (job->error) std::rethrow_exception(job->error);
  constexpr float kNotFinite[] = {std::numeric_limits<float>::infinity()};
  if (!job->rows.front().finite) predictor.check_answer(kNotFinite);
}

}  // namespace vitrum::c

using namespace vitrum::c;

vitrum_status vitrum_predict(vitrum_model* model, const vitrum_input* inputs, size_t input_size,
                             size_t count, float* logits, float* features, vitrum_status* each) {
  vitrum_status status = VITRUM_OK;
  const vitrum_status called = guarded([&] {
    input_errors() = {};
    input_errors().model = &usable(model);
    Inputs all(*model, inputs, input_size, count, logits, features, each);
    run(*model, all);
    status = all.result();
  });
  return called == VITRUM_OK ? status : called;
}

const char* vitrum_input_error(const vitrum_model* model, size_t i) {
  const InputErrors& errors = input_errors();
  const auto found = errors.text.find(i);
  return model && model == errors.model && found != errors.text.end() ? found->second.c_str() : "";
}
