#include "vitrum/vitrum.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "vitrum/core/checked.h"
#include "vitrum/core/error.h"
#include "vitrum/core/shown.h"
#include "vitrum/infer/predictor.h"

// Labels are kept here for every class, so that predictions can point to them.
struct vitrum_model {
  vitrum_model(const std::string& path, const vitrum::PredictorOptions& options)
      : predictor(path, options), labels(predictor.model().labels) {
    for (auto i = static_cast<int64_t>(labels.size()); i < predictor.classes(); ++i)
      labels.push_back(std::to_string(i));
  }
  vitrum::Predictor predictor;
  std::vector<std::string> labels;
};

namespace {

using namespace vitrum;

std::string& last_error() {
  thread_local std::string text;
  return text;
}

vitrum_status remember(ErrorKind kind, const char* text) noexcept {
  try {
    last_error() = one_line(text);
  } catch (...) {
    last_error().clear();
  }
  return static_cast<vitrum_status>(kind);
}

// No exception leaves this file.
template <class Body>
vitrum_status guarded(const Body& body) noexcept {
  try {
    body();
    return VITRUM_OK;
  } catch (const Error& e) {
    return remember(e.kind(), e.what());
  } catch (const std::bad_alloc&) {
    return remember(ErrorKind::kExhausted, "out of memory");
  } catch (const std::exception& e) {
    return remember(ErrorKind::kFailed, e.what());
  } catch (...) {
    return remember(ErrorKind::kFailed, "unknown error");
  }
}

template <class T>
T& given(T* pointer, const char* name) {
  if (!pointer) fail_usage("{} is NULL", name);
  return *pointer;
}

PredictorOptions options_of(const vitrum_options* given_options) {
  vitrum_options o = VITRUM_OPTIONS_INIT;
  if (given_options) {
    if (given_options->size < sizeof(size_t) || given_options->size > 4096)
      fail_usage("vitrum_options.size is {}; start with VITRUM_OPTIONS_INIT", given_options->size);
    std::memcpy(&o, given_options, std::min(sizeof o, given_options->size));
  }
  if (o.precision != VITRUM_F32 && o.precision != VITRUM_BF16)
    fail_usage("precision is {}; expected VITRUM_F32 or VITRUM_BF16", o.precision);
  if (o.threads < 0 || o.threads > 4096) fail_usage("threads is {}; expected 0 to 4096", o.threads);
  PredictorOptions options;
  if (o.arch) options.arch = o.arch;
  if (o.device) options.device = o.device;
  options.threads = o.threads;
  options.precision = o.precision == VITRUM_BF16 ? DType::kBF16 : DType::kF32;
  options.decode.exif_orientation = o.exif_orientation != 0;
  return options;
}

std::span<const uint8_t> bytes_of(const void* data, size_t size) {
  if (size > 0 && !data) fail_usage("data is NULL");
  return {static_cast<const uint8_t*>(data), size};
}

Image image_of(const vitrum_image* image) {
  const vitrum_image& in = given(image, "image");
  given(in.pixels, "image->pixels");
  const bool known = in.channels == 1 || in.channels == 3 || in.channels == 4;
  if (!known) fail_usage("an image of {} channels; expected 1, 3 or 4", in.channels);
  if (in.width < 1 || in.height < 1 || in.width > kMaxPixels / in.height)
    fail_usage("an image of {} x {} pixels; expected 1 to {}", in.width, in.height, kMaxPixels);
  const auto step = static_cast<size_t>(in.channels), width = static_cast<size_t>(in.width);
  const size_t stride = in.stride > 0 ? in.stride : width * step;
  if (stride < width * step)
    fail_usage("a stride of {} bytes; {} pixels of {} channels need {}", stride, in.width,
               in.channels, width * step);
  const size_t bytes =
      capped_add(capped_mul(static_cast<size_t>(in.height) - 1, stride), width * step);
  if (bytes > static_cast<size_t>(PTRDIFF_MAX))
    fail_usage("a stride of {} bytes; {} rows of it are more than memory holds", stride, in.height);
  Image out;
  out.reshape(in.channels == 1 ? 1 : 3, in.height, in.width);
  for (int c = 0; c < out.channels; ++c) {
    uint8_t* to = out.plane(c);
    for (size_t y = 0; y < static_cast<size_t>(in.height); ++y) {
      const uint8_t* row = in.pixels + y * stride + static_cast<size_t>(c);
      for (size_t x = 0; x < width; ++x) *to++ = row[x * step];
    }
  }
  return out;
}

template <class Source>
vitrum_status classify(vitrum_model* model, const Source& source, vitrum_prediction* predictions,
                       size_t capacity, size_t* count) {
  return guarded([&] {
    given(model, "model"), given(count, "count");
    if (capacity > 0) given(predictions, "predictions");
    const std::vector<Prediction> best = model->predictor.classify(source(), capacity);
    for (size_t i = 0; i < best.size(); ++i)
      predictions[i] = {model->labels[static_cast<size_t>(best[i].index)].c_str(), best[i].index,
                        best[i].probability};
    *count = best.size();
  });
}

template <class Source>
vitrum_status features(vitrum_model* model, const Source& source, float* out) {
  return guarded([&] {
    given(model, "model"), given(out, "features");
    const std::vector<float> values = model->predictor.features(source());
    std::copy(values.begin(), values.end(), out);
  });
}

}  // namespace

const char* vitrum_version(void) { return VITRUM_VERSION; }

const char* vitrum_last_error(void) { return last_error().c_str(); }

vitrum_status vitrum_load(const char* path, const vitrum_options* options, vitrum_model** model) {
  return guarded([&] {
    given(model, "model") = nullptr;
    *model = new vitrum_model(&given(path, "path"), options_of(options));
  });
}

void vitrum_free(vitrum_model* model) { delete model; }

int32_t vitrum_classes(const vitrum_model* model) {
  return model ? static_cast<int32_t>(model->predictor.classes()) : 0;
}

int32_t vitrum_dimension(const vitrum_model* model) {
  return model ? static_cast<int32_t>(model->predictor.dimension()) : 0;
}

const char* vitrum_label(const vitrum_model* model, int32_t index) {
  if (index < 0 || index >= vitrum_classes(model)) return nullptr;
  return model->labels[static_cast<size_t>(index)].c_str();
}

vitrum_status vitrum_classify_file(vitrum_model* model, const char* path,
                                   vitrum_prediction* predictions, size_t capacity, size_t* count) {
  const auto source = [&] { return std::string(&given(path, "path")); };
  return classify(model, source, predictions, capacity, count);
}

vitrum_status vitrum_classify_bytes(vitrum_model* model, const void* data, size_t size,
                                    vitrum_prediction* predictions, size_t capacity,
                                    size_t* count) {
  const auto source = [&] { return bytes_of(data, size); };
  return classify(model, source, predictions, capacity, count);
}

vitrum_status vitrum_classify_image(vitrum_model* model, const vitrum_image* image,
                                    vitrum_prediction* predictions, size_t capacity,
                                    size_t* count) {
  return classify(
      model, [&] { return image_of(image); }, predictions, capacity, count);
}

vitrum_status vitrum_features_file(vitrum_model* model, const char* path, float* out) {
  return features(
      model, [&] { return std::string(&given(path, "path")); }, out);
}

vitrum_status vitrum_features_bytes(vitrum_model* model, const void* data, size_t size,
                                    float* out) {
  return features(
      model, [&] { return bytes_of(data, size); }, out);
}

vitrum_status vitrum_features_image(vitrum_model* model, const vitrum_image* image, float* out) {
  return features(
      model, [&] { return image_of(image); }, out);
}
