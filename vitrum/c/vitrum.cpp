#include "vitrum/vitrum.h"

#include <unistd.h>

#include <algorithm>
#include <limits>

#include "vitrum/c/model.h"
#include "vitrum/c/predict.h"
#include "vitrum/c/structs.h"
#include "vitrum/core/parallel.h"
#include "vitrum/core/shown.h"
#include "vitrum/infer/describe.h"

namespace {

using namespace vitrum;
using namespace vitrum::c;

std::string& last_error() {
  thread_local std::string text;
  return text;
}

std::string info_of(const std::string& path, Predictor& predictor, int threads) {
  const Preprocessing& p = predictor.model().preprocess;
  JsonWriter json;
  json.begin_object().field("path", path);
  describe(json, predictor);
  const auto numbers = [&](const char* name, const std::vector<float>& values) {
    json.key(name).begin_array();
    for (const float x : values) json.value(x);
    json.end_array();
  };
  numbers("mean", p.mean), numbers("std", p.std);
  json.field("interpolation", p.interpolation)
      .field("crop_pct", p.crop_pct)
      .field("threads", threads)
      .field("max_batch", predictor.max_batch());
  describe_labels(json, predictor);
  return json.end_object().str();
}

PredictorOptions options_of(const vitrum_options& o) {
  if (o.precision < VITRUM_F32 || o.precision > VITRUM_FP8)
    fail_usage(
        "precision is {}; expected VITRUM_F32, VITRUM_BF16, VITRUM_AUTO, VITRUM_INT8 or VITRUM_FP8",
        o.precision);
  const auto in_range = [](const char* name, int64_t value, int64_t most) {
    if (value < 0 || value > most) fail_usage("{} is {}; expected 0 to {}", name, value, most);
  };
  in_range("threads", o.threads, 4096);
  in_range("image_height", o.image_height, 65'535), in_range("image_width", o.image_width, 65'535);
  in_range("max_batch", o.max_batch, 65'536);
  in_range("max_pixels", o.max_pixels, kMaxPixels);
  if ((o.image_height == 0) != (o.image_width == 0))
    fail_usage("image_height is {} and image_width {}; give both or neither", o.image_height,
               o.image_width);
  PredictorOptions options;
  if (o.arch) options.arch = o.arch;
  if (o.device) options.device = o.device;
  options.threads = o.threads;
  if (o.precision != VITRUM_AUTO)
    options.precision = o.precision == VITRUM_BF16   ? DType::kBF16
                        : o.precision == VITRUM_INT8 ? DType::kI8
                        : o.precision == VITRUM_FP8  ? DType::kE4M3
                                                     : DType::kF32;
  options.decode.exif_orientation = o.exif_orientation != 0;
  if (o.max_pixels > 0) options.decode.max_pixels = o.max_pixels;
  if (o.image_height > 0) options.image_size = InputSize{o.image_height, o.image_width};
  if (o.max_batch > 0) options.max_batch = o.max_batch;
  return options;
}

std::span<const uint8_t> bytes_of(const void* data, size_t size) {
  if (size > 0 && !data) fail_usage("data is NULL");
  return {static_cast<const uint8_t*>(data), size};
}

// `source` gives the image.
template <class Source>
vitrum_status classify(vitrum_model* model, const Source& source, vitrum_prediction* predictions,
                       size_t capacity, size_t* count) {
  return guarded([&] {
    usable(model), given(count, "count");
    if (capacity > 0) given(predictions, "predictions");
    const Predictor& predictor = *model->predictor;
    if (predictor.classes() == 0)
      fail_usage("{} has no head to classify with", predictor.model().architecture);
    std::vector<float> logits(static_cast<size_t>(predictor.classes()));
    predict_image(*model, source, logits.data(), nullptr);
    const std::vector<Prediction> best = top_predictions(logits, {}, capacity);
    for (size_t i = 0; i < best.size(); ++i)
      predictions[i] = {model->labels[static_cast<size_t>(best[i].index)].c_str(), best[i].index,
                        best[i].probability};
    *count = best.size();
  });
}

template <class Source>
vitrum_status features(vitrum_model* model, const Source& source, float* out) {
  return guarded([&] {
    usable(model), given(out, "features");
    predict_image(*model, source, nullptr, out);
  });
}

// What `model` is decoded with is only known where it is not null: `usable` has looked by then.
auto from_file(vitrum_model* model, const char* path) {
  return [=] { return read_image(&given(path, "path"), model->decode); };
}
auto from_bytes(vitrum_model* model, const void* data, size_t size) {
  return [=] { return decode_image(bytes_of(data, size), "image", model->decode); };
}
auto from_image(vitrum_model* model, const vitrum_image* image) {
  return [=] { return image_of(given(image, "image"), model->decode.max_pixels); };
}

}  // namespace

vitrum_model::vitrum_model(const std::string& path, const PredictorOptions& options, bool coalesces)
    : predictor(std::make_shared<Predictor>(path, options)),
      decode(options.decode),
      threads(options.threads > 0 ? options.threads : available_cores()),
      labels(predictor->model().labels),
      info(info_of(path, *predictor, threads)),
      coalesces(coalesces),
      cores(threads),
      process(getpid()) {
  for (auto i = static_cast<int64_t>(labels.size()); i < predictor->classes(); ++i)
    labels.push_back(std::to_string(i));
}

void vitrum_model::check_process() const {
  if (getpid() != process)
    fail_usage(
        "the model was loaded before fork(), and its threads are not in this process; "
        "load it here");
}

namespace vitrum::c {

vitrum_status remember(ErrorKind kind, const char* text) noexcept {
  try {
    last_error() = one_line(text);
  } catch (...) {
    last_error().clear();
  }
  return static_cast<vitrum_status>(kind);
}

Problem current_problem() {
  try {
    throw;
  } catch (const Error& e) {
    return {e.kind(), e.what()};
  } catch (const std::bad_alloc&) {
    return {ErrorKind::kExhausted, "out of memory"};
  } catch (const std::exception& e) {
    return {ErrorKind::kFailed, e.what()};
  } catch (...) {
    return {ErrorKind::kFailed, "unknown error"};
  }
}

}  // namespace vitrum::c

const char* vitrum_version(void) { return VITRUM_VERSION; }

const char* vitrum_last_error(void) { return last_error().c_str(); }

vitrum_status vitrum_load(const char* path, const vitrum_options* options, vitrum_model** model) {
  return guarded([&] {
    given(model, "model") = nullptr;
    given(path, "path");
    vitrum_options o = VITRUM_OPTIONS_INIT;
    if (options) adopt(o, options, options->size, sizeof(size_t), "vitrum_options");
    *model = new vitrum_model(path, options_of(o), o.coalesce != 0);
  });
}

// In a process that was forked there are no threads to wait for, and no way to let go of theirs.
void vitrum_free(vitrum_model* model) {
  if (model && model->process == getpid()) delete model;
}

int32_t vitrum_classes(const vitrum_model* model) {
  return model ? static_cast<int32_t>(model->predictor->classes()) : 0;
}

int32_t vitrum_dimension(const vitrum_model* model) {
  return model ? static_cast<int32_t>(model->predictor->dimension()) : 0;
}

const char* vitrum_label(const vitrum_model* model, int32_t index) {
  if (index < 0 || index >= vitrum_classes(model)) return nullptr;
  return model->labels[static_cast<size_t>(index)].c_str();
}

const char* vitrum_info(const vitrum_model* model) { return model ? model->info.c_str() : nullptr; }

int32_t vitrum_top(const float* logits, int32_t n, int32_t k, int32_t* index, float* probability) {
  int32_t found = -1;
  guarded([&] {
    if (n < 0 || k < 0) fail_usage("n is {} and k {}; expected no less than 0", n, k);
    if (n > 0) given(logits, "logits");
    const auto best = top_predictions({logits, static_cast<size_t>(n)}, {}, static_cast<size_t>(k));
    for (size_t i = 0; i < best.size(); ++i) {
      if (index) index[i] = best[i].index;
      if (probability) probability[i] = best[i].probability;
    }
    found = static_cast<int32_t>(best.size());
  });
  return found;
}

vitrum_status vitrum_classify_file(vitrum_model* model, const char* path,
                                   vitrum_prediction* predictions, size_t capacity, size_t* count) {
  return classify(model, from_file(model, path), predictions, capacity, count);
}

vitrum_status vitrum_classify_bytes(vitrum_model* model, const void* data, size_t size,
                                    vitrum_prediction* predictions, size_t capacity,
                                    size_t* count) {
  return classify(model, from_bytes(model, data, size), predictions, capacity, count);
}

vitrum_status vitrum_classify_image(vitrum_model* model, const vitrum_image* image,
                                    vitrum_prediction* predictions, size_t capacity,
                                    size_t* count) {
  return classify(model, from_image(model, image), predictions, capacity, count);
}

vitrum_status vitrum_features_file(vitrum_model* model, const char* path, float* out) {
  return features(model, from_file(model, path), out);
}

vitrum_status vitrum_features_bytes(vitrum_model* model, const void* data, size_t size,
                                    float* out) {
  return features(model, from_bytes(model, data, size), out);
}

vitrum_status vitrum_features_image(vitrum_model* model, const vitrum_image* image, float* out) {
  return features(model, from_image(model, image), out);
}
