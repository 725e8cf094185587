#include "vitrum/train/teacher_logits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "vitrum/core/all_finite.h"
#include "vitrum/core/error.h"
#include "vitrum/core/join.h"
#include "vitrum/core/sha.h"
#include "vitrum/weights/checkpoint.h"
#include "vitrum/weights/convert_floats.h"

namespace vitrum {
namespace {

constexpr const char* kFormat = "vitrum-teacher-logits-1";
constexpr const char* kTensor = "logits";
constexpr int64_t kSampled = 64;  // images whose pixels are looked at

std::string data_digest(const Dataset& data, const Preprocess& preprocess) {
  std::string text = join(data.classes(), "\n");
  for (int64_t i = 0; i < data.size(); ++i) text += fmt::format(" {}", data.label(i));
  Preprocessor preprocessor(preprocess);
  std::vector<uint8_t> pixels(preprocessor.bytes());
  const int64_t stride = std::max<int64_t>(1, data.size() / kSampled);
  for (int64_t i = 0; i < data.size(); i += stride) {
    preprocessor.apply(data.read(i), pixels);
    text += sha256({reinterpret_cast<const char*>(pixels.data()), pixels.size()});
  }
  return sha256(text);
}

Shape shape_of(const TeacherLogitsKey& key, bool flips) {
  return flips ? Shape{key.images, 2, key.classes} : Shape{key.images, key.classes};
}

}  // namespace

std::string teacher_digest(const std::string& teacher, const ModelSpec& spec) {
  const Preprocessing& p = spec.preprocess;
  std::string text = fmt::format("{} {}", join(p.mean, ","), join(p.std, ","));
  const Checkpoint file(weights_path(teacher));
  const std::vector<ParamSpec> params = model_params(spec.config);
  file.check(params, spec.config, spec.config.classes() > 0);
  std::vector<std::byte> scratch;
  for (const ParamSpec& param : params) {
    const auto bytes = file.read(param, spec.config, scratch);
    if (!all_finite(to_floats(bytes, file.dtype(param, spec.config))))
      fail_input("teacher '{}': {} holds NaN or infinite numbers", teacher, param.name);
    text += sha256({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    file.release(param, spec.config);
  }
  file.check_intact();
  return sha256(text);
}

TeacherLogitsKey teacher_logits_key(const std::string& teacher_digest, int64_t classes,
                                    const Dataset& data, const Preprocess& preprocess) {
  return {.images = data.size(),
          .classes = classes,
          .data = data_digest(data, preprocess),
          .teacher = teacher_digest};
}

void write_teacher_logits(const std::string& path, const TeacherLogitsKey& key,
                          std::span<const float> logits) {
  const Shape shape = shape_of(key, key.flips);
  assert(static_cast<int64_t>(logits.size()) == shape.numel());
  const NamedTensor tensor{kTensor, {const_cast<float*>(logits.data()), shape, DType::kF32}};
  write_safetensors(path, std::span(&tensor, 1),
                    {{"format", kFormat}, {"data", key.data}, {"teacher", key.teacher}});
}

TeacherLogits::TeacherLogits(const std::string& path, const TeacherLogitsKey& key)
    : file_(path), classes_(static_cast<size_t>(key.classes)) {
  const auto stated = [&](const char* name) {
    const auto it = file_.metadata().find(name);
    return it == file_.metadata().end() ? std::string() : it->second;
  };
  const TensorInfo* tensor = file_.find(kTensor);
  if (stated("format") != kFormat || !tensor || tensor->dtype != DType::kF32)
    fail_input("'{}' holds no teacher's logits; name a new file to have them written", path);
  const auto refuse = [&](const std::string& what) {
    fail_input("'{}' holds logits {}; remove it or name another file", path, what);
  };
  // One with both answers serves a run without flips as well.
  if (tensor->shape == shape_of(key, true))
    answers_ = 2;
  else if (const Shape expected = shape_of(key, key.flips); tensor->shape != expected)
    refuse(fmt::format("{}, this run needs {}", tensor->shape.str(), expected.str()));
  if (stated("data") != key.data) refuse("of other images, or of these in another order or size");
  if (stated("teacher") != key.teacher) refuse("of another teacher");
  logits_ = file_.bytes(*tensor);
}

void TeacherLogits::rows(std::span<const int64_t> indices, std::span<const uint8_t> mirrored,
                         std::vector<float>& to) const {
  const size_t row = classes_ * sizeof(float);
  to.assign(indices.size() * classes_, 0.f);
  for (size_t i = 0; i < indices.size(); ++i)
    if (indices[i] >= 0) {
      const size_t answer =
          answers_ * static_cast<size_t>(indices[i]) + (!mirrored.empty() && mirrored[i] ? 1 : 0);
      std::memcpy(to.data() + i * classes_, logits_.data() + answer * row, row);
    }
}

}  // namespace vitrum
